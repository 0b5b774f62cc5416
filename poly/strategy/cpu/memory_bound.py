"""Groups without a register tile: what is bound by memory, as schedule steps.

1. *Rows*: neighbouring loops inside the shared ones that run over the same range become one pass,
   and temporaries that no other iteration needs are kept in buffers.
2. *Lanes*: the innermost shared loop, with whatever loops are inside it, where each access is
   contiguous along it and its iterations do the same steps (windows, sums of columns); a result
   then stays in a register.  Else the innermost loops, one by one (sums of rows).
3. *Threads*: the outermost parallel loops, where the work pays for sharing it.
"""

from __future__ import annotations

from math import prod

import islpy as isl

from poly.buffers.promotion import PromotionPlan, plan_promotion
from poly.deps.legality import coincident_members
from poly.errors import ScheduleError
from poly.ir.accesses import stride_of
from poly.ir.cost import WORTH_SHARING, WORTH_SHARING_STEP
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    accesses,
    attempt,
    dimension_at,
    is_rectangular,
    loop_extents,
    nest,
    on_threads,
    static_extents,
    work_of,
)
from poly.strategy.cpu.register_tile import UNROLLED_TAPS
from poly.tree.nodes import Band, Promote, loops_of, path_to, statements_below

#: Fewer iterations than this are not worth lanes around other loops.
FEWEST = 4
#: Bytes that the buffers of one iteration may take together.
ROW_BYTES = 1 << 16
#: Iterations of a single loop that one thread takes at a time.
BLOCK = 1024


def row_steps(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """The schedule of a group without a register tile."""
    for form in (_window, _turned):
        try:
            return form(schedule, names, machine)
        except ScheduleError:
            continue
    schedule = _one_pass(schedule, names)
    for name in names:
        schedule = _lanes(schedule, name)
    schedule = share(schedule, names, nest(schedule, names), machine)
    return _keep(schedule, names)


# --- windows ---------------------------------------------------------------------------------


def _window(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """Lanes along the innermost shared loop, around the loops of each statement.

    Raises
    ------
    ScheduleError : where that loop, or what is inside, does not suit.
    """
    shared = nest(schedule, names)
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    if not shared or not flags[shared[-1]]:
        raise ScheduleError("there is no innermost parallel loop")
    v = shared[-1]
    inner = {n: schedule.loops(n)[len(shared) :] for n in names}
    if not any(inner.values()):
        raise ScheduleError("nothing is inside")
    extent = loop_extents(schedule, names[0])[v]
    if extent is not None and extent < FEWEST:
        raise ScheduleError(f"{v} is too short for lanes")
    written_out: list[tuple[str, str]] = []
    for name in names:
        s, index = schedule.scop.statement(name), dimension_at(schedule, name, v)
        if not index or s.may_reads:
            raise ScheduleError(f"{name} has no lanes along {v}")
        strides = [stride_of(a, index) for a in accesses(s)]
        if strides[0] != 1 or any(x is None or abs(x) > 2 for x in strides):
            raise ScheduleError(f"{name} is not contiguous along {v}")
        extents = static_extents(s)
        for loop in inner[name]:
            own = dimension_at(schedule, name, loop)
            if not own:
                raise ScheduleError(f"{loop} is no plain loop of {name}")
            if is_rectangular(s, own, (index,)):
                continue
            if (extents[own] or UNROLLED_TAPS + 1) > UNROLLED_TAPS:
                raise ScheduleError(f"{loop} of {name} is bounded by {v}")
            written_out.append((name, loop))
    if len(shared) == 1 and (extent is None or extent > BLOCK // 4):
        schedule = schedule.split(names[0], v, BLOCK // 4, (f"{v}_o", f"{v}_i"))
        shared, v = (f"{v}_o", f"{v}_i"), f"{v}_i"
    schedule = share(schedule, names, shared[:-1], machine)
    reduced = {schedule.scop.statement(n).target.tensor for n in names if inner[n]}
    for tensor in sorted(reduced):
        schedule = schedule.promote(names[0], v, tensor, "register")
    for name, loop in written_out:
        schedule = schedule.unroll(name, loop)
    if written_out:
        schedule = schedule.isolate(names[0], v)
    return schedule.vectorize(names[0], v)


# --- layouts ---------------------------------------------------------------------------------


def _turned(schedule: Schedule, names: tuple[str, ...], machine: Machine) -> Schedule:
    """Square tiles where what is read is contiguous along another loop than what is written.

    Lanes run along what is read, rows along what is written, and each tile is turned around in
    registers, so that both sides touch whole lines of the cache.

    Raises
    ------
    ScheduleError : where accesses are not so.
    """
    s = schedule.scop.statement(names[0])
    if len(names) > 1 or s.role != "assign" or s.may_reads or not s.source.reads:
        raise ScheduleError("no single assignment")
    loops, extents = schedule.loops(s.name), static_extents(s)
    if any(dimension_at(schedule, s.name, x) != x for x in loops):
        raise ScheduleError("its loops are not its own")
    dtype = schedule.program.tensors[s.target.tensor].dtype
    if any(schedule.program.tensors[r.tensor].dtype != dtype for r in s.source.reads):
        raise ScheduleError("types differ")
    rows = [x for x in loops if stride_of(s.target, x) == 1]
    lanes = [
        x
        for x in loops
        if x not in rows
        and stride_of(s.target, x) is None
        and all(stride_of(r, x) in (0, 1) for r in s.source.reads)
        and any(stride_of(r, x) == 1 for r in s.source.reads)
    ]
    if not rows or not lanes:
        raise ScheduleError("all accesses are contiguous along one loop")
    row, lane = rows[-1], lanes[-1]
    if all(stride_of(r, row) in (0, 1) for r in s.source.reads):
        raise ScheduleError("lanes along what is written need no turning")
    size, short = machine.vector_bytes // dtype.bytes, [extents[row], extents[lane]]
    if any(x is not None and x < FEWEST for x in short):
        raise ScheduleError("rows are too short to be turned")
    while any(x is not None and size > x for x in short):
        size //= 2
    outer = [x for x in loops if x not in (row, lane)]
    if [*outer, lane, row] != list(loops):
        schedule = schedule.reorder(s.name, [*outer, lane, row])
    words = (f"{lane}_o", f"{row}_o", f"{lane}_i", f"{row}_i")
    schedule = schedule.tile(s.name, [lane, row], [size, size], words)
    schedule = schedule.interchange(s.name, f"{lane}_i", f"{row}_i")
    schedule = share(schedule, names, (*outer, f"{lane}_o"), machine)
    if None in short:
        # What is left of unknown extents would be very long, written out.
        schedule = schedule.isolate(s.name, f"{lane}_o")
        schedule = schedule.isolate(s.name, f"{row}_o")
    elif any((x or 0) % size for x in short):
        schedule = schedule.unroll(s.name, f"{row}_i")
        schedule = schedule.isolate(s.name, f"{row}_o")
    return schedule.vectorize(s.name, f"{lane}_i")


# --- rows ------------------------------------------------------------------------------------


def _one_pass(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """Neighbouring inner nests over the same range, fused where one uses what another touches."""
    depth = len(nest(schedule, names))
    for position, later in enumerate(names):
        for earlier in names[:position]:
            if len(schedule.loops(earlier)) <= depth or len(schedule.loops(later)) <= depth:
                continue
            if nest(schedule, (earlier, later)) != nest(schedule, names):
                continue
            if not _same_row(schedule, earlier, later, depth):
                continue
            loops = ", ".join(schedule.loops(earlier)[depth:])
            fused = attempt(schedule, f"fuse {earlier}, {later}: {loops}")
            if fused is not schedule and _in_lanes(fused, later):
                schedule = fused
                break
    return schedule


def _same_row(schedule: Schedule, first: str, second: str, depth: int) -> bool:
    """Whether two statements touch a common tensor in inner loops over the same ranges."""
    a, b = (schedule.scop.statement(n) for n in (first, second))
    if not {r.tensor for r in accesses(a)} & {r.tensor for r in accesses(b)}:
        return False
    ranges = []
    for s in (a, b):
        inner = schedule.loops(s.name)[depth:]
        found = loop_extents(schedule, s.name)
        ranges.append([found[x] for x in inner])
    if ranges[0] != ranges[1]:
        return False
    return shares_inner(schedule, first, second)


def shares_inner(schedule: Schedule, first: str, second: str) -> bool:
    """Whether all loops around two statements take the same values, position by position."""
    images = []
    for name in (first, second):
        domain = schedule.scop.statement(name).domain
        union = isl.UnionSet.from_set(domain)
        members = loops_of(schedule.tree, name)
        image: isl.MultiUnionPwAff | None = None
        for m in members:
            f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule.intersect_domain_union_set(union))
            image = f if image is None else image.flat_range_product(f)
        if image is None:
            return False
        sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(image)).get_set_list()
        if sets.n_set() != 1:
            return False
        images.append(sets.get_at(0))
    return bool(images[0].is_equal(images[1]))


def _in_lanes(schedule: Schedule, name: str) -> bool:
    return attempt(schedule, f"vectorize {name}: {schedule.loops(name)[-1]}") is not schedule


def _lanes(schedule: Schedule, name: str) -> Schedule:
    """The innermost loop of a statement in lanes, where that is contiguous."""
    s = schedule.scop.statement(name)
    loops = schedule.loops(name)
    if not loops:
        return schedule
    inner = loops[-1]
    flags = coincident_members(schedule.tree, name, schedule.dependences)
    member = loops_of(schedule.tree, name)[-1]
    index = dimension_at(schedule, name, inner)
    if member.mark != "seq" or not index:
        return schedule
    if not flags[inner]:
        # A reduction over neighbouring elements; anything else is refused.
        neighbours = any(stride_of(r, index) == 1 for r in s.source.reads)
        return attempt(schedule, f"vectorize {name}: {inner}") if neighbours else schedule
    if any(member in loops_of(schedule.tree, other)[:-1] for other in schedule.statements):
        # Another statement has loops inside: this one is no innermost loop.
        return schedule
    if len(loops) == 1 and not _is_small(schedule, name, inner):
        # A single loop is both: blocks of it to threads, lanes inside.
        schedule = attempt(schedule, f"split {name}: {inner} by {BLOCK}")
        if f"{inner}_i" not in schedule.loops(name):
            return schedule
        inner = f"{inner}_i"
    return attempt(schedule, f"vectorize {name}: {inner}")


def _is_small(schedule: Schedule, name: str, loop: str) -> bool:
    extent = loop_extents(schedule, name).get(loop)
    return extent is not None and extent < 4 * BLOCK


def _keep(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """Temporaries that only one iteration of the shared loops uses, in a buffer of the thread."""
    shared = nest(schedule, names)
    if not shared or len(names) == 1:
        return schedule
    written = {schedule.scop.statement(n).target.tensor for n in names}
    room = ROW_BYTES
    for tensor in schedule.program.temps:
        if tensor.name not in written:
            continue
        for scope in ("register", "local"):
            made = attempt(schedule, f"promote {names[0]}: {shared[-1]} as {tensor.name}, {scope}")
            if made is schedule:
                continue
            sizes = _private_sizes(made, tensor.name, names[0])
            count = prod(sizes) * tensor.dtype.bytes if sizes else 0
            if 0 < count <= (tensor.dtype.bytes if scope == "register" else room):
                schedule, room = made, room - count
                break
    return schedule


def buffers_around(schedule: Schedule, name: str, tensor: str) -> list[Promote]:
    """The promotions of a tensor around a statement, outermost first."""
    path = path_to(schedule.tree, name)
    return [n for n in path if isinstance(n, Promote) and n.tensor == tensor]


def plan_around(schedule: Schedule, name: str, node: Promote) -> PromotionPlan:
    """What a promotion by a thread, one of those around a statement, copies."""
    path = path_to(schedule.tree, name)
    above = path[: next(k for k, n in enumerate(path) if n is node)]
    outer = [m for n in above if isinstance(n, Band) for m in n.members]
    below = statements_below(schedule.tree, node, schedule.statements)
    return plan_promotion(node, schedule.scop, outer, below)


def _private_sizes(schedule: Schedule, tensor: str, name: str) -> tuple[int, ...] | None:
    """The extents of a tensor's buffer; None if anything is copied there or back."""
    plan = plan_around(schedule, name, buffers_around(schedule, name, tensor)[0])
    return None if plan.copy_in or plan.copy_out else plan.sizes or (1,)


# --- threads -----------------------------------------------------------------------------------


def share(
    schedule: Schedule, names: tuple[str, ...], loops: tuple[str, ...], machine: Machine
) -> Schedule:
    """The outermost parallel loops to threads, until there are iterations for all of them.

    What one thread does in the time that it takes to start another stays with it.
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
        if not flags[loop] or members[loop].mark != "seq":
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
