"""Expressions as numpy functions: the meaning of every operator, element by element.

Generated code is compared with this meaning; it shares nothing with the generator.

* Every operator works in one type, that of `poly.ir.expr.dtype_of_expr`; operands are converted to
  it first.  16-bit floats are computed in float32 and rounded where they are cast or stored.
* Integers wrap at their own width: int8 + int8 is an int8.
* A weak literal, and an operator over weak literals only, takes its type from the context: the
  other operand, the type of the enclosing cast, the element type of the tensor it is stored in.
  So ``0.1`` stored in a float64 tensor is the double nearest to 0.1.
* Float ``a // b`` is ``floor(a / b)``; float ``%`` is exact and has the divisor's sign.
* ``max(a, b)`` is ``a if a > b or a is NaN else b``, ``min`` likewise; ``sign(NaN)`` is NaN.
* A data-dependent index is clamped into its dimension; any other index out of range is an error.
* float32 functions such as ``exp`` are computed in float64 and rounded, so they are within one
  unit in the last place of any good implementation, but not always equal to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poly.errors import ProgramError
from poly.ir.dtypes import BOOL, FLOAT64, INT64, UINT64, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    dtype_where,
    operand_dtype,
    reads_of,
    rewrite,
)
from poly.ir.operators import OPS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Points:
    """Iteration points at which an expression is evaluated, all at once.

    `indices` maps each index to an int64 array; the arrays broadcast together to the shape of
    the set of points.  Where `mask` is False a point is not an instance: values there are ignored.
    """

    indices: Mapping[str, Array]
    mask: Array | None = None


Function = Callable[[Points], Array]


@dataclass(frozen=True)
class Lowered:
    """An expression ready to evaluate: its element type, and a function that gives its values
    in that type's compute type."""

    dtype: DType
    function: Function

    def __call__(self, points: Points) -> Array:
        return self.function(points)


@dataclass(frozen=True)
class Scope:
    """What expressions refer to: element types, the arrays themselves, and the sizes."""

    dtypes: Mapping[str, DType]
    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]


def lower(expr: Expr, scope: Scope, want: DType | None = None) -> Lowered:
    """Turn an expression into a function of points.

    Parameters
    ----------
    want : the type that a weak literal takes; None is int32, float32 or bool.

    Raises
    ------
    ProgramError : operand types that do not mix.
    """
    if isinstance(expr, Const):
        dtype = dtype_where(expr, scope.dtypes, want)
        value = _literal(expr.value, dtype, typed=expr.dtype is not None)
        return Lowered(dtype, lambda points: value)
    if isinstance(expr, Index):
        name = expr.name
        return Lowered(INT64, lambda points: points.indices[name])
    if isinstance(expr, Size):
        size = np.asarray(scope.sizes[expr.name], np.int64)
        return Lowered(INT64, lambda points: size)
    if isinstance(expr, Read):
        return Lowered(scope.dtypes[expr.tensor], _lower_read(expr, scope))
    if isinstance(expr, Cast):
        return _lower_cast(expr, scope)
    assert isinstance(expr, Op)
    return _lower_op(expr, scope, want)


def lower_guard(guard: Expr, scope: Scope) -> Lowered:
    """`lower` a guard, which is index arithmetic: its numbers are int64.

    Raises
    ------
    ProgramError : see `lower`.
    """

    def widened(e: Expr) -> Expr:
        if isinstance(e, Const) and e.dtype is None and type(e.value) is int:
            return Const(e.value, INT64)
        return e

    return lower(rewrite(guard, widened), scope)


def convert(values: Array, source: DType, target: DType) -> Array:
    """Values of one type in the compute type of another, as an operand is converted."""
    if source.compute == target.compute:
        return values
    if target.kind == "b":
        return np.asarray(values != 0)
    return np.asarray(values).astype(target.compute.numpy)


def store(values: Array, source: DType, target: DType) -> Array:
    """Values of one type as they are stored in a tensor of another: rounded or wrapped once."""
    if target.kind == "b":
        return np.asarray(values != 0)
    return np.asarray(values).astype(target.numpy)


def update(op: str, held: Array, values: Array) -> Array:
    """``held op values`` for an update operator, both in the target's compute type."""
    return np.asarray(_UPDATES[op](held, values))


def _lower_op(expr: Op, scope: Scope, want: DType | None) -> Lowered:
    rule = OPS[expr.fn].rule
    dtype = operand_dtype(expr, scope.dtypes, want)
    if rule == "select":
        condition = lower(expr.args[0], scope, BOOL)
        first, second = (_operand(a, scope, dtype) for a in expr.args[1:])
        return Lowered(dtype, lambda p: np.where(condition(p), first(p), second(p)))
    operands = [_operand(a, scope, dtype) for a in expr.args]
    meaning = meaning_of(expr.fn, dtype)
    result = BOOL if rule in ("compare", "logic", "test") else dtype
    if len(operands) == 1:
        only = operands[0]
        return Lowered(result, lambda p: np.asarray(meaning(only(p))))
    left, right = operands
    return Lowered(result, lambda p: np.asarray(meaning(left(p), right(p))))


def _operand(expr: Expr, scope: Scope, dtype: DType) -> Function:
    lowered = lower(expr, scope, dtype)
    return lambda points: convert(lowered(points), lowered.dtype, dtype)


def _lower_cast(expr: Cast, scope: Scope) -> Lowered:
    arg = lower(expr.arg, scope, expr.dtype)
    dtype = expr.dtype

    def cast(points: Points) -> Array:
        return store(arg(points), arg.dtype, dtype).astype(dtype.compute.numpy)

    return Lowered(dtype, cast)


def _literal(value: int | float | bool, dtype: DType, typed: bool) -> Array:
    """A literal in the compute type: integers wrap, floats round; a typed one, as a cast does."""
    target = dtype.compute.numpy
    if dtype.kind == "b":
        return np.asarray(bool(value))
    if dtype.is_integer and isinstance(value, int):
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "i" and wrapped >> (dtype.bits - 1):
            wrapped -= 1 << dtype.bits
        return np.asarray(wrapped, target)
    return np.asarray(value).astype(dtype.numpy if typed else target).astype(target)


# --- reading -------------------------------------------------------------------------------


def _lower_read(read: Read, scope: Scope) -> Function:
    indices = [lower(i, scope, INT64) for i in read.indices]
    depends = [bool(reads_of(i)) for i in read.indices]
    arrays, tensor = scope.arrays, read.tensor
    compute = scope.dtypes[tensor].compute.numpy

    def values(points: Points) -> Array:
        array = arrays[tensor]
        checked = []
        for axis, (index, free) in enumerate(zip(indices, depends, strict=True)):
            where = _as_index(index(points), index.dtype)
            checked.append(_in_range(where, array.shape[axis], free, points, read, axis))
        return np.asarray(array[tuple(checked)]).astype(compute, copy=False)

    return values


def _as_index(values: Array, dtype: DType) -> Array:
    """Indices as int64; a uint64 that does not fit, always out of range, as the largest int64."""
    if dtype == UINT64:
        values = np.minimum(values, np.uint64(INT64.limits[1]))
    return convert(values, dtype, INT64)


def _in_range(index: Array, extent: int, clamp: bool, points: Points, read: Read, at: int) -> Array:
    outside = (index < 0) | (index >= extent)
    if not outside.any():
        return index
    if (not clamp or extent == 0) and _any_instance(outside, points):
        raise ProgramError(
            f"{read}: index {read.indices[at]} leaves the range 0:{extent} of dimension {at}"
        )
    if extent == 0:
        raise NothingToReadError
    return np.clip(index, 0, extent - 1)


class NothingToReadError(Exception):
    """A tensor without elements is read at points that are not instances."""


def _any_instance(outside: Array, points: Points) -> bool:
    return bool(outside.any() if points.mask is None else (outside & points.mask).any())


def offsets_of(indices: tuple[Expr, ...], shape: tuple[int, ...], scope: Scope) -> Function:
    """A function that gives the row-major offset of an element, without a range check."""
    lowered = places_of(indices, shape, scope)

    def positions(points: Points) -> Array:
        total: Array = np.asarray(0, np.int64)
        for index, extent in zip(lowered, shape, strict=True):
            total = np.asarray(total * extent + index(points))
        return total

    return positions


def places_of(indices: tuple[Expr, ...], shape: tuple[int, ...], scope: Scope) -> list[Function]:
    """Functions that give the indices of an element that is written; data-dependent ones are
    clamped, all others are not checked.
    """
    return [_place(i, extent, scope) for i, extent in zip(indices, shape, strict=True)]


def _place(index: Expr, extent: int, scope: Scope) -> Function:
    lowered = lower(index, scope, INT64)
    if not reads_of(index):
        return lambda points: convert(lowered(points), lowered.dtype, INT64)

    def clamped(points: Points) -> Array:
        # Which points are instances is not known yet: what the index reads is not checked here.
        anywhere = Points(points.indices, np.zeros((), bool))
        found = _as_index(lowered(anywhere), lowered.dtype)
        return np.clip(found, 0, max(0, extent - 1))

    return clamped


# --- the operators -------------------------------------------------------------------------


def meaning_of(fn: str, dtype: DType) -> Callable[..., Any]:
    """The numpy function of an operator on operands of one type (in its compute type)."""
    if dtype.is_float and fn in _FLOAT:
        meaning = _FLOAT[fn]
        return meaning if dtype == FLOAT64 or fn in _EXACT else _in_float64(meaning)
    if dtype.is_integer and fn in _INTEGER:
        return _INTEGER[fn]
    return _COMMON[fn]


def _in_float64(meaning: Callable[..., Any]) -> Callable[..., Any]:
    """A float32 function computed in float64, and rounded once at the end."""

    def rounded(*args: Array) -> Array:
        wide = meaning(*(np.asarray(a, np.float64) for a in args))
        return np.asarray(wide).astype(np.float32)

    return rounded


def _max(a: Array, b: Array) -> Array:
    return np.where((a > b) | (a != a), a, b)


def _min(a: Array, b: Array) -> Array:
    return np.where((a < b) | (a != a), a, b)


def _nonzero(b: Array) -> Array:
    return np.where(b == 0, np.ones_like(b), b)


def _integer_floordiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, np.zeros_like(a), np.floor_divide(a, _nonzero(b)))


def _integer_div(a: Array, b: Array) -> Array:
    divisor = _nonzero(b)
    quotient = np.floor_divide(a, divisor)
    inexact = quotient * divisor != a
    towards_zero = inexact & ((a < 0) != (divisor < 0))
    one = np.ones_like(quotient)
    return np.where(b == 0, np.zeros_like(a), np.where(towards_zero, quotient + one, quotient))


def _integer_mod(a: Array, b: Array) -> Array:
    return np.where(b == 0, np.zeros_like(a), np.remainder(a, _nonzero(b)))


def _integer_fmod(a: Array, b: Array) -> Array:
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, _nonzero(b)))


def _shift_amount(a: Array, b: Array) -> tuple[Array, Array]:
    bits = a.dtype.itemsize * 8
    valid = (b >= 0) & (b < bits)
    return valid, np.where(valid, b, np.zeros_like(b))


def _shl(a: Array, b: Array) -> Array:
    valid, amount = _shift_amount(a, b)
    return np.where(valid, np.left_shift(a, amount), np.zeros_like(a))


def _shr(a: Array, b: Array) -> Array:
    valid, amount = _shift_amount(a, b)
    shifted = np.right_shift(a, amount)
    gone = np.where(a < 0, np.zeros_like(a) - np.ones_like(a), np.zeros_like(a))
    return np.where(valid, shifted, gone)


_erf = np.frompyfunc(math.erf, 1, 1)


def _float_erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(np.float64)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.ones_like(x) / np.sqrt(x))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


_COMMON: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "min": _min, "max": _max, "abs": np.abs, "sign": np.sign,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "bitnot": np.invert,
    "isnan": lambda x: x != x,
    "isinf": lambda x: np.zeros(np.shape(x), bool), "signbit": lambda x: x < 0,
}  # fmt: skip

_INTEGER: dict[str, Callable[..., Any]] = {
    "div": _integer_div, "floordiv": _integer_floordiv, "mod": _integer_mod,
    "fmod": _integer_fmod, "shl": _shl, "shr": _shr,
}  # fmt: skip

_FLOAT: dict[str, Callable[..., Any]] = {
    "div": np.divide, "floordiv": lambda a, b: np.floor(a / b), "mod": np.mod, "fmod": np.fmod,
    "isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "sqrt": np.sqrt, "rsqrt": _rsqrt,
    "pow": np.power, "atan2": np.arctan2, "exp": np.exp, "log": np.log,
    "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _float_erf, "sigmoid": _sigmoid,
}  # fmt: skip

#: Float functions that numpy computes exactly rounded in any float type.
_EXACT = frozenset(
    "div floordiv mod fmod isnan isinf signbit floor ceil round trunc sqrt rsqrt".split()
)  # rsqrt has two roundings, in its own type

_UPDATES: dict[str, Callable[[Array, Array], Any]] = {
    "=": lambda held, values: values,
    "+=": np.add,
    "*=": np.multiply,
    "max=": _max,
    "min=": _min,
}
