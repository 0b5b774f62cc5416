"""Transposes: tiles in shared memory, so that both sides are coalesced."""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.accesses import stride_of
from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import dimension_at, loop_extents
from poly.strategy.common.tactic import Group, NoMatch, Tactic
from poly.strategy.gpu.map_loops import THREADS
from poly.strategy.gpu.queries import (
    contiguity,
    in_registers,
    on_blocks,
    order_along,
    parallel_nest,
)
from poly.tree.kinds import Scope


@dataclass(frozen=True)
class TransposePlan:
    """A tile of the loops `across`, which inputs are contiguous along, and `along`.

    run : the parallel loops; orders : of the dimensions of these inputs in shared memory
    """

    run: tuple[str, ...]
    along: str
    across: str
    orders: tuple[tuple[str, tuple[int, ...]], ...]


class Transpose(Tactic[GpuMachine, TransposePlan]):
    """Tiles in shared memory of inputs that are contiguous along another loop than the target."""

    name = "transpose"

    def match(self, group: Group[GpuMachine]) -> TransposePlan | NoMatch:
        schedule, names = group.schedule, group.names
        run = parallel_nest(schedule, names)
        if not run:
            return NoMatch("no parallel loop")
        if any(schedule.loops(n) != run for n in names):
            return NoMatch("not all loops are parallel and shared")
        along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
        plan = _plan(schedule, names, run, along)
        if plan is None:
            return NoMatch("everything is contiguous along one loop")
        extents = loop_extents(schedule, names[0])
        for loop in (along, plan.across):
            extent = extents[loop]
            if extent is not None and extent < group.machine.warp // 2:
                return NoMatch(f"{loop} is short")
        return plan

    def apply(self, group: Group[GpuMachine], plan: TransposePlan) -> Schedule:
        schedule, names = group.schedule, group.names
        s, side = names[0], group.machine.warp
        along, across = plan.along, plan.across
        others = [x for x in plan.run if x not in (along, across)]
        extents = loop_extents(schedule, s)
        blocks, rest = on_blocks([*others, f"{across}_b", f"{along}_b"], extents)
        inner = (*rest, f"{across}_r", f"{across}_t", f"{along}_t")
        schedule = schedule.split(s, along, side, (f"{along}_b", f"{along}_t"))
        schedule = schedule.split(s, across, side, (f"{across}_b", f"{across}_w"))
        rows = THREADS // side
        schedule = schedule.split(s, f"{across}_w", rows, (f"{across}_r", f"{across}_t"))
        schedule = schedule.reorder(s, [*blocks, *inner])
        schedule = schedule.map_blocks(s, blocks)
        schedule = schedule.map_threads(s, [f"{across}_t", f"{along}_t"])
        for tensor, order in plan.orders:
            schedule = schedule.promote(s, [*blocks, *rest][-1], tensor, Scope.SHARED, order)
        return in_registers(schedule, names, f"{along}_t")


def _plan(
    schedule: Schedule, names: tuple[str, ...], run: tuple[str, ...], along: str
) -> TransposePlan | None:
    """The inputs that are contiguous along another loop, and that loop; None if there are none.

    Their dimensions are ordered so that what a warp reads together is contiguous: rows may then
    have any length, and one without bank conflicts is chosen.
    """
    written = {schedule.scop.statement(n).target.tensor for n in names}
    for across in reversed(run):
        found: dict[str, tuple[int, ...]] = {}
        for name in names:
            inner = dimension_at(schedule, name, along)
            outer = dimension_at(schedule, name, across)
            for read in schedule.scop.statement(name).source.reads:
                strided = across != along and read.indices and inner and outer
                if strided and stride_of(read, outer) == 1 and stride_of(read, inner) is None:
                    found.setdefault(read.tensor, order_along(schedule, read, inner))
        if found and not written & found.keys():
            return TransposePlan(run, along, across, tuple(found.items()))
    return None
