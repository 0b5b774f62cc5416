"""Integer linear forms: ``constant + Σ coefficient · atom``.

Atoms are indices, sizes, and subexpressions that are not linear but still part of an integer
expression (``N // 2``, ``min(N, M)``, ``N * M``, a read).  Range inference solves them, code
generation simplifies indices and finds strides with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from poly.ir.expr import (
    KEPT,
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    maximum,
    minimum,
    mul,
    neg,
    reads_of,
    sub,
)


@dataclass(frozen=True)
class Linear:
    """``constant + Σ coefficient · atom``; no coefficient is 0 and no atom appears twice."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        sums = dict(self.terms)
        for a, c in other.terms:
            sums[a] = sums.get(a, 0) + c
        terms = tuple((a, c) for a, c in sums.items() if c)
        return Linear(terms, self.constant + other.constant)

    def __sub__(self, other: Linear | int) -> Linear:
        return self + (-other if isinstance(other, int) else other.scale(-1))

    def scale(self, factor: int) -> Linear:
        if factor == 0:
            return Linear(())
        return Linear(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    def floordiv(self, divisor: int) -> Linear:
        """Rounded down, for a positive divisor; terms that divide evenly leave the floor."""
        even = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        odd = tuple((a, c) for a, c in self.terms if c % divisor)
        whole = Linear(even, self.constant // divisor)
        if not odd:
            return whole
        rest = render(Linear(odd, self.constant % divisor))
        return whole + Linear(((Op("floordiv", (rest, Const(divisor))), 1),))

    def ceildiv(self, divisor: int) -> Linear:
        """Rounded up, for a positive divisor."""
        return (self + (divisor - 1)).floordiv(divisor)

    def is_multiple_of(self, number: int) -> bool:
        """Whether the value is a multiple of `number` for all values of the atoms."""
        return self.constant % number == 0 and all(c % number == 0 for _, c in self.terms)

    def coefficient(self, atom: Expr) -> int:
        return dict(self.terms).get(atom, 0)

    def without(self, atom: Expr) -> Linear:
        return Linear(tuple((a, c) for a, c in self.terms if a != atom), self.constant)


def constant(value: int) -> Linear:
    return Linear((), value)


def atom(expr: Expr) -> Linear:
    return Linear(((expr, 1),))


def linear_form(expr: Expr) -> Linear:
    """The linear form of an integer expression; nonlinear parts become atoms.

    A value computed from elements of tensors has a type of its own, in which it wraps around: a
    cast of it is an atom.
    """
    if isinstance(expr, Index):
        return atom(expr)
    return _form_of(expr)


@lru_cache(maxsize=KEPT)
def _form_of(expr: Expr) -> Linear:
    terms: dict[Expr, int] = {}
    value = _collect(expr, 1, terms)
    return Linear(tuple((a, c) for a, c in terms.items() if c), value)


def _collect(expr: Expr, factor: int, terms: dict[Expr, int]) -> int:
    """Add ``factor * expr`` to `terms`; returns its constant part."""
    if isinstance(expr, Const) and type(expr.value) is int:
        return factor * expr.value
    if isinstance(expr, Cast) and expr.dtype.name == "int64" and not reads_of(expr):
        return _collect(expr.arg, factor, terms)
    if isinstance(expr, Op):
        if expr.fn == "add":
            return _collect(expr.args[0], factor, terms) + _collect(expr.args[1], factor, terms)
        if expr.fn == "sub":
            return _collect(expr.args[0], factor, terms) + _collect(expr.args[1], -factor, terms)
        if expr.fn == "neg":
            return _collect(expr.args[0], -factor, terms)
        form = _compound(expr)
        if form is not None:
            for a, c in form.terms:
                terms[a] = terms.get(a, 0) + factor * c
            return factor * form.constant
    elif isinstance(expr, Read):
        expr = Read(expr.tensor, tuple(map(normal, expr.indices)))
    terms[expr] = terms.get(expr, 0) + factor
    return 0


def _compound(expr: Op) -> Linear | None:
    """Linear forms of products, quotients and extrema; None if not linear, or another operator."""
    if expr.fn == "mul":
        left, right = map(linear_form, expr.args)
        if not left.terms:
            return right.scale(left.constant)
        if not right.terms:
            return left.scale(right.constant)
        return atom(mul(render(left), render(right)))
    if expr.fn in ("floordiv", "mod"):
        left, right = map(linear_form, expr.args)
        if right.terms or right.constant <= 0:
            return atom(Op(expr.fn, (render(left), render(right))))
        if expr.fn == "floordiv":
            return left.floordiv(right.constant)
        if not left.terms:
            return constant(left.constant % right.constant)
        return atom(Op("mod", (render(left), Const(right.constant))))
    if expr.fn in ("min", "max"):
        pick = minimum if expr.fn == "min" else maximum
        joined = pick(*map(normal, expr.args))
        return atom(joined) if isinstance(joined, Op) else linear_form(joined)
    return None


def render(form: Linear) -> Expr:
    """The expression of a linear form; a positive term goes first."""
    result: Expr | None = None
    for a, c in sorted(form.terms, key=lambda term: term[1] < 0):
        if result is None:
            result = mul(Const(c), a) if c != -1 else neg(a)
        elif c > 0:
            result = add(result, mul(Const(c), a))
        else:
            result = sub(result, mul(Const(-c), a))
    return Const(form.constant) if result is None else add(result, Const(form.constant))


@lru_cache(maxsize=KEPT)
def normal(expr: Expr) -> Expr:
    """An equal expression in linear normal form."""
    return render(linear_form(expr))
