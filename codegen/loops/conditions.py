"""Conditions on loops and sizes: their parts, and which imply which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from codegen.loops.index_ranges import Ranges, extreme
from poly.ir.expr import KEPT, Const, Expr, Index, Op, add, rewrite, sub
from poly.ir.linear_form import Linear, constant, linear_form, render


def parts_of(cond: Expr) -> list[Expr]:
    """The conjuncts of a condition, all of which must hold."""
    if isinstance(cond, Op) and cond.fn == "and":
        return [p for a in cond.args for p in parts_of(a)]
    return [cond]


def all_of(conditions: Sequence[Expr]) -> Expr:
    """The conjunction of conditions."""
    cond, *rest = conditions
    for c in rest:
        cond = Op("and", (cond, c))
    return cond


def surely(condition: Expr, ranges: Ranges) -> bool | None:
    """Whether ``a < b`` or ``a <= b`` holds for all values of the variables (True), for none of
    them (False), or None if unknown.
    """
    if not isinstance(condition, Op) or condition.fn not in ("lt", "le"):
        return None
    left, right = condition.args
    gap, least = sub(right, left), int(condition.fn == "lt")
    low, high = extreme(gap, ranges, min), extreme(gap, ranges, max)
    if low is not None and low >= least:
        return True
    return False if high is not None and high < least else None


@lru_cache(maxsize=KEPT)
def implies(cond: Expr, other: Expr) -> bool:
    """Whether one comparison is known to hold where another one does: ``a < b`` where ``c < d``
    if b - a >= d - c.
    """
    if cond == other:
        return True
    if not (isinstance(cond, Op) and isinstance(other, Op)):
        return False
    if not {cond.fn, other.fn} <= {"lt", "le"}:
        return False
    (c, d), (a, b) = cond.args, other.args
    # ``a < b`` is ``a + 1 <= b``.
    a, c = add(a, Const(int(other.fn == "lt"))), add(c, Const(int(cond.fn == "lt")))
    ranges: dict[str, tuple[int, int]] = {}

    def visit(e: Expr) -> Expr:
        """Replace remainders by variables of their own, which have few possible values."""
        if isinstance(e, Op) and e.fn in ("mod", "fmod") and isinstance(e.args[1], Const):
            name = f"({e})"
            ranges[name] = (0, int(e.args[1].value) - 1)
            return Index(name)
        return e

    gap = _least(linear_form(rewrite(sub(sub(b, a), sub(d, c)), visit)), ranges)
    return gap is not None and gap >= 0


def strongest(conditions: Iterable[Expr]) -> list[Expr]:
    """The comparisons that are not known to hold where another one does."""
    left = list(dict.fromkeys(conditions))
    for c in tuple(left):
        if any(implies(o, c) for o in left if o != c):
            left.remove(c)
    return left


def _least(form: Linear, ranges: Ranges) -> int | None:
    """A lower bound of all values; for ``min(x, y) - min(u, v)`` the least of x - u and y - v."""
    extrema = [(a, c) for a, c in form.terms if isinstance(a, Op) and a.fn == "min"]
    if len(extrema) == 2 and sorted(c for _, c in extrema) == [-1, 1]:
        (second, _), (first, _) = sorted(extrema, key=lambda x: x[1])
        assert isinstance(first, Op) and isinstance(second, Op)
        gaps = [
            _least(linear_form(sub(x, u)), ranges)
            for x, u in zip(first.args, second.args, strict=True)
        ]
        rest = _least(form.without(first).without(second), ranges)
        known = [g for g in gaps if g is not None]
        if len(known) == 2 and rest is not None:
            return min(known) + rest
    return extreme(render(form), ranges, min)


def needed(conditions: Sequence[Expr], ranges: Ranges) -> list[Expr]:
    """The conditions that do not follow from the others."""
    left = list(dict.fromkeys(conditions))
    for c in tuple(left):
        others = [g for o in left if o != c for g in _gaps(o)]
        known, gaps = (constant(0), *others), _gaps(c)
        if gaps and all(any(_is_positive(g - o, ranges) for o in known) for g in gaps):
            left.remove(c)
    return left


@lru_cache(maxsize=KEPT)
def _gaps(condition: Expr) -> tuple[Linear, ...]:
    """Linear forms that are all non-negative exactly where ``a < b`` or ``a <= b`` holds."""
    if not isinstance(condition, Op) or condition.fn not in ("lt", "le"):
        return ()
    left, right = condition.args
    less = int(condition.fn == "lt")
    return tuple(
        linear_form(b) - linear_form(a) - less
        for a in parts_of_extremum(left, "max")
        for b in parts_of_extremum(right, "min")
    )


def _is_positive(form: Linear, ranges: Ranges) -> bool:
    low = extreme(render(form), ranges, min)
    return low is not None and low >= 0


@lru_cache(maxsize=KEPT)
def parts_of_extremum(e: Expr, fn: str) -> frozenset[Expr]:
    """The arguments of an extremum: nested minima (`fn` is "min") or maxima ("max")."""
    form = linear_form(e)
    if len(form.terms) == 1:
        ((atom, c),) = form.terms
        if isinstance(atom, Op) and atom.fn == fn and c == 1:
            inside = (linear_form(a) + form.constant for a in atom.args)
            return frozenset(x for f in inside for x in parts_of_extremum(render(f), fn))
    return frozenset((render(form),))
