"""Which values that a program reads or writes are overwritten later, and by what.

With the order ``<`` of a program's instances, reads R and writes W, two instances meet if

    { r -> w : R(r) = W(w), r < w }        an element that r reads is written later

is not empty, and so on.  Whether another write comes between does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import islpy as isl

from poly.deps.dependences import compute_dependences, initial_order
from poly.deps.scop import Role, Scop, ScopStatement, build_scop
from poly.ir.expr import Const, Expr, Index, Op, Read, Size, reads_of, substitute
from poly.ir.program import Program, Statement
from poly.sets.from_isl import conditions_of
from poly.sets.to_isl import access_map


@dataclass(frozen=True)
class Lifetimes:
    """The lifetimes of values, by the names of statements.

    overwritten : (statement, read): what is read there is overwritten later, or by the statement
    in_place : the same, where the statement itself does it
    replaced : statements whose results are overwritten later
    covering : statements that overwrite what was there before
    recurrent : statements that read their own results
    """

    overwritten: frozenset[tuple[str, Read]]
    in_place: frozenset[tuple[str, Read]]
    replaced: frozenset[str]
    covering: frozenset[str]
    recurrent: frozenset[str]

    def is_overwritten(self, s: Statement, read: Read) -> bool:
        return (s.name, read) in self.overwritten


def lifetimes(program: Program) -> Lifetimes:
    """The lifetimes of the values of a program, under its own order."""
    found = _Meetings(build_scop(program))
    overwritten: set[tuple[str, Read]] = set()
    in_place: set[tuple[str, Read]] = set()
    recurrent: set[str] = set()
    for s, w in product(found.scop.statements, repeat=2):
        own = s.source is w.source
        for read, relation in _value_reads(s):
            if read.tensor != w.target.tensor:
                continue
            if found.meet(relation, w.write) or (own and found.same(relation, w.write)):
                overwritten.add((s.source.name, read))
                if own:
                    in_place.add((s.source.name, read))
            if own and found.meet(w.write, relation):
                recurrent.add(s.source.name)
    replaced: set[str] = set()
    covering: set[str] = set()
    for s, w in product(found.scop.statements, repeat=2):
        # An initialisation, and what is added to it, are one value.
        added = w.role == Role.UPDATE and s.source is w.source
        if s.target.tensor == w.target.tensor and not added and found.meet(s.write, w.write):
            replaced.add(s.source.name)
            if w.role != Role.UPDATE:
                covering.add(w.source.name)
    return Lifetimes(
        frozenset(overwritten), frozenset(in_place), frozenset(replaced), frozenset(covering),
        frozenset(recurrent),
    )  # fmt: skip


class _Meetings:
    """Which accesses of a scop are to the same element, in order."""

    def __init__(self, scop: Scop) -> None:
        self.scop = scop
        order = initial_order(scop)
        self._before = order.lex_lt_union_map(order)

    def meet(self, first: isl.Map, second: isl.Map) -> bool:
        """Whether an element is accessed by `first`, and then by `second`."""
        return not self.pairs(first, second).is_empty()

    def pairs(self, first: isl.Map, second: isl.Map) -> isl.UnionMap:
        """The instances that access an element by `first`, and then by `second`."""
        pairs = isl.UnionMap.from_map(first.apply_range(second.reverse()))
        return pairs.intersect(self._before)

    def same(self, first: isl.Map, second: isl.Map) -> bool:
        """Whether one instance accesses an element by both."""
        return not first.intersect(second).is_empty()


def _value_reads(s: ScopStatement) -> list[tuple[Read, isl.Map]]:
    """What a statement reads to compute its value, each with its relation."""
    if s.role == Role.INIT:
        return []
    affine = dict(s.affine_reads)
    others = (r for r in s.source.reads if r not in affine)
    return [*affine.items(), *zip(others, s.may_reads, strict=True)]


def is_complete_when_read(program: Program, tensor: str | None = None) -> bool:
    """Whether no element, of one tensor or of all, is written after it was read for a value."""
    found = _Meetings(build_scop(program))
    return not any(
        found.meet(relation, w.write)
        for s, w in product(found.scop.statements, repeat=2)
        for read, relation in _value_reads(s)
        if read.tensor == w.target.tensor and tensor in (None, read.tensor)
    )


def writes_each_once(program: Program, first: Statement) -> bool:
    """Whether the other statements write each element that `first` writes once, and no other of its
    tensor; an initialisation and what is added to it count as one.
    """
    whole, others = _writes(program, first)
    written = isl.Set.empty(whole.get_space())
    for write in others:
        own = write.range()
        if not write.is_injective() or not written.is_disjoint(own):
            return False
        written = written.union(own)
    return bool(whole.is_equal(written))


def fills(program: Program, whole: Statement) -> bool:
    """Whether the other statements write every element that `whole` writes."""
    left, others = _writes(program, whole)
    for write in others:
        left = left.subtract(write.range())
    return bool(left.is_empty())


def _writes(program: Program, s: Statement) -> tuple[isl.Set, list[isl.Map]]:
    """The elements that a statement writes, and how others write to its tensor: an initialisation
    stands for what is added to it.
    """
    scop = build_scop(program)
    others = [
        o.write
        for o in scop.statements
        if o.source is not s
        and o.target.tensor == s.target.tensor
        and not (o.role == Role.UPDATE and o.source.init)
    ]
    return scop.by_name[s.name].write.range(), others


def changed_between(program: Program, s: Statement, copy: Statement, after: bool) -> bool:
    """Whether something is written to an element between a statement and a copy of the element.

    after : the copy is of what the statement wrote, and not of what it is about to read
    """
    scop = build_scop(program)
    found = _Meetings(scop)
    near, copied = scop.by_name[s.name], scop.by_name[copy.name]
    assert isinstance(copy.value, Read)
    element = access_map(program, near.domain, near.loops, copy.value)
    place = access_map(program, near.domain, near.loops, copy.target)
    read = copied.reads[-1]
    assert element is not None and place is not None
    same = place.apply_range(copied.write.reverse())
    for w in scop.statements:
        own = w.source is s and copy.value == s.target
        if w.target.tensor != copy.value.tensor or own:
            continue
        parts = (element, w.write, read) if after else (read, w.write, element)
        between = found.pairs(*parts[:2]).apply_range(found.pairs(*parts[1:]))
        if not between.intersect(
            isl.UnionMap.from_map(same if after else same.reverse())
        ).is_empty():
            return True
    return False


class OwnReads:
    """What a statement reads of the tensor that it writes.

    overwritten : whether it overwrites something of that, or data says what it reads
    """

    def __init__(self, scop: Scop, s: Statement) -> None:
        self._scop, self._statement = scop, s
        order = initial_order(scop)
        found = scop.by_name[s.name]
        space = isl.Map.from_domain_and_range(found.domain, found.domain).get_space()
        before = order.lex_lt_union_map(order).extract_map(space)
        self._domain = found.domain
        data = (r for r in s.reads if any(reads_of(i) for i in r.indices))
        self.overwritten = any(r.tensor == s.target.tensor for r in data)
        #: Where each read is of what the statement wrote.
        self._new: dict[Read, isl.Set] = {}
        for read, relation in found.affine_reads:
            if read.tensor != s.target.tensor:
                continue
            writers = relation.apply_range(found.write.reverse())
            self._new[read] = writers.intersect(before.reverse()).domain()
            later = writers.subtract(before.reverse())
            self.overwritten |= not later.is_empty()

    def when_new(self, read: Read) -> Expr | None:
        """The condition under which a read is of what the statement wrote; None if it is too long
        to say.
        """
        new = self._new[read]
        if new.is_empty():
            return Const(False)
        if self._domain.is_subset(new):
            return Const(True)
        return _condition(self._scop.program, self._statement, new, self._domain)


def results_left(program: Program) -> dict[str, Expr | None]:
    """For statements whose results are overwritten before anything reads them: the condition under
    which they are not; None if it is too long to say.
    """
    scop = build_scop(program)
    found = compute_dependences(scop, exact=True)
    left: dict[str, Expr | None] = {}
    for s in program.statements:
        domain = scop.by_name[s.name].domain
        own = isl.UnionSet.from_set(domain)
        lost = found.output.intersect_domain(own).domain()
        lost = lost.subtract(found.flow.intersect_domain(own).domain())
        if not (s.is_update or lost.is_empty()):
            rest = domain.subtract(lost.extract_set(domain.get_space()))
            left[s.name] = _condition(program, s, rest, domain)
    return left


def _condition(program: Program, s: Statement, points: isl.Set, domain: isl.Set) -> Expr | None:
    """When an instance of a statement is one of some; None if that is too long to say."""
    found = conditions_of(_as_params(points), _as_params(domain))
    if found is None:
        return None
    condition = found[0]
    for c in found[1:]:
        condition = Op("and", (condition, c))
    own = {n: Size(n) for n in program.sizes}
    return substitute(condition, sizes={**own, **{i: Index(i) for i in s.indices}})


def _as_params(points: isl.Set) -> isl.Set:
    """A set over its dimensions as conditions on parameters."""
    count, known = points.dim(isl.dim_type.set), points.dim(isl.dim_type.param)
    return points.move_dims(isl.dim_type.param, known, isl.dim_type.set, 0, count).params()
