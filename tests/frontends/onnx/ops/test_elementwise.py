"""Elementwise operators, reductions and casts against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from poly.ir.graph import Call
from tests.frontends.onnx.onnx_support import agree, close, floats, run_graph, single

ANYWHERE = "Abs Neg Sign Floor Ceil Round Exp Sin Cos Tan Atan Sinh Cosh Tanh Asinh Erf Sigmoid"
ANYWHERE += " Reciprocal Relu Softsign Softplus HardSwish Mish Identity"


@pytest.mark.parametrize("operator", ANYWHERE.split())
def test_unary(operator):
    inputs = {"x": floats(3, 4, 5)}
    agree(single(operator, inputs, opset=18), inputs, 2e-5)


@pytest.mark.parametrize(
    ("operator", "low", "high"),
    [("Sqrt", 0, 9), ("Log", 0.1, 9), ("Asin", -1, 1), ("Acos", -1, 1), ("Acosh", 1, 9),
     ("Atanh", -0.9, 0.9)],
)  # fmt: skip
def test_unary_on_its_domain(operator, low, high):
    inputs = {"x": floats(3, 7, low=low, high=high)}
    agree(single(operator, inputs), inputs, 2e-5)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 1, 3, 1, 2, 1, 2)])
def test_any_rank(shape):
    inputs = {"x": floats(*shape).reshape(shape)}
    agree(single("Relu", inputs), inputs)


@pytest.mark.parametrize(
    ("operator", "attrs"),
    [
        ("LeakyRelu", {}), ("LeakyRelu", {"alpha": 0.3}), ("LeakyRelu", {"alpha": -0.3}),
        ("Elu", {"alpha": 0.7}), ("Celu", {"alpha": 1.3}), ("Selu", {}),
        ("Selu", {"alpha": 1.1, "gamma": 0.9}), ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}), ("ThresholdedRelu", {"alpha": 0.5}),
        ("Shrink", {"lambd": 0.7, "bias": 0.2}),
    ],
)  # fmt: skip
def test_unary_with_attributes(operator, attrs):
    inputs = {"x": floats(4, 5)}
    agree(single(operator, inputs, **attrs), inputs)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    inputs = {"x": floats(4, 5)}
    agree(single("Gelu", inputs, opset=20, approximate=approximate), inputs)


def test_special_values():
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1], np.float32)
    for operator in ("IsNaN", "IsInf", "Relu", "Exp", "Abs", "Sigmoid", "Tanh"):
        agree(single(operator, {"x": x}), {"x": x})
    for attrs in ({"detect_negative": 0}, {"detect_positive": 0}):
        agree(single("IsInf", {"x": x}, **attrs), {"x": x})


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8, np.float64, np.float16])
def test_types_of_abs_and_sign(dtype):
    x = np.arange(-4, 8).astype(dtype)
    for operator in ("Abs", "Sign"):
        agree(single(operator, {"x": x}), {"x": x})


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (3, 4)), ((3, 1, 5), (4, 5)), ((2, 3, 4), (1,)), ((2, 3), ()), ((1,), (4, 1, 3)),
     ((0, 3), (1, 3))],
)  # fmt: skip
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_binary_broadcasts(operator, a, b):
    low = 0.5 if operator in ("Pow", "Div") else -2
    inputs = {"a": floats(*a, low=low).reshape(a), "b": floats(*b, low=low).reshape(b)}
    agree(single(operator, inputs), inputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_integer_arithmetic(operator, dtype):
    a = np.array([7, -7, 7, -7, 0, 100], np.int64).astype(dtype)
    b = np.array([2, 2, -2, -2, 5, 7], np.int64).astype(dtype)
    agree(single(operator, {"a": a, "b": b}), {"a": a, "b": b})


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_binary_with_itself(operator):
    inputs = {"x": floats(3, 4, low=1)}
    agree(single(operator, inputs, order=["x", "x"]), inputs)


@pytest.mark.parametrize(
    ("b", "attrs"),
    [((3, 4, 5), {}), ((4, 5), {"broadcast": 1}), ((4,), {"broadcast": 1, "axis": 1}),
     ((3, 4), {"broadcast": 1, "axis": 0}), ((1,), {"broadcast": 1})],
)  # fmt: skip
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_broadcast_attribute_of_old_opsets(operator, b, attrs):
    from frontends.onnx import import_model

    inputs = {"a": floats(3, 4, 5, low=0.5), "b": floats(*b, low=0.5)}
    found = run_graph(import_model(single(operator, inputs, opset=6, **attrs)), inputs)
    axis = attrs.get("axis", 3 - len(b))
    wide = inputs["b"].reshape((1,) * axis + b + (1,) * (3 - axis - len(b)))
    fn = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
    close(found, {"y0": fn[operator](inputs["a"], wide).astype(np.float32)})


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 0.5, -1.0, 2.5, 0.0])
def test_known_exponents(exponent):
    inputs = {"x": floats(3, 4, low=0.1)}
    for shape in ((), (1,), (1, 1, 1)):
        constants = {"e": np.full(shape, exponent, np.float32)}
        agree(single("Pow", inputs, constants=constants), inputs, 2e-5)


@pytest.mark.parametrize(
    ("a", "b"), [(np.int32, np.float32), (np.float32, np.int64), (np.int64, np.int64)]
)
def test_pow_of_mixed_types(a, b):
    inputs = {"x": np.arange(1, 7).astype(a), "e": np.array([0, 1, 2, 3, 2, 1]).astype(b)}
    agree(single("Pow", inputs), inputs)


@pytest.mark.parametrize(("dtype", "fmod"), [(np.int32, 0), (np.int64, 1), (np.float32, 1)])
def test_mod(dtype, fmod):
    inputs = {
        "a": np.array([7, -7, 7, -7, 5], dtype),
        "b": np.array([3, 3, -3, -3, 5], dtype),
    }
    agree(single("Mod", inputs, fmod=fmod), inputs)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    inputs = {"a": np.array([16, 4, 1], np.uint32), "b": np.array([1, 2, 3], np.uint32)}
    agree(single("BitShift", inputs, direction=direction), inputs)


@pytest.mark.parametrize("operator", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bitwise(operator):
    inputs = {"a": np.array([12, 5, -3], np.int32), "b": np.array([10, 6, 7], np.int32)}
    agree(single(operator, inputs, opset=18), inputs)
    agree(single("BitwiseNot", {"a": inputs["a"]}, opset=18), {"a": inputs["a"]})


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_comparisons(operator, dtype):
    inputs = {"a": np.round(floats(3, 4)).astype(dtype), "b": np.round(floats(4)).astype(dtype)}
    agree(single(operator, inputs, opset=16), inputs)


@pytest.mark.parametrize("operator", ["And", "Or", "Xor", "Equal"])
def test_logic(operator):
    inputs = {"a": np.array([0, 0, 1, 1], bool), "b": np.array([0, 1, 0, 1], bool)}
    agree(single(operator, inputs), inputs)
    agree(single("Not", {"a": inputs["a"]}), {"a": inputs["a"]})


@pytest.mark.parametrize("operator", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(operator, count):
    shapes = [(3, 4), (4,), (2, 1, 4)]
    inputs = {f"x{n}": floats(*shapes[n]) for n in range(count)}
    agree(single(operator, inputs), inputs)


def test_a_value_that_is_summed_twice_is_read_once():
    inputs = {"x": floats(3, 4)}
    graph = agree(single("Sum", inputs, order=["x", "x"]), inputs)
    assert len(graph.nodes[0].inputs) == 1


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extrema_of_integers(operator):
    inputs = {"a": np.array([1, -5, 7], np.int64), "b": np.array([2, -6, 7], np.int64)}
    agree(single(operator, inputs), inputs)


@pytest.mark.parametrize(
    "constants",
    [{"lo": np.float32(-0.5)}, {"lo": np.float32(-0.5), "hi": np.float32(0.75)}, {}],
)
def test_clip_with_inputs(constants):
    inputs = {"x": floats(4, 5)}
    arrays = {k: np.array(v) for k, v in constants.items()}
    agree(single("Clip", inputs, constants=arrays), inputs)


def test_clip_with_bounds_that_are_computed():
    inputs = {"x": floats(4, 5), "hi": np.array(0.5, np.float32)}
    agree(single("Clip", inputs, order=["x", "", "hi"]), inputs)


def test_clip_with_attributes():
    inputs = {"x": floats(4, 5)}
    for attrs in ({"min": -0.5}, {"max": 0.25}, {"min": 0.0, "max": 6.0}, {}):
        agree(single("Clip", inputs, opset=9, **attrs), inputs)


def test_clip_of_integers():
    inputs = {"x": np.arange(-5, 5).astype(np.int64)}
    constants = {"lo": np.array(-2, np.int64), "hi": np.array(3, np.int64)}
    agree(single("Clip", inputs, constants=constants), inputs)


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (3, 4, 5), (5,)])
def test_prelu(slope):
    inputs = {"x": floats(2, 3, 4, 5), "s": floats(*slope)}
    agree(single("PRelu", inputs), inputs)


def test_where():
    inputs = {"c": floats(3, 1) > 0, "a": floats(3, 4), "b": floats(2, 1, 4)}
    agree(single("Where", inputs), inputs)


NUMBERS = [np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8]
NUMBERS += [np.uint16, np.uint32, np.uint64, np.bool_]


@pytest.mark.parametrize("source", NUMBERS)
@pytest.mark.parametrize("target", NUMBERS)
def test_cast(source, target):
    from onnx import helper

    x = np.array([0, 1, 2, 100, 3.75], np.float64).astype(source)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    agree(single("Cast", {"x": x}, to=to), {"x": x})


def test_cast_truncates():
    x = np.array([-1.9, -0.5, 0.5, 1.9], np.float32)
    agree(single("Cast", {"x": x}, to=7), {"x": x})


REDUCTIONS = "Sum Mean Prod Max Min L1 L2 SumSquare LogSum LogSumExp".split()


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [0], [1, 2], [-1], [0, -1]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_with_an_attribute(kind, axes, keepdims):
    inputs = {"x": floats(3, 4, 5, low=0.1)}
    attrs = {} if axes is None else {"axes": axes}
    agree(single(f"Reduce{kind}", inputs, opset=12, keepdims=keepdims, **attrs), inputs)


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize(("axes", "noop"), [([], 0), ([0], 0), ([0], 1), ([-1, 0], 0)])
def test_reductions_with_an_input(kind, axes, noop):
    inputs = {"x": floats(3, 4, 5, low=0.1)}
    constants = {"axes": np.array(axes, np.int64)}
    model = single(
        f"Reduce{kind}", inputs, constants=constants, opset=18, noop_with_empty_axes=noop
    )
    agree(model, inputs)


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_over_no_axes(kind):
    """A sum over no axes has one term, to which what the operator does to each still applies."""
    from frontends.onnx import import_model

    inputs = {"x": floats(3, 4, 5, low=0.1)}
    constants = {"axes": np.array([], np.int64)}
    model = single(f"Reduce{kind}", inputs, constants=constants, opset=18, noop_with_empty_axes=1)
    each = {"L1": np.abs, "L2": np.abs, "SumSquare": np.square, "LogSum": np.log}
    found = run_graph(import_model(model), inputs)
    close(found, {"y0": each.get(kind, np.positive)(inputs["x"])})


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "SumSquare"])
def test_reductions_of_integers(kind):
    inputs = {"x": np.arange(1, 13).reshape(3, 4).astype(np.int32)}
    agree(single(f"Reduce{kind}", inputs, opset=12, axes=[1]), inputs)


def test_log_sum_exp_does_not_overflow():
    inputs = {"x": floats(3, 4, low=80, high=200)}
    agree(single("ReduceLogSumExp", inputs, opset=12, axes=[1]), inputs)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reductions(operator, axis, last):
    inputs = {"x": np.round(floats(3, 4, 5))}
    for keepdims in (0, 1):
        model = single(
            operator, inputs, axis=axis, keepdims=keepdims, select_last_index=last, opset=13
        )
        agree(model, inputs)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative_sum(axis, exclusive, reverse):
    inputs = {"x": floats(3, 4, 5)}
    constants = {"axis": np.array(axis, np.int32)}
    model = single("CumSum", inputs, constants=constants, exclusive=exclusive, reverse=reverse)
    agree(model, inputs)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats(dtype):
    inputs = {"x": floats(3, 4, 5, dtype=dtype)}
    rtol = 2e-3 if dtype == np.float16 else 1e-12
    for operator in ("ReduceSum", "ReduceMean", "Softmax", "LogSoftmax", "ReduceMax"):
        agree(single(operator, inputs, opset=13), inputs, rtol)


@pytest.mark.parametrize("opset", [1, 6, 7, 10, 12, 13, 17])
def test_dropout_does_nothing(opset):
    inputs = {"x": floats(3, 4)}
    from frontends.onnx import import_model

    graph = import_model(single("Dropout", inputs, opset=opset))
    assert not [n for n in graph.nodes if isinstance(n, Call)]
    close(run_graph(graph, inputs), {"y0": inputs["x"]})


def test_dropout_mask():
    inputs = {"x": floats(3, 4)}
    agree(single("Dropout", inputs, outputs=2, opset=13), inputs)
