"""Rows: a block for each row, whose threads share the loops inside and reduce together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from poly.deps.scop import Role
from poly.machine.gpu import DIMENSIONS, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt, loop_extents, nest
from poly.strategy.common.tactic import Group, NoMatch, Tactic, field_parameter
from poly.strategy.gpu.map_loops import THREADS, map_loops
from poly.strategy.gpu.queries import check_rows, contiguity, parallel_nest, unrolled
from poly.strategy.gpu.vector_points import adjacent_elements
from poly.tree.kinds import Scope
from poly.tree.nodes import Promote, path_to

#: From this many threads per row on, a block has only one row.
ROW_THREADS = 128
#: Loops shorter than this are not shared among the threads of a row.
SHORT = 8


@dataclass(frozen=True)
class RowsPlan:
    """The loops of rows, by statement.

    run : the parallel loops around rows; chosen : the loop along a row of each statement that has
        one; lengths : of these, None if unknown
    count : adjacent elements that a thread has at once; moving : the tensors that move along them
    """

    run: tuple[str, ...]
    chosen: tuple[tuple[str, str], ...]
    lengths: tuple[int | None, ...]
    count: int
    moving: tuple[tuple[str, tuple[str, ...]], ...]


def _counts(group: Group[GpuMachine], plan: RowsPlan) -> Sequence[int]:
    return [n for n in (1, 2, 4, 8) if plan.count % n == 0]


class Rows(Tactic[GpuMachine, RowsPlan]):
    """A block for each point of the shared loops (or warps for some), whose threads share the
    contiguous inner loops and reduce together.
    """

    name = "rows"
    parameters = (field_parameter("elements", "count", _counts),)

    def match(self, group: Group[GpuMachine]) -> RowsPlan | NoMatch:
        schedule, names = group.schedule, group.names
        run = parallel_nest(schedule, names)
        shared = nest(schedule, names) if run else ()
        inner = {n: _along(schedule, n, schedule.loops(n)[len(shared) :]) for n in names}
        chosen = {n: x for n, x in inner.items() if x}
        if not chosen:
            return NoMatch("no loops inside the shared ones")
        inside = sum(contiguity(schedule, (n,), x) for n, x in chosen.items())
        if inside <= max((contiguity(schedule, names, x) for x in run), default=0):
            return NoMatch("accesses are contiguous along the shared loops")
        lengths = [loop_extents(schedule, n)[x] for n, x in chosen.items()]
        longest = max((e for e in lengths if e is not None), default=None)
        if longest is not None and longest < SHORT:
            return NoMatch("the rows are short")
        count, moving = _adjacent(schedule, chosen, shared)
        if None not in lengths and (longest or 0) < count * group.machine.warp:
            count = 1  # a warp would not be full
        return RowsPlan(run, tuple(chosen.items()), tuple(lengths), count, tuple(moving.items()))

    def apply(self, group: Group[GpuMachine], plan: RowsPlan) -> Schedule:
        schedule = group.schedule
        if plan.count > 1:
            # Something may not fit in registers.
            made = attempt(schedule, _with_rows, group, plan, plan.count)
            if made is not schedule:
                return made
        return _with_rows(schedule, group, plan, 1)


def _with_rows(
    schedule: Schedule, group: Group[GpuMachine], plan: RowsPlan, count: int
) -> Schedule:
    """Map rows to blocks and threads, with `count` elements per thread at once."""
    threads = _row_threads(plan.lengths, count, group.machine)
    schedule = _rows_on_blocks(schedule, group.names, plan.run, threads)
    moving = dict(plan.moving)
    for name, loop in plan.chosen:
        schedule = _on_row(schedule, name, loop, threads, count)
        if count > 1:
            schedule = _row_registers(schedule, name, loop, moving[name])
    return _shared_rows(schedule, group.names)


def _row_threads(lengths: Sequence[int | None], count: int, machine: GpuMachine) -> int:
    """The threads that share rows of some lengths, with `count` elements each."""
    threads = machine.warp
    while threads < THREADS and any(n is None or threads * count < n for n in lengths):
        threads *= 2
    return threads


def _rows_on_blocks(
    schedule: Schedule, names: tuple[str, ...], run: tuple[str, ...], threads: int
) -> Schedule:
    """Map the loops around rows to blocks; several rows share a block if each has few threads."""
    rows = 1 if threads >= ROW_THREADS else THREADS // 2 // threads
    extents = loop_extents(schedule, names[0])
    last = run[-1] if run else ""
    extent = extents.get(last, 1)
    if rows > 1 and (extent is None or extent > 1):
        tiles = {last: rows if extent is None else min(rows, extent)}
        return map_loops(schedule, names[0], run, tiles, extents)
    return schedule.map_blocks(names[0], run[-DIMENSIONS:]) if run else schedule


def _along(schedule: Schedule, name: str, loops: tuple[str, ...]) -> str:
    """The most contiguous of the loops inside the shared ones, "" if there are none."""
    scored = [(contiguity(schedule, (name,), x), n, x) for n, x in enumerate(loops)]
    best = max(scored, default=(0, 0, ""))
    return best[2] if best[0] > 0 else ""


def _adjacent(
    schedule: Schedule, chosen: Mapping[str, str], shared: Sequence[str]
) -> tuple[int, dict[str, tuple[str, ...]]]:
    """How many adjacent elements each thread of a row has at once, 1 where something is not
    contiguous, and the tensors that move along the row.
    """
    moving: dict[str, tuple[str, ...]] = {}
    counts: list[int] = []
    for name, loop in chosen.items():
        found = adjacent_elements(schedule, (name,), loop, (Role.ASSIGN, Role.UPDATE))
        if isinstance(found, NoMatch):
            return 1, {}
        moving[name] = found.tensors
        counts.append(found.count if schedule.loops(name) == (*shared, loop) else 1)
    return gcd(*counts), moving


def _on_row(schedule: Schedule, name: str, loop: str, threads: int, count: int) -> Schedule:
    """Share a loop among the threads of a row, if possible.

    count : elements that a thread has at once
    """
    if loop not in schedule.loops(name):
        return schedule  # already done for a statement that shares the loop
    split, along = schedule, loop
    if count > 1:
        along = f"{loop}_g"
        split = attempt(split, Schedule.split, name, loop, count, (along, f"{loop}_v"))
    inner = f"{loop}_i"
    split = attempt(split, Schedule.split, name, along, threads, (f"{loop}_o", inner))
    if inner not in split.loops(name):
        return schedule
    done = attempt(split, Schedule.map_threads, name, [inner])
    if done is split:
        done = attempt(split, Schedule.reduce_threads, name, [inner])
    return schedule if done is split else done


def _row_registers(schedule: Schedule, name: str, loop: str, moving: Sequence[str]) -> Schedule:
    """Keep a thread's elements of a row in registers, except for those that threads share.

    Raises
    ------
    ScheduleError : some cannot be kept there.
    """
    lane = f"{loop}_v"
    if lane not in schedule.loops(name):
        return schedule
    schedule = unrolled(schedule, name, lane)
    kept = {n.tensor for n in path_to(schedule.tree, name) if isinstance(n, Promote)}
    kept |= {t.name for t in schedule.program.temps}
    for tensor in moving:
        if tensor not in kept:
            schedule = schedule.promote(name, f"{loop}_i", tensor, Scope.REGISTER)
            check_rows(schedule, name, tensor)
    return schedule


def _shared_rows(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """Keep the temporaries of a row in shared memory, if there is room."""
    shared = nest(schedule, names)
    written = dict.fromkeys(schedule.scop.statement(n).target.tensor for n in names)
    for tensor in (t.name for t in schedule.program.temps):
        if tensor in written and shared:
            schedule = attempt(
                schedule, Schedule.promote, names[0], shared[-1], tensor, Scope.SHARED
            )
    return schedule
