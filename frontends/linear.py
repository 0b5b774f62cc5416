"""Integer linear forms over sizes and indices: the arithmetic of range inference.

A `Linear` is ``c0 + c1*a1 + …`` whose atoms are indices, sizes, and whatever is not linear but
still an integer expression of them (``N // 2``, ``min(N, M)``, ``N * M``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Size,
    add,
    indices_of,
    maximum,
    minimum,
    mul,
    neg,
    sub,
)


@dataclass(frozen=True)
class Linear:
    """``const + Σ coefficient · atom``; no coefficient is 0 and no atom appears twice."""

    terms: tuple[tuple[Expr, int], ...]
    const: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.const + other)
        sums = dict(self.terms)
        for atom, c in other.terms:
            sums[atom] = sums.get(atom, 0) + c
        return Linear(tuple((a, c) for a, c in sums.items() if c), self.const + other.const)

    def __sub__(self, other: Linear | int) -> Linear:
        return self + (-other if isinstance(other, int) else other.scale(-1))

    def scale(self, factor: int) -> Linear:
        if factor == 0:
            return Linear(())
        return Linear(tuple((a, c * factor) for a, c in self.terms), self.const * factor)

    def floordiv(self, divisor: int) -> Linear:
        """Rounded down, for a positive divisor; what divides evenly is taken out."""
        even = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        odd = tuple((a, c) for a, c in self.terms if c % divisor)
        whole = Linear(even, self.const // divisor)
        if not odd:
            return whole
        rest = render(Linear(odd, self.const % divisor))
        return whole + Linear(((Op("floordiv", (rest, Const(divisor))), 1),))

    def ceildiv(self, divisor: int) -> Linear:
        """Rounded up, for a positive divisor."""
        return (self + (divisor - 1)).floordiv(divisor)


def constant(value: int) -> Linear:
    return Linear((), value)


def atom(expr: Expr) -> Linear:
    return Linear(((expr, 1),))


def linear(expr: Expr) -> Linear | None:
    """The linear form of an integer expression; None if it reads a tensor or is no integer."""
    if isinstance(expr, Const):
        return constant(expr.value) if type(expr.value) is int else None
    if isinstance(expr, (Index, Size)):
        return atom(expr)
    if isinstance(expr, Cast):
        return linear(expr.arg) if expr.dtype.name == "int64" else None
    if not isinstance(expr, Op):
        return None
    forms = [linear(a) for a in expr.args]
    args = [f for f in forms if f is not None]
    if len(args) != len(forms):
        return None
    if expr.fn == "neg":
        return args[0].scale(-1)
    if expr.fn == "add":
        return args[0] + args[1]
    if expr.fn == "sub":
        return args[0] - args[1]
    if expr.fn == "mul":
        for x, y in (args, args[::-1]):
            if not x.terms:
                return y.scale(x.const)
        return atom(mul(render(args[0]), render(args[1])))
    if expr.fn in ("floordiv", "mod") and not args[1].terms and args[1].const > 0:
        if expr.fn == "floordiv":
            return args[0].floordiv(args[1].const)
        if not args[0].terms:
            return constant(args[0].const % args[1].const)
        return atom(Op("mod", (render(args[0]), Const(args[1].const))))
    if expr.fn in ("min", "max"):
        pick = minimum if expr.fn == "min" else maximum
        joined = pick(*map(render, args))
        return atom(joined) if isinstance(joined, Op) else linear(joined)
    return None


def render(form: Linear) -> Expr:
    """The expression of a linear form; a positive term goes first."""
    ordered = sorted(form.terms, key=lambda term: term[1] < 0)
    result: Expr | None = None
    for a, c in ordered:
        if result is None:
            result = mul(Const(c), a) if c != -1 else neg(a)
        elif c > 0:
            result = add(result, mul(Const(c), a))
        else:
            result = sub(result, mul(Const(-c), a))
    return Const(form.const) if result is None else add(result, Const(form.const))


Interval = tuple[Linear, Linear]


def interval(expr: Expr, env: Mapping[str, Interval]) -> Interval | None:
    """The least and greatest value of `expr` for indices in their intervals; None if unknown."""
    form = linear(expr)
    if form is None:
        return None
    lo = hi = constant(form.const)
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
    """What ``expr <= limit`` says of `index`, whatever the indices in `env` are.

    None if nothing can be said, because `index` stands where it cannot be isolated.
    """
    return _solve(expr, limit, True, index, env)


def solve_lower(
    expr: Expr, limit: Linear, index: str, env: Mapping[str, Interval]
) -> Bounds | None:
    """What ``expr >= limit`` says of `index`, whatever the indices in `env` are."""
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
    rest = interval(render(Linear(tuple(t for t in form.terms if t != (a, c)), form.const)), env)
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
        # max(x, y) <= u means both are; arguments without the index promise nothing for it.
        parts = [_solve(x, room, below, index, env) for x in a.args if index in indices_of(x)]
        if len(parts) == len(a.args) and all(p is not None for p in parts):
            result = Bounds()
            for p in parts:
                assert p is not None
                result = result + p
            return result
    return None
