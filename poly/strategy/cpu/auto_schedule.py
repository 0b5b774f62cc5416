"""The automatic schedule: steps chosen from access relations and the machine, not from names.

1. *Group*: neighbouring statements share loops where that is legal, keeps them parallel, and
   leaves a contraction's own loops free to be tiled; but not loops too short for all threads.
2. *Contractions* (updates with reuse: some operand does not move with some free loop) get a
   register tile: a vector loop v along which one operand is broadcast and the others contiguous,
   a second loop w along which the vector operand is reused, the reduction outside, accumulators
   in registers, the vector operand packed where it is not contiguous, and blocks for the caches
   where they pay: see `poly.strategy.cpu.cache_blocks`
   (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008).
3. *Everything else* is bound by memory: see `poly.strategy.cpu.memory_bound`.

Every choice becomes steps of the checked Schedule API; a step that turns out to be refused is
left out, and the schedule stays legal.
"""

from __future__ import annotations

from poly.deps.legality import coincident_members
from poly.deps.scop import ScopStatement
from poly.errors import ScheduleError
from poly.ir.accesses import loops_of_read
from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import group_statements, groups
from poly.strategy.common.queries import dimension_at, inner_loops, loop_extents, shares_ranges
from poly.strategy.cpu.contraction import contraction_steps
from poly.strategy.cpu.memory_bound import row_steps
from poly.strategy.cpu.register_tile import Contraction
from poly.strategy.cpu.stencil import Stencil, find_tile, stencil_steps


def auto_schedule(
    schedule: Schedule, machine: Machine | None = None, tiles: bool = True
) -> Schedule:
    """A fast legal schedule of the program, from its written order.

    The result is deterministic for a program and machine.

    tiles : whether contractions get register tiles; without, isl has less to take apart
    """
    machine = machine or host_machine()
    for names in blocks(schedule):
        schedule = _apart(schedule, names, machine)
    schedule = group_statements(schedule, machine, find_core)
    # isl knows nothing of steps, and would mix what is in a block with what is around it.
    if not schedule.program.has_blocks and not _has_parallelism(schedule):
        schedule = _rescheduled(schedule)
    for names in groups(schedule):
        core = find_core(schedule, names, machine) if tiles else None
        try:
            if isinstance(core, Stencil):
                schedule = stencil_steps(schedule, names, core, machine)
            elif core is not None:
                schedule = contraction_steps(schedule, names, core, machine)
            else:
                schedule = row_steps(schedule, names, machine)
        except ScheduleError:
            schedule = row_steps(schedule, names, machine)
    return schedule


def blocks(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """The statements that run step by step together, block by block."""
    numbers = [s.source.block for s in schedule.scop.statements]
    return tuple(
        tuple(s.name for s in schedule.scop.statements if s.source.block == block)
        for block in sorted(set(numbers) - {0})
    )


def _apart(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """A loop that all statements of a block share, around its steps and on threads, which then
    need not wait for each other at every step; or the schedule as it was.

    Nothing may be used again along that loop, and it has to occupy all threads.
    """
    first = inner_loops(schedule, names[0])[:1]
    if not first:
        return schedule
    (loop,) = first
    extent = loop_extents(schedule, names[0])[loop]
    if extent is None or extent % machine.cores or extent < 2:
        return schedule
    for n in names:
        s = schedule.scop.statement(n)
        own = inner_loops(schedule, n)[:1]
        if s.source.reductions and any(
            not set(own) <= loops_of_read(r) for r in s.source.reads if r.indices
        ):
            return schedule
        if not own or not shares_ranges(schedule, names[:1], (n,), 2):
            return schedule
    step = schedule.scop.statement(names[0]).step
    made = schedule
    try:
        for n in names[1:]:
            made = made.fuse(names[0], n, [loop])
        return made.interchange(names[0], step, loop).parallelize(names[0], loop)
    except ScheduleError:
        return schedule


def find_core(
    schedule: Schedule, names: tuple[str, ...], machine: Machine
) -> Contraction | Stencil | None:
    """What a group is tiled around: its first update that has a tile."""
    for name in names:
        s: ScopStatement = schedule.scop.statement(name)
        found = find_tile(schedule.scop, s, machine, (), _outside(schedule, name))
        # isl's order may be without a loop that has one iteration.
        if isinstance(found, Contraction) and not {*found.free} <= {*schedule.loops(name)}:
            continue
        if found is not None:
            return found
    return None


def _outside(schedule: Schedule, name: str) -> tuple[str, ...]:
    """The indices of a statement of a block whose loops are around its steps."""
    loops, step = schedule.loops(name), schedule.scop.statement(name).step
    around = loops[: loops.index(step)] if step else ()
    return tuple(dimension_at(schedule, name, loop) for loop in around)


def _has_parallelism(schedule: Schedule) -> bool:
    """Whether every deep nest has a parallel loop that is not innermost."""
    for name in schedule.statements:
        flags = coincident_members(schedule.tree, name, schedule.dependences)
        if len(flags) >= 2 and not any(flags.values()):
            return False
    return True


def _rescheduled(schedule: Schedule) -> Schedule:
    try:
        return schedule.reschedule()
    except ScheduleError:
        return schedule
