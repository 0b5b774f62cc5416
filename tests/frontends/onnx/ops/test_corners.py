"""Corners of operators, found by reading them beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.move import _sliced
from tests.frontends.onnx.onnx_support import (
    agree,
    agree_when_open,
    floats,
    model_of,
    ort_run,
    run_graph,
    single,
)

LARGEST = np.iinfo(np.int64).max


@pytest.mark.parametrize("extent", [3, 7, 10, 33])
@pytest.mark.parametrize("scale", [0.7, 0.6, 1.4, 1.7, 2.5])
@pytest.mark.parametrize("opset", [10, 13])
def test_extents_are_rounded_down_from_float32(extent: int, scale: float, opset: int) -> None:
    x = floats(1, 1, 1, extent)
    scales = {"s": np.array([1, 1, 1, scale], np.float32)}
    order = ["x", "s"] if opset == 10 else ["x", "", "s"]
    asymmetric = {} if opset == 10 else {"coordinate_transformation_mode": "asymmetric"}
    agree(
        single("Resize", {"x": x}, constants=scales, order=order, opset=opset, **asymmetric),
        {"x": x},
    )


@pytest.mark.parametrize("sizes", [(2, 42), (5, 3), (7, 22), (3, 1)])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor"])
def test_aligned_corners(sizes: tuple[int, int], rounding: str) -> None:
    x = floats(1, 1, 1, sizes[0])
    model = single(
        "Resize", {"x": x}, constants={"n": np.array([1, 1, 1, sizes[1]])}, opset=13,
        order=["x", "", "", "n"], nearest_mode=rounding,
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip
    agree(model, {"x": x})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "bounds",
    [
        (0, 1.1, 0.1),
        (0.1, 1.1, 0.1),
        (0.2, 1.2, 0.1),
        (0, 0.3, 0.1),
        (1, 0, -0.1),
        (0, -4, -1.5),
        (0, 0, 1),
        (0, -1, 0.5),
    ],
)
def test_ranges_of_floats(dtype: Any, bounds: tuple[float, float, float]) -> None:
    constants = {n: np.array(b, dtype) for n, b in zip("abc", bounds, strict=True)}
    x = np.zeros((), dtype)
    model = single("Range", {"x": x}, constants=constants, order=["a", "b", "c"])
    agree(model, {"x": x})
    (found,) = run_graph(import_model(model), {"x": x}).values()
    assert not np.signbit(found[:1]).any(), "0 + 0 * -1.0 is not -0.0"


@pytest.mark.parametrize("start", [-5, -3, -1, 0, 2, 4, LARGEST, -LARGEST - 1, (1 << 31) - 1])
@pytest.mark.parametrize("end", [-5, -4, -1, 0, 3, LARGEST, -LARGEST - 1, (1 << 31) - 1])
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slices(start: int, end: int, step: int) -> None:
    given = {"s": [start], "e": [end], "a": [0], "t": [step]}
    constants = {n: np.array(v) for n, v in given.items()}
    x = floats(3)
    agree(single("Slice", {"x": x}, constants=constants), {"x": x})


def test_slices_of_large_tensors() -> None:
    """Where extents are known, bounds of 2^31 and more are places."""
    assert _sliced(3_000_000_000, 3_000_000_010, 1, 4_000_000_000) == (3_000_000_000, 10)
    assert _sliced(3_000_000_010, 3_000_000_000, -1, 4_000_000_000) == (3_000_000_010, 10)


@pytest.mark.parametrize("bounds", [(0, 1e308, 1e-10), (-1e308, 1e308, 1.0)])
def test_ranges_of_too_many_elements(bounds: tuple[float, float, float]) -> None:
    constants = {n: np.array(float(b)) for n, b in zip("abc", bounds, strict=True)}
    model = single("Range", {"x": np.zeros(())}, constants=constants, order=["a", "b", "c"])
    with pytest.raises(fk.ModelError, match="has too many elements"):
        import_model(model)


@pytest.mark.parametrize("attributes", [
    {"output_shape": [3], "pads": [0, 1]}, {"output_shape": [4], "pads": [1, 1]},
    {"output_shape": [5], "strides": [2], "pads": [1, 0]},
])  # fmt: skip
def test_pads_beside_an_output_shape_are_ignored(attributes: dict[str, Any]) -> None:
    x, w = np.array([[[1.0, 2.0]]], np.float32), np.ones((1, 1, 3), np.float32)
    agree(single("ConvTranspose", {"x": x}, constants={"w": w}, **attributes), {"x": x})


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_no_pads_where_strides_leave_gaps(auto_pad: str) -> None:
    x, w = floats(1, 2, 4, 3), {"w": floats(2, 3, 2, 3)}
    same: dict[str, Any] = {"strides": [3, 4], "auto_pad": auto_pad}
    agree(single("ConvTranspose", {"x": x}, constants=w, opset=11, **same), {"x": x})


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
def test_unpooling_undoes_pooling(ceil: int, pads: list[int]) -> None:
    """The indices are those in the given shape."""
    x = floats(2, 3, 8, 7)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": pads}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "i"], ceil_mode=ceil, **window),
        helper.make_node("MaxUnpool", ["p", "i", "s"], ["y"], **window),
    ]
    pooled = ort_run(model_of(nodes[:1], {"x": x}, ["p", "i"], {}, 17), {"x": x})
    wanted = np.zeros_like(x)
    wanted.flat[pooled["i"]] = pooled["p"]
    model = model_of(nodes, {"x": x}, ["y"], {"s": np.array(x.shape)}, 17)
    np.testing.assert_array_equal(fk.compile_onnx(model, threads=1).run({"x": x})["y"], wanted)
    if not ceil:  # which ONNX Runtime finds too large
        np.testing.assert_array_equal(ort_run(model, {"x": x})["y"], wanted)


def test_open_extents_may_fit_what_the_file_says() -> None:
    """The file says of three sequences how long they are, but not that there are three."""
    x, lengths = floats(5, 3), np.array([1, 3, 2])
    model = single("ReverseSequence", {"x": x}, constants={"n": lengths})
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    agree_when_open(model, {"x": x})
    image, offset = floats(1, 6, 4, 4), floats(1, 2, 3, 3)
    constants = {"w": floats(2, 6, 2, 2), "o": np.tile(offset, (1, 12, 1, 1))}
    model = single("DeformConv", {"x": image}, constants=constants, opset=19, offset_group=3)
    agree_when_open(model, {"x": image})


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_padding_beside_nothing(mode: str) -> None:
    x = floats(3, 0, 4)
    pads = {"p": np.array([1, 0, 2, 0, 0, 0])}
    model = single("Pad", {"x": x}, constants=pads, opset=19, mode=mode)
    found = run_graph(import_model(model), {"x": x})["y0"]
    assert found.shape == (4, 0, 6)
    if mode != "wrap":  # which ONNX Runtime refuses
        assert ort_run(model, {"x": x})["y0"].shape == found.shape


def test_nothing_resized_to_nothing() -> None:
    x = floats(2, 0, 3)
    sizes = {"n": np.array([2, 0, 4])}
    model = single("Resize", {"x": x}, constants=sizes, order=["x", "", "", "n"], opset=14)
    agree(model, {"x": x})


def test_an_average_of_padding_only() -> None:
    x = floats(1, 2, 3, 5)
    window = {"kernel_shape": [2, 2], "dilations": [4, 2], "pads": [1, 1, 1, 1]}
    agree(single("AveragePool", {"x": x}, opset=19, **window), {"x": x})
    # ONNX Runtime refuses pads as large as the kernel.
    beyond = single("AveragePool", {"x": x}, kernel_shape=[1, 2], pads=[0, 3, 0, 3])
    found = run_graph(import_model(beyond), {"x": x})["y0"]
    wide = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)), mode="edge")
    wanted = np.pad((wide[..., 1:] + wide[..., :-1]) / 2, ((0, 0), (0, 0), (0, 0), (2, 2)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("divisor", [41, 47, 49, 3, 10])
def test_multiples_are_divided_exactly(divisor: int) -> None:
    """A product with the rounded reciprocal would end below some whole numbers."""
    x = np.arange(500, dtype=np.float32) * divisor
    nodes = [
        helper.make_node("Div", ["x", "c"], ["q"]),
        helper.make_node("Floor", ["q"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, ["y"], {"c": np.array(divisor, np.float32)}, 17)
    agree(model, {"x": x})
    np.testing.assert_array_equal(fk.compile_onnx(model).run({"x": x})["y"], np.arange(500))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square_roots_as_powers(dtype: Any) -> None:
    x = np.array([-np.inf, -0.0, 0.0, 2, np.inf, -1, np.nan], dtype)
    model = single("Pow", {"x": x}, constants={"e": np.array(0.5, dtype)}, opset=15)
    agree(model, {"x": x})
    found = fk.compile_onnx(model).run({"x": x})["y0"]
    assert found[0] == np.inf and not np.signbit(found[1:4]).any()


@pytest.mark.parametrize("bounds", [{}, {"min": 0.0}, {"max": 2.0}])
def test_bounds_that_an_early_clip_leaves_out(bounds: dict[str, float]) -> None:
    x = np.array([-np.inf, -3, 4, np.inf, np.nan], np.float32)
    agree(single("Clip", {"x": x}, opset=6, **bounds), {"x": x})


def test_no_axes_to_squeeze_are_all() -> None:
    x = floats(1, 3, 1)
    model = single("Squeeze", {"x": x}, opset=11)
    model.graph.node[0].attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    agree(model, {"x": x})


@pytest.mark.parametrize("last", [0, 1])
def test_the_greatest_of_rows_with_nan(last: int) -> None:
    """As numpy: NaN is greater, and less, than all else; the index is one of the row."""
    x = floats(4, 6)
    x[0, 2], x[1], x[2, 3:5] = np.nan, np.nan, np.nan
    for operator in ("ArgMax", "ArgMin"):
        model = single(operator, {"x": x}, axis=1, keepdims=0, select_last_index=last)
        (found,) = run_graph(import_model(model), {"x": x}).values()
        expected = (np.argmax if operator == "ArgMax" else np.argmin)(x[:, ::-1] if last else x, 1)
        np.testing.assert_array_equal(found, 5 - expected if last else expected)


def test_the_default_of_a_table_of_strings() -> None:
    x = np.array([0, 5])
    default = helper.make_tensor("default", TensorProto.STRING, [1], [b"?"])
    model = single(
        "LabelEncoder", {"x": x}, domain="ai.onnx.ml", keys_int64s=[0], values_strings=["a"],
        default_tensor=default,
    )  # fmt: skip
    (found,) = fk.compile_onnx(model).run({"x": x}).values()
    assert found.tolist() == ["a", "?"]


def called(*functions: Any, **calls: str) -> Any:
    """A model that calls functions of the domain `own` of a."""
    nodes = [
        helper.make_node("f", ["a"], [out], domain="own", overload=which)
        for out, which in calls.items()
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("a", TensorProto.FLOAT, [2])],
        [info(out, TensorProto.FLOAT, [2]) for out in calls],
    )  # fmt: skip
    return helper.make_model(
        graph, functions=functions, ir_version=10,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )  # fmt: skip


def function(nodes: list[Any], overload: str = "") -> Any:
    made = helper.make_function("own", "f", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])
    made.overload = overload
    return made


def constant(value: float, name: str) -> Any:
    tensor = helper.make_tensor(name, TensorProto.FLOAT, [1], [value])
    return helper.make_node("Constant", [], [name], value=tensor)


def test_a_branch_of_a_function_may_define_what_the_caller_has() -> None:
    """`a` of the caller is `x` of the function, whose branch has an `a` of its own."""
    info = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    branch = helper.make_graph(
        [constant(5, "a"), helper.make_node("Add", ["a", "x"], ["o"])], "b", [], [info]
    )
    yes = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=yes),
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
    ]
    model, x = called(function(nodes), y=""), np.array([1, 2], np.float32)
    (found,) = run_graph(import_model(model), {"a": x}).values()
    np.testing.assert_array_equal(found, x + 5)


def test_overloads_of_a_function() -> None:
    made = [
        function([constant(n, "k"), helper.make_node("Add", ["x", "k"], ["y"])], which)
        for n, which in enumerate("ab", 1)
    ]
    x = np.array([1, 2], np.float32)
    found = run_graph(import_model(called(*made, p="a", q="b")), {"a": x})
    np.testing.assert_array_equal(found["p"], x + 1)
    np.testing.assert_array_equal(found["q"], x + 2)
