"""Linear forms and constant ranges of index expressions.

A linear form is ``sum of coefficient * atom + constant``, an atom being a loop variable, a size,
or any subexpression that is not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poly.expr import Const, Expr, Index, Op, add, mul, rewrite, sub, walk

#: Inclusive constant bounds of loop variables.
Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Linear:
    """``constant + sum(coefficients[atom] * atom)``; no coefficient is 0."""

    coefficients: tuple[tuple[Expr, int], ...]
    constant: int

    def coefficient(self, atom: Expr) -> int:
        return dict(self.coefficients).get(atom, 0)

    def without(self, atom: Expr) -> Linear:
        return Linear(tuple((a, c) for a, c in self.coefficients if a != atom), self.constant)


def linear_form(expr: Expr) -> Linear:
    """The linear form of an integer expression."""
    terms: dict[Expr, int] = {}
    constant = _collect(expr, 1, terms)
    return Linear(tuple((a, c) for a, c in terms.items() if c), constant)


def _collect(expr: Expr, factor: int, terms: dict[Expr, int]) -> int:
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return factor * int(expr.value)
    if isinstance(expr, Op):
        if expr.fn == "add":
            return _collect(expr.args[0], factor, terms) + _collect(expr.args[1], factor, terms)
        if expr.fn == "sub":
            return _collect(expr.args[0], factor, terms) + _collect(expr.args[1], -factor, terms)
        if expr.fn == "neg":
            return _collect(expr.args[0], -factor, terms)
        if expr.fn == "mul":
            a, b = expr.args
            if isinstance(a, Const) and isinstance(a.value, int):
                return _collect(b, factor * int(a.value), terms)
            if isinstance(b, Const) and isinstance(b.value, int):
                return _collect(a, factor * int(b.value), terms)
    terms[expr] = terms.get(expr, 0) + factor
    return 0


def expr_of(form: Linear) -> Expr:
    """The expression of a linear form: positive terms first, then the constant."""
    result: Expr | None = None
    for positive in (True, False):
        for atom, c in form.coefficients:
            if (c > 0) != positive:
                continue
            if result is None:
                result = mul(Const(c), atom)
            elif c > 0:
                result = add(result, mul(Const(c), atom))
            else:
                result = sub(result, mul(Const(-c), atom))
    if result is None:
        return Const(form.constant)
    return add(result, Const(form.constant))


def normal(expr: Expr) -> Expr:
    """An equal expression in linear normal form."""
    return expr_of(linear_form(expr))


def bounds_of(expr: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Inclusive constant bounds of an expression, or None if it has none."""
    low, high = extreme(expr, ranges, min), extreme(expr, ranges, max)
    return None if low is None or high is None else (low, high)


def extreme(expr: Expr, ranges: Ranges, pick: Callable[[int, int], int]) -> int | None:
    """A constant below (`pick` is min) or above (max) all values of `expr`, or None."""
    form = linear_form(expr)
    total = form.constant
    for atom, c in form.coefficients:
        bound = _atom_extreme(atom, ranges, pick if c > 0 else _OTHER[pick])
        if bound is None:
            return None
        total += c * bound
    return total


_OTHER: dict[object, Callable[[int, int], int]] = {min: max, max: min}


def _atom_extreme(atom: Expr, ranges: Ranges, pick: Callable[[int, int], int]) -> int | None:
    if isinstance(atom, Index):
        found = ranges.get(atom.name)
        return None if found is None else found[0] if pick is min else found[1]
    if not isinstance(atom, Op):
        return None
    if atom.fn in ("mod", "fmod"):
        divisor = atom.args[1]
        if isinstance(divisor, Const) and isinstance(divisor.value, int) and divisor.value > 0:
            inner = bounds_of(atom.args[0], ranges)
            if inner is not None and inner[0] >= 0 and inner[1] < divisor.value:
                return pick(inner[0], inner[1])
            return pick(0, int(divisor.value) - 1)
    if atom.fn in ("min", "max"):
        own = min if atom.fn == "min" else max
        known = [b for a in atom.args if (b := extreme(a, ranges, pick)) is not None]
        # One argument alone bounds a minimum from above, and a maximum from below.
        if len(known) == 2 or (known and own is not pick):
            return own(known)
    return None


def modulo(expr: Expr, size: int, ranges: Ranges) -> Expr:
    """``expr mod size`` for size >= 1, with multiples of `size` dropped where they show."""
    form = linear_form(expr)
    reduced = Linear(
        tuple((a, c % size) for a, c in form.coefficients if c % size), form.constant % size
    )
    candidate = expr_of(reduced)
    for attempt in (candidate, expr_of(_near(form, size))):
        bound = bounds_of(attempt, ranges)
        if bound is not None and bound[0] >= 0 and bound[1] < size:
            return attempt
    return Op("mod", (candidate, Const(size))) if size > 1 else Const(0)


def _near(form: Linear, size: int) -> Linear:
    """The form with coefficients reduced, but those below `size` in magnitude left alone."""
    kept = tuple((a, c if abs(c) < size else c % size) for a, c in form.coefficients)
    constant = form.constant if abs(form.constant) < size else form.constant % size
    return Linear(tuple((a, c) for a, c in kept if c), constant)


def depends_on(expr: Expr, var: str) -> bool:
    return any(isinstance(e, Index) and e.name == var for e in walk(expr))


def replace_var(expr: Expr, var: str, value: Expr) -> Expr:
    """`expr` with a loop variable replaced."""
    return rewrite(expr, lambda e: value if isinstance(e, Index) and e.name == var else e)
