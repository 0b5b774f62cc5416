"""Operators that once asked for the number of an open size: one compilation serves them all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.farkas.open_networks import F, L, Network, ints, node, one_compilation, weights

#: Sizes of x, float32 [n, 3, m].
X = {"x": (F, ["n", 3, "m"])}
SIZES = {"n": (3, 9), "m": (5, 40)}


def of(*nodes: object, constants: dict[str, np.ndarray] | None = None, **more: object) -> Network:
    """A network on x, whose last node gives y."""
    return Network(list(nodes), {**X, **more}, ["y"], constants or {}, SIZES)  # type: ignore[arg-type]


LENGTH = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "two"], ["m"])]
TWO = {"two": np.array(2)}


def resized(mode: str, coordinates: str, scale: float, **attributes: object) -> Network:
    scales = np.array([1, 1, scale], np.float32)
    return of(
        node("Resize", ["x", "", "scales"], ["y"], mode=mode,
             coordinate_transformation_mode=coordinates, **attributes),
        constants={"scales": scales},
    )  # fmt: skip


def to_size(mode: str, coordinates: str, **attributes: object) -> Network:
    """Resized to the size of another input, z, from which nothing else is taken."""
    return Network(
        [
            node("Shape", ["z"], ["k"]),
            node("Concat", ["front", "k"], ["sizes"], axis=0),
            node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode,
                 coordinate_transformation_mode=coordinates, **attributes),
        ],
        {"x": (F, [2, 3, "m"]), "z": (F, ["k"])}, ["y"],
        {"front": ints(2, 3)}, {"m": (5, 40), "k": (5, 40)},
    )  # fmt: skip


NETWORKS = {
    "gather-last": of(
        node("Gather", ["x", "minus"], ["y"], axis=2), constants={"minus": np.array(-1)}
    ),
    "gather-some": of(
        node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, -2, -3)}
    ),
    "gather-mixed": of(node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, 0, 2)}),
    "gather-matrix": of(
        node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, 0, 2, 1).reshape(2, 2)}
    ),
    "tile": of(node("Tile", ["x", "r"], ["y"]), constants={"r": ints(2, 1, 3)}),
    "tile-open": of(
        *LENGTH, node("Concat", ["one", "one", "m"], ["r"], axis=0),
        node("Tile", ["x", "r"], ["y"]),
        constants={"one": ints(1), "two": ints(2)},
    ),
    "expand": of(
        *LENGTH, node("Concat", ["m", "one", "one", "one"], ["r"], axis=0),
        node("Expand", ["x", "r"], ["y"]),
        constants={"one": ints(1), "two": ints(2)},
    ),
    "one-hot": of(
        *LENGTH, node("OneHot", ["t", "m", "v"], ["y"]), t=(L, ["n", 2]),
        constants={**TWO, "v": np.float32([0, 1])},
    ),
    "trilu": of(
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("Trilu", ["t", "k"], ["y"]),
        constants={"k": np.array(1)},
    ),
    "range": of(
        *LENGTH, node("Range", ["zero", "m", "one"], ["r"]), node("Cast", ["r"], ["f"], to=F),
        node("Mul", ["x", "f"], ["y"]), constants={**TWO, "zero": np.array(0), "one": np.array(1)},
    ),
    "range-float": of(
        *LENGTH, node("Cast", ["m"], ["l"], to=F), node("Range", ["zero", "l", "one"], ["f"]),
        node("Mul", ["x", "f"], ["y"]),
        constants={**TWO, "zero": np.array(0, np.float32), "one": np.array(1, np.float32)},
    ),
    "full": of(
        node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["c"]),
        node("Where", ["b", "x", "c"], ["y"]), constants={"b": np.array([[True], [False], [True]])},
    ),
    "scale-by-length": of(
        *LENGTH, node("Cast", ["m"], ["l"], to=F), node("Sqrt", ["l"], ["q"]),
        node("Div", ["x", "q"], ["y"]), constants=TWO,
    ),
    "reverse": of(
        node("Slice", ["x", "a", "b", "two", "c"], ["y"]),
        constants={"a": ints(-1), "b": ints(-(1 << 62)), "two": ints(2), "c": ints(-1)},
    ),
    "last-three": of(
        node("Slice", ["x", "a", "b", "two"], ["y"]),
        constants={"a": ints(-3), "b": ints(1 << 62), "two": ints(2)},
    ),
    "halves": of(
        *LENGTH, node("Div", ["m", "two"], ["h"]), node("Unsqueeze", ["h", "zero"], ["e"]),
        node("Slice", ["x", "zero", "e", "last"], ["y"]),
        constants={**TWO, "zero": ints(0), "last": ints(2)},
    ),
    "split": of(
        node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2) if False
        else node("Concat", ["x", "x"], ["c"], axis=0),
        node("Split", ["c"], ["y", "b"], axis=0),
    ),
    "pad-reflect": of(
        node("Pad", ["x", "p"], ["y"], mode="reflect"), constants={"p": ints(0, 0, 2, 0, 0, 3)}
    ),
    "pad-edge": of(
        node("Pad", ["x", "p"], ["y"], mode="edge"), constants={"p": ints(1, 0, 2, 0, 1, 3)}
    ),
    "cumsum": of(node("CumSum", ["x", "two"], ["y"]), constants=TWO),
    "mean": of(node("ReduceMean", ["x"], ["y"], axes=[0, 2])),
    "argmax": of(node("ArgMax", ["x"], ["y"], axis=2)),
    "softmax": of(node("Softmax", ["x"], ["y"], axis=0)),
    "instance-norm": of(
        node("InstanceNormalization", ["x", "w", "w"], ["y"]), constants={"w": weights(3)}
    ),
    "pool-average": of(node("AveragePool", ["x"], ["y"], kernel_shape=[3], pads=[1, 1], strides=[2])),
    "pool-global": of(node("GlobalAveragePool", ["x"], ["y"])),
    "grid-sample": Network(
        [node("GridSample", ["x", "g"], ["y"])],
        {"x": (F, [2, 3, "n", "m"]), "g": (F, [2, 4, "m", 2])}, ["y"], {}, SIZES,
    ),
    "lstm": Network(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)],
        {"x": (F, ["n", "m", 3])}, ["y"],
        {"w": weights(1, 16, 3), "r": weights(1, 16, 4)}, SIZES,
    ),
    "upsample-linear": resized("linear", "half_pixel", 2),
}  # fmt: skip

for _scale in (0.5, 1.5, 2, 3):
    for _coordinates in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
        NETWORKS[f"linear-{_coordinates}-{_scale}"] = resized("linear", _coordinates, _scale)
NETWORKS |= {
    "nearest-0.5": resized("nearest", "asymmetric", 0.5, nearest_mode="floor"),
    "nearest-1.5": resized("nearest", "half_pixel", 1.5),
    "cubic-2": resized("cubic", "half_pixel", 2),
    "linear-to": to_size("linear", "half_pixel"),
    "linear-to-corners": to_size("linear", "align_corners"),
    "nearest-to": to_size("nearest", "asymmetric", nearest_mode="floor"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_one_compilation_serves_all_sizes(name: str) -> None:
    one_compilation(NETWORKS[name], steps=6)
