"""Quantised operators: exact sums of integers, rounded once at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import Extent, at, declare, function, line, names
from frontends.onnx.core.node import Compute, Node, Result, Value, operator
from frontends.onnx.core.tensors import element_type
from frontends.onnx.ops.conv import Convolution, convolution
from frontends.onnx.ops.matmul import Product, product
from frontends.onnx.ops.move import indexed
from poly.ir.dtypes import INT32, UINT8, DType


def saturated(value: str, dtype: DType) -> str:
    """A float rounded to the nearest integer (ties to even) that `dtype` holds."""
    low, high = (f"{float(x)!r}" for x in dtype.limits)
    return f"{dtype}(round(min(max({value}, {low}), {high})))"


def quantised(value: str, zero: str, dtype: DType) -> str:
    """A float rounded to the nearest integer (ties to even), plus a zero point, at most what
    `dtype` holds.

    The limits are integers, so that it is the same to limit the value before it is rounded; and
    the sum is one of integers.
    """
    low, high = (f"{float(x)!r} - float32({zero})" for x in dtype.limits)
    return f"{dtype}(int32(round(min(max({value}, {low}), {high}))) + int32({zero}))"


def scale_at(node: Node, position: int) -> Value:
    """A scale, which is positive and finite as far as it is known.

    Raises
    ------
    ModelError : if it is not.
    """
    scale = node.required(position)
    if scale.array is not None and scale.dtype.is_float:
        values = scale.array.astype(np.float64)
        wrong = values[~((values > 0) & (values < np.inf))]
        if wrong.size:
            raise node.fail(f"input number {position + 1} has a scale of {wrong.flat[0]:g}")
    return scale


def _zero_point(node: Node, x: Value | None, scale: Value) -> Value | None:
    """The zero points that belong to scales: as many, and none but 0 for int32.

    One value may be a scalar beside a vector of one element, as other runtimes have it.

    x : what is dequantised

    Raises
    ------
    ModelError : if they do not fit.
    """
    zero = node.optional(2)
    if zero is None:
        return None
    is_one = all(v.shape in ((), (1,)) for v in (zero, scale))
    if zero.shape != scale.shape and not is_one:
        raise node.fail(f"zero points {list(zero.shape)} for scales {list(scale.shape)}")
    if x is not None and x.dtype == INT32 and zero.array is not None and zero.array.any():
        raise node.fail("values of int32 have a zero point that is not 0")
    return zero


def _zero_read(zero: Value, scale_index: Sequence[str | int]) -> str:
    """The read of an element's zero point, beside that of its scale."""
    return at("Z", [0] * zero.rank if zero.shape in ((), (1,)) else scale_index)


def _scale_index(node: Node, x: Value, scale: Value, indices: Sequence[str]) -> list[str | int]:
    """The index of an element's scale: one for all, along an axis, or for blocks."""
    if scale.rank == 0 or scale.shape == (1,):
        return [0] * scale.rank
    block = node.integer("block_size", 0)
    axis = node.axis(node.integer("axis", 1), x.rank)
    if scale.rank == 1 and not block:
        if scale.shape[0] != x.shape[axis]:
            raise node.fail(f"{scale.shape[0]} scales for {x.shape[axis]} elements on axis {axis}")
        return [indices[axis]]
    if scale.rank != x.rank or block < 1:
        raise node.fail(f"scales of shape {list(scale.shape)} for {list(x.shape)}")
    for a, (own, extent) in enumerate(zip(scale.shape, x.shape, strict=True)):
        if own != (-(-extent // block) if a == axis else extent):
            raise node.fail(f"scales {list(scale.shape)} do not fit blocks of {block} on axis {a}")
    return [f"{i} // {block}" if a == axis else i for a, i in enumerate(indices)]


@operator("QuantizeLinear")
def quantize(node: Node) -> Sequence[Result]:
    """Y = saturate(round(X / scale) + zero)."""
    x, scale = node.required(0), scale_at(node, 1)
    zero = _zero_point(node, None, scale)
    number = node.integer("output_dtype", 0)
    to = zero.dtype if zero is not None else element_type(number, node) if number else UINT8
    indices = names(x.rank)
    scale_index = _scale_index(node, x, scale, indices)
    inputs = {"X": x, "S": scale}
    value = f"float32({at('X', indices)}) / float32({at('S', scale_index)})"
    if zero is None:
        return [indexed("quantize", inputs, to, x.shape, saturated(value, to))]
    inputs["Z"] = zero
    text = quantised(value, _zero_read(zero, scale_index), to)
    return [indexed("quantize", inputs, to, x.shape, text)]


@operator("DequantizeLinear")
def dequantize(node: Node) -> Sequence[Result]:
    """Y = (X - zero) * scale."""
    x, scale = node.required(0), scale_at(node, 1)
    zero = _zero_point(node, x, scale)
    number = node.integer("output_dtype", 0)
    to = element_type(number, node) if number else scale.dtype
    indices = names(x.rank)
    scale_index = _scale_index(node, x, scale, indices)
    inputs = {"X": x, "S": scale}
    value = f"int32({at('X', indices)})"
    if x.dtype.is_float:  # read from 8 bits
        if zero is not None and (zero.array is None or zero.array.any()):
            raise node.fail("floats have a zero point that is not 0")
        value = at("X", indices)
    elif zero is not None:
        inputs["Z"] = zero
        value = f"({value} - int32({_zero_read(zero, scale_index)}))"
    text = f"float32({value}) * float32({at('S', scale_index)})"
    return [indexed("dequantize", inputs, to, x.shape, f"{to}({text})")]


def dynamic_parameters(
    value: str,
    ranges: Mapping[str, Extent],
    results: tuple[str, str, str, str],
    own: Mapping[str, Extent],
) -> list[str]:
    """Statements for the extremes of values, zero included, and the scale and zero point of them.

    results : the highest and the lowest value, the scale and the zero point, with ranges `own`
    """
    high, low, scale, zero = results
    top, bottom = f"max({high}, 0)", f"min({low}, 0)"
    return [
        line(f"{high} max=! max({value}, 0)", ranges),
        line(f"{low} min=! min({value}, 0)", ranges),
        line(f"{scale} = select({top} == {bottom}, 1, ({top} - {bottom}) / 255)", own),
        line(f"{zero} = {saturated(f'0 - {bottom} / {scale}', UINT8)}", own),
    ]


@operator("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> Sequence[Result]:
    """Scale and zero point from the extremes of X, zero included; then X in 8 bits."""
    x = node.required(0)
    indices = names(x.rank)
    ranges: dict[str, Extent] = dict(zip(indices, x.shape, strict=True))
    read = at("X", indices)
    lines = [
        "float32 H[]",
        "float32 L[]",
        *dynamic_parameters(read, ranges, ("H[]", "L[]", "S[]", "Z[]"), {}),
        line(
            f"{at('Y', indices)} = {quantised(f'{read} / S[]', 'Z[]', UINT8)}",
            ranges,
        ),
    ]
    outputs = [declare("Y", UINT8, x.shape), "float32 S[]", "uint8 Z[]"]
    inputs = [declare("X", x.dtype, x.shape)]
    return [Compute(function("dynamic_quantize", inputs, outputs, lines), (x,))]


def shifted(
    node: Node, what: str, zero: Value | None, tensor: str, index: Sequence[str | int] | None
) -> str:
    """A format over the read of an integer operand, which subtracts its zero point.

    index : of a zero point that is not the only one
    """
    if zero is None:
        return "int32({0})"
    if zero.size != 1 and (index is None or len(index) != zero.rank):
        raise node.fail(f"zero points of shape {list(zero.shape)} for {what}")
    if zero.array is not None and not zero.array.any():
        return "int32({0})"
    read = [0] * zero.rank if zero.size == 1 else index
    return f"(int32({{0}}) - int32({at(tensor, read or ())}))"


def zero_inputs(formats: dict[str, tuple[str, Value | None]]) -> dict[str, Value]:
    """The zero points that formats read."""
    return {t: z for t, (text, z) in formats.items() if z is not None and f"{t}[" in text}


def _integer_sum(
    node: Node, x: Value, w: Value, zeros: tuple[Value | None, Value | None], tensor: str
) -> tuple[Convolution, dict[str, Value], str]:
    """A convolution in 32 bits: its text, the operands that it reads, and the statement."""
    c = convolution(node, x, w)
    left = shifted(node, "X", zeros[0], "ZX", None)
    right = shifted(node, "W", zeros[1], "ZW", _filter_index(node, zeros[1], w, c))
    operands = {"X": x, "W": w} | zero_inputs({"ZX": (left, zeros[0]), "ZW": (right, zeros[1])})
    return c, operands, c.sum(tensor, left, right)


def _filter_index(
    node: Node, value: Value | None, w: Value, c: Convolution
) -> list[str | int] | None:
    """The index of a value for each filter; None where there is one for all."""
    if value is None or value.size == 1:
        return None
    if value.shape != w.shape[:1]:
        raise node.fail(f"{list(value.shape)} zero points or scales for {w.shape[0]} filters")
    return [c.k]


@operator("ConvInteger")
def conv_integer(node: Node) -> Sequence[Result]:
    """Y = conv(X - zero of X, W - zero of W) in 32 bits."""
    x, w, zeros = node.required(0), node.required(1), (node.optional(2), node.optional(3))
    c, operands, body = _integer_sum(node, x, w, zeros, "Y")
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("conv_integer", inputs, [declare("Y", INT32, c.shape)], [body])
    return [Compute(program, tuple(operands.values()))]


@operator("QLinearConv")
def qlinear_conv(node: Node) -> Sequence[Result]:
    """Y = saturate(round((conv(X - zx, W - zw) + B) * sx * sw / sy) + zy)."""
    x, _, x_zero, w, _, w_zero, _, y_zero = (node.required(p) for p in range(8))
    x_scale, w_scale, y_scale = (scale_at(node, p) for p in (1, 4, 6))
    bias = node.optional(8)
    c, operands, body = _integer_sum(node, x, w, (x_zero, w_zero), "T")
    total = at("T", c.output)
    if bias is not None:
        if bias.shape != (w.shape[0],):
            raise node.fail(f"a bias of shape {list(bias.shape)} for {w.shape[0]} filters")
        operands["B"] = bias
        total = f"({total} + B[{c.k}])"
    filters = _filter_index(node, w_scale, w, c)
    scale = _factor(node, operands, x_scale, w_scale, y_scale, None, filters)
    return [_requantised(node, "qlinear_conv", operands, body, c, total, scale, y_zero)]


def _factor(
    node: Node,
    operands: dict[str, Value],
    a: Value,
    b: Value,
    y: Value,
    rows: Sequence[str | int] | None,
    columns: Sequence[str | int] | None,
) -> str:
    """sa * sb / sy, as a float32; adds the scales to the operands."""
    reads = []
    for tensor, value, index in (("SA", a, rows), ("SB", b, columns), ("SY", y, None)):
        if value.size != 1 and (index is None or len(index) != value.rank):
            raise node.fail(f"scales of shape {list(value.shape)}")
        operands[tensor] = value
        where = [0] * value.rank if value.size == 1 else index
        reads.append(f"float32({at(tensor, where or ())})")
    return f"({reads[0]} * {reads[1]} / {reads[2]})"


def _requantised(
    node: Node,
    name: str,
    operands: dict[str, Value],
    body: str,
    text: Convolution | Product,
    total: str,
    scale: str,
    zero: Value,
) -> Compute:
    """`body` sums in T; the `total` of each element is scaled, rounded and shifted."""
    if zero.size != 1:
        raise node.fail(f"zero points of shape {list(zero.shape)} for Y")
    operands["ZY"] = zero
    value = quantised(f"float32({total}) * {scale}", at("ZY", [0] * zero.rank), zero.dtype)
    lines = [
        declare("T", INT32, text.shape),
        body,
        line(f"{at('Y', text.output)} = {value}", text.outer),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function(name, inputs, [declare("Y", zero.dtype, text.shape)], lines)
    return Compute(program, tuple(operands.values()))


def _row_index(node: Node, value: Value | None, p: Product) -> list[str | int] | None:
    """The index of a value for each row: in a vector, or in a matrix with one column."""
    return _line_index(node, value, p, "i", "row", -1)


def column_index(node: Node, value: Value | None, p: Product) -> list[str | int] | None:
    """The index of a value for each column: in a vector, or in a matrix with one row."""
    return _line_index(node, value, p, "j", "column", -2)


def _line_index(
    node: Node, value: Value | None, p: Product, name: str, what: str, single: int
) -> list[str | int] | None:
    """The index of a value for each row or column; None where there is one for all.

    name : of the index; single : the axis on which a matrix of values has one element
    """
    if value is None or value.size == 1:
        return None
    extents = dict(zip(p.output, p.shape, strict=True))
    if value.rank == 1:
        if name not in extents or value.shape[0] != extents[name]:
            raise node.fail(
                f"{value.shape[0]} zero points or scales for {extents.get(name, 1)} {what}s"
            )
        return [name]
    # Batches are those of the result from the right.
    batch = [n for n in p.output if n not in ("i", "j")][-(value.rank - 2) :]
    index: list[str | int] = [*(batch if value.rank > 2 else ()), name]
    index.insert(len(index) if single == -1 else len(index) - 1, 0)
    for n, (extent, part) in enumerate(zip(value.shape, index, strict=False)):
        if extent == 1:
            index[n] = 0
        elif isinstance(part, int) or extents.get(part) != extent:
            index.clear()
            break
    if len(index) != value.rank:
        raise node.fail(f"one value for each {what} is needed, not {list(value.shape)}")
    return index


@operator("MatMulInteger")
def matmul_integer(node: Node) -> Sequence[Result]:
    """Y = (A - za) (B - zb) in 32 bits."""
    a, b, a_zero, b_zero = node.required(0), node.required(1), node.optional(2), node.optional(3)
    p = product(node, a, b)
    left = shifted(node, "A", a_zero, "ZA", _row_index(node, a_zero, p))
    right = shifted(node, "B", b_zero, "ZB", column_index(node, b_zero, p))
    operands = {"A": a, "B": b} | zero_inputs({"ZA": (left, a_zero), "ZB": (right, b_zero)})
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function(
        "matmul_integer", inputs, [declare("Y", INT32, p.shape)], [p.sum("Y", left, right)]
    )
    return [Compute(program, tuple(operands.values()))]


@operator("QLinearMatMul")
def qlinear_matmul(node: Node) -> Sequence[Result]:
    """Y = saturate(round((A - za) (B - zb) * sa * sb / sy) + zy)."""
    a, _, a_zero, b, _, b_zero, _, y_zero = (node.required(p) for p in range(8))
    a_scale, b_scale, y_scale = (scale_at(node, p) for p in (1, 4, 6))
    p = product(node, a, b)
    rows, columns = _row_index(node, a_zero, p), column_index(node, b_zero, p)
    left = shifted(node, "A", a_zero, "ZA", rows)
    right = shifted(node, "B", b_zero, "ZB", columns)
    operands = {"A": a, "B": b} | zero_inputs({"ZA": (left, a_zero), "ZB": (right, b_zero)})
    scale = _factor(
        node,
        operands,
        a_scale,
        b_scale,
        y_scale,
        _row_index(node, a_scale, p),
        column_index(node, b_scale, p),
    )
    body = p.sum("T", left, right)
    return [
        _requantised(node, "qlinear_matmul", operands, body, p, at("T", p.output), scale, y_zero)
    ]
