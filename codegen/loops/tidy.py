"""Bounds and conditions as a person would write them.

``min(N - 8*i - 1, 7) + 1`` is ``min(N - 8*i, 8)``, ``floor((N - 1) / 16) >= 2*i + 1`` is
``32*i + 16 < N``, and a quotient of what is not negative is C's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from codegen.loops.conditions import all_of, parts_of, parts_of_extremum
from poly.ir.expr import Const, Expr, Op, add, rewrite, sub
from poly.ir.linear_form import Linear, linear_form, normal, render

#: C's operators for quotients and remainders of what is not negative.
_C_DIVISION = {"floordiv": "div", "mod": "fmod"}


def tidy(e: Expr, is_positive: Callable[[Expr], bool]) -> Expr:
    """Index arithmetic in normal form, with constants inside of extrema.

    is_positive : whether an expression is known not to be negative
    """

    def visit(x: Expr) -> Expr:
        if isinstance(x, Op) and x.fn in _C_DIVISION and is_positive(x.args[0]):
            return Op(_C_DIVISION[x.fn], x.args)
        return x

    return _inside(rewrite(normal(e), visit))


def _inside(e: Expr) -> Expr:
    """``min(a, b) + c`` as ``min(a + c, b + c)``."""
    form = linear_form(e)
    if len(form.terms) != 1 or not form.constant:
        return e
    ((atom, factor),) = form.terms
    if not isinstance(atom, Op) or atom.fn not in ("min", "max") or factor != 1:
        return e
    first, second = (_inside(add(a, Const(form.constant))) for a in map(_inside, atom.args))
    return Op(atom.fn, (_plain(first), _plain(second)))


def _plain(e: Expr) -> Expr:
    return e if isinstance(e, Op) and e.fn in ("min", "max") else normal(e)


def tidy_condition(condition: Expr) -> list[Expr]:
    """The conjuncts of a condition: ``x < min(a, b)`` is ``x < a and x < b``."""
    if not isinstance(condition, Op) or condition.fn not in ("lt", "le", "gt", "ge"):
        return [condition]
    left, right = condition.args if condition.fn in ("lt", "le") else condition.args[::-1]
    less = int(condition.fn in ("lt", "gt"))
    made: dict[Expr, None] = {}
    for a in sorted(parts_of_extremum(left, "max"), key=str):
        for b in sorted(parts_of_extremum(right, "min"), key=str):
            made[_not_negative(_multiplied(linear_form(sub(b, a)) - less))] = None
    return [*made]


def tidied(condition: Expr) -> Expr:
    """A condition as a conjunction of those of `tidy_condition` that are not always true."""
    parts = [p for c in parts_of(condition) for p in tidy_condition(c)]
    return all_of([p for p in parts if p != Const(True)] or [Const(True)])


def _multiplied(gap: Linear) -> Linear:
    """A form that is not negative where `gap` is, with one quotient less.

    ``floor(x / d) + y >= 0`` is ``x + d y >= 0``, and ``y - floor(x / d) >= 0`` is ``d y + d - 1 -
    x >= 0``.
    """
    for atom, factor in gap.terms:
        if not isinstance(atom, Op) or atom.fn not in ("floordiv", "div") or abs(factor) != 1:
            continue
        value, divisor = atom.args
        if isinstance(divisor, Const) and type(divisor.value) is int and divisor.value > 0:
            d = divisor.value
            rest = gap.without(atom).scale(d)
            x = linear_form(value)
            return rest + x if factor == 1 else rest + (d - 1) - x
    return gap


def _not_negative(gap: Linear) -> Expr:
    """``gap >= 0`` with no negative term, and the constant that looks rounder."""
    common = gcd(*(c for _, c in gap.terms))
    if common > 1:  # g x + c >= 0 is x + floor(c / g) >= 0
        gap = Linear(tuple((a, c // common) for a, c in gap.terms), gap.constant // common)
    low = Linear(tuple((a, -c) for a, c in gap.terms if c < 0), max(0, -gap.constant))
    high = Linear(tuple((a, c) for a, c in gap.terms if c > 0), max(0, gap.constant))
    if not low.terms and not high.terms:
        return Const(not low.constant)
    if low.constant % 2:
        return Op("lt", (render(low + -1), render(high)))
    if not low.constant and high.constant % 2:
        return Op("lt", (render(low), render(high + 1)))
    return Op("le", (render(low), render(high)))
