"""Scalar expressions: the right-hand sides, indices, sizes and guards of comprehensions.

One small algebra serves the whole compiler: the language builds it, isl relations are printed
from its affine part, the loop IR indexes with it, and the C printer walks it.  Values are frozen,
compare by structure, and print in the language's own syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from poly.errors import ProgramError
from poly.ir.dtypes import BOOL, FLOAT32, INT32, INT64, DType, combine
from poly.ir.operators import OPS

#: How many expressions `_indices_of` and its like keep their results for.
KEPT = 1 << 14


@dataclass(frozen=True)
class Expr:
    """Base of all expressions.

    The hash of an expression with operands is computed once: expressions are looked up repeatedly.
    """

    def __str__(self) -> str:
        return _show(self, 0)

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ from process to process.
        return {n: v for n, v in self.__dict__.items() if n != "_hash"}

    def _remember(self, value: int) -> int:
        object.__setattr__(self, "_hash", value)
        return value


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A literal.  ``dtype`` None is a weak literal that takes the type of its other operand.

    1, 1.0 and True are different, and so are 0.0 and -0.0; a NaN is equal to itself.
    """

    value: int | float | bool
    dtype: DType | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Const) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, float):
            same = self.value.hex() == float(other.value).hex()
        else:
            same = self.value == other.value
        return same and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.value.hex() if isinstance(self.value, float) else self.value, self.dtype))


@dataclass(frozen=True)
class Index(Expr):
    """The value of an iteration index (int64)."""

    name: str


@dataclass(frozen=True)
class Size(Expr):
    """The value of a size parameter (int64)."""

    name: str


@dataclass(frozen=True)
class Read(Expr):
    """One element of a tensor, ``tensor[indices…]``."""

    tensor: str
    indices: tuple[Expr, ...]

    def __hash__(self) -> int:
        return self.__dict__.get("_hash") or self._remember(hash((self.tensor, self.indices)))


@dataclass(frozen=True)
class Op(Expr):
    """An operator or function of `OPS` applied to its arguments."""

    fn: str
    args: tuple[Expr, ...]

    def __hash__(self) -> int:
        return self.__dict__.get("_hash") or self._remember(hash((self.fn, self.args)))


@dataclass(frozen=True)
class Cast(Expr):
    """``dtype(arg)``: float to integer truncates; to bool, nonzero is true."""

    dtype: DType
    arg: Expr

    def __hash__(self) -> int:
        return self.__dict__.get("_hash") or self._remember(hash((self.dtype, self.arg)))


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Read):
        return expr.indices
    if isinstance(expr, Cast):
        return (expr.arg,)
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all subexpressions, outermost first, left to right."""
    left = [expr]
    while left:
        e = left.pop()
        yield e
        if isinstance(e, (Op, Read, Cast)):
            left.extend(reversed(children(e)))


def computed(value: Expr) -> list[Expr]:
    """The parts of a value outside the indices of its reads."""
    if isinstance(value, Read):
        return [value]
    return [value, *(e for a in children(value) for e in computed(a))]


def rewrite(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """Rebuild bottom-up, applying `fn` to every node; unchanged nodes are not copied."""
    if isinstance(expr, (Op, Read, Cast)):
        old = children(expr)
        new = tuple([rewrite(e, fn) for e in old])
        if any(a is not b for a, b in zip(old, new, strict=True)):
            if isinstance(expr, Op):
                expr = Op(expr.fn, new)
            elif isinstance(expr, Read):
                expr = Read(expr.tensor, new)
            else:
                expr = Cast(expr.dtype, new[0])
    return fn(expr)


def substitute(
    expr: Expr,
    indices: Mapping[str, Expr] | None = None,
    sizes: Mapping[str, Expr] | None = None,
) -> Expr:
    """Replace indices and sizes by expressions, simultaneously."""

    def visit(e: Expr) -> Expr:
        if isinstance(e, Index) and indices is not None:
            return indices.get(e.name, e)
        if isinstance(e, Size) and sizes is not None:
            return sizes.get(e.name, e)
        return e

    return rewrite(expr, visit)


def substitute_value(
    expr: Expr,
    indices: Mapping[str, Expr] | None = None,
    sizes: Mapping[str, Expr] | None = None,
) -> Expr:
    """`substitute` in a value, where indices and sizes, and so their replacements, are int64.

    ``A[i] + i`` for an int8 tensor is computed in int64, also where i is known to be 3.  Indices
    that do not depend on data are plain index arithmetic, and are simplified.
    """
    if isinstance(expr, (Index, Size)):
        known = substitute(expr, indices, sizes)
        if isinstance(known, Const):
            return replace(known, dtype=INT64)
        return Cast(INT64, known) if is_weak(known) else known
    if isinstance(expr, Read):
        replaced = (
            substitute_value(e, indices, sizes)
            if reads_of(e)
            else simplify(substitute(e, indices, sizes))
            for e in expr.indices
        )
        return replace(expr, indices=tuple(replaced))
    if isinstance(expr, Op):
        return replace(expr, args=tuple(substitute_value(a, indices, sizes) for a in expr.args))
    if isinstance(expr, Cast):
        return replace(expr, arg=substitute_value(expr.arg, indices, sizes))
    return expr


def indices_of(expr: Expr) -> tuple[str, ...]:
    """Names of the iteration indices in `expr`, in order of first appearance."""
    if isinstance(expr, (Const, Index)):
        return (expr.name,) if isinstance(expr, Index) else ()
    return _indices_of(expr)


@lru_cache(maxsize=KEPT)
def _indices_of(expr: Expr) -> tuple[str, ...]:
    return tuple(dict.fromkeys([e.name for e in walk(expr) if isinstance(e, Index)]))


@lru_cache(maxsize=KEPT)
def sizes_of(expr: Expr) -> tuple[str, ...]:
    """Names of the sizes in `expr`, in order of first appearance."""
    return tuple(dict.fromkeys(e.name for e in walk(expr) if isinstance(e, Size)))


@lru_cache(maxsize=KEPT)
def reads_of(expr: Expr) -> tuple[Read, ...]:
    """All tensor reads in `expr`, including reads inside indices of other reads."""
    return tuple(dict.fromkeys(e for e in walk(expr) if isinstance(e, Read)))


# --- building, with the folding that keeps index expressions short -------------------------


def const(value: int | float | bool, dtype: DType | None = None) -> Const:
    return Const(value, dtype)


def _int(expr: Expr) -> int | None:
    if isinstance(expr, Const) and expr.dtype is None and type(expr.value) is int:
        return expr.value
    return None


def add(a: Expr, b: Expr) -> Expr:
    """``a + b``, folding integer literals: (x + 2) + 3 is x + 5."""
    x, y = _int(a), _int(b)
    if x is not None and y is not None:
        return Const(x + y)
    if x == 0:
        return b
    if y == 0:
        return a
    if y is not None and isinstance(a, Op) and a.fn in ("add", "sub"):
        inner = _int(a.args[1])
        if inner is not None:
            return add(a.args[0], Const((inner if a.fn == "add" else -inner) + y))
    if y is not None and y < 0:
        return Op("sub", (a, Const(-y)))
    if x is not None:
        return Op("add", (b, a))
    return Op("add", (a, b))


def sub(a: Expr, b: Expr) -> Expr:
    """``a - b``, folding integer literals."""
    y = _int(b)
    if y is not None:
        return add(a, Const(-y))
    if a == b:
        return Const(0)
    if _int(a) == 0:
        return neg(b)
    return Op("sub", (a, b))


def mul(a: Expr, b: Expr) -> Expr:
    """``a * b``, folding integer literals; a literal factor goes first."""
    x, y = _int(a), _int(b)
    if x is not None and y is not None:
        return Const(x * y)
    if x is None and y is not None:
        a, b, x, y = b, a, y, x
    if x == 0:
        return Const(0)
    if x == 1:
        return b
    return Op("mul", (a, b))


def neg(a: Expr) -> Expr:
    x = _int(a)
    return Const(-x) if x is not None else Op("neg", (a,))


def floordiv(a: Expr, b: int) -> Expr:
    """``a // b`` for a positive literal `b`."""
    x = _int(a)
    if x is not None:
        return Const(x // b)
    return a if b == 1 else Op("floordiv", (a, Const(b)))


def mod(a: Expr, b: int) -> Expr:
    """``a % b`` for a positive literal `b`."""
    x = _int(a)
    if x is not None:
        return Const(x % b)
    return Const(0) if b == 1 else Op("mod", (a, Const(b)))


def minimum(*args: Expr) -> Expr:
    return _extremum("min", args)


def maximum(*args: Expr) -> Expr:
    return _extremum("max", args)


def _extremum(fn: str, args: tuple[Expr, ...]) -> Expr:
    pick = min if fn == "min" else max
    literals = [v for a in args if (v := _int(a)) is not None]
    rest: list[Expr] = list(dict.fromkeys(a for a in args if _int(a) is None))
    if literals:
        rest.append(Const(pick(literals)))
    result = rest[0]
    for arg in rest[1:]:
        result = Op(fn, (result, arg))
    return result


def simplify(expr: Expr) -> Expr:
    """Fold integer literals bottom-up with the builders above."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Op):
            return e
        if e.fn == "add":
            return add(*e.args)
        if e.fn == "sub":
            return sub(*e.args)
        if e.fn == "mul":
            return mul(*e.args)
        if e.fn == "neg":
            return neg(*e.args)
        if e.fn in ("min", "max"):
            return _extremum(e.fn, e.args)
        if e.fn in ("floordiv", "mod") and (d := _int(e.args[1])) is not None and d > 0:
            return (floordiv if e.fn == "floordiv" else mod)(e.args[0], d)
        if e.fn in ("div", "fmod") and all(_int(a) is not None for a in e.args):
            return Const(evaluate_int(e, {}))
        return e

    return rewrite(expr, visit)


def evaluate_int(expr: Expr, env: Mapping[str, int]) -> int:
    """The value of an integer expression over sizes and indices, all taken from `env`.

    Comparisons and logic give 0 or 1.  Raises `ProgramError` for a read or a float.
    """
    if isinstance(expr, Const) and not isinstance(expr.value, float):
        return int(expr.value)
    if isinstance(expr, (Index, Size)):
        return env[expr.name]
    if isinstance(expr, Op) and expr.fn in INTEGER_MEANING:
        return int(INTEGER_MEANING[expr.fn](*(evaluate_int(a, env) for a in expr.args)))
    raise ProgramError(f"{expr} has no integer value")


#: The operators of integer expressions, see `evaluate_int`.
INTEGER_MEANING: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0,
    "fmod": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1) if b else 0,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": lambda a: not a,
    "select": lambda c, a, b: a if c else b,
}


# --- typing -------------------------------------------------------------------------------


def dtype_of_expr(expr: Expr, tensors: Mapping[str, DType]) -> DType:
    """The element type of an expression; a literal alone is int32, float32 or bool.

    Raises
    ------
    ProgramError : operand types cannot be combined, or an operator does not accept them.
    """
    return dtype_of_all([expr], tensors)


def dtype_of_all(exprs: Sequence[Expr], tensors: Mapping[str, DType]) -> DType:
    """The type that holds the values of expressions, as `dtype_of_expr`; the order matters."""
    found = _type(exprs[0], tensors)
    for e in exprs[1:]:
        found = _meet(found, _type(e, tensors), e)
    return _strong(found)


def is_weak(expr: Expr) -> bool:
    """Whether an expression has weak literals only, so that its context decides its type."""
    if isinstance(expr, Const):
        return expr.dtype is None
    if isinstance(expr, Op):
        rule = OPS[expr.fn].rule
        if rule in ("arith", "int", "float"):
            return all(is_weak(a) for a in expr.args)
        return rule == "select" and all(is_weak(a) for a in expr.args[1:])
    return False


def dtype_where(expr: Expr, tensors: Mapping[str, DType], want: DType | None) -> DType:
    """The type in which an expression is evaluated where a value of type `want` is wanted.

    Only a weak expression is affected: ``-0.1`` stored in a float64 tensor is a float64, and so is
    the ``1`` of ``1 / X[i]`` if X is.  A float literal stays a float where an integer is wanted.
    `want` None, or a truth value for a number, gives `dtype_of_expr`.
    """
    alone = dtype_of_expr(expr, tensors)
    if want is None or not is_weak(expr) or (alone.kind == "b") != (want.kind == "b"):
        return alone
    return alone if alone.is_float and not want.is_float else want


def operand_dtype(expr: Op, tensors: Mapping[str, DType], want: DType | None) -> DType:
    """The one type to which an operator converts its operands (of select, its two values)."""
    rule = OPS[expr.fn].rule
    if rule == "logic":
        return BOOL
    values = expr.args[1:] if rule == "select" else expr.args
    strong: DType | None = None
    for arg in values:
        if not is_weak(arg):
            dtype = dtype_of_expr(arg, tensors)
            strong = dtype if strong is None else combine(strong, dtype)
    if strong is None:
        # The context's type reaches operands only through operators that keep the type.
        met = Op("min", values) if len(values) > 1 else values[0]
        strong = dtype_where(met, tensors, None if rule in ("compare", "test") else want)
    else:
        for arg in values:
            strong = dtype_where(arg, tensors, strong) if is_weak(arg) else strong
    return FLOAT32 if rule == "float" and not strong.is_float else strong


@dataclass(frozen=True)
class _Weak:
    """The type of a literal that has not met a typed operand yet: kind i, f or b."""

    kind: str


def _strong(t: DType | _Weak) -> DType:
    if isinstance(t, DType):
        return t
    return {"i": INT32, "f": FLOAT32, "b": BOOL}[t.kind]


def _type(expr: Expr, tensors: Mapping[str, DType]) -> DType | _Weak:
    if isinstance(expr, Const):
        if expr.dtype is not None:
            return expr.dtype
        if isinstance(expr.value, bool):
            return _Weak("b")
        return _Weak("i" if isinstance(expr.value, int) else "f")
    if isinstance(expr, (Index, Size)):
        return INT64
    if isinstance(expr, Read):
        if expr.tensor not in tensors:
            raise ProgramError(f"there is no tensor {expr.tensor!r}")
        return tensors[expr.tensor]
    if isinstance(expr, Cast):
        _type(expr.arg, tensors)
        return expr.dtype
    assert isinstance(expr, Op)
    info = OPS[expr.fn]
    args = [_type(a, tensors) for a in expr.args]
    if info.rule == "logic":
        for a, t in zip(expr.args, args, strict=True):
            if _kind(t) != "b":
                raise ProgramError(f"{expr.fn!r} takes conditions, but {a} is {_name(t)}")
        return BOOL
    if info.rule == "select":
        if _kind(args[0]) != "b":
            raise ProgramError(f"select takes a condition first, but {expr.args[0]} is a number")
        return _meet(args[1], args[2], expr)
    met = args[0] if len(args) == 1 else _meet(args[0], args[1], expr)
    if info.rule == "compare":
        return BOOL
    if _kind(met) == "b" and expr.fn not in ("min", "max", "bitand", "bitor", "bitxor", "bitnot"):
        raise ProgramError(f"{expr}: {expr.fn!r} does not take bool; cast it, as in int32(x)")
    if info.rule == "int" and _kind(met) == "f":
        raise ProgramError(f"{expr}: {expr.fn!r} takes integers, not {_name(met)}")
    if info.rule == "test":
        return BOOL
    if info.rule == "float" and _kind(met) in "iu":
        return FLOAT32 if isinstance(met, DType) else _Weak("f")
    return met


def _kind(t: DType | _Weak) -> str:
    return t.kind


def _name(t: DType | _Weak) -> str:
    return str(_strong(t))


def _meet(a: DType | _Weak, b: DType | _Weak, expr: Expr) -> DType | _Weak:
    if isinstance(a, DType) and isinstance(b, DType):
        try:
            return combine(a, b)
        except ProgramError as error:
            raise ProgramError(f"{expr}: {error}") from None
    if isinstance(a, _Weak) and isinstance(b, _Weak):
        if a.kind == b.kind:
            return a
        if "b" in (a.kind, b.kind):
            raise ProgramError(f"{expr}: a truth value and a number do not mix")
        return _Weak("f")
    strong, weak = (a, b) if isinstance(a, DType) else (b, a)
    assert isinstance(strong, DType) and isinstance(weak, _Weak)
    if (strong.kind == "b") != (weak.kind == "b"):
        raise ProgramError(f"{expr}: a truth value and a number do not mix")
    if weak.kind == "f" and not strong.is_float:
        return FLOAT32
    return strong


# --- printing -----------------------------------------------------------------------------


def _show(expr: Expr, outer: int) -> str:
    if isinstance(expr, Const):
        return _show_const(expr, outer)
    if isinstance(expr, (Index, Size)):
        return expr.name
    if isinstance(expr, Read):
        return f"{expr.tensor}[{', '.join(_show(i, 0) for i in expr.indices)}]"
    if isinstance(expr, Cast):
        return f"{expr.dtype}({_show(expr.arg, 0)})"
    assert isinstance(expr, Op)
    info = OPS[expr.fn]
    if not info.symbol:
        return f"{expr.fn}({', '.join(_show(a, 0) for a in expr.args)})"
    p = info.precedence
    if info.arity == 1:
        text = f"{info.symbol}{_show(expr.args[0], p)}"
    else:
        # Operators associate to the left; comparisons do not associate at all.
        left = _show(expr.args[0], p + 1 if info.rule == "compare" else p)
        text = f"{left} {info.symbol} {_show(expr.args[1], p + 1)}"
    return f"({text})" if p < outer else text


def _show_const(expr: Const, outer: int) -> str:
    value = expr.value
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        text = "inf" if value > 0 else "-inf"
    elif isinstance(value, float) and value != value:
        text = "nan"
    else:
        text = repr(value)
    if expr.dtype is not None:
        return f"{expr.dtype}({text})"
    return f"({text})" if text.startswith("-") and outer > 9 else text
