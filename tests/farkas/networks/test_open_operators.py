"""Operators that once asked for the number of an open size: one compilation serves them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import farkas as fk
from tests.farkas.open_networks import F, L, Network, ints, node, one_compilation

#: Sizes of x, float32 [n, 3, m].
X = {"x": (F, ["n", 3, "m"])}
SIZES = {"n": (3, 9), "m": (5, 40)}


def of(*nodes: object, constants: dict[str, np.ndarray] | None = None, **more: object) -> Network:
    """A network on x, whose last node gives y."""
    return Network(list(nodes), {**X, **more}, ["y"], constants or {}, SIZES)  # type: ignore[arg-type]


LENGTH = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "two"], ["m"])]
TWO = {"two": np.array(2)}


def resized(mode: str, coordinates: str, *scales: float, **attributes: object) -> Network:
    """The last axes of an image, of open sizes, resized."""
    shape = [1, 2, 3, 4][: 4 - len(scales)] + ["n", "m"][2 - len(scales) :]
    factors = np.array([1] * (4 - len(scales)) + list(scales), np.float32)
    resize = node(
        "Resize", ["x", "", "scales"], ["y"], mode=mode,
        coordinate_transformation_mode=coordinates, **attributes,
    )  # fmt: skip
    return Network([resize], {"x": (F, shape)}, ["y"], {"scales": factors}, SIZES)


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
    "gather-some": of(node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, -2, -3)}),
    "gather-mixed": of(node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, 0, 2)}),
    "gather-matrix": of(
        node("Gather", ["x", "i"], ["y"], axis=2), constants={"i": ints(-1, 0, 2, 1).reshape(2, 2)}
    ),
    "tile": of(node("Tile", ["x", "r"], ["y"]), constants={"r": ints(2, 1, 3)}),
    "tile-open": of(
        *LENGTH,
        node("Concat", ["one", "one", "m"], ["r"], axis=0),
        node("Tile", ["x", "r"], ["y"]),
        constants={"one": ints(1), "two": ints(2)},
    ),
    "one-hot": of(
        *LENGTH,
        node("OneHot", ["t", "m", "v"], ["y"]),
        t=(L, ["n", 2]),
        constants={**TWO, "v": np.float32([0, 1])},
    ),
    "pad-wrap": replace(
        of(node("Pad", ["x", "p"], ["y"], mode="wrap"), constants={"p": ints(1, 0, 2, 0, 0, 3)}),
        opset=19,
    ),
    "grid-sample": Network(
        [node("GridSample", ["x", "g"], ["y"])],
        {"x": (F, [2, 3, "n", "m"]), "g": (F, [2, 4, "m", 2])},
        ["y"],
        {},
        SIZES,
    ),
    "linear-0.5": resized("linear", "half_pixel", 0.5),
    "linear-1.5": resized("linear", "asymmetric", 1.5),
    "linear-3": resized("linear", "pytorch_half_pixel", 3),
    "linear-two": resized("linear", "half_pixel", 2, 1.5),
    "linear-corners": resized("linear", "align_corners", 2, 3),
    "linear-antialias": replace(resized("linear", "half_pixel", 0.5, 0.75, antialias=1), opset=18),
    "cubic": resized("cubic", "half_pixel", 1.5, 2),
    "cubic-inside": resized("cubic", "half_pixel", 1.5, 2, exclude_outside=1),
    "nearest-0.5": resized("nearest", "asymmetric", 0.5, nearest_mode="floor"),
    "nearest-1.5": resized("nearest", "half_pixel", 1.5),
    "nearest-ceil": resized("nearest", "half_pixel", 1.25, nearest_mode="ceil"),
    "nearest-corners": resized("nearest", "align_corners", 1.5),
    "linear-to": to_size("linear", "half_pixel"),
    "linear-to-corners": to_size("linear", "align_corners"),
    "nearest-to": to_size("nearest", "asymmetric", nearest_mode="floor"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_one_compilation_serves_all_sizes(name: str) -> None:
    one_compilation(NETWORKS[name], steps=6)


@pytest.mark.parametrize(("attributes", "parts"), [({}, 2), ({"inverse": 1}, 2),
                                                   ({"onesided": 1}, 1)])  # fmt: skip
def test_fourier_transforms_that_are_too_long_for_a_table(
    attributes: dict[str, int], parts: int
) -> None:
    """ONNX Runtime's are right to three digits only."""
    dft = node("DFT", ["x"], ["y"], axis=1, **attributes)
    network = Network([dft], {"x": (F, [2, "n", parts])}, ["y"], {}, {})
    model, rng = fk.compile_onnx(network.model, threads=1), np.random.default_rng(1)
    for n in (2200, 20, 3001, 2100):
        x = rng.standard_normal((2, n, parts)).astype(np.float32)
        signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        wanted = (np.fft.ifft if attributes.get("inverse") else np.fft.fft)(signal, axis=1)
        wanted = wanted[:, : n // 2 + 1] if attributes.get("onesided") else wanted
        wanted = np.stack([wanted.real, wanted.imag], -1)
        found = model.run({"x": x})["y"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_corners_of_sizes_that_are_rounded_down(scale: float) -> None:
    """ONNX Runtime and the standard's reference differ; open sizes are as fixed ones."""
    model = fk.compile_onnx(resized("linear", "align_corners", scale).model)
    for m in (5, 8, 11):
        x = {"x": np.random.default_rng(m).standard_normal((1, 2, 3, m)).astype(np.float32)}
        found, wanted = model.run(x)["y"], model.specialize(m=m).run(x)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert len(model.conditions) == 1
