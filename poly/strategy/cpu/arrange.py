"""Passes over a whole schedule before its groups get tactics: blocks and serial loops."""

from __future__ import annotations

from poly.deps.legality import coincident_members
from poly.ir.accesses import loops_of_read, moving_dimensions
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Arranging
from poly.strategy.common.queries import attempt, inner_loops, loop_extents, shares_ranges


def share_block_loops(schedule: Schedule, given: Arranging[Machine]) -> Schedule:
    """Move a loop that all statements of a block share outside its steps and onto threads, which
    then need not synchronise at every step.

    Nothing may be reused along that loop, and it has to occupy all threads; or its iterations are
    farther apart in memory than steps are.
    """
    for names in blocks(schedule):
        schedule = _with_shared_loop(schedule, names, given.machine)
    return schedule


def reschedule_serial(schedule: Schedule, given: Arranging[Machine]) -> Schedule:
    """Let isl find another order where a nest of loops has no parallel one."""
    # isl does not know about steps, and would mix the inside of a block with its outside.
    if schedule.program.has_blocks or _has_parallelism(schedule):
        return schedule
    return attempt(schedule, Schedule.reschedule)


def blocks(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """The statements that run step by step together, block by block."""
    numbers = [s.source.block for s in schedule.scop.statements]
    return tuple(
        tuple(s.name for s in schedule.scop.statements if s.source.block == block)
        for block in sorted(set(numbers) - {0})
    )


def _with_shared_loop(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """Move a loop that all statements of a block share outside its steps and onto threads, or
    return the schedule unchanged.
    """
    first = inner_loops(schedule, names[0])[:1]
    if not first:
        return schedule
    (loop,) = first
    extent = loop_extents(schedule, names[0])[loop]
    shares = extent is not None and extent % machine.cores == 0 and extent > 1
    if not shares and not _steps_are_closer(schedule, names):
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

    def around_steps(made: Schedule) -> Schedule:
        for n in names[1:]:
            made = made.fuse(names[0], n, [loop])
        return made.interchange(names[0], step, loop).parallelize(names[0], loop)

    return attempt(schedule, around_steps)


def _steps_are_closer(schedule: Schedule, names: tuple[str, ...]) -> bool:
    """Whether results of one step and the next are closer in memory than those of one iteration of
    the outermost loop of a step and the next.
    """
    for n in names:
        s = schedule.scop.statement(n)
        (loop,) = inner_loops(schedule, n)[:1] or ("",)
        steps, own = moving_dimensions(s.target, s.step), moving_dimensions(s.target, loop)
        if s.source.reductions or not steps or not own or min(steps) < max(own):
            return False
    return True


def _has_parallelism(schedule: Schedule) -> bool:
    """Whether every deep nest has a parallel loop that is not innermost.

    Sums of everything have none in any order, and are cut into parts.
    """
    for name in schedule.statements:
        flags = coincident_members(schedule.tree, name, schedule.dependences)
        source = schedule.scop.statement(name).source
        is_sum = {*source.indices} == {*source.reductions}
        if len(flags) >= 2 and not any(flags.values()) and not is_sum:
            return False
    return True
