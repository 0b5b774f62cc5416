"""The choice of a tile for an update: that of a contraction or that of a stencil."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import prod

from poly.deps.scop import Scop, ScopStatement
from poly.ir.accesses import loops_of_read, vector_stride
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import dimension_at, result_of
from poly.strategy.common.tactic import Group
from poly.strategy.cpu.register_tile import BATCH, Contraction, find_contraction, is_batch
from poly.strategy.cpu.reuse import USUAL, reuse_of
from poly.strategy.cpu.stencil_tile import TURN, Stencil, find_stencil

#: A kind of tile; None is any.
Kind = type[Contraction] | type[Stencil] | None


@lru_cache(maxsize=64)
def core_of(group: Group[Machine], kind: Kind = None) -> Contraction | Stencil | None:
    """The core of a group: its first update that has a tile.

    kind : that of the tile, even if another one is cheaper
    """
    schedule = group.schedule
    for name in group.names:
        s: ScopStatement = schedule.scop.statement(name)
        outside = loops_outside(schedule, name)
        found = find_tile(schedule.scop, s, group.machine, (), outside, kind)
        # isl's order may omit a loop that has one iteration.
        if isinstance(found, Contraction) and not {*found.free} <= {*schedule.loops(name)}:
            continue
        if found is not None:
            return found
    return None


def loops_outside(schedule: Schedule, name: str) -> tuple[str, ...]:
    """The indices of a statement of a block whose loops are around its steps."""
    loops, step = schedule.loops(name), schedule.scop.statement(name).step
    # isl's order may have omitted or renamed the loop over steps.
    around = loops[: loops.index(step)] if step in loops else ()
    return tuple(dimension_at(schedule, name, loop) for loop in around)


def find_tile(
    scop: Scop,
    s: ScopStatement,
    machine: Machine,
    rearranged: Collection[str] = (),
    outside: Collection[str] = (),
    kind: Kind = None,
) -> Contraction | Stencil | None:
    """Choose a statement's tile: as a contraction or as a stencil, whichever is cheaper.

    rearranged : tensors that are available in any layout
    outside : loops around the steps of a block
    kind : of the tile, even if another one is cheaper
    """
    contraction = stencil = None
    if kind is not Stencil:
        contraction = find_contraction(scop, s, machine, rearranged, outside)
    if kind is not Contraction and not outside:
        stencil = find_stencil(scop, s, machine)
    if contraction is None or stencil is None:
        return contraction or stencil
    cost = cost_of(scop, s, contraction, rearranged)
    return stencil if stencil.cost < cost else contraction


def cost_of(
    scop: Scop, s: ScopStatement, core: Contraction, rearranged: Collection[str] = ()
) -> float:
    """The cost of a contraction's tile per element of the result, comparable to a stencil's.

    Accesses that are not contiguous along the lanes are transposed: the result, and each packed
    element as often as it is used for another result.
    """
    extents = {x: core.extent(x) or USUAL for x in s.loops}
    length = prod(extents[r] for r in core.reductions) / (core.dot.group if core.dot else 1)
    extent = extents[core.v]
    moving = [r for r in s.source.reads if core.v in loops_of_read(r)]
    loads = sum(1 if core.w in loops_of_read(r) else 1 / core.rows for r in moving)
    result = result_of(scop, s)
    term = 1 + loads / 2 + (BATCH if is_batch(core, result) else 0.0)
    cost = term * length * -(-extent // core.lanes) / extent
    if vector_stride(result, core.v, core.lanes) != 1:
        cost += TURN / core.lanes
    packed = {tensor for tensor, _ in core.packed} - set(rearranged)
    for read in s.source.reads:
        if read.tensor in packed:
            cost += TURN / core.lanes * length / reuse_of(s, read, dict(core.extents))
    return cost
