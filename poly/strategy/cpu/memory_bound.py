"""Groups bound by memory bandwidth: one pass over memory, contiguous loops in vector lanes.

1. *One pass*: inner loops over the same range are fused, and temporaries that no other iteration
   needs are kept in buffers of the thread.
2. *Lanes*: the innermost loops, one by one, where they are contiguous.  Sums that would stride
   through memory are moved outside a loop that does not.
3. *Threads*: the outermost parallel loops, where the work pays for sharing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import islpy as isl

from poly.deps.legality import coincident_members
from poly.deps.scop import ScopStatement
from poly.ir.accesses import loops_of_read, stride_of
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    accesses,
    attempt,
    buffers_around,
    dimension_at,
    loop_extents,
    nest,
    plan_around,
)
from poly.strategy.common.tactic import Group, Tactic, field_parameter
from poly.strategy.cpu.threads import share_loops
from poly.tree.kinds import Mark, Scope
from poly.tree.nodes import loops_of

#: The most bytes of the buffers of one iteration together.
ROW_BYTES = 1 << 16
#: Iterations of a single loop that one thread takes at a time.
BLOCK = 1024


@dataclass(frozen=True)
class OnePass:
    """The plan of `MemoryBound`.

    fuses : whether inner loops over the same range are fused
    keeps : whether temporaries are kept in buffers of the thread
    block : iterations of a single loop that one thread takes at a time
    """

    fuses: bool = True
    keeps: bool = True
    block: int = BLOCK


def _if_several(group: Group[Machine], plan: OnePass) -> Iterable[int]:
    return (0, 1) if len(group.names) > 1 else (1,)


class MemoryBound(Tactic[Machine, OnePass]):
    """One pass over memory: fused inner loops, lanes where they are contiguous, threads outside."""

    name = "memory bound"
    plain = True
    parameters = (
        field_parameter("one pass", "fuses", _if_several),
        field_parameter("temporaries in buffers", "keeps", _if_several),
        field_parameter("block", "block", lambda group, p: (256, 1024, 4096, 16384)),
    )

    def match(self, group: Group[Machine]) -> OnePass:
        return OnePass()

    def apply(self, group: Group[Machine], plan: OnePass) -> Schedule:
        schedule, names = group.schedule, group.names
        if plan.fuses:
            schedule = _one_pass(schedule, names)
        for name in names:
            schedule = _lanes(_along_rows(schedule, name), name, plan.block)
        schedule = share_loops(schedule, names, nest(schedule, names), group.machine)
        return _keep(schedule, names) if plan.keeps else schedule


def _one_pass(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """Fuse adjacent inner nests over the same range where one uses what the other touches."""
    depth = len(nest(schedule, names))
    for position, later in enumerate(names):
        for earlier in names[:position]:
            if len(schedule.loops(earlier)) <= depth or len(schedule.loops(later)) <= depth:
                continue
            if nest(schedule, (earlier, later)) != nest(schedule, names):
                continue
            if not _same_row(schedule, earlier, later, depth):
                continue
            loops = schedule.loops(earlier)[depth:]
            fused = attempt(schedule, Schedule.fuse, earlier, later, loops)
            if fused is not schedule and _in_lanes(fused, later):
                schedule = fused
                break
    return schedule


def _same_row(schedule: Schedule, first: str, second: str, depth: int) -> bool:
    """Whether two statements touch a common tensor in inner loops over the same ranges."""
    a, b = (schedule.scop.statement(n) for n in (first, second))
    if not {r.tensor for r in accesses(a)} & {r.tensor for r in accesses(b)}:
        return False
    ranges = []
    for s in (a, b):
        inner = schedule.loops(s.name)[depth:]
        found = loop_extents(schedule, s.name)
        ranges.append([found[x] for x in inner])
    if ranges[0] != ranges[1]:
        return False
    return shares_inner(schedule, first, second)


def shares_inner(schedule: Schedule, first: str, second: str) -> bool:
    """Whether all loops around two statements take the same values, in order."""
    images = []
    for name in (first, second):
        domain = schedule.scop.statement(name).domain
        union = isl.UnionSet.from_set(domain)
        members = loops_of(schedule.tree, name)
        image: isl.MultiUnionPwAff | None = None
        for m in members:
            f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule.intersect_domain_union_set(union))
            image = f if image is None else image.flat_range_product(f)
        if image is None:
            return False
        sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(image)).get_set_list()
        if sets.n_set() != 1:
            return False
        images.append(sets.get_at(0))
    return bool(images[0].is_equal(images[1]))


def _in_lanes(schedule: Schedule, name: str) -> bool:
    inner = schedule.loops(name)[-1]
    return attempt(schedule, Schedule.vectorize, name, inner) is not schedule


def _along_rows(schedule: Schedule, name: str) -> Schedule:
    """Move sums that stride through memory outside the loop along which memory is contiguous."""
    s = schedule.scop.statement(name)
    loops = schedule.loops(name)
    index = {x: dimension_at(schedule, name, x) for x in loops}
    if not loops or index[loops[-1]] not in s.source.reductions or _is_along(s, index[loops[-1]]):
        return schedule
    free = [n for n, x in enumerate(loops) if index[x] in s.free and _is_along(s, index[x])]
    at = free[-1] if free else 0
    # A loop that is outermost is left to others: it is the one that threads share.
    if not at or any(index[x] not in s.source.reductions for x in loops[at + 1 :]):
        return schedule

    def turned(made: Schedule) -> Schedule:
        alone = attempt(made, Schedule.distribute, name, loops[at])
        return alone.reorder(name, [*loops[at + 1 :], loops[at]])

    return attempt(schedule, turned)


def _is_along(s: ScopStatement, index: str) -> bool:
    """Whether most of what a statement touches is contiguous along a loop, and nothing is apart.

    Elements that are the same in all iterations, as of a scalar, do not count.
    """
    touched = [r for r in (*s.source.reads, s.target) if loops_of_read(r)]
    strides = [stride_of(r, index) for r in touched]
    return strides.count(1) > len(strides) // 2 and None not in strides


def _lanes(schedule: Schedule, name: str, block: int) -> Schedule:
    """Run the innermost loop of a statement in lanes, where that is contiguous."""
    s = schedule.scop.statement(name)
    loops = schedule.loops(name)
    if not loops:
        return schedule
    inner = loops[-1]
    flags = coincident_members(schedule.tree, name, schedule.dependences)
    member = loops_of(schedule.tree, name)[-1]
    index = dimension_at(schedule, name, inner)
    if member.mark != Mark.SEQ or not index:
        return schedule
    if not flags[inner]:
        # A reduction over adjacent elements; anything else is refused.
        adjacent = any(stride_of(r, index) == 1 for r in s.source.reads)
        if not adjacent:
            return schedule
        return attempt(schedule, Schedule.vectorize, name, inner)
    if any(member in loops_of(schedule.tree, other)[:-1] for other in schedule.statements):
        # Another statement has loops inside: this one is not an innermost loop.
        return schedule
    if len(loops) == 1 and not _is_small(schedule, name, inner, block):
        # A single loop is used for both: blocks of it on threads, lanes inside.
        split = attempt(schedule, Schedule.split, name, inner, block)
        if split is schedule:
            return schedule
        return attempt(split, Schedule.vectorize, name, f"{inner}_i")
    return attempt(schedule, Schedule.vectorize, name, inner)


def _is_small(schedule: Schedule, name: str, loop: str, block: int) -> bool:
    extent = loop_extents(schedule, name).get(loop)
    return extent is not None and extent < 4 * block


def _keep(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """Keep temporaries private to one iteration of the shared loops in buffers of the thread."""
    shared = nest(schedule, names)
    if not shared or len(names) == 1:
        return schedule
    written = {schedule.scop.statement(n).target.tensor for n in names}
    room = ROW_BYTES
    for tensor in schedule.program.temps:
        if tensor.name not in written:
            continue
        for scope in (Scope.REGISTER, Scope.LOCAL):
            made = attempt(schedule, Schedule.promote, names[0], shared[-1], tensor.name, scope)
            if made is schedule:
                continue
            sizes = _private_sizes(made, tensor.name, names[0])
            count = prod(sizes) * tensor.dtype.bytes if sizes else 0
            if 0 < count <= (tensor.dtype.bytes if scope == Scope.REGISTER else room):
                schedule, room = made, room - count
                break
    return schedule


def _private_sizes(schedule: Schedule, tensor: str, name: str) -> tuple[int, ...] | None:
    """The extents of a tensor's buffer; None if anything is copied in or out."""
    plan = plan_around(schedule, name, buffers_around(schedule, name, tensor)[0])
    return None if plan.copy_in or plan.copy_out else plan.sizes or (1,)
