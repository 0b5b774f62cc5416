"""The choice of loops of a group that run on threads."""

from __future__ import annotations

from poly.deps.legality import coincident_members
from poly.ir.cost import WORTH_SHARING, WORTH_SHARING_STEP
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt, loop_extents, on_threads, work_of
from poly.tree.kinds import Mark
from poly.tree.nodes import loops_of


def share_loops(
    schedule: Schedule, names: tuple[str, ...], loops: tuple[str, ...], machine: Machine
) -> Schedule:
    """Run the outermost parallel loops on threads, until there are iterations for all of them.

    Work that takes less time than starting a thread stays on the current one.
    """
    if on_threads(schedule, names[0]):
        return schedule
    work = [work_of(schedule.scop.statement(n)) for n in names]
    least = WORTH_SHARING_STEP if schedule.scop.statement(names[0]).step else WORTH_SHARING
    if all(x is not None for x in work) and sum(x or 0 for x in work) < least:
        return schedule
    extents = loop_extents(schedule, names[0])
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    members = {m.name: m for m in loops_of(schedule.tree, names[0])}
    chosen, known = 0, 1
    for loop in loops:
        extent = extents.get(loop)
        if not flags[loop] or members[loop].mark != Mark.SEQ:
            if chosen:
                break
            continue
        if chosen and known >= 4 * machine.cores:
            break
        parallel = attempt(schedule, Schedule.parallelize, names[0], loop)
        if parallel is schedule:
            break
        # A symbolic extent may be 1: the next loop shares the threads too.
        schedule, chosen, known = parallel, chosen + 1, known * (extent or 1)
        if chosen == 3:
            break
    return schedule
