"""The automatic schedule: steps chosen from access relations and the machine, not from names.

1. *Group*: neighbouring statements share loops where that is legal, keeps them parallel, and
   leaves a contraction's own loops free to be tiled.
2. *Contractions* (updates with reuse: some operand does not move with some free loop) get a
   register tile: a vector loop v along which one operand is broadcast and the others contiguous,
   a second loop w along which the vector operand is reused, the reduction outside, accumulators
   in registers, and the vector operand packed where it is not contiguous
   (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008).
3. *Everything else* gets its outermost parallel loop on threads and its innermost contiguous
   loop in lanes.

Every choice becomes steps of the checked Schedule API; a step that turns out to be refused is
left out, and the schedule stays legal.
"""

from __future__ import annotations

from poly.analysis import loop_extents, shares_ranges, stride_of
from poly.contraction import Contraction, find_contraction
from poly.errors import ScheduleError
from poly.legality import coincident_members
from poly.machine import Machine, host_machine
from poly.schedule import Schedule
from poly.scop import ScopStatement
from poly.tiling import contraction_steps
from poly.tree import Sequence, loops_of


def auto_schedule(schedule: Schedule, machine: Machine | None = None) -> Schedule:
    """A fast legal schedule of the program, from its written order.

    The result is deterministic for a program and machine.
    """
    machine = machine or host_machine()
    schedule = group_statements(schedule, machine)
    if not _has_parallelism(schedule):
        schedule = _rescheduled(schedule)
    for names in groups(schedule):
        core = _core(schedule, names, machine)
        tiled = None
        if core is not None:
            try:
                tiled = contraction_steps(schedule, names, core, machine)
            except ScheduleError:
                tiled = None
        schedule = tiled if tiled is not None else _simple_steps(schedule, names, machine)
    return schedule


def groups(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """The statements that share their outermost loop, group by group in execution order."""
    if isinstance(schedule.tree, Sequence):
        return tuple(f.statements for f in schedule.tree.children)
    return (schedule.statements,)


def attempt(schedule: Schedule, step: str) -> Schedule:
    """The schedule after one step, or unchanged if the step is refused."""
    try:
        return schedule.replay(step)
    except ScheduleError:
        return schedule


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
    cores = [_core(schedule, names, machine) for names in (first, second)]
    if cores[0] is not None and cores[1] is not None:
        return None
    core = cores[0] or cores[1]
    leading = schedule.loops(first[0])
    common = min(len(_nest(schedule, first)), len(_nest(schedule, second)))
    for depth in range(common, 0, -1):
        if core is not None and depth != len(core.free):
            # A contraction keeps all its free loops for its tile, or it is not fused.
            continue
        loops = leading[:depth]
        if not shares_ranges(schedule, first, second, depth):
            continue
        step = f"fuse {first[0]}, {second[0]}: {', '.join(loops)}"
        try:
            fused = schedule.replay(step)
        except ScheduleError:
            continue
        carried = coincident_members(fused.tree, second[0], fused.dependences)
        if all(carried[loop] for loop in loops):
            return fused
    return None


def _nest(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The loops that all statements of a group share."""
    shared = schedule.loops(names[0])
    for name in names[1:]:
        other = schedule.loops(name)
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


def _core(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Contraction | None:
    for name in names:
        s: ScopStatement = schedule.scop.statement(name)
        found = find_contraction(schedule.scop, s, machine)
        if found is not None:
            return found
    return None


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


# --- groups without a register tile ----------------------------------------------------------


def _simple_steps(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """Outermost parallel loop to threads, innermost contiguous parallel loops to lanes."""
    for name in names:
        schedule = _lanes(schedule, name)
    extents = loop_extents(schedule, names[0])
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    shared = _nest(schedule, names) if len(names) > 1 else schedule.loops(names[0])
    chosen = 0
    known = 1
    for loop in shared:
        member = next(m for m in loops_of(schedule.tree, names[0]) if m.name == loop)
        extent = extents.get(loop)
        if not flags[loop] or member.mark != "seq":
            if chosen:
                break
            continue
        if chosen and known >= 4 * machine.cores:
            break
        parallel = attempt(schedule, f"parallelize {names[0]}: {loop}")
        if parallel is schedule:
            break
        # A symbolic extent may be 1: the next loop shares the threads too.
        schedule, chosen, known = parallel, chosen + 1, known * (extent or 1)
        if chosen == 3:
            break
    return schedule


def _lanes(schedule: Schedule, name: str) -> Schedule:
    s = schedule.scop.statement(name)
    loops = schedule.loops(name)
    if not loops:
        return schedule
    inner = loops[-1]
    flags = coincident_members(schedule.tree, name, schedule.dependences)
    member = loops_of(schedule.tree, name)[-1]
    if member.mark != "seq" or inner not in s.loops:
        return schedule
    if not flags[inner]:
        # A reduction over neighbouring elements; anything else is refused.
        neighbours = any(stride_of(r, inner) == 1 for r in s.source.reads)
        return attempt(schedule, f"vectorize {name}: {inner}") if neighbours else schedule
    if any(member in loops_of(schedule.tree, other)[:-1] for other in schedule.statements):
        # Another statement has loops inside: this one is no innermost loop.
        return schedule
    if len(loops) == 1 and not _is_small(schedule, name, inner):
        # A single loop is both: blocks of it to threads, lanes inside.
        schedule = attempt(schedule, f"split {name}: {inner} by 1024")
        if f"{inner}_i" not in schedule.loops(name):
            return schedule
        inner = f"{inner}_i"
    return attempt(schedule, f"vectorize {name}: {inner}")


def _is_small(schedule: Schedule, name: str, loop: str) -> bool:
    extent = loop_extents(schedule, name).get(loop)
    return extent is not None and extent < 4096
