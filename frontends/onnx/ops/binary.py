"""Elementwise operators of two and more operands, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Node, Result, Same, Unsupported, Value, operator
from frontends.onnx.core.symbolic_dims import Dim, hint_of
from frontends.onnx.ops.broadcasting import broadcast, legacy_pair, operand, result_shape
from poly.ir.dtypes import BOOL, DType


def binary(node: Node, value: str, dtype: DType | None = None) -> Compute:
    """Y = value, a format over the reads {0} and {1}, under the broadcasting of the opset."""
    a, b = node.required(0), node.required(1)
    legacy = node.opset < 7 and node.operator not in ("Mod", "BitShift")
    if legacy:
        shape, _, axis = legacy_pair(node, a, b)
    else:
        shape = broadcast(node, [a.shape, b.shape])
    indices = names(len(shape))
    first = operand("A", a.shape, indices, shape)
    if legacy:
        inner = slice(axis, axis + b.rank)
        second = operand("B", b.shape, indices[inner], shape[inner])
    else:
        second = operand("B", b.shape, indices, shape)
    out = dtype or a.dtype
    shape = result_shape(node, shape, a)
    program = function(
        node.operator.lower(),
        [declare("A", a.dtype, a.shape), declare("B", b.dtype, b.shape)],
        [declare("Y", out, shape)],
        [
            line(
                f"{at('Y', indices)} = {value.format(first, second)}",
                dict(zip(indices, shape, strict=True)),
            )
        ],
    )
    return Compute(program, (a, b))


_ARITHMETIC = {
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Div": "{0} / {1}",
    "BitwiseAnd": "{0} & {1}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
}

_CONDITIONS = {
    "And": "{0} and {1}",
    "Or": "{0} or {1}",
    "Xor": "{0} != {1}",
    "Equal": "{0} == {1}",
    "Less": "{0} < {1}",
    "LessOrEqual": "{0} <= {1}",
    "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}",
}


def _register(name: str, value: str, dtype: DType | None) -> None:
    @operator(name)
    def simple(node: Node) -> Sequence[Result]:
        return [binary(node, value, dtype)]


for _name, _value in _ARITHMETIC.items():
    _register(_name, _value, None)
for _name, _value in _CONDITIONS.items():
    _register(_name, _value, BOOL)


@operator("Mod")
def mod(node: Node) -> Sequence[Result]:
    """The remainder: with fmod=1 of the dividend's sign, else of the divisor's."""
    if node.flag("fmod"):
        return [binary(node, "fmod({0}, {1})")]
    return [binary(node, "{0} % {1}")]


@operator("BitShift")
def bit_shift(node: Node) -> Sequence[Result]:
    """Shift to the left or right."""
    symbol = {"LEFT": "<<", "RIGHT": ">>"}.get(node.word("direction", ""))
    if symbol is None:
        raise node.fail("direction must be LEFT or RIGHT")
    return [binary(node, f"{{0}} {symbol} {{1}}")]


@operator("Pow")
def power(node: Node) -> Sequence[Result]:
    """a ** b in the type of a; small known exponents become products."""
    a, b = node.required(0), node.required(1)
    exponent = float(b.array.reshape(-1)[0]) if b.array is not None and b.size == 1 else None
    if exponent in (1.0, 2.0, 3.0):
        value = " * ".join(["{0}"] * int(exponent))
    elif exponent == 0.5 and a.dtype.is_float:
        value = "select({0} == -inf, inf, sqrt({0} + 0.0))"  # 0.0 for -0.0
    elif exponent == -1.0 and a.dtype.is_float:
        value = "1 / {0}"
    elif a.dtype.is_integer:
        value = f"{a.dtype}(pow(float64({{0}}), float64({{1}})))"
    elif a.dtype != b.dtype:
        value = f"pow({{0}}, {a.dtype.compute}({{1}}))"
    else:
        value = "pow({0}, {1})"
    if exponent is not None and "{1}" not in value and all(e == 1 for e in b.shape):
        # The text does not use the exponent, so it is not an operand.
        rank = max(a.rank, b.rank) if node.opset >= 7 else a.rank
        if rank == a.rank:
            return [_unary_power(node, a, value)]
    return [binary(node, value)]


def _unary_power(node: Node, a: Value, value: str) -> Result:
    if value == "{0}":
        return Same(a)
    indices = names(a.rank)
    text = value.format(at("A", indices))
    body = line(f"{at('Y', indices)} = {text}", dict(zip(indices, a.shape, strict=True)))
    program = function(
        "pow", [declare("A", a.dtype, a.shape)], [declare("Y", a.dtype, a.shape)], [body]
    )
    return Compute(program, (a,))


def _nested(fn: str, reads: Sequence[str]) -> str:
    text = reads[0]
    for read in reads[1:]:
        text = f"{fn}({text}, {read})"
    return text


@operator("Sum", "Mean", "Max", "Min")
def variadic(node: Node) -> Sequence[Result]:
    """The sum, mean, maximum or minimum of any number of operands, which broadcast."""
    values = node.operands
    if not values:
        raise node.fail("there is no operand")
    if len(values) == 1:
        return [Same(values[0])]
    shape = result_shape(node, broadcast(node, [v.shape for v in values]), values[0])
    indices = names(len(shape))
    # The same value twice is one input: x + x reads x once.
    distinct = list(dict.fromkeys(values))
    local = {v: f"X{n}" for n, v in enumerate(distinct)}
    reads = [operand(local[v], v.shape, indices, shape) for v in values]
    if node.operator in ("Max", "Min"):
        text = _nested(node.operator.lower(), reads)
    else:
        text = " + ".join(reads)
        if node.operator == "Mean":
            text = f"({text}) / {float(len(values))}"
    program = function(
        node.operator.lower() if node.operator != "Mean" else "mean",
        [declare(local[v], v.dtype, v.shape) for v in distinct],
        [declare("Y", values[0].dtype, shape)],
        [line(f"{at('Y', indices)} = {text}", dict(zip(indices, shape, strict=True)))],
    )
    return [Compute(program, tuple(distinct))]


@operator("Where")
def where(node: Node) -> Sequence[Result]:
    """select(C, X, Y), all three broadcast; a float 0 is written as that."""
    c, a, b = node.required(0), node.required(1), node.required(2)
    shape = result_shape(node, broadcast(node, [c.shape, a.shape, b.shape]), a)
    indices = names(len(shape))
    read = {n: v for n, v in (("C", c), ("A", a), ("B", b)) if n == "C" or not _is_zero(v)}
    reads = [
        operand(n, read[n].shape, indices, shape) if n in read else "0.0" for n in ("C", "A", "B")
    ]
    program = function(
        "where_",
        [declare(n, v.dtype, v.shape) for n, v in read.items()],
        [declare("Y", a.dtype, shape)],
        [
            line(
                f"{at('Y', indices)} = select({', '.join(reads)})",
                dict(zip(indices, shape, strict=True)),
            )
        ],
    )
    return [Compute(program, tuple(read.values()))]


def _is_zero(value: Value) -> bool:
    """Whether a value is one known 0, without a minus."""
    array = value.array
    if array is None or array.size != 1 or not value.dtype.is_float:
        return False
    return bool(array.item() == 0 and not np.signbit(array.astype(np.float64)).any())


@operator("Range")
def arange(node: Node) -> Sequence[Result]:
    """Y[i] = start + i * delta."""
    dtype = node.required(0).dtype
    values = [node.known_number(p, "the bounds of Range") for p in range(3)]
    if any(v is None for v in values):
        raise node.fail("start, limit and delta must be scalars")
    first, last, step = values if dtype.is_integer else _float_bounds(*values)
    if not step or any(v != v or abs(v) == float("inf") for v in (first, last, step)):
        raise node.fail(f"a range from {first} to {last} by {step} is not finite")
    if dtype.is_float and dtype.bits == 16:
        raise Unsupported(f"Range of {dtype}")
    if dtype.is_float and not isinstance(last, Dim):
        # As ONNX Runtime: both the difference and the quotient are rounded to float64.
        steps = (last - first) / step
        if math.isinf(steps):
            raise node.fail(f"a range from {first} to {last} by {step} has too many elements")
        count = max(0, math.ceil(steps))
    else:
        count = max(0, -((first - last) // step))
    if hint_of(count) >= 1 << 40:
        raise node.fail(f"a range of {count} elements")
    count = count if isinstance(count, Dim) else int(count)
    (count,) = checked_shape([count], dtype, node.origin)
    up = not isinstance(step, Dim) and step > 0
    text = f"{dtype}(i)" if up and step == 1 else f"{dtype}(i) * {literal(step)}"
    if not up or isinstance(first, Dim) or first != 0:  # 0 * -1.0 is -0.0
        text = f"{literal(first)} + {text}"
    program = function(
        "range_", [], [declare("Y", dtype, (count,))], [line(f"Y[i] = {text}", {"i": count})]
    )
    return [Compute(program, ())]


def _float_bounds(first: Any, last: Any, step: Any) -> tuple[Any, Any, Any]:
    """The bounds of a range of floats, of which only the last may be an open size."""
    first, step = float(first), float(step)
    if isinstance(last, Dim) and first.is_integer() and step.is_integer():
        return int(first), last, int(step)
    return first, float(last), step
