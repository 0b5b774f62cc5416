"""Programs evaluated at compile time, on the few integers of shape arithmetic.

This is a plain interpreter of `poly.ir.program`, which runs one instance after another, so
that shape arithmetic (Shape, Gather, Concat, Mul, …) folds by the same comprehensions that the
operators are compiled from.  It is meant for hundreds of elements, not for data.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.symbolic_dims import Dim, holds_sizes
from poly.errors import ProgramError
from poly.ir.cost import instances_of
from poly.ir.dtypes import DType, dtype_of, identity
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, dtype_of_expr, evaluate_int
from poly.ir.program import Program, Statement

#: A numpy scalar, whose type is the type of the expression.
Scalar = Any

#: The largest operand or result that is folded, and the most instances that may run.
MAX_ELEMENTS = 1024
MAX_FLOAT_ELEMENTS = 64
MAX_INSTANCES = 8192


def foldable(program: Program, arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether a call is small and its operands are known: shape arithmetic, not data."""
    if program.sizes or any(a is None for a in arrays):
        return False
    for tensor in (*program.inputs, *program.outputs):
        limit = MAX_FLOAT_ELEMENTS if tensor.dtype.is_float else MAX_ELEMENTS
        if math.prod(evaluate_int(e, {}) for e in tensor.shape) > limit:
            return False
    return sum(instances_of(s, {}) for s in program.statements) <= MAX_INSTANCES


def fold(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a program without sizes.

    Raises
    ------
    ProgramError : if the program reads outside of an array.
    """
    # Only arrays of objects can hold open sizes.
    is_open = any(map(holds_sizes, arrays))
    store: dict[str, np.ndarray] = {
        t.name: np.zeros(
            [evaluate_int(e, {}) for e in t.shape],
            object if is_open and _most(t.dtype) else t.dtype.numpy,
        )
        for t in (*program.temps, *program.outputs)
    }
    store |= {t.name: a for t, a in zip(program.inputs, arrays, strict=True)}
    types = program.dtypes
    with np.errstate(all="ignore"):
        for group in program.groups:
            if not group[0].block:
                _run(group[0], store, types)
                continue
            head = group[0].ranges[0]
            for step in range(evaluate_int(head.lo, {}), evaluate_int(head.hi, {})):
                for statement in group:
                    _run(statement, store, types, step)
    return [store[t.name] for t in program.outputs]


def _run(
    s: Statement, store: dict[str, np.ndarray], types: Mapping[str, DType], step: int | None = None
) -> None:
    """Every instance of a statement, or those of one step of its block."""
    target = store[s.target.tensor]
    dtype = types[s.target.tensor]
    ranges = {r.index: range(evaluate_int(r.lo, {}), evaluate_int(r.hi, {})) for r in s.ranges}
    if step is not None:
        ranges[s.ranges[0].index] = range(step, step + 1)
    if s.init:
        start = identity(s.op, dtype)
        free = s.free
        for point in itertools.product(*(ranges[i] for i in free)):
            env = dict(zip(free, point, strict=True))
            if all(evaluate_int(g, env) for g in s.free_guards):
                target[_index(s.target, env, store, types)] = start
    for point in itertools.product(*(ranges[i] for i in s.indices)):
        env = dict(zip(s.indices, point, strict=True))
        if not all(evaluate_int(g, env) for g in s.guards):
            continue
        index = _index(s.target, env, store, types)
        value = _value(s.value, env, store, types)
        if s.op != "=":
            value = _applied(_UPDATES[s.op], _closed([target[index], value], dtype))
        target[index] = _convert(value, dtype)


_UPDATES = {"+=": "add", "*=": "mul", "max=": "max", "min=": "min"}


def _index(
    read: Read, env: Mapping[str, int], store: Mapping[str, np.ndarray], types: Mapping[str, DType]
) -> tuple[int, ...]:
    shape = store[read.tensor].shape
    index = tuple(int(_value(i, env, store, types)) for i in read.indices)
    if any(not 0 <= p < e for p, e in zip(index, shape, strict=True)):
        raise ProgramError(f"{read} is out of bounds of {read.tensor} at {list(index)}")
    return index


def _value(
    e: Expr, env: Mapping[str, int], store: Mapping[str, np.ndarray], types: Mapping[str, DType]
) -> Scalar:
    """The value of an expression in its own type."""
    if isinstance(e, Read):
        element = store[e.tensor][_index(e, env, store, types)]
        return np.int64(element) if isinstance(element, int) else element
    if isinstance(e, Index):
        return np.int64(env[e.name])
    if isinstance(e, Const):
        return _literal(e)
    if isinstance(e, Cast):
        return _convert(_value(e.arg, env, store, types), e.dtype)
    if not isinstance(e, Op):
        raise ProgramError(f"{e} has no value here")
    if e.fn == "select":
        chosen = e.args[1] if _value(e.args[0], env, store, types) else e.args[2]
        return _convert(_value(chosen, env, store, types), dtype_of_expr(e, types))
    if e.fn in ("and", "or", "not"):
        truth = [bool(_value(a, env, store, types)) for a in e.args]
        return np.bool_({"and": all, "or": any}[e.fn](truth) if len(truth) > 1 else not truth[0])
    # A literal takes the type of the other operand.
    if e.fn in ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"):
        common = dtype_of_expr(Op("max", e.args) if len(e.args) == 2 else e.args[0], types)
    else:
        common = dtype_of_expr(e, types)
    values = _closed([_value(a, env, store, types) for a in e.args], common)
    return _applied(e.fn, [_convert(v, common.compute) for v in values])


def _closed(values: Sequence[Scalar], dtype: DType) -> Sequence[Scalar]:
    """The operands of an operation in a type; among floats there are none on open sizes."""
    if not dtype.is_float:
        return values
    return [dtype.numpy.type(int(v)) if isinstance(v, Dim) else v for v in values]


def _applied(fn: str, args: Sequence[Any]) -> Scalar:
    """The value of an operation on numbers and open sizes."""
    if any(isinstance(a, Dim) for a in args):
        return _open_value(fn, args)
    return _MEANING[fn](*args)


def _open_value(fn: str, args: Sequence[Any]) -> Scalar:
    """The value of an operation on open sizes, which the operations of shape arithmetic keep."""
    found = _OPEN.get(fn)
    if found is None:
        return _MEANING[fn](*(np.int64(int(a)) for a in args))
    value = found(*(a if isinstance(a, Dim) else int(a) for a in args))
    if isinstance(value, Dim):
        return value
    return np.bool_(value) if isinstance(value, bool) else np.int64(value)


def _literal(e: Const) -> Scalar:
    """A literal in its own type or, if it has none, in one that holds it exactly."""
    if e.dtype is not None:
        return e.dtype.numpy.type(e.value)
    if isinstance(e.value, bool):
        return np.bool_(e.value)
    if isinstance(e.value, float):
        return np.float64(e.value)
    return np.uint64(e.value) if e.value >= 1 << 63 else np.int64(e.value)


def _convert(value: Scalar, dtype: DType) -> Scalar:
    """A value in another type; floats beyond the range of an integer type wrap.

    Sizes stay open in the types that hold any of them, and where floats hold them exactly.
    """
    if isinstance(value, Dim):
        most = _most(dtype)
        is_signed = dtype.is_float or dtype.kind == "i"
        if most and (is_signed or value >= 0) and (dtype.is_integer or -most <= value <= most):
            return value
        value = np.int64(int(value))
    if dtype_of(value.dtype) == dtype:
        return value
    if dtype.is_integer and value.dtype.kind not in "iub":
        number = float(value)
        if not math.isfinite(number):
            return dtype.numpy.type(0)
        return np.array(int(number) & ((1 << 64) - 1), np.uint64).astype(dtype.numpy)[()]
    return np.asarray(value).astype(dtype.numpy)[()]


def _most(dtype: DType) -> int:
    """The greatest size that a type holds exactly, as all smaller ones; 0 if that is not enough."""
    if dtype.is_float:
        return {32: 1 << 24, 64: 1 << 53}.get(dtype.bits, 0)
    return 1 << 31 if dtype.is_integer and dtype.bits >= 32 else 0


def _divide(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.kind == "f":
        return a / b
    if not b:
        return a.dtype.type(0)
    quotient = abs(int(a)) // abs(int(b))
    return a.dtype.type(quotient if (int(a) < 0) == (int(b) < 0) else -quotient)


def _floor_divide(a: Scalar, b: Scalar) -> Scalar:
    return a // b if a.dtype.kind == "f" or b else a.dtype.type(0)


def _erf(a: Scalar) -> Scalar:
    return a.dtype.type(math.erf(float(a)))


def _quotient(a: Any, b: Any) -> Any:
    """The quotient, rounded towards zero; records no condition on sizes that cannot be negative."""
    if a >= 0 and b > 0:
        return a // b
    return int(_divide(np.int64(int(a)), np.int64(int(b))))


_OPEN: dict[str, Callable[..., Any]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "add": operator.add, "sub": operator.sub,
    "mul": operator.mul, "neg": operator.neg, "min": min, "max": max, "abs": abs,
    "div": _quotient,
    "floordiv": lambda a, b: a // b if b != 0 else 0,
    "mod": lambda a, b: a % b if b != 0 else 0,
}  # fmt: skip

_MEANING: dict[str, Callable[..., Scalar]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": _divide, "floordiv": _floor_divide, "mod": np.mod, "fmod": np.fmod,
    "neg": np.negative, "min": np.minimum, "max": np.maximum, "abs": np.abs, "sign": np.sign,
    "pow": np.power, "atan2": np.arctan2, "isnan": np.isnan, "isinf": np.isinf,
    "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "bitand": np.bitwise_and,
    "bitnot": np.invert, "shl": np.left_shift, "shr": np.right_shift,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a), "exp": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": _erf,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
}  # fmt: skip
