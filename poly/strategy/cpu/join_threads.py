"""Groups that run on threads along the same loop do so together: what an iteration of one makes is
still in the thread's caches when the next one reads it, and threads meet once.

In the gradient of attention these are the heads: the scores of one fit the second cache, those of
all do not.
"""

from __future__ import annotations

from itertools import takewhile
from math import prod

from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Arranging, are_connected, groups
from poly.strategy.common.queries import attempt, loop_extents, shares_ranges
from poly.tree.kinds import Mark
from poly.tree.nodes import loops_of


def share_threads(schedule: Schedule, given: Arranging[Machine]) -> Schedule:
    """Fuse adjacent groups along the outermost loops that threads share, if these are the same and
    each group uses what another one does.
    """
    if schedule.program.has_blocks:
        return schedule
    position = 0
    while position + 1 < len(every := groups(schedule)):
        for end in range(_end_of_run(schedule, every, position, given.machine), position + 1, -1):
            run = every[position:end]
            if _hang_together(schedule, run):
                fused = attempt(schedule, _fused, run)
                if fused is not schedule:
                    schedule = fused
                    break
        position += 1
    return schedule


def _shared(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost loops of a group, as far as threads share them."""
    loops = loops_of(schedule.tree, names[0])
    return tuple(m.name for m in takewhile(lambda m: m.mark == Mark.PARALLEL, loops))


def _end_of_run(
    schedule: Schedule, every: tuple[tuple[str, ...], ...], start: int, machine: Machine
) -> int:
    """The end of the groups from `start` whose threads share the same iterations."""
    first, end = every[start], start + 1
    loops, extents = _shared(schedule, first), loop_extents(schedule, first[0])
    depth = len(loops)
    if not depth or prod(extents[x] or machine.cores for x in loops) < machine.cores:
        return end
    while (
        end < len(every)
        and len(_shared(schedule, every[end])) == depth
        and shares_ranges(schedule, first, every[end], depth)
    ):
        end += 1
    return end


def _hang_together(schedule: Schedule, run: tuple[tuple[str, ...], ...]) -> bool:
    """Whether each group can be reached from the first by what one writes and another uses."""
    reached, left = [run[0]], list(run[1:])
    while left:
        near = next((g for g in left if any(_touch(schedule, g, r) for r in reached)), None)
        if near is None:
            return False
        left.remove(near)
        reached.append(near)
    return True


def _touch(schedule: Schedule, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return are_connected(schedule, one, other) or are_connected(schedule, other, one)


def _fused(schedule: Schedule, run: tuple[tuple[str, ...], ...]) -> Schedule:
    loops = _shared(schedule, run[0])
    for names in run[1:]:
        schedule = schedule.fuse(run[0][0], names[0], loops)
    return schedule
