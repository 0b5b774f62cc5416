"""Vector points: a thread for a few adjacent elements, as many as one access of 16 bytes has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from poly.buffers.copies import TOGETHER
from poly.deps.scop import Role
from poly.ir.accesses import stride_of
from poly.ir.expr import Const, Index, Read
from poly.ir.linear_form import linear_form
from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import accesses, dimension_at, loop_extents, nest
from poly.strategy.common.tactic import Group, NoMatch, Parameter, Tactic, UnsuitableError
from poly.strategy.gpu.map_loops import THREADS, map_loops, thread_tiles
from poly.strategy.gpu.queries import check_rows, contiguity, parallel_nest
from poly.tree.kinds import Scope

#: The most bytes of adjacent elements of one tensor that a thread has in registers.
MOST_BYTES = 32
#: The least threads along a loop for which several elements each are worthwhile.
FEWEST = 4


@dataclass(frozen=True)
class Adjacent:
    """Tensors that move contiguously along a loop, and how many elements a thread has of each."""

    tensors: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class VectorPlan:
    """The parallel loops, the one along which threads have several elements, and its tensors."""

    run: tuple[str, ...]
    along: str
    adjacent: Adjacent


class VectorPoints(Tactic[GpuMachine, VectorPlan]):
    """A thread for a few adjacent elements, which it loads and stores at once."""

    name = "vector points"
    parameters = (
        Parameter(
            "elements",
            lambda p: p.adjacent.count,
            lambda group, p: [n for n in (2, 4, 8) if p.adjacent.count % n == 0],
            lambda group, p, n: replace(p, adjacent=replace(p.adjacent, count=n)),
        ),
    )

    def match(self, group: Group[GpuMachine]) -> VectorPlan | NoMatch:
        schedule, names = group.schedule, group.names
        run = parallel_nest(schedule, names)
        if not run:
            return NoMatch("no parallel loop")
        shared = nest(schedule, names)
        if shared[-len(run) :] != run or any(schedule.loops(n) != shared for n in names):
            return NoMatch("not all loops are parallel and shared")
        extents = loop_extents(schedule, names[0])
        along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
        adjacent = adjacent_elements(schedule, names, along)
        if isinstance(adjacent, NoMatch):
            return adjacent
        extent = extents[along]
        known = [extents[x] or 0 for x in run]
        if extent is not None and extent < FEWEST * adjacent.count:
            return NoMatch(f"{along} is short")
        if all(known) and prod(known) < adjacent.count * THREADS * group.machine.processors:
            return NoMatch("too few points to fill all SMs")
        return VectorPlan(run, along, adjacent)

    def apply(self, group: Group[GpuMachine], plan: VectorPlan) -> Schedule:
        schedule, names, along = group.schedule, group.names, plan.along
        first, count = names[0], plan.adjacent.count
        extents = loop_extents(schedule, first)
        outer, lane = f"{along}_g", f"{along}_v"
        schedule = schedule.split(first, along, count, (outer, lane))
        extent = extents[along]
        extents[outer] = None if extent is None else -(-extent // count)
        run = tuple(outer if x == along else x for x in plan.run)
        tiles = thread_tiles(run, outer, extents)
        if not tiles:
            raise UnsuitableError("only one point")
        schedule = map_loops(schedule, first, run, tiles, extents, (lane,))
        schedule = schedule.unroll(first, lane)
        thread = nest(schedule, names)[-2]
        inside = _private(schedule, names)
        for tensor in plan.adjacent.tensors:
            loop = lane if tensor in inside else thread
            schedule = schedule.promote(first, loop, tensor, Scope.REGISTER)
            for name in names:
                check_rows(schedule, name, tensor)
        return schedule


def adjacent_elements(
    schedule: Schedule,
    names: tuple[str, ...],
    along: str,
    roles: Sequence[Role] = (Role.ASSIGN,),
) -> Adjacent | NoMatch:
    """The elements that statements access contiguously along a loop.

    Rows and all indices begin at multiples of a thread's element count, as far as is known.
    """
    moving: dict[str, None] = {}
    starts: list[int] = []
    for name in names:
        index, s = dimension_at(schedule, name, along), schedule.scop.statement(name)
        if not index or s.role not in roles or s.may_reads:
            return NoMatch(f"{name} does not just move along {along}")
        for access in accesses(s):
            stride = stride_of(access, index)
            if stride == 0:
                continue
            if stride != 1:
                return NoMatch(f"{access} is not contiguous along {along}")
            moving[access.tensor] = None
            starts += _starts(schedule, access, index)
    sizes = [schedule.program.tensors[t].dtype.bytes for t in moving]
    most = min(TOGETHER // min(sizes), MOST_BYTES // max(sizes))
    count = gcd(most, *starts)
    if count < 2 or count * max(sizes) < TOGETHER:
        return NoMatch(f"few elements are adjacent along {along}")
    return Adjacent(tuple(moving), count)


def _starts(schedule: Schedule, access: Read, index: str) -> list[int]:
    """Numbers whose common divisors divide the indices at which rows of an access begin."""
    form = linear_form(access.indices[-1]).without(Index(index))
    *outer, row = schedule.program.tensors[access.tensor].shape
    rows = [int(row.value)] if isinstance(row, Const) and any(e != Const(1) for e in outer) else []
    return [form.constant, *(factor for _, factor in form.terms), *rows]


def _private(schedule: Schedule, names: tuple[str, ...]) -> set[str]:
    """Temporaries that only a group uses."""
    others = [s for s in schedule.scop.statements if s.name not in names]
    used = {a.tensor for s in others for a in accesses(s)}
    return {t.name for t in schedule.program.temps} - used
