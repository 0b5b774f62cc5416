"""Extents that are unknown at compile time: polynomials over sizes that behave like integers.

A dynamic dimension of an input is a size, named ``s_…``.  Operators compute with it as with any
integer; comparisons (is it equal to that, is it negative?) are answered for the current arrays,
and the answer is kept as a condition under which the import is valid, unless it holds for all
sizes.  Code that needs the number itself (for a list of that length) gets it, along with a
condition that it stays the same.  A compiled model checks the conditions before it runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poly.ir.expr import Const, Expr, Op, Size, add, mul, sizes_of

#: A product of sizes: their names, sorted; () is 1.
Monomial = tuple[str, ...]
#: An int or a `Dim`.
Extent = Any


@dataclass(eq=False)
class Sizes:
    """The sizes of one import; `hints` are their values for the current arrays.

    quotients : sizes that stand for ``dividend // divisor``
    products : sizes that stand for products of sizes, which are not affine
    conditions : what comparisons decided: linear forms that are 0, not 0 or not negative
    asked : how often that was, of the same form or not
    """

    hints: dict[str, int] = field(default_factory=dict)
    quotients: dict[str, tuple[Dim, int]] = field(default_factory=dict)
    products: dict[str, Monomial] = field(default_factory=dict)
    conditions: dict[tuple[str, Dim], None] = field(default_factory=dict)
    asked: int = 0

    def size(self, name: str, hint: int) -> Dim:
        """A new size."""
        self.hints[name] = hint
        return Dim((((name,), 1),), self)

    def quotient(self, dividend: Dim, divisor: int) -> Extent:
        """``dividend // divisor``, which is not a polynomial.

        Raises
        ------
        TypeError : if it may be negative, which sizes are not.
        """
        if dividend.least is None or dividend.least < 0:
            other = divisor - 1 - dividend  # -x // k is -((x + k - 1) // k)
            if isinstance(other, Dim) and other.least is not None and other.least >= 0:
                return -self.quotient(other, divisor)
            raise TypeError(f"{dividend} // {divisor} may be negative")
        for name, known in self.quotients.items():
            if known[1] == divisor and known[0].terms == dividend.terms:
                return Dim((((name,), 1),), self)
        name = self._free(f"s_q{len(self.quotients)}")
        self.quotients[name] = (dividend, divisor)
        self.hints[name] = dividend.hint // divisor
        return Dim((((name,), 1),), self)

    def decide(self, kind: str, form: Dim) -> None:
        """Keep a condition: `form` is ``==``, ``!=`` or ``>=`` 0."""
        self.conditions[(kind, form)] = None
        self.asked += 1

    def lower(self, name: str) -> int:
        """The least value of a size."""
        found = self.quotients.get(name)
        return 1 if found is None else (found[0].least or 0) // found[1]

    def product(self, monomial: Monomial) -> str:
        """The size that stands for a product."""
        name = "s_" + "_x_".join(n.removeprefix("s_") for n in monomial)
        if self.products.get(name) != monomial:
            found = next((n for n, m in self.products.items() if m == monomial), None)
            name = found or self._free(name)
            self.products[name] = monomial
        return name

    def _free(self, name: str) -> str:
        """A name that no size has."""
        while name in self.hints or name in self.products:
            name += "_"
        return name

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes in the shapes of inputs."""
        return tuple(n for n in self.hints if n not in self.quotients)

    def extent(self, e: Expr) -> Extent:
        """The extent of an expression of a program."""
        if isinstance(e, Const):
            return int(e.value)
        if isinstance(e, Size):
            return Dim(((self.products.get(e.name, (e.name,)), 1),), self)
        assert isinstance(e, Op), e
        args = [self.extent(a) for a in e.args]
        return _MEANING[e.fn](*args)

    def derived(self) -> dict[str, Expr]:
        """The sizes that stand for products and quotients, over the sizes of inputs."""
        made = {n: Dim((((n,), 1),), self).full for n in self.quotients}
        return made | {n: Dim(((m, 1),), self).full for n, m in self.products.items()}

    def facts(self, used: Collection[str]) -> list[str]:
        """The conditions that programs over the sizes `used` may assume, in the language."""
        found: list[str] = []
        for name, (dividend, divisor) in self.quotients.items():
            if name in used:
                rest = dividend - divisor * Dim((((name,), 1),), self)
                found += self._fact(">=", rest, used) + self._fact(">=", divisor - 1 - rest, used)
        for kind, form in self.conditions:
            found += self._fact(kind, form, used)
        return found

    def _fact(self, kind: str, form: Extent, used: Collection[str]) -> list[str]:
        if kind == "!=" or not isinstance(form, Dim):
            return []
        e = form.expr
        return [f"{e} {kind} 0"] if set(sizes_of(e)) <= set(used) else []

    def exprs(self) -> tuple[Expr, ...]:
        """All conditions as expressions over sizes; every size is at least 1."""
        zero = Const(0)
        fns = {"==": "eq", "!=": "ne", ">=": "ge"}
        found: list[Expr] = [Op("ge", (Size(n), Const(1))) for n in self.names]
        return (*found, *(Op(fns[k], (form.full, zero)) for k, form in self.conditions))


#: The sizes of the import in progress.
CURRENT: ContextVar[Sizes | None] = ContextVar("sizes", default=None)


class Dim:
    """A polynomial over sizes with integer coefficients; see the module's docstring.

    Arithmetic gives an int where no size is left.
    """

    __slots__ = ("sizes", "terms")
    #: Makes numpy defer to the operators of this class.
    __array_ufunc__ = None

    def __init__(self, terms: Iterable[tuple[Monomial, int]], sizes: Sizes) -> None:
        self.terms = tuple(terms)
        self.sizes = sizes

    # --- values ---

    @property
    def hint(self) -> int:
        """The value for the current arrays."""
        return self.value(self.sizes.hints)

    def value(self, env: Mapping[str, int]) -> int:
        """The value for given sizes."""
        return sum(c * math.prod(env[n] for n in m) for m, c in self.terms)

    @property
    def least(self) -> int | None:
        """A lower bound that holds for all sizes, None if there is none."""
        total = 0
        for monomial, factor in self.terms:
            if factor < 0 and monomial:
                return None
            total += factor * math.prod(self.sizes.lower(n) for n in monomial)
        return total

    def __int__(self) -> int:
        """The value for the current arrays, and a condition that it stays the same."""
        hint = self.hint
        rest = self - hint
        if isinstance(rest, Dim):
            self.sizes.decide("==", rest)
        return hint

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __bool__(self) -> bool:
        return self != 0

    # --- text ---

    @property
    def expr(self) -> Expr:
        """The expression in programs, where products and quotients are sizes, too."""
        return self._expr(affine=True)

    @property
    def full(self) -> Expr:
        """The expression over the sizes of inputs alone."""
        return self._expr(affine=False)

    def _expr(self, affine: bool) -> Expr:
        result: Expr = Const(0)
        for monomial, factor in self.terms:
            part: Expr = Const(factor)
            if affine and len(monomial) > 1:
                part = mul(part, Size(self.sizes.product(monomial)))
            else:
                for name in monomial:
                    part = mul(part, self._atom(name, affine))
            result = add(result, part)
        return result

    def _atom(self, name: str, affine: bool) -> Expr:
        found = self.sizes.quotients.get(name)
        if found is None or affine:
            return Size(name)
        return Op("floordiv", (found[0].full, Const(found[1])))

    def __str__(self) -> str:
        text = str(self.expr)
        return text if text.isidentifier() else f"({text})"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    # --- arithmetic ---

    def _made(self, sums: Mapping[Monomial, int]) -> Extent:
        terms = tuple(sorted((m, c) for m, c in sums.items() if c))
        if not terms:
            return 0
        if len(terms) == 1 and not terms[0][0]:
            return terms[0][1]
        return Dim(terms, self.sizes)

    def _terms_of(self, other: Any) -> tuple[tuple[Monomial, int], ...] | None:
        if isinstance(other, Dim):
            return other.terms
        if isinstance(other, (float, bool)):
            return None
        try:
            return (((), int(other)),)
        except (TypeError, ValueError):
            return None

    def __add__(self, other: Any) -> Extent:
        more = self._terms_of(other)
        if more is None:
            return NotImplemented
        sums = dict(self.terms)
        for monomial, factor in more:
            sums[monomial] = sums.get(monomial, 0) + factor
        return self._made(sums)

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return self._made({m: -c for m, c in self.terms})

    def __sub__(self, other: Any) -> Extent:
        if isinstance(other, Dim):
            return self + (-other)
        return self + (-int(other)) if self._terms_of(other) is not None else NotImplemented

    def __rsub__(self, other: Any) -> Extent:
        return -self + other

    def __mul__(self, other: Any) -> Extent:
        if isinstance(other, float):
            return self * int(other) if other.is_integer() else float(self) * other
        more = self._terms_of(other)
        if more is None:
            return NotImplemented
        sums: dict[Monomial, int] = {}
        for a, x in self.terms:
            for b, y in more:
                monomial = tuple(sorted(a + b))
                sums[monomial] = sums.get(monomial, 0) + x * y
        return self._made(sums)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Extent:
        by = self._terms_of(other)
        if by is None:
            return NotImplemented
        if isinstance(other, Dim):
            exact = self._exact(other)
            return int(self) // int(other) if exact is None else exact
        ((_, divisor),) = by
        if divisor == 0:
            raise ZeroDivisionError("a dimension is divided by zero")
        if divisor < 0:
            return (-self) // -divisor
        even = {m: c // divisor for m, c in self.terms if c % divisor == 0}
        odd = {m: c for m, c in self.terms if c % divisor}
        constant = odd.pop((), 0)
        if not odd:
            even[()] = even.get((), 0) + constant // divisor
            return self._made(even)
        even[()] = even.get((), 0) + constant // divisor
        rest = self._made(odd | {(): constant % divisor})
        assert isinstance(rest, Dim)
        return self._made(even) + self.sizes.quotient(rest, divisor)

    def __rfloordiv__(self, other: Any) -> Extent:
        return other // int(self)

    def _exact(self, other: Dim) -> Extent | None:
        """The quotient by a product that is a factor of every term; None if it is not."""
        if self.terms == other.terms:
            return 1
        if len(other.terms) != 1:
            return None
        ((divisor, factor),) = other.terms
        found: dict[Monomial, int] = {}
        for monomial, own in self.terms:
            left = list(monomial)
            for name in divisor:
                if name not in left:
                    return None
                left.remove(name)
            if own % factor:
                return None
            found[tuple(left)] = own // factor
        return self._made(found)

    def __mod__(self, other: Any) -> Extent:
        if isinstance(other, Dim) and self._exact(other) is None:
            return int(self) % int(other)
        whole = self // other
        return self - whole * other

    def __rmod__(self, other: Any) -> Extent:
        return other % int(self)

    def __truediv__(self, other: Any) -> float:
        return float(self) / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / float(self)

    def __floor__(self) -> Dim:
        return self

    __ceil__ = __trunc__ = __floor__

    def __abs__(self) -> Extent:
        return self if self >= 0 else -self

    # --- comparisons ---

    def __hash__(self) -> int:
        return hash(self.terms)

    def __eq__(self, other: object) -> bool:
        rest: Any = self - other if self._terms_of(other) is not None else None
        if rest is None:
            return False
        if not isinstance(rest, Dim):
            return bool(rest == 0)
        negated = -rest
        assert isinstance(negated, Dim)
        if (rest.least or 0) > 0 or (negated.least or 0) > 0:
            return False
        same = rest.hint == 0
        self.sizes.decide("==" if same else "!=", rest)
        return same

    def __ge__(self, other: Any) -> bool:
        if self._terms_of(other) is None:
            return bool(float(self) >= float(other))
        rest = self - other
        if not isinstance(rest, Dim):
            return bool(rest >= 0)
        if rest.least is not None and rest.least >= 0:
            return True
        below = -rest - 1
        assert isinstance(below, Dim)
        if below.least is not None and below.least >= 0:
            return False
        holds = rest.hint >= 0
        self.sizes.decide(">=", rest if holds else below)
        return holds

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __gt__(self, other: Any) -> bool:
        if self._terms_of(other) is None:
            return bool(float(self) > float(other))
        return bool(self >= other + 1)

    def __le__(self, other: Any) -> bool:
        return not self > other


_MEANING: dict[str, Callable[..., Extent]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "floordiv": operator.floordiv, "mod": operator.mod,
}  # fmt: skip


def hint_of(extent: Extent) -> int:
    """The value of an extent for the current arrays; records no condition."""
    return extent.hint if isinstance(extent, Dim) else extent


def is_one(extent: Extent) -> bool:
    """Whether an extent is 1 for all sizes; records no condition."""
    return not isinstance(extent, Dim) and extent == 1


def certainly_less(a: Extent, b: Extent) -> bool:
    """Whether a < b for all sizes; records no condition."""
    rest = b - a - 1
    if isinstance(rest, Dim):
        return rest.least is not None and rest.least >= 0
    return bool(rest >= 0)


def same(a: Iterable[Extent], b: Iterable[Extent]) -> bool:
    """Whether two shapes are equal for all sizes; records no condition."""
    mine, other = list(a), list(b)
    return len(mine) == len(other) and all(
        x.terms == y.terms if isinstance(x, Dim) and isinstance(y, Dim) else x is y or _plain(x, y)
        for x, y in zip(mine, other, strict=True)
    )


def _plain(x: Extent, y: Extent) -> bool:
    return not isinstance(x, Dim) and not isinstance(y, Dim) and x == y


def exact_array(extents: Iterable[Extent]) -> np.ndarray:
    """Extents as a vector: of int64 if all are numbers, else of objects."""
    found = list(extents)
    if any(isinstance(e, Dim) for e in found):
        array = np.empty(len(found), object)
        array[:] = found
        return array
    return np.array(found, dtype=np.int64)


def holds_sizes(array: np.ndarray) -> bool:
    """Whether an array holds open sizes; strings are objects, too."""
    return array.dtype == object and any(isinstance(e, Dim) for e in array.reshape(-1))


def concrete(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array of numbers: extents in it are fixed at their current values."""
    if not holds_sizes(array):
        return array
    return np.array([int(e) for e in array.reshape(-1)], dtype).reshape(array.shape)


def extent_expr(extent: Extent) -> Expr:
    """An extent as an expression of programs and tensors."""
    return extent.expr if isinstance(extent, Dim) else Const(int(extent))
