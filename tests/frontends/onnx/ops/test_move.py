"""Operators on shapes and operators that move elements, against ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from frontends.onnx import import_model
from poly.errors import ModelError
from poly.ir.graph import Call, View
from tests.frontends.onnx.onnx_support import agree, close, floats, run_graph, single


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [((4, 6), {}), ((-1,), {}), ((0, -1), {}), ((2, 0, 1, -1), {}), ((24, 1), {})],
)
def test_reshape_is_a_view(shape, attrs):
    inputs = {"x": floats(2, 3, 4)}
    graph = agree(single("Reshape", inputs, constants={"s": ints(*shape)}, **attrs), inputs)
    assert [type(n) for n in graph.nodes] == [View]


def test_reshape_of_nothing():
    inputs = {"x": floats(0, 3)}
    model = single("Reshape", inputs, constants={"s": ints(3, 0)}, allowzero=1)
    agree(model, inputs)


def test_reshape_of_old_opsets():
    inputs = {"x": floats(2, 3)}
    graph = import_model(single("Reshape", inputs, opset=1, shape=[3, -1]))
    close(run_graph(graph, inputs), {"y0": inputs["x"].reshape(3, 2)})


@pytest.mark.parametrize("shape", [(5,), (-1, -1), (7, -1), (1, 2, 3, 0), (-2, 3)])
def test_reshapes_that_cannot_be(shape):
    inputs = {"x": floats(2, 3)}
    model = single("Identity", inputs)
    model.graph.node[0].op_type = "Reshape"
    model.graph.node[0].input.append("s")
    import onnx

    model.graph.initializer.append(onnx.numpy_helper.from_array(ints(*shape), "s"))
    with pytest.raises(ModelError, match="Reshape 'node'"):
        import_model(model)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis):
    inputs = {"x": floats(2, 3, 4)}
    agree(single("Flatten", inputs, axis=axis), inputs)


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_and_unsqueeze(opset):
    inputs = {"x": floats(2, 1, 3, 1)}
    for operator, axes in (("Squeeze", [1]), ("Squeeze", [-1, 1]), ("Unsqueeze", [0, -1, 2])):
        if opset < 13:
            model = single(operator, inputs, opset=opset, axes=axes)
        else:
            model = single(operator, inputs, opset=opset, constants={"a": ints(*axes)})
        agree(model, inputs)
    agree(single("Squeeze", inputs, opset=opset), inputs)


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_transpose(perm):
    inputs = {"x": floats(2, 3, 4)}
    agree(single("Transpose", inputs, perm=list(perm)), inputs)


def test_transpose_of_extents_of_one_is_a_view():
    inputs = {"x": floats(1, 3, 1, 4)}
    graph = agree(single("Transpose", inputs, perm=[1, 0, 3, 2]), inputs)
    assert [type(n) for n in graph.nodes] == [View]
    agree(single("Transpose", inputs), inputs)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 1, 1), (1, 1), (5, 1, 3, 4)])
def test_expand(shape):
    inputs = {"x": floats(3, 1 if len(shape) == 3 and shape[2] == 1 else 4)}
    inputs = {"x": inputs["x"][:1, :1]} if 1 in shape[-2:] else inputs
    agree(single("Expand", inputs, constants={"s": ints(*shape)}), inputs)


@pytest.mark.parametrize("repeats", [(1, 1), (2, 1), (1, 3), (2, 3), (0, 1)])
def test_tile(repeats):
    inputs = {"x": floats(3, 4)}
    agree(single("Tile", inputs, constants={"r": ints(*repeats)}), inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_concat(axis, count):
    shapes = [[2, 3, 4] for _ in range(count)]
    for n, shape in enumerate(shapes):
        shape[axis] += n
    inputs = {f"x{n}": floats(*shape) for n, shape in enumerate(shapes)}
    agree(single("Concat", inputs, axis=axis), inputs)


def test_concat_with_itself_and_with_nothing():
    inputs = {"x": floats(2, 3), "e": floats(0, 3)}
    agree(single("Concat", inputs, order=["x", "e", "x"], axis=0), inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis):
    inputs = {"x": floats(8, 6, 8)}
    agree(single("Split", inputs, outputs=2, opset=11, axis=axis), inputs)
    agree(single("Split", inputs, outputs=2, opset=13, axis=axis), inputs)
    size = inputs["x"].shape[axis]
    parts = [1, size - 3, 2]
    agree(single("Split", inputs, outputs=3, opset=11, axis=axis, split=parts), inputs)
    constants = {"s": ints(*parts)}
    agree(single("Split", inputs, constants=constants, outputs=3, axis=axis), inputs)
    agree(single("Split", inputs, outputs=3, opset=18, axis=axis, num_outputs=3), inputs)


SLICES = [
    ([1], [3], [0], None), ([0, 1], [2, 4], [0, 1], None), ([-3], [-1], [1], None),
    ([0], [1000], [2], None), ([3], [1], [0], None), ([-1], [-1000], [1], [-1]),
    ([1, 4], [4, 0], [0, 2], [2, -2]), ([0], [2**63 - 1], [-1], [3]),
    ([5], [-(2**63)], [2], [-1]), ([1000], [2000], [0], None), ([-1000], [2], [0], None),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slice(starts, ends, axes, steps):
    inputs = {"x": floats(4, 5, 6)}
    constants = {"s": ints(*starts), "e": ints(*ends), "a": ints(*axes)}
    if steps is not None:
        constants["t"] = ints(*steps)
    agree(single("Slice", inputs, constants=constants), inputs)
    if steps is None:
        agree(single("Slice", inputs, opset=9, starts=starts, ends=ends, axes=axes), inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [False, True])
def test_gather(axis, known):
    x = {"x": floats(4, 5, 6)}
    for which in (ints(2), np.array(1), ints(0, 2, 3), ints(3, 0, -1, 1), ints(0, 1, 2, 3),
                  ints(3, 2, 1), ints(0, 1, 1, -4).reshape(2, 2)):  # fmt: skip
        if known:
            agree(single("Gather", x, constants={"i": which}, axis=axis), x)
        else:
            inputs = x | {"i": which}
            agree(single("Gather", inputs, axis=axis), inputs)


def test_gather_of_known_indices_is_affine():
    x = {"x": floats(4, 5)}
    graph = agree(single("Gather", x, constants={"i": ints(3, 2, 1)}), x)
    assert len(graph.nodes[0].inputs) == 1
    with pytest.raises(ModelError, match="out of range"):
        import_model(single("Gather", x, constants={"i": ints(4)}))


def test_gather_never_leaves_its_operand():
    inputs = {"x": floats(4), "i": ints(100, -100)}
    graph = import_model(single("Gather", inputs))
    found = run_graph(graph, inputs)["y0"]
    np.testing.assert_array_equal(found, inputs["x"][[3, 0]])


def test_gather_elements_and_nd():
    inputs = {"x": floats(3, 4), "i": np.array([[0, 2, -1, 1], [2, 2, 0, 1]], np.int64)}
    agree(single("GatherElements", inputs, axis=0), inputs)
    inputs = {"x": floats(3, 4, 5), "i": np.array([[0, 1], [2, -1]], np.int64)}
    agree(single("GatherND", inputs), inputs)
    inputs = {"x": floats(2, 4, 5), "i": np.array([[1], [3]], np.int64)}
    agree(single("GatherND", inputs, batch_dims=1), inputs)
    empty = {"x": floats(2, 3), "i": np.zeros((4, 0), np.int64)}
    agree(single("GatherND", empty), empty)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 3), (0, 2, 0, 0), (2, 1, 1, 2)])
def test_pad(mode, pads):
    inputs = {"x": floats(3, 4)}
    model = single("Pad", inputs, constants={"p": ints(*pads)}, mode=mode, opset=19)
    agree(model, inputs)
    if mode != "wrap":
        agree(single("Pad", inputs, pads=list(pads), mode=mode, opset=10), inputs)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [(-1, 0, 2, -2), (2, -1, -1, 2), (-1, -3, -2, 0), (0, 1, 1, -2)])
def test_negative_pads_crop_first(mode: str, pads: tuple[int, ...]) -> None:
    inputs = {"x": floats(4, 6)}
    model = single("Pad", inputs, constants={"p": ints(*pads)}, mode=mode, opset=19)
    agree(model, inputs)


def test_pad_with_a_value_axes_and_negative_pads():
    inputs = {"x": floats(3, 4)}
    constants = {"p": ints(1, -1, 0, 2), "v": np.array(0.5, np.float32)}
    agree(single("Pad", inputs, constants=constants), inputs)
    constants = {"p": ints(1, 2), "v": np.array(-1.5, np.float32), "a": ints(-1)}
    agree(single("Pad", inputs, constants=constants, opset=18), inputs)
    inputs |= {"v": np.array(2.5, np.float32)}
    model = single("Pad", inputs, constants={"p": ints(1, 2, 0, 0)}, order=["x", "p", "v"])
    agree(model, inputs)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(mode):
    inputs = {"x": floats(2, 8, 3, 4)}
    agree(single("DepthToSpace", inputs, blocksize=2, mode=mode), inputs)
    inputs = {"x": floats(2, 2, 4, 6)}
    agree(single("SpaceToDepth", inputs, blocksize=2), inputs)


@pytest.mark.parametrize("k", [-2, 0, 1, 9])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(k, upper):
    inputs = {"x": floats(2, 3, 4)}
    agree(single("Trilu", inputs, constants={"k": np.array(k)}, upper=upper), inputs)


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_eye_like(k):
    inputs = {"x": floats(3, 4)}
    agree(single("EyeLike", inputs, k=k), inputs)
    agree(single("EyeLike", inputs, k=k, dtype=7), inputs)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    inputs = {"i": np.array([[0, 2], [-1, 3]], np.int64)}
    constants = {"d": np.array(4, np.int64), "v": np.array([0.5, 2.0], np.float32)}
    agree(single("OneHot", inputs, constants=constants, axis=axis), inputs)


@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 2, 3), (1, 1, 1.5, 1.6)])
def test_upsample(scales):
    inputs = {"x": floats(1, 2, 3, 5)}
    constants = {"s": np.array(scales, np.float32)}
    agree(single("Upsample", inputs, constants=constants, opset=9), inputs)
    agree(single("Upsample", inputs, opset=7, scales=[float(s) for s in scales]), inputs)
    agree(single("Resize", inputs, constants=constants, opset=10), inputs)


COORDINATES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_resize_nearest(coordinates, rounding):
    inputs = {"x": floats(1, 2, 5, 6)}
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    for sizes in ((1, 2, 10, 12), (1, 2, 7, 3), (1, 2, 5, 18)):
        constants = {"n": ints(*sizes)}
        order = ["x", "", "", "n"]
        model = single("Resize", inputs, constants=constants, order=order, opset=13, **attrs)
        agree(model, inputs)
    constants = {"s": np.array([1, 1, 2, 0.5], np.float32)}
    model = single("Resize", inputs, constants=constants, order=["x", "", "s"], opset=13, **attrs)
    agree(model, inputs)


def test_doubling_needs_no_table():
    inputs = {"x": floats(1, 2, 3, 5)}
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    graph = agree(single("Resize", inputs, constants=constants, order=["x", "", "s"]), inputs)
    (node,) = graph.nodes
    assert isinstance(node, Call) and len(node.inputs) == 1
    assert "k // 2" in str(node.program)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_nothing(mode: str) -> None:
    inputs, scales = {"x": floats(2, 0, 3)}, np.array([1, 1.5, 2], np.float32)
    order = ["x", "", "s"]
    agree(single("Resize", inputs, constants={"s": scales}, order=order, mode=mode), inputs)
    inputs, scales = {"x": floats(2, 1, 3)}, np.array([1, 0.5, 2], np.float32)
    agree(single("Resize", inputs, constants={"s": scales}, order=order, mode=mode), inputs)


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (0, 0)])
def test_tile_of_nothing(shape: tuple[int, ...]) -> None:
    inputs = {"x": floats(*shape)}
    agree(single("Tile", inputs, constants={"r": ints(2, 2)}), inputs)
