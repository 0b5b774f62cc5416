"""The automatic schedule: steps chosen from access relations and the machine, not from names.

1. *Group*: neighbouring statements share loops where that is legal, keeps them parallel, and
   leaves a contraction's own loops free to be tiled; but not loops too short for all threads.
2. *Contractions* (updates with reuse: some operand does not move with some free loop) get a
   register tile: a vector loop v along which one operand is broadcast and the others contiguous,
   a second loop w along which the vector operand is reused, the reduction outside, accumulators
   in registers, the vector operand packed where it is not contiguous, and blocks for the caches
   where they pay: see `poly.blocking`
   (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008).
3. *Everything else* is bound by memory: see `poly.rows`.

Every choice becomes steps of the checked Schedule API; a step that turns out to be refused is
left out, and the schedule stays legal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from poly.analysis import inner_loops, loop_extents, loops_of_read, shares_ranges
from poly.contraction import Contraction
from poly.errors import ScheduleError
from poly.legality import coincident_members
from poly.machine import Machine, host_machine
from poly.rows import dimension_at, row_steps, work_of
from poly.schedule import Schedule
from poly.scop import ScopStatement
from poly.stencil import Stencil, find_tile, stencil_steps
from poly.tiling import contraction_steps
from poly.tree import Band, Node, Sequence
from poly.work import WORTH_SHARING


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
    schedule = group_statements(schedule, machine)
    # isl knows nothing of steps, and would mix what is in a block with what is around it.
    if not schedule.program.has_blocks and not _has_parallelism(schedule):
        schedule = _rescheduled(schedule)
    for names in groups(schedule):
        core = _core(schedule, names, machine) if tiles else None
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


def groups(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """The statements that share their outermost loop (in a block, their outermost inside of a
    step), group by group in execution order.
    """
    if not isinstance(schedule.tree, Sequence):
        return tuple(_inside(schedule, schedule.statements, schedule.tree))
    children = schedule.tree.children
    return tuple(g for f in children for g in _inside(schedule, f.statements, f.child))


def _inside(schedule: Schedule, names: tuple[str, ...], child: Node) -> list[tuple[str, ...]]:
    """The groups in a block, else the group itself."""
    step = schedule.scop.statement(names[0]).step
    # All of a step is one group if its loops are shared, too.
    if not step or not isinstance(child, Band) or child.names[-1] != step:
        return [names]
    below = child.child
    return [f.statements for f in below.children] if isinstance(below, Sequence) else [names]


# --- grouping ------------------------------------------------------------------------------


def group_statements(schedule: Schedule, machine: Machine) -> Schedule:
    """Fuse neighbouring groups from the first to the last, as deep as it stays parallel."""
    position = 0
    while True:
        current = groups(schedule)
        if position + 1 >= len(current):
            return schedule
        fused = _fuse_groups(schedule, current[position], current[position + 1], machine)
        if fused is None:
            position += 1
        else:
            schedule = fused


def _fuse_groups(
    schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...], machine: Machine
) -> Schedule | None:
    if not _connected(schedule, first, second):
        return None
    if len({schedule.scop.statement(n[0]).source.block for n in (first, second)}) > 1:
        return None
    above = len(schedule.loops(first[0])) - len(inner_loops(schedule, first[0]))
    cores = [_core(schedule, _with_updates(schedule, n), machine) for n in (first, second)]
    core = cores[0] or cores[1]
    if any(c is not None and core is not None and c.statement != core.statement for c in cores):
        return None
    leading = inner_loops(schedule, first[0])
    common = min(len(_nest(schedule, first)), len(_nest(schedule, second)))
    for depth in range(common, 0, -1):
        if core is not None and depth != len(core.free):
            # A contraction keeps all its free loops for its tile, or it is not fused.
            continue
        loops = leading[:depth]
        if not shares_ranges(schedule, first, second, above + depth):
            continue
        step = f"fuse {first[0]}, {second[0]}: {', '.join(loops)}"
        try:
            fused = schedule.replay(step)
        except ScheduleError:
            continue
        carried = coincident_members(fused.tree, second[0], fused.dependences)
        if all(carried[loop] for loop in loops) and _keeps_threads(
            schedule, first, second, loops, machine
        ):
            return fused
    return None


def _with_updates(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The statements of a group, and the updates whose initialisation is among them."""
    updates = (n.removesuffix("_init") for n in names if schedule.scop.statement(n).role == "init")
    return (*names, *(u for u in updates if u not in names and u in schedule.scop.by_name))


def _keeps_threads(
    schedule: Schedule,
    first: tuple[str, ...],
    second: tuple[str, ...],
    loops: tuple[str, ...],
    machine: Machine,
) -> bool:
    """Whether sharing these loops leaves each group as many threads as it can use alone.

    A group of little work may lose them: it takes less time than waiting for the other.
    """
    shared = _product(loop_extents(schedule, first[0])[loop] for loop in loops)
    if shared >= machine.cores:
        return True
    for names in (first, second):
        work = [work_of(schedule.scop.statement(n)) for n in names]
        large = None in work or sum(w or 0 for w in work) >= WORTH_SHARING
        if large and shared < _parallelism(schedule, names):
            return False
    return True


def _parallelism(schedule: Schedule, names: tuple[str, ...]) -> float:
    """How many threads could work on a group, as far as its loops are known."""
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    extents = loop_extents(schedule, names[0])
    nest = _nest(schedule, names)
    return _product(extents[loop] for loop in nest if flags[loop])


def _product(extents: Iterable[int | None]) -> float:
    """The product of extents; those that are not known are large."""
    return math.prod(math.inf if e is None else max(1, e) for e in extents)


def _nest(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The loops that all statements of a group share."""
    shared = inner_loops(schedule, names[0])
    for name in names[1:]:
        other = inner_loops(schedule, name)
        shared = tuple(a for a, b in zip(shared, other, strict=False) if a == b)
    return shared


def _connected(schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether a value or an element written by `first` is used by `second`."""
    written = {schedule.scop.statement(n).target.tensor for n in first}
    for name in second:
        s = schedule.scop.statement(name)
        touched = {r.tensor for r in s.source.reads} | {s.target.tensor}
        if s.role == "init":
            touched = {s.target.tensor}
        if touched & written:
            return True
        # The initialisation of a reduction goes where its update goes.
        if s.role == "init" and name.removesuffix("_init") in schedule.scop.by_name:
            update = schedule.scop.statement(name.removesuffix("_init"))
            if {r.tensor for r in update.source.reads} & written:
                return True
    return False


def _core(
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
