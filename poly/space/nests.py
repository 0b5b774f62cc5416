"""Loop nests as numbers: what an estimate knows of the loops and buffers around a statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import islpy as isl

from poly.deps.instances import sizes_set
from poly.deps.scop import Role, ScopStatement
from poly.ir.accesses import elements_read, loops_of_read
from poly.ir.expr import Read
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import dimensions_at
from poly.tree.kinds import LoopMark, Mark, Scope
from poly.tree.nodes import Band, Promote, path_to, serves


@dataclass(frozen=True)
class Loop:
    """A loop around a statement.

    extent : the number of its values, at most; indices : of the statement, that it moves
    """

    name: str
    mark: LoopMark
    extent: int
    indices: frozenset[str]


@dataclass(frozen=True)
class Buffer:
    """A buffer for a tensor, filled inside the first `depth` loops; reads : that it serves."""

    tensor: str
    scope: Scope
    depth: int
    reads: tuple[Read, ...]


@dataclass(frozen=True)
class Nest:
    """The loops around a statement, outermost first, at given sizes.

    extents : of its indices; bytes : of an element of each tensor
    """

    statement: ScopStatement
    loops: tuple[Loop, ...]
    extents: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    bytes: Mapping[str, int]

    @cached_property
    def instances(self) -> int:
        """How often the statement runs, as if its domain were a box."""
        return prod(self.extents.values())

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """What it reads at affine indices."""
        if self.statement.role == Role.INIT:
            return ()
        return tuple(r for r in self.statement.source.reads if r.indices)

    @property
    def accesses(self) -> tuple[Read, ...]:
        """What it reads and, first, what it writes."""
        return (self.statement.target, *self.reads)

    def inside(self, depth: int) -> dict[str, int]:
        """The extents of the indices while the first `depth` loops are at one iteration."""
        return {
            index: min(extent, prod(x.extent for x in self.loops[depth:] if index in x.indices))
            for index, extent in self.extents.items()
        }

    def iterations(self, depth: int) -> float:
        """How often the first `depth` loops run what is inside them."""
        return self.instances / max(1, prod(self.inside(depth).values()))

    def bytes_inside(self, read: Read, depth: int) -> int:
        """The bytes of a read that one iteration of the first `depth` loops touches."""
        return self.bytes[read.tensor] * elements_read([read], self.inside(depth))

    def fetches(self, read: Read, depth: int) -> float:
        """How often that is not what the iteration before touched."""
        moving = loops_of_read(read)
        outer = list(self.loops[:depth])
        while outer and not outer[-1].indices & moving:
            outer.pop()
        return self.iterations(len(outer))


def nest_of(schedule: Schedule, name: str, sizes: Mapping[str, int]) -> Nest:
    """The nest of a statement.  sizes : a value for every size of the program"""
    s = schedule.scop.statement(name)
    domain = s.domain.intersect_params(sizes_set(sizes))
    union = isl.UnionSet.from_set(domain)
    loops: list[Loop] = []
    buffers: list[Buffer] = []
    for node in path_to(schedule.tree, name):
        if isinstance(node, Band):
            for m in node.members:
                f = isl.MultiUnionPwAff.from_union_pw_aff(
                    m.schedule.intersect_domain_union_set(union)
                )
                sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
                extent = _count(sets.get_at(0), 0) if sets.n_set() else 0
                loops.append(Loop(m.name, m.mark, extent, dimensions_at(schedule, name, m.name)))
        elif isinstance(node, Promote):
            served = [r for r in (s.target, *s.source.reads) if r.tensor == node.tensor]
            own = tuple(r for r in served if serves(node.accesses, frozenset({(name, r)})))
            buffers.append(Buffer(node.tensor, node.scope, len(loops), own))
    extents = {x: _count(domain, k) for k, x in enumerate(s.loops)}
    widths = {t.name: t.dtype.bytes for t in schedule.program.tensors.values()}
    return Nest(s, tuple(loops), extents, tuple(buffers), widths)


def _count(values: isl.Set, dimension: int) -> int:
    """The number of values of a dimension; 1 if it is unbounded."""
    low, high = values.dim_min_val(dimension), values.dim_max_val(dimension)
    known = low.is_int() and high.is_int()
    return int(high.to_python()) - int(low.to_python()) + 1 if known else 1


def is_lane(loop: Loop) -> bool:
    """Whether its iterations run at once in a vector, by one instruction."""
    return loop.mark == Mark.VECTOR or not isinstance(loop.mark, Mark)
