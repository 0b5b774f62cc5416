"""The arithmetic of range inference: intervals of index expressions, and solving for an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.ir.expr import Cast, Const, Expr, Index, Op, Size, indices_of, maximum, minimum, walk
from poly.ir.linear_form import Linear, atom, constant, linear_form, render


def linear(expr: Expr) -> Linear | None:
    """The linear form of an expression over indices and sizes; None if it is not linear."""
    for e in walk(expr):
        if isinstance(e, Const):
            known = type(e.value) is int
        elif isinstance(e, Op):
            known = e.fn in _INTEGER_OPS
        else:
            known = isinstance(e, (Index, Size)) or (
                isinstance(e, Cast) and e.dtype.name == "int64"
            )
        if not known:
            return None
    form = linear_form(expr)
    divides = any(_divides_by_size(a) for a, _ in form.terms)
    return None if divides else form


_INTEGER_OPS = ("neg", "add", "sub", "mul", "floordiv", "mod", "min", "max")


def _divides_by_size(expr: Expr) -> bool:
    """Whether it divides by what is not a literal, or by 0."""
    divisors = (e.args[1] for e in walk(expr) if isinstance(e, Op) and e.fn in ("floordiv", "mod"))
    return any(not isinstance(d, Const) or d.value == 0 for d in divisors)


Interval = tuple[Linear, Linear]


def interval(expr: Expr, env: Mapping[str, Interval]) -> Interval | None:
    """The least and greatest value of `expr` for indices in their intervals; None if unknown."""
    form = linear(expr)
    if form is None:
        return None
    lo = hi = constant(form.constant)
    for a, c in form.terms:
        found = _interval_of_atom(a, env)
        if found is None:
            return None
        low, high = found if c > 0 else found[::-1]
        lo, hi = lo + low.scale(c), hi + high.scale(c)
    return lo, hi


def _interval_of_atom(a: Expr, env: Mapping[str, Interval]) -> Interval | None:
    if isinstance(a, Index):
        return env.get(a.name)
    if not indices_of(a):
        return atom(a), atom(a)
    assert isinstance(a, Op)
    if a.fn == "mod":
        divisor = a.args[1]
        assert isinstance(divisor, Const)
        return constant(0), constant(int(divisor.value) - 1)
    parts = [interval(x, env) for x in a.args]
    if any(p is None for p in parts):
        return None
    bounds = [p for p in parts if p is not None]
    if a.fn == "floordiv":
        divisor = a.args[1]
        assert isinstance(divisor, Const)
        d = int(divisor.value)
        return bounds[0][0].floordiv(d), bounds[0][1].floordiv(d)
    if a.fn in ("min", "max"):
        pick = minimum if a.fn == "min" else maximum
        low = linear(pick(*(render(b[0]) for b in bounds)))
        high = linear(pick(*(render(b[1]) for b in bounds)))
        return (low, high) if low is not None and high is not None else None
    return None


def solve_upper(
    expr: Expr, limit: Linear, index: str, env: Mapping[str, Interval]
) -> Bounds | None:
    """The bounds that ``expr <= limit`` puts on `index`, for all values of the indices in `env`.

    None if `index` cannot be isolated.
    """
    return _solve(expr, limit, True, index, env)


def solve_lower(
    expr: Expr, limit: Linear, index: str, env: Mapping[str, Interval]
) -> Bounds | None:
    """The bounds that ``expr >= limit`` puts on `index`, for all values of the indices in `env`."""
    return _solve(expr, limit, False, index, env)


@dataclass(frozen=True)
class Bounds:
    """Inclusive lower and upper bounds of one index; it must satisfy all of them."""

    lower: tuple[Linear, ...] = ()
    upper: tuple[Linear, ...] = ()

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.lower + other.lower, self.upper + other.upper)


def _solve(
    expr: Expr, limit: Linear, below: bool, index: str, env: Mapping[str, Interval]
) -> Bounds | None:
    form = linear(expr)
    if form is None:
        return None
    own = [(a, c) for a, c in form.terms if index in indices_of(a)]
    if len(own) != 1:
        return None
    ((a, c),) = own
    rest = interval(render(Linear(tuple(t for t in form.terms if t != (a, c)), form.constant)), env)
    if rest is None:
        return None
    # For every value of the rest: c*a <= limit - rest, so the greatest rest counts.
    room = limit - (rest[1] if below else rest[0])
    if c < 0:
        room, c, below = room.scale(-1), -c, not below
    room = room.floordiv(c) if below else room.ceildiv(c)
    if isinstance(a, Index):
        return Bounds(upper=(room,)) if below else Bounds(lower=(room,))
    assert isinstance(a, Op)
    if a.fn == "floordiv":
        divisor = a.args[1]
        assert isinstance(divisor, Const)
        d = int(divisor.value)
        inner = room.scale(d) + (d - 1 if below else 0)
        return _solve(a.args[0], inner, below, index, env)
    if (a.fn == "max") == below and a.fn in ("min", "max"):
        # max(x, y) <= u means both are; arguments without the index say nothing about it.
        parts = [_solve(x, room, below, index, env) for x in a.args if index in indices_of(x)]
        if len(parts) == len(a.args) and all(p is not None for p in parts):
            result = Bounds()
            for p in parts:
                assert p is not None
                result = result + p
            return result
    return None
