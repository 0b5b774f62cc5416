"""Which values that a program reads or writes are overwritten later, and by what.

With the order ``<`` of a program's instances, reads R and writes W, two instances meet if

    { r -> w : R(r) = W(w), r < w }        an element that r reads is written later

is not empty, and so on.  Whether another write comes between does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import islpy as isl

from poly.deps.dependences import initial_order
from poly.deps.scop import Role, Scop, ScopStatement, build_scop
from poly.ir.expr import Read
from poly.ir.program import Program, Statement
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


def is_complete_when_read(program: Program) -> bool:
    """Whether no element is written after it was read to compute a value."""
    found = _Meetings(build_scop(program))
    return not any(
        found.meet(relation, w.write)
        for s, w in product(found.scop.statements, repeat=2)
        for read, relation in _value_reads(s)
        if read.tensor == w.target.tensor
    )


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
        if not between.intersect(isl.UnionMap.from_map(same if after else same.reverse())).is_empty():
            return True
    return False
