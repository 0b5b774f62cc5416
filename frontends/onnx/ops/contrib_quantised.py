"""Quantised operators of ONNX Runtime's own domain.

Those without a sum of products are what their documentation says: operands are dequantised, the
operator computes with floats, and its result is quantised; graph passes find tables and integers in
that.  Sums of products are exact, and rounded once at the end.  ONNX Runtime itself uses tables and
rounded factors for some (QLinearAdd, QLinearSoftmax …), so results may be one step apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import (
    Extent,
    at,
    declare,
    function,
    line,
    literal,
)
from frontends.onnx.core.node import Compute, Node, Result, Value
from frontends.onnx.ops.broadcasting import broadcast, operand, result_shape
from frontends.onnx.ops.contrib_schemas import DOMAIN, Body, contrib
from frontends.onnx.ops.matmul import product
from frontends.onnx.ops.quantised import (
    column_index,
    dequantize,
    quantised,
    quantize,
    scale_at,
    shifted,
    zero_inputs,
)
from poly.ir.dtypes import FLOAT32, INT8, INT32, UINT8, DType

_BYTES = {"T": "int8 uint8", "F": "float"}
#: The opset of the operators that others become.
_OPSET = 13


# --- operands ----------------------------------------------------------------------------------


def _one(node: Node, position: int) -> Value | None:
    """A scale or zero point that has to be the only one."""
    value = node.optional(position)
    if value is not None and value.size != 1:
        raise node.fail(f"input number {position + 1} has shape {list(value.shape)}, not one value")
    return value


def _check_zero(node: Node, position: int, dtype: DType) -> None:
    zero = _one(node, position)
    if zero is not None and zero.dtype != dtype:
        raise node.fail(f"input number {position + 1} is {zero.dtype}, not {dtype}")


def _dequantised(body: Body, position: int) -> str:
    """An operand, which its scale and its zero point follow, as floats."""
    node = body.node
    x, scale = node.required(position), scale_at(node, position + 1)
    if x.dtype not in (INT8, UINT8) or scale.dtype != FLOAT32:
        raise node.fail(f"input number {position + 1} is {x.dtype} with a scale of {scale.dtype}")
    _one(node, position + 1)
    _check_zero(node, position + 2, x.dtype)
    return body.add("DequantizeLinear", *(body.input(position + n) for n in range(3)))


def _quantised(body: Body, value: str, scale: int, dtype: DType) -> str:
    """A float value in 8 bits, with the scale and the zero point at two positions."""
    node = body.node
    scale_at(node, scale)
    _one(node, scale)
    _check_zero(node, scale + 1, dtype)
    # Without a zero point the result would have no type.
    zero = body.input(scale + 1) or body.constant(np.zeros((), dtype.numpy))
    return body.add("QuantizeLinear", value, body.input(scale), zero)


# --- elementwise, and what moves ---------------------------------------------------------------

_PAIR = "A:T A_scale:F A_zero_point:T? B:T B_scale:F B_zero_point:T? C_scale:F C_zero_point:T?"
_UNARY = "X:T X_scale:F X_zero_point:T? Y_scale:F Y_zero_point:T?"


@contrib("QLinearAdd", _PAIR, "C:T", _BYTES)
@contrib("QLinearMul", _PAIR, "C:T", _BYTES)
def qlinear_pair(node: Node) -> Sequence[Result]:
    """The sum or product of two operands, which are broadcast."""
    a, b = node.required(0), node.required(3)
    result_shape(node, broadcast(node, [a.shape, b.shape]), a)
    body = Body(node)
    operands = [_dequantised(body, p) for p in (0, 3)]
    value = body.add(node.operator.removeprefix("QLinear"), *operands)
    return [body.expanded(_OPSET, _quantised(body, value, 6, a.dtype))]


@contrib("QLinearSigmoid", _UNARY, "Y:T", _BYTES)
@contrib("QLinearLeakyRelu", _UNARY, "Y:T", _BYTES, alpha="float")
def qlinear_unary(node: Node) -> Sequence[Result]:
    """A function of each element."""
    body = Body(node)
    value = _dequantised(body, 0)
    if node.operator == "QLinearSigmoid":
        value = body.add("Sigmoid", value)
    else:
        value = body.add("LeakyRelu", value, alpha=node.number("alpha", 0.01))
    return [body.expanded(_OPSET, _quantised(body, value, 3, node.required(0).dtype))]


@contrib(
    "QLinearSoftmax", "X:T X_scale:F x_zero_point:T? y_scale:F y_zero_point:T", "Y:T", _BYTES,
    axis="int", opset="int!",
)  # fmt: skip
def qlinear_softmax(node: Node) -> Sequence[Result]:
    """Softmax under the rules of the opset that an attribute says."""
    x, opset, axis = node.required(0), node.integer("opset", 0), node.integer("axis", -1)
    if opset < 1:
        raise node.fail(f"opset = {opset} does not exist")
    node.axis(axis, x.rank)
    body = Body(node)
    value = body.add("Softmax", _dequantised(body, 0), axis=node.axis(axis, x.rank))
    found = _quantised(body, value, 3, x.dtype)
    return [body.expanded(_OPSET if opset >= 13 else 11, found)]


@contrib(
    "QLinearConcat", "Y_scale:F Y_zero_point:T inputs:V*", "Y:T",
    _BYTES | {"V": "int8 uint8 float"}, axis="int!",
)  # fmt: skip
def qlinear_concat(node: Node) -> Sequence[Result]:
    """Operands with the scale and zero point of the result, one behind the other."""
    count, rest = divmod(len(node.inputs) - 2, 3)
    if rest or not count:
        raise node.fail(f"{len(node.inputs)} inputs, but each operand takes 3 after the first 2")
    body, dtype = Body(node), node.required(1).dtype
    parts = [_quantised(body, _dequantised(body, 2 + 3 * n), 0, dtype) for n in range(count)]
    return [body.expanded(_OPSET, body.add("Concat", *parts, axis=node.integer("axis", 0)))]


@contrib(
    "QLinearWhere",
    "condition:B X:T x_scale:F x_zero_point:T Y:T y_scale:F y_zero_point:T "
    "z_scale:F z_zero_point:T",
    "Z:T", _BYTES | {"B": "bool"},
)  # fmt: skip
def qlinear_where(node: Node) -> Sequence[Result]:
    """Elements of one of two operands, with the scale and zero point of the result."""
    x = node.required(1)
    shapes = [node.required(p).shape for p in (0, 1, 4)]
    result_shape(node, broadcast(node, shapes), x)
    body = Body(node)
    parts = [_quantised(body, _dequantised(body, p), 7, x.dtype) for p in (1, 4)]
    return [body.expanded(_OPSET, body.add("Where", body.input(0), *parts))]


# --- pools and means ---------------------------------------------------------------------------

_POOL = "X:T x_scale:F x_zero_point:T? y_scale:F y_zero_point:T?"


def _pooled(node: Node, kind: str, **attributes: Any) -> Sequence[Result]:
    """A pool, of pixels whose channels may come last."""
    x = node.required(0)
    if x.rank < 3:
        raise node.fail(f"an input of rank {x.rank} has no spatial axis")
    body, last = Body(node), node.flag("channels_last")
    value = _dequantised(body, 0)
    if last:
        value = body.add("Transpose", value, perm=[0, x.rank - 1, *range(1, x.rank - 1)])
    found = _quantised(body, body.add(kind, value, **attributes), 3, x.dtype)
    if last:
        found = body.add("Transpose", found, perm=[0, *range(2, x.rank), 1])
    return [body.expanded(_OPSET, found)]


@contrib(
    "QLinearAveragePool", _POOL, "Y:T", _BYTES, auto_pad="string", ceil_mode="int",
    channels_last="int", count_include_pad="int", kernel_shape="ints!", pads="ints",
    strides="ints",
)  # fmt: skip
def qlinear_average_pool(node: Node) -> Sequence[Result]:
    """The mean of each window.

    As in the standard operator, elements beyond the padding do not count; ONNX Runtime counts those
    of windows that `ceil_mode` adds.
    """
    own: dict[str, Any] = {n: v for n, v in node.attributes.items() if n != "channels_last"}
    return _pooled(node, "AveragePool", **own)


@contrib(
    "QLinearGlobalAveragePool", _POOL.replace("?", ""), "Y:T", _BYTES, channels_last="int"
)  # fmt: skip
def qlinear_global_average_pool(node: Node) -> Sequence[Result]:
    """The mean over all spatial axes."""
    return _pooled(node, "GlobalAveragePool")


@contrib(
    "QLinearReduceMean",
    "data:T data_scale:F data_zero_point:T? reduced_scale:F reduced_zero_point:T?", "reduced:T",
    _BYTES, axes="ints!", keepdims="int!",
)  # fmt: skip
def qlinear_reduce_mean(node: Node) -> Sequence[Result]:
    """The mean along axes."""
    x = node.required(0)
    axes = list(node.axes(node.ints("axes") or (), x.rank))
    body = Body(node)
    own: dict[str, Any] = {"axes": axes} if axes else {}
    value = body.add(
        "ReduceMean", _dequantised(body, 0), keepdims=node.integer("keepdims", 1), **own
    )
    return [body.expanded(_OPSET, _quantised(body, value, 3, x.dtype))]


# --- quantising --------------------------------------------------------------------------------

_WIDE = "int8 uint8 int16 uint16"


@contrib(
    "QuantizeLinear", "x:T1 y_scale:T1 y_zero_point:T2?", "y:T2",
    {"T1": "float float16", "T2": f"{_WIDE} int4 uint4"}, axis="int",
)  # fmt: skip
@contrib(
    "DequantizeLinear", "x:T1 x_scale:T2 x_zero_point:T1?", "y:T2",
    {"T1": f"{_WIDE} int32 int4 uint4", "T2": "float float16"}, axis="int",
)  # fmt: skip
def quantise_or_dequantise(node: Node) -> Sequence[Result]:
    """As the standard operators, but without an axis there is one scale."""
    if "axis" not in node.attributes:
        _one(node, 1)
    return quantize(node) if node.operator == "QuantizeLinear" else dequantize(node)


# --- sums of products --------------------------------------------------------------------------


@contrib(
    "MatMulIntegerToFloat",
    "A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3?", "Y:T3",
    {"T1": "int8 uint8", "T2": "int8 uint8", "T3": "float float16"},
)  # fmt: skip
def matmul_integer_to_float(node: Node) -> Sequence[Result]:
    """Y = (A - za) (B - zb) * sa * sb + bias"""
    a, b, a_zero, b_zero = node.required(0), node.required(1), _one(node, 4), node.optional(5)
    a_scale, b_scale, bias = scale_at(node, 2), scale_at(node, 3), node.optional(6)
    _one(node, 2)
    p = product(node, a, b)
    left = shifted(node, "A", a_zero, "ZA", None)
    right = shifted(node, "B", b_zero, "ZB", column_index(node, b_zero, p))
    operands = {"A": a, "B": b} | zero_inputs({"ZA": (left, a_zero), "ZB": (right, b_zero)})
    operands |= {"SA": a_scale, "SB": b_scale}
    column = column_index(node, b_scale, p) or [0] * b_scale.rank
    factor = f"(float32({at('SA', [0] * a_scale.rank)}) * float32({at('SB', column)}))"
    value = f"float32({at('T', p.output)}) * {factor}"
    if bias is not None:
        _check_bias(node, bias, b)
        operands["C"] = bias
        value += f" + float32({at('C', p.output[-1:])})"
    lines = [
        declare("T", INT32, p.shape),
        p.sum("T", left, right),
        line(f"{at('Y', p.output)} = {a_scale.dtype}({value})", p.outer),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    outputs = [declare("Y", a_scale.dtype, p.shape)]
    program = function("matmul_integer_to_float", inputs, outputs, lines)
    return [Compute(program, tuple(operands.values()))]


def _check_bias(node: Node, bias: Value, b: Value) -> None:
    if b.rank < 2 or bias.shape != b.shape[-1:]:
        raise node.fail(f"a bias of shape {list(bias.shape)} for B of shape {list(b.shape)}")


@contrib(
    "DynamicQuantizeMatMul", "A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1?", "Y:T1",
    {"T1": "float", "T2": "int8 uint8"},
)  # fmt: skip
def dynamic_quantize_matmul(node: Node) -> Sequence[Result]:
    """A is quantised by its extremes; the product is then one of integers."""
    a, b, scale = node.required(0), node.required(1), scale_at(node, 2)
    p = product(node, a, b)
    for own in (scale, node.optional(3)):
        column_index(node, own, p)
    bias = node.optional(4)
    if bias is not None:
        _check_bias(node, bias, b)
    body = Body(node)
    q = body.add("DynamicQuantizeLinear", body.input(0), outputs=3)
    names = (q, body.input(1), f"{q}_1", body.input(2), f"{q}_2", body.input(3), body.input(4))
    return [body.expanded(_OPSET, body.add("MatMulIntegerToFloat", *names, domain=DOMAIN))]


@contrib(
    "QGemm",
    "A:TA a_scale:T a_zero_point:TA B:TB b_scale:T b_zero_point:TB C:TC? y_scale:T? "
    "y_zero_point:TYZ?",
    "Y:TY",
    {
        "T": "float", "TA": "int8 uint8", "TB": "int8 uint8", "TC": "int32",
        "TYZ": "int8 uint8", "TY": "float int8 uint8",
    },
    alpha="float", transA="int", transB="int",
)  # fmt: skip
def qgemm(node: Node) -> Sequence[Result]:
    """Y = ((A' - za) (B' - zb) + C) * alpha * sa * sb, quantised if there is a scale of Y."""
    a, b, c = node.required(0), node.required(3), node.optional(6)
    turned = node.flag("transA"), node.flag("transB")
    if a.rank != 2 or b.rank != 2:
        raise node.fail(f"operands of rank {a.rank} and {b.rank} are not matrices")
    rows, inner = a.shape[::-1] if turned[0] else a.shape
    other, columns = b.shape[::-1] if turned[1] else b.shape
    if inner != other:
        raise node.fail(f"shapes {list(a.shape)} and {list(b.shape)} do not multiply")
    shape = result_shape(node, (rows, columns), a)
    free: dict[str, Extent] = {"i": rows, "j": columns}
    a_zero, b_zero = _one(node, 2), node.optional(5)
    left = shifted(node, "A", a_zero, "ZA", None)
    right = shifted(node, "B", b_zero, "ZB", _of_column(node, b_zero, columns))
    operands = {"A": a, "B": b} | zero_inputs({"ZA": (left, a_zero), "ZB": (right, b_zero)})
    factors = (
        left.format("A[k,i]" if turned[0] else "A[i,k]"),
        right.format("B[j,k]" if turned[1] else "B[k,j]"),
    )
    total = "T[i,j]"
    if c is not None:
        if broadcast(node, [c.shape, shape]) != shape:
            raise node.fail(f"C of shape {list(c.shape)} does not broadcast to {list(shape)}")
        operands["C"] = c
        total = f"({total} + {operand('C', c.shape, ('i', 'j'), shape)})"
    value, dtype = _scaled(node, operands, total, columns)
    lines = [
        declare("T", INT32, shape),
        line(f"T[i,j] +=! {' * '.join(factors)}", free | {"k": inner}),
        line(f"Y[i,j] = {value}", free),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("qgemm", inputs, [declare("Y", dtype, shape)], lines)
    return [Compute(program, tuple(operands.values()))]


def _scaled(node: Node, operands: dict[str, Value], total: str, columns: int) -> tuple[str, DType]:
    """The value and type of an element of QGemm's result; adds what they read to the operands."""
    scales, y_zero = {"SA": scale_at(node, 1), "SB": scale_at(node, 4)}, _one(node, 8)
    if (node.optional(7) is None) != (y_zero is None):
        raise node.fail("y_scale and y_zero_point are only given together")
    if y_zero is not None:
        scales["SY"] = scale_at(node, 7)
        _one(node, 7)
    _one(node, 1)
    operands |= scales
    reads = {t: at(t, [0] * v.rank) for t, v in scales.items()}
    reads["SB"] = at("SB", _of_column(node, scales["SB"], columns) or [0] * scales["SB"].rank)
    alpha = node.number("alpha", 1.0)
    factor = f"{reads['SA']} * {reads['SB']}"
    if alpha != 1:
        factor = f"{literal(alpha)} * {factor}"
    if y_zero is None:
        return f"float32({total}) * ({factor})", FLOAT32
    operands["ZY"] = y_zero
    value = f"float32({total}) * ({factor} / {reads['SY']})"
    return quantised(value, at("ZY", [0] * y_zero.rank), y_zero.dtype), y_zero.dtype


def _of_column(node: Node, value: Value | None, columns: int) -> list[str | int] | None:
    """The index of a value for each column; None where there is one for all."""
    if value is None or value.size == 1:
        return None
    if value.shape != (columns,):
        raise node.fail(f"{list(value.shape)} zero points or scales for {columns} columns")
    return ["j"]
