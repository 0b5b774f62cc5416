"""Copies that put elements of a few rows next to each other, as instructions for several terms read
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.buffers.copies import GROUPS, INTERLEAVED
from poly.deps.scop import ScopStatement
from poly.ir.accesses import element_stride, stride_of
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import static_extents
from poly.strategy.common.tactic import Group, NoMatch, Tactic
from poly.strategy.cpu.threads import share_loops
from poly.strategy.cpu.transpose import plain_assignment


@dataclass(frozen=True)
class InterleavePlan:
    """The loop over the elements of a group, and that along their rows, with the lanes of it."""

    group: str
    row: str
    lanes: int
    length: int | None


class Interleave(Tactic[Machine, InterleavePlan]):
    """Vectors of a few rows, stored between each other's lanes: ``Y[.., i, g] = X[.., g, i]``."""

    name = "interleave"
    plain = True

    def match(self, group: Group[Machine]) -> InterleavePlan | NoMatch:
        schedule = group.schedule
        s = plain_assignment(group)
        if isinstance(s, NoMatch):
            return s
        loops, extents = schedule.loops(s.name), static_extents(s)
        tensor = schedule.program.tensors[s.target.tensor]
        lanes = INTERLEAVED // tensor.dtype.bytes
        inner = [x for x in loops if stride_of(s.target, x) == 1 and extents[x] in GROUPS]
        for g in inner:
            for x in loops:
                stride = element_stride(s.target, tensor.shape, x, lanes)
                long = (extents[x] or lanes) >= lanes
                if long and stride == extents[g] and _is_along(s, x) and not _is_along(s, g):
                    return InterleavePlan(g, x, lanes, extents[x])
        return NoMatch("no elements of a few rows are put next to each other")

    def apply(self, group: Group[Machine], plan: InterleavePlan) -> Schedule:
        schedule, s, row = group.schedule, group.names[0], plan.row
        outer = [x for x in schedule.loops(s) if x not in (plan.group, row)]
        vectors, lanes = f"{row}_o", f"{row}_i"
        schedule = schedule.split(s, row, plan.lanes, (vectors, lanes))
        schedule = schedule.reorder(s, [*outer, vectors, plan.group, lanes])
        schedule = share_loops(schedule, group.names, (*outer, vectors), group.machine)
        if plan.length is None or plan.length % plan.lanes:
            schedule = schedule.isolate(s, vectors)
        return schedule.vectorize(s, lanes).unroll(s, plan.group)


def _is_along(s: ScopStatement, loop: str) -> bool:
    """Whether what is read is contiguous along a loop, or every other element of that."""
    strides = [stride_of(r, loop) for r in s.source.reads]
    return all(n in (0, 1, 2) for n in strides) and any(strides)
