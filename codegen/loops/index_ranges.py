"""Constant ranges of index expressions, and simplifications that they allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from math import prod

from poly.ir.expr import (
    KEPT,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    add,
    evaluate_int,
    indices_of,
    mul,
    rewrite,
    sub,
    walk,
)
from poly.ir.linear_form import Linear, linear_form, normal, render

#: Inclusive constant bounds of loop variables.
Ranges = Mapping[str, tuple[int, int]]
#: The most values that are enumerated to find the least or the greatest.
TRIED_OUT = 32


def bounds_of(expr: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Inclusive constant bounds of an expression, or None if it has none."""
    low, high = extreme(expr, ranges, min), extreme(expr, ranges, max)
    return None if low is None or high is None else (low, high)


def extreme(expr: Expr, ranges: Ranges, pick: Callable[[int, int], int]) -> int | None:
    """A constant bound below (`pick` is min) or above (max) all values of `expr`, or None."""
    form = linear_form(expr)
    if len(form.terms) > 1 and not all(isinstance(a, Index) for a, _ in form.terms):
        values = _all_values(form, ranges)
        if values is not None:
            return pick(*values)
    total = form.constant
    for atom, c in form.terms:
        bound = _atom_extreme(atom, ranges, pick if c > 0 else _OTHER[pick])
        if bound is None:
            return None
        total += c * bound
    return total


def _all_values(form: Linear, ranges: Ranges) -> tuple[int, int] | None:
    """The least and the greatest value, by enumeration where few values are possible.

    ``floor(s / 2) - s`` has terms that do not vary independently.
    """
    atoms = [e for atom, _ in form.terms for e in walk(atom)]
    names = sorted({e.name for e in atoms if isinstance(e, Index)})
    if any(isinstance(e, (Read, Size)) for e in atoms) or any(n not in ranges for n in names):
        return None
    return _tried_out(form, tuple((n, *ranges[n]) for n in names))


@lru_cache(maxsize=KEPT)
def _tried_out(form: Linear, bounds: tuple[tuple[str, int, int], ...]) -> tuple[int, int] | None:
    """The same for variables with these bounds, in order."""
    spans = [range(low, high + 1) for _, low, high in bounds]
    if prod(map(len, spans)) > TRIED_OUT:
        return None
    expr, names = render(form), [n for n, _, _ in bounds]
    values = [evaluate_int(expr, dict(zip(names, point, strict=True))) for point in product(*spans)]
    return min(values), max(values)


_OTHER: dict[object, Callable[[int, int], int]] = {min: max, max: min}


def _atom_extreme(atom: Expr, ranges: Ranges, pick: Callable[[int, int], int]) -> int | None:
    if isinstance(atom, Index):
        found = ranges.get(atom.name)
        return None if found is None else found[0] if pick is min else found[1]
    if not isinstance(atom, Op):
        return None
    if atom.fn == "floordiv":
        divisor = atom.args[1]
        if isinstance(divisor, Const) and isinstance(divisor.value, int) and divisor.value > 0:
            inside = extreme(atom.args[0], ranges, pick)
            return None if inside is None else inside // divisor.value
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
        # A single argument bounds a minimum from above, and a maximum from below.
        if len(known) == 2 or (known and own is not pick):
            return own(known)
    return None


def modulo(expr: Expr, size: int, ranges: Ranges) -> Expr:
    """``expr mod size`` for size >= 1, with visible multiples of `size` dropped."""
    form = _congruent(linear_form(expr), size)
    reduced = Linear(tuple((a, c % size) for a, c in form.terms if c % size), form.constant % size)
    candidate = render(reduced)
    for attempt in (candidate, render(_near(form, size))):
        bound = bounds_of(attempt, ranges)
        if bound is not None and bound[0] >= 0 and bound[1] < size:
            return attempt
    return Op("mod", (candidate, Const(size))) if size > 1 else Const(0)


def _congruent(form: Linear, size: int) -> Linear:
    """The form without remainders whose multiples are multiples of `size`: ``c (a mod m)`` and
    ``c a`` differ by multiples of ``c m``.

    isl writes ``32 floor(M / 32)`` as ``M + (31 M + 31) mod 32 - 31``, for example, and
    ``32 floor(Q / 4)`` as ``8 Q - 8 (Q mod 4)``.
    """
    for atom, c in form.terms:
        if isinstance(atom, Op) and atom.fn in ("mod", "fmod"):
            divisor = atom.args[1].value if isinstance(atom.args[1], Const) else None
            if type(divisor) is int and divisor > 0 and c * divisor % size == 0:
                inside = mul(Const(c), atom.args[0])
                rest = linear_form(add(render(form.without(atom)), inside))
                return _congruent(rest, size)
    return form


def settle(expr: Expr, ranges: Ranges) -> Expr:
    """An index in linear normal form, with quotients and remainders resolved where ranges allow.

    ``(32 o + i) // 32`` is ``o`` and ``(32 o + i) mod 32`` is ``i`` where 0 <= i < 32.
    """

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Op) or e.fn not in ("floordiv", "mod"):
            return e
        divisor = e.args[1]
        if not isinstance(divisor, Const) or type(divisor.value) is not int or divisor.value < 1:
            return e
        if e.fn == "mod":
            return modulo(e.args[0], divisor.value, ranges)
        inner = e.args[0]
        if isinstance(inner, Op) and inner.fn == "mod":
            e = _without_rest(inner, divisor.value, ranges) or e
        form = linear_form(e)  # extracts evenly divisible terms
        for atom, c in form.terms:
            if isinstance(atom, Op) and atom.fn == "floordiv" and atom.args[1] == divisor:
                bound = bounds_of(atom.args[0], ranges)
                if bound is not None and bound[0] // divisor.value == bound[1] // divisor.value:
                    form = form.without(atom) + c * (bound[0] // divisor.value)
        return render(form)

    return render(linear_form(rewrite(expr, visit)))


def _without_rest(inner: Op, size: int, ranges: Ranges) -> Op | None:
    """``floor((a mod m) / size)`` where size divides m, with ``a mod size`` taken from a."""
    value, modulus = inner.args
    if not isinstance(modulus, Const) or int(modulus.value) % size:
        return None
    rest = modulo(value, size, ranges)
    if any(isinstance(x, Op) and x.fn == "mod" for x in walk(rest)) or rest == Const(0):
        return None
    reduced = modulo(sub(value, rest), int(modulus.value), ranges)
    return Op("floordiv", (reduced, Const(size)))


def _near(form: Linear, size: int) -> Linear:
    """The form with reduced coefficients; those below `size` in magnitude are kept."""
    kept = tuple((a, c if abs(c) < size else c % size) for a, c in form.terms)
    constant = form.constant if abs(form.constant) < size else form.constant % size
    return Linear(tuple((a, c) for a, c in kept if c), constant)


def depends_on(expr: Expr, var: str) -> bool:
    return var in indices_of(expr)


def moves(index: Expr, var: str) -> bool:
    """Whether different values of `var` always give different values of an index."""
    form = linear_form(index)
    rest = form.without(Index(var))
    return form.coefficient(Index(var)) != 0 and not any(depends_on(a, var) for a, _ in rest.terms)


def replace_var(expr: Expr, var: str, value: Expr) -> Expr:
    """`expr` with a loop variable replaced."""
    return rewrite(expr, lambda e: value if isinstance(e, Index) and e.name == var else e)


def flatten(e: Expr) -> Expr:
    """Expand products of literals and sums, so that constant strides become visible."""
    if isinstance(e, Op) and e.fn == "mul":
        a, b = flatten(e.args[0]), flatten(e.args[1])
        return normal(mul(a, b))
    if isinstance(e, Op) and e.fn in ("add", "sub"):
        return normal(Op(e.fn, (flatten(e.args[0]), flatten(e.args[1]))))
    return e
