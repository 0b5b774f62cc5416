"""What a reduction passes on to its terms: sums all of it, maxima a share, products other factors.

A reduction without initialisation has what was there before as one more term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poly.errors import GradientError
from poly.gradients.derivatives import ONE, ZERO, call, chosen, over, product
from poly.gradients.statements import Names, over_all, statement
from poly.gradients.values import Values
from poly.ir.dtypes import DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, is_weak
from poly.ir.program import Range, Statement, Tensor


@dataclass(frozen=True)
class Span:
    """Elements of a tensor, one for each point of ranges and guards."""

    indices: tuple[Expr, ...]
    ranges: tuple[Range, ...]
    guards: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Passing:
    """What a reduction passes on.

    factor : to a term, and `where`, if not everywhere; both over the statement's indices
    span : the elements that had values before, each once; None if there are none
    old, old_where : what is passed on to these, over the indices of the span
    made : statements that compute what these read; temps : their tensors
    """

    factor: Expr
    where: Expr | None = None
    span: Span | None = None
    old: Expr = ONE
    old_where: Expr | None = None
    made: tuple[Statement, ...] = ()
    temps: tuple[Tensor, ...] = ()

    def to_old(self, g: Expr) -> Expr:
        """What is passed on of a gradient, or of a change, to what was there before."""
        value = product(g, self.old)
        return value if self.old_where is None else chosen(self.old_where, value, ZERO)


class Reduction:
    """A statement whose terms are differentiated.

    like : the tensor that it writes; value : the type of its terms
    in_block : whether what is made runs in the statement's block
    """

    def __init__(
        self, names: Names, values: Values, s: Statement, like: Tensor, value: DType,
        in_block: bool,
    ) -> None:  # fmt: skip
        self._names, self._values, self._statement = names, values, s
        self._like, self._in_block = like, in_block
        weak = is_weak(s.value)
        #: What a term is, also where it stands beside literals; and as it is stored.
        self._term = _typed(s.value, like.dtype) if weak else s.value
        same = value == like.dtype and not value.is_widened
        self._stored = self._term if weak or same else Cast(like.dtype, s.value)

    def passing(self) -> Passing:
        """What it passes on to its terms.

        Raises
        ------
        GradientError : what was there before cannot be told from what is there after it.
        """
        if self._statement.op in ("max=", "min="):
            return self._ties()
        return self._other_factors() if self._statement.op == "*=" else Passing(ONE)

    def _ties(self) -> Passing:
        """A maximum's terms that reach it share evenly."""
        s, result = self._statement, self._values.result(self._statement)
        count = self._temporary("ties")
        element = Read(count.name, s.target.indices)
        tie = _reaches(self._stored, self._rounded(result))
        more = chosen(tie, ONE, ZERO)
        if s.init:
            counted = (self._made(element, "+=!", more),)
            return Passing(over(ONE, element), tie, made=counted, temps=(count,))
        span, old = self._old()
        there = replace(result, indices=span.indices)
        old_tie = _reaches(self._rounded(old), self._rounded(there))
        before = Read(count.name, span.indices)
        begun = self._over(span, before, chosen(old_tie, ONE, ZERO))
        made = (begun, self._made(element, "+=", more))
        return Passing(over(ONE, element), tie, span, over(ONE, before), old_tie, made, (count,))

    def _rounded(self, element: Read) -> Expr:
        """An element in the bits that it is declared with, as terms are; it may have more."""
        dtype = self._like.dtype
        return Cast(dtype, element) if dtype.is_widened else element

    def _other_factors(self) -> Passing:
        """The product of the other factors, which division gives unless a factor is 0.

        Two zeros leave nothing, one leaves the product of the others to that factor alone.
        """
        s = self._statement
        zeros, rest = self._temporary("zeros"), self._temporary("others")
        count, others = (Read(t.name, s.target.indices) for t in (zeros, rest))
        zero = call("eq", self._term, ZERO)
        alone = chosen(call("eq", count, ONE), others, ZERO)
        none = chosen(call("eq", count, ZERO), over(others, self._term), ZERO)
        factor = chosen(zero, alone, none)
        terms = (chosen(zero, ONE, ZERO), chosen(zero, ONE, self._term))
        if s.init:
            begun = (self._made(count, "+=!", terms[0]), self._made(others, "*=!", terms[1]))
            return Passing(factor, made=begun, temps=(zeros, rest))
        span, old = self._old()
        before = [Read(t.name, span.indices) for t in (zeros, rest)]
        made = (
            self._over(span, before[0], ZERO), self._over(span, before[1], ONE),
            self._made(count, "+=", terms[0]), self._made(others, "*=", terms[1]),
        )  # fmt: skip
        every = chosen(call("eq", before[0], ZERO), before[1], ZERO)
        old = replace(old, indices=_at(old, span, s))
        return Passing(call("mul", old, factor), None, span, every, None, made, (zeros, rest))

    def _old(self) -> tuple[Span, Read]:
        """The elements that had values before, and these."""
        s = self._statement
        if len({e.name for e in s.target.indices if isinstance(e, Index)}) == self._like.rank:
            free = tuple(r for r in s.ranges if r.index in s.free)
            return Span(s.target.indices, free, s.free_guards), self._values.before(s)
        if s.block:
            raise GradientError(f"statement {s.name}: {s.op} without an initialisation in a block")
        indices, ranges = over_all(self._names, self._like)
        return Span(indices, ranges), self._values.all_before(s)

    def _made(self, target: Read, op: str, value: Expr) -> Statement:
        s = self._statement
        block, step = (s.block, s.step) if self._in_block else (0, "")
        return statement(self._names, target, op, value, s.ranges, s.guards, block, step)

    def _over(self, span: Span, target: Read, value: Expr) -> Statement:
        s = self._statement
        block, step = (s.block, s.step) if self._in_block else (0, "")
        return statement(self._names, target, "=", value, span.ranges, span.guards, block, step)

    def _temporary(self, name: str) -> Tensor:
        like = self._like
        return Tensor(self._names.tensor(f"{like.name}_{name}"), like.dtype, like.shape)


def _at(old: Read, span: Span, s: Statement) -> tuple[Expr, ...]:
    """The indices of what was there before, for the element that a term is added to."""
    return old.indices if span.indices == s.target.indices else s.target.indices


def _typed(value: Expr, dtype: DType) -> Expr:
    """An expression of literals, computed in a type: in ``1/3 == 0`` alone both are integers."""
    if isinstance(value, Const):
        return Const(float(value.value), dtype)
    assert isinstance(value, Op)
    first = value.args[:1] if value.fn == "select" else ()
    return replace(value, args=(*first, *(_typed(a, dtype) for a in value.args[len(first) :])))


def _reaches(value: Expr, result: Expr) -> Expr:
    """Whether a term is a maximum: NaN if that is NaN."""
    both = call("and", call("isnan", value), call("isnan", result))
    return call("or", call("eq", value, result), both)
