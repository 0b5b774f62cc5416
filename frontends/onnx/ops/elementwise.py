"""Elementwise operators of one operand, and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.node import Compute, InC, Node, Result, Same, Unsupported, Value, operator
from frontends.onnx.core.tensors import element_type
from frontends.onnx.ops.broadcasting import operand
from frontends.onnx.ops.fill import filled
from frontends.onnx.ops.select import opaque, taken
from poly.ir.dtypes import BOOL, DType


def elementwise(name: str, x: Value, value: str, dtype: DType | None = None) -> Compute:
    """Y[i] = value, where `value` is a format over the read of X."""
    out = dtype or x.dtype
    indices = names(x.rank)
    text = value.format(at("X", indices))
    program = function(
        name,
        [declare("X", x.dtype, x.shape)],
        [declare("Y", out, x.shape)],
        [line(f"{at('Y', indices)} = {text}", dict(zip(indices, x.shape, strict=True)))],
    )
    return Compute(program, (x,))


#: Operators without attributes: ONNX name and the value as a format over the operand.
_PLAIN = {
    "Abs": "abs({0})",
    "Neg": "-{0}",
    "Sign": "sign({0})",
    "Floor": "floor({0})",
    "Ceil": "ceil({0})",
    "Round": "round({0})",
    "Sqrt": "sqrt({0})",
    "Exp": "exp({0})",
    "Log": "log({0})",
    "Sin": "sin({0})",
    "Cos": "cos({0})",
    "Tan": "tan({0})",
    "Asin": "asin({0})",
    "Acos": "acos({0})",
    "Atan": "atan({0})",
    "Sinh": "sinh({0})",
    "Cosh": "cosh({0})",
    "Tanh": "tanh({0})",
    "Asinh": "asinh({0})",
    "Acosh": "acosh({0})",
    "Atanh": "atanh({0})",
    "Erf": "erf({0})",
    "Sigmoid": "sigmoid({0})",
    "Reciprocal": "1 / {0}",
    "Relu": "max({0}, 0)",
    "Softsign": "{0} / (1 + abs({0}))",
    "Softplus": "max({0}, 0) + log(1 + exp(-abs({0})))",
    "HardSwish": "{0} * max(0, min(1, {0} / 6 + 0.5))",
    "Mish": "{0} * tanh(max({0}, 0) + log(1 + exp(-abs({0}))))",
    "Not": "not {0}",
    "BitwiseNot": "~{0}",
}


def _register_plain(name: str, value: str) -> None:
    @operator(name)
    def plain(node: Node) -> Sequence[Result]:
        return [elementwise(name.lower(), node.required(0), value)]


for _name, _value in _PLAIN.items():
    _register_plain(_name, _value)

#: Operators with float attributes: name, attributes with defaults, value over {0} and them.
_WITH_ATTRIBUTES: dict[str, tuple[dict[str, float], str]] = {
    "LeakyRelu": ({"alpha": 0.01}, "select({0} < 0, {alpha} * {0}, {0})"),
    "Elu": ({"alpha": 1.0}, "select({0} < 0, {alpha} * (exp({0}) - 1), {0})"),
    "Celu": ({"alpha": 1.0}, "max({0}, 0) + min(0, {alpha} * (exp({0} / {alpha}) - 1))"),
    "Selu": (
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
        "{gamma} * select({0} <= 0, {alpha} * (exp({0}) - 1), {0})",
    ),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, "max(0, min(1, {alpha} * {0} + {beta}))"),
    "ThresholdedRelu": ({"alpha": 1.0}, "select({0} > {alpha}, {0}, 0)"),
    "Swish": ({"alpha": 1.0}, "{0} * sigmoid({alpha} * {0})"),
    "Shrink": (
        {"lambd": 0.5, "bias": 0.0},
        "select({0} < -{lambd}, {0} + {bias}, select({0} > {lambd}, {0} - {bias}, 0))",
    ),
}


def _register_attributes(name: str, defaults: dict[str, float], value: str) -> None:
    @operator(name)
    def with_attributes(node: Node) -> Sequence[Result]:
        x = node.required(0)
        numbers = {k: literal(node.number(k, v)) for k, v in defaults.items()}
        text = value.format("{0}", **numbers)
        if x.dtype.is_integer:  # Shrink takes integers, with float attributes
            text = f"{x.dtype}({text})"
        return [elementwise(name.lower(), x, text)]


for _name, (_defaults, _value) in _WITH_ATTRIBUTES.items():
    _register_attributes(_name, _defaults, _value)


@operator("Gelu")
def gelu(node: Node) -> Sequence[Result]:
    """x/2 * (1 + erf(x / sqrt(2))), or the approximation with tanh."""
    kind = node.word("approximate", "none")
    if kind == "none":
        text = "0.5 * {0} * (1 + erf({0} * 0.7071067811865476))"
    elif kind == "tanh":
        text = "0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))"
    else:
        raise node.fail(f"approximate = {kind!r} does not exist")
    return [elementwise("gelu", node.required(0), text)]


@operator("IsNaN")
def is_nan(node: Node) -> Sequence[Result]:
    """Whether an element is not a number."""
    return [elementwise("is_nan", node.required(0), "isnan({0})", BOOL)]


@operator("IsInf")
def is_inf(node: Node) -> Sequence[Result]:
    """Whether an element is infinite, with one of the signs that the attributes select."""
    positive, negative = node.flag("detect_positive", True), node.flag("detect_negative", True)
    if positive and negative:
        text = "isinf({0})"
    elif positive or negative:
        text = "isinf({0}) and {0} " + (">" if positive else "<") + " 0"
    else:
        text = "isinf({0}) and false"
    return [elementwise("is_inf", node.required(0), text, BOOL)]


@operator("Identity", "Dropout")
def identity(node: Node) -> Sequence[Result]:
    """The operand; Dropout does nothing in inference."""
    x = node.required(0)
    if node.operator == "Identity":
        return [Same(x)]
    if node.opset < 7 and not node.flag("is_test") and node.has_output(1):
        # Old models leave is_test at its default and still mean inference, but then no mask.
        raise Unsupported("Dropout in training mode")
    training = node.known(2, "training_mode") if node.opset >= 12 else None
    if training is not None and bool(training.any()):
        raise Unsupported("Dropout in training mode")
    if not node.has_output(1):
        return [Same(x)]
    return [Same(x), filled(x.shape, BOOL if node.opset >= 10 else x.dtype, "1")]


@operator("Cast", "CastLike")
def cast(node: Node) -> Sequence[Result]:
    """Each element in another type; floats are truncated to integers."""
    x = node.required(0)
    if node.operator == "CastLike":
        to = node.required(1).dtype
    elif node.opset < 6:
        to = element_type(node.word("to", ""), node)
    else:
        to = element_type(node.integer("to", 0), node)
    if to == x.dtype:
        return [Same(x)]
    return [elementwise("cast", x, f"{to}({{0}})", to)]


def _scalar(node: Node, value: Value, what: str) -> str:
    """A scalar operand as text: a literal when it is known, a read otherwise."""
    if value.size != 1:
        raise node.fail(f"{what} must be a scalar")
    assert value.array is not None
    item = value.array.reshape(-1)[0]
    if value.dtype.is_float:
        return literal(float(item))
    return literal(int(item))


@operator("Clip")
def clip(node: Node) -> Sequence[Result]:
    """min(max(x, low), high); the bounds are attributes until opset 10, then inputs."""
    x = node.required(0)
    indices = names(x.rank)
    text = at("X", indices)
    values, inputs = [x], [declare("X", x.dtype, x.shape)]
    largest = float(np.finfo(np.float32).max)
    bounds = (("min", "max", -largest), ("max", "min", largest))
    for position, (name, fn, default) in enumerate(bounds, start=1):
        if node.opset < 11:
            text = f"{fn}({text}, {literal(node.number(name, default))})"
            continue
        bound = node.optional(position)
        if bound is None:
            continue
        if bound.size != 1:
            raise node.fail(f"{name} must be a scalar")
        if bound.array is not None:
            text = f"{fn}({text}, {_scalar(node, bound, name)})"
        else:
            values.append(bound)
            inputs.append(declare("LH"[position - 1], bound.dtype, bound.shape))
            text = f"{fn}({text}, {at('LH'[position - 1], (0,) * bound.rank)})"
    if text == at("X", indices):
        return [Same(x)]
    ranges = dict(zip(indices, x.shape, strict=True))
    lines = [line(f"{at('Y', indices)} = {text}", ranges)]
    program = function("clip", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, tuple(values))]


@operator("PRelu")
def prelu(node: Node) -> Sequence[Result]:
    """x where it is positive, slope * x elsewhere."""
    x, slope = node.required(0), node.required(1)
    shape = slope.shape
    if node.opset < 7 and len(shape) == 1 and x.rank > 1 and shape[0] == x.shape[1]:
        shape = (shape[0], *(1 for _ in x.shape[2:]))  # one slope for each channel
    indices = names(x.rank)
    suffix = x.shape[x.rank - len(shape) :]
    if len(shape) > x.rank or any(e not in (1, s) for e, s in zip(shape, suffix, strict=True)):
        raise node.fail(f"slope {list(shape)} does not broadcast to {list(x.shape)}")
    read = operand("S", shape, indices, x.shape)
    if shape != slope.shape:
        read = f"S[{indices[1]}]"
    source = at("X", indices)
    lines = [
        line(
            f"{at('Y', indices)} = select({source} < 0, {read} * {source}, {source})",
            dict(zip(indices, x.shape, strict=True)),
        )
    ]
    inputs = [declare("X", x.dtype, x.shape), declare("S", slope.dtype, slope.shape)]
    program = function("prelu", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x, slope))]


@operator("BitCast")
def bit_cast(node: Node) -> Sequence[Result]:
    """The same bits as another type of the same width."""
    x = node.required(0)
    to = element_type(node.integer("to", 0), node)
    if to.bits != x.dtype.bits:
        raise node.fail(f"{x.dtype} and {to} differ in width")
    if to == x.dtype:
        return [Same(x)]
    in_c = InC("bit_cast", (x.shape,), (math.prod(x.shape) * to.bytes,))
    return opaque([x], [to], lambda arrays, _: [taken(arrays, 0).view(to.numpy)], in_c)
