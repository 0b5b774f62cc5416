"""The automatic schedule for a GPU: as steps, chosen from access relations, not from names.

1. *Group*: as for a CPU, see `poly.strategy.cpu.auto_schedule`, as long as blocks for all
   processors are left.
2. *Contractions* get tiles of blocks, threads and registers, see `poly.strategy.gpu.contraction`,
   or warps with tensor cores where the machine has some that suit, see
   `poly.strategy.gpu.tensor_cores`.
3. *Turned*: what is read along one of the shared loops and written along another goes through tiles
   in shared memory, so that neighbouring threads have neighbours on both sides.
4. *Rows*: what is contiguous along loops inside of the shared ones has a block for each row (or
   warps for some rows), whose threads share out these loops and reduce together.
   A thread has some neighbours at a time, if these lie together in all that moves along a row.
5. *Neighbours*: what only moves along memory has a thread for each few of them, as many as one
   access of 16 bytes loads or stores; they come and go through registers.
6. *Points*: everything else has a thread for each point of the shared loops; neighbours in memory
   go to neighbouring threads.

What has no parallel loop is left as it is, and runs on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from poly.buffers.promotion import TOGETHER
from poly.errors import ScheduleError
from poly.ir.accesses import stride_of
from poly.ir.expr import Const, Index, Read
from poly.ir.linear_form import linear_form
from poly.machine.gpu import ANY, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import group_statements, groups
from poly.strategy.common.queries import accesses, attempt, dimension_at, loop_extents, nest
from poly.strategy.cpu.auto_schedule import find_core
from poly.strategy.gpu.contraction import contraction_on_gpu
from poly.strategy.gpu.queries import (
    DIMENSIONS,
    check_rows,
    contiguity,
    element_in_register,
    from_zero,
    in_registers,
    on_blocks,
    order_along,
    parallel_nest,
)
from poly.strategy.gpu.tensor_cores import tensor_cores_on_gpu
from poly.tree.nodes import Promote, loops_of, path_to

#: Threads of a block.
THREADS = 256
#: Threads of a row from which on a block has only one.
ROW_THREADS = 128
#: Loops shorter than this are not shared out among the threads of a row.
SHORT = 8
#: Bytes of one tensor that a thread has in registers at most, of neighbours.
MOST_BYTES = 32
#: Threads along a loop that are worth neighbours for each of them, at least.
FEWEST = 4


def gpu_schedule(schedule: Schedule, machine: GpuMachine = ANY, tiles: bool = True) -> Schedule:
    """A fast legal schedule for a GPU, from the written order of a program.

    The result is deterministic for a program and machine.

    tiles : whether there are tiles and rows; without, every thread has points of its own
    """
    schedule = group_statements(schedule, machine.host, find_core)
    for names in groups(schedule):
        moved = from_zero(schedule, names)
        for form in _FORMS if tiles else (_points,):
            try:
                schedule = form(moved, names, machine)
                break
            except ScheduleError:
                continue
    return schedule


# --- turned ----------------------------------------------------------------------------------


def _turned(schedule: Schedule, names: tuple[str, ...], machine: GpuMachine) -> Schedule:
    """Tiles of what is read along another loop than it is written, through shared memory.

    Raises
    ------
    ScheduleError : no access lies along another loop than the writes.
    """
    run = parallel_nest(schedule, names)
    if any(schedule.loops(n) != run for n in names):
        raise ScheduleError("there are other loops than parallel ones")
    extents = loop_extents(schedule, names[0])
    along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
    read, across = _across(schedule, names, run, along)
    for loop in (along, across):
        extent = extents[loop]
        if extent is not None and extent < machine.warp // 2:
            raise ScheduleError(f"{loop} is short")
    s, side = names[0], machine.warp
    rows = THREADS // side
    others = [x for x in run if x not in (along, across)]
    blocks, rest = on_blocks([*others, f"{across}_b", f"{along}_b"], extents)
    inner = (*rest, f"{across}_r", f"{across}_t", f"{along}_t")
    script = [
        f"split {s}: {along} by {side} as {along}_b, {along}_t",
        f"split {s}: {across} by {side} as {across}_b, {across}_w",
        f"split {s}: {across}_w by {rows} as {across}_r, {across}_t",
        f"reorder {s}: {', '.join([*blocks, *inner])}",
        f"map_blocks {s}: {', '.join(blocks)}",
        f"map_threads {s}: {across}_t, {along}_t",
    ]
    schedule = schedule.replay("\n".join(script))
    for tensor, words in read.items():
        loop = [*blocks, *rest][-1]
        schedule = schedule.replay(f"promote {s}: {loop} as {tensor}, shared{words}")
    return in_registers(schedule, names, f"{along}_t")


def _across(
    schedule: Schedule, names: tuple[str, ...], run: tuple[str, ...], along: str
) -> tuple[dict[str, str], str]:
    """The inputs that lie along another loop, and that loop.

    Their dimensions are given in the order in which what a warp reads together lies together: rows
    may then have any length, and one is found with which no two threads wait for a bank.

    Raises
    ------
    ScheduleError : there are none.
    """
    written = {schedule.scop.statement(n).target.tensor for n in names}
    for across in reversed(run):
        found: dict[str, str] = {}
        for name in names:
            inner = dimension_at(schedule, name, along)
            outer = dimension_at(schedule, name, across)
            for read in schedule.scop.statement(name).source.reads:
                lies = across != along and read.indices and inner and outer
                if lies and stride_of(read, outer) == 1 and stride_of(read, inner) is None:
                    found.setdefault(read.tensor, order_along(schedule, read, inner))
        if found and not written & found.keys():
            return found, across
    raise ScheduleError("everything lies along one loop")


# --- neighbours and points -------------------------------------------------------------------


def _neighbouring(schedule: Schedule, names: tuple[str, ...], machine: GpuMachine) -> Schedule:
    """A thread for each few neighbours, which it loads and stores at once.

    Raises
    ------
    ScheduleError : something lies otherwise or may not be in registers, rows begin anywhere, or
        points are few.
    """
    run = parallel_nest(schedule, names)
    shared = nest(schedule, names)
    if shared[-len(run) :] != run or any(schedule.loops(n) != shared for n in names):
        raise ScheduleError("there are other loops than parallel ones")
    extents = loop_extents(schedule, names[0])
    along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
    moving, count = _neighbours(schedule, names, along)
    extent = extents[along]
    known = [extents[x] or 0 for x in run]
    if extent is not None and extent < FEWEST * count:
        raise ScheduleError(f"{along} is short")
    if all(known) and prod(known) < count * THREADS * machine.processors:
        raise ScheduleError("there is a processor for fewer points")
    group, lane = f"{along}_g", f"{along}_v"
    schedule = schedule.replay(f"split {names[0]}: {along} by {count} as {group}, {lane}")
    extents[group] = None if extent is None else -(-extent // count)
    run = tuple(group if x == along else x for x in run)
    tiles = _tiles(run, group, extents)
    schedule = _mapped(schedule, names[0], run, tiles, extents, (lane,))
    schedule = schedule.replay(f"unroll {names[0]}: {lane}")
    thread = nest(schedule, names)[-2]
    inside = _inside(schedule, names)
    for tensor in moving:
        loop = lane if tensor in inside else thread
        schedule = schedule.replay(f"promote {names[0]}: {loop} as {tensor}, register")
        for name in names:
            check_rows(schedule, name, tensor)
    return schedule


def _neighbours(
    schedule: Schedule,
    names: tuple[str, ...],
    along: str,
    roles: Sequence[str] = ("assign",),
) -> tuple[tuple[str, ...], int]:
    """The tensors that move along a loop, and how many of their neighbours a thread has: rows and
    all places begin at multiples of that, as far as it is known.

    Raises
    ------
    ScheduleError : some access lies otherwise, or too few are neighbours.
    """
    moving: dict[str, None] = {}
    starts: list[int] = []
    for name in names:
        index, s = dimension_at(schedule, name, along), schedule.scop.statement(name)
        if not index or s.role not in roles or s.may_reads:
            raise ScheduleError(f"{name} does not just move along {along}")
        for access in accesses(s):
            stride = stride_of(access, index)
            if stride == 0:
                continue
            if stride != 1:
                raise ScheduleError(f"{access} does not move along {along}")
            moving[access.tensor] = None
            starts += _starts(schedule, access, index)
    sizes = [schedule.program.tensors[t].dtype.bytes for t in moving]
    most = min(TOGETHER // min(sizes), MOST_BYTES // max(sizes))
    count = gcd(most, *starts)
    if count < 2 or count * max(sizes) < TOGETHER:
        raise ScheduleError(f"there are few neighbours along {along}")
    return tuple(moving), count


def _starts(schedule: Schedule, access: Read, index: str) -> list[int]:
    """Numbers whose common divisors divide the places where rows of an access begin."""
    form = linear_form(access.indices[-1]).without(Index(index))
    *outer, row = schedule.program.tensors[access.tensor].shape
    rows = [int(row.value)] if isinstance(row, Const) and any(e != Const(1) for e in outer) else []
    return [form.constant, *(factor for _, factor in form.terms), *rows]


def _inside(schedule: Schedule, names: tuple[str, ...]) -> set[str]:
    """Temporaries that nothing but a group uses."""
    others = [s for s in schedule.scop.statements if s.name not in names]
    used = {a.tensor for s in others for a in accesses(s)}
    return {t.name for t in schedule.program.temps} - used


def _points(schedule: Schedule, names: tuple[str, ...], machine: GpuMachine) -> Schedule:
    """A thread for each point of the loops that a group shares.

    Raises
    ------
    ScheduleError : they are not parallel, or there is one point.
    """
    run = parallel_nest(schedule, names)
    extents = loop_extents(schedule, names[0])
    along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
    tiles = _tiles(run, along, extents)
    schedule = _mapped(schedule, names[0], run, tiles, extents)
    shared = nest(schedule, names)
    marks = {m.name: m.mark for m in loops_of(schedule.tree, names[0])}
    last = max(k for k, loop in enumerate(shared) if marks[loop] == "thread")
    return element_in_register(schedule, names, shared[last:])


def _tiles(run: Sequence[str], along: str, extents: Mapping[str, int | None]) -> dict[str, int]:
    """Threads of loops, from that along which neighbours lie, outwards, until a block is full.

    Raises
    ------
    ScheduleError : no loop has several iterations.
    """
    left, tiles = THREADS, dict[str, int]()
    for loop in (along, *(x for x in reversed(run) if x != along)):
        extent = extents[loop]
        if left < 2 or len(tiles) == DIMENSIONS:
            break
        if extent is None or extent > 1:
            tiles[loop] = left if extent is None else min(left, extent)
            left //= tiles[loop]
    if not tiles:
        raise ScheduleError("there is one point")
    return tiles


def _mapped(
    schedule: Schedule,
    name: str,
    run: tuple[str, ...],
    tiles: dict[str, int],
    extents: dict[str, int | None],
    inner: tuple[str, ...] = (),
) -> Schedule:
    """The loops of a nest on blocks and threads.

    tiles : threads of some of them, the innermost of a block first; inner : loops inside of these
    """
    threads: list[str] = []
    blocks: list[str] = []
    rest: list[str] = []
    for loop in run:
        if loop not in tiles:
            (blocks if extents[loop] != 1 else rest).append(loop)
        elif extents[loop] == tiles[loop]:
            threads.append(loop)
        else:
            schedule = schedule.replay(f"split {name}: {loop} by {tiles[loop]}")
            blocks.append(f"{loop}_o")
            threads.append(f"{loop}_i")
    order = list(tiles)
    threads.sort(key=lambda x: -order.index(x if x in tiles else x.removesuffix("_i")))
    blocks, more = on_blocks(blocks, extents)
    rest += more
    wanted = [*blocks, *rest, *threads, *inner]
    if len(wanted) > 1:
        schedule = schedule.replay(f"reorder {name}: {', '.join(wanted)}")
    if blocks:
        schedule = schedule.replay(f"map_blocks {name}: {', '.join(blocks)}")
    return schedule.replay(f"map_threads {name}: {', '.join(threads)}")


# --- rows ----------------------------------------------------------------------------------


def _rows(schedule: Schedule, names: tuple[str, ...], machine: GpuMachine) -> Schedule:
    """A block for each point of the shared loops; its threads share out the loops inside.  Without
    parallel loops there is one block.

    Raises
    ------
    ScheduleError : neighbours lie along the shared loops, or the loops inside are short.
    """
    run = _outer(schedule, names)
    shared = nest(schedule, names) if run else ()
    inner = {n: _along(schedule, n, schedule.loops(n)[len(shared) :]) for n in names}
    chosen = {n: x for n, x in inner.items() if x}
    if not chosen:
        raise ScheduleError("there is nothing inside of the shared loops")
    inside = sum(contiguity(schedule, (n,), x) for n, x in chosen.items())
    if inside <= max((contiguity(schedule, names, x) for x in run), default=0):
        raise ScheduleError("neighbours lie along the shared loops")
    lengths = [loop_extents(schedule, n)[x] for n, x in chosen.items()]
    longest = max((e for e in lengths if e is not None), default=None)
    if longest is not None and longest < SHORT:
        raise ScheduleError("the rows are short")
    count, moving = _row_neighbours(schedule, chosen, shared)
    if None not in lengths and (longest or 0) < count * machine.warp:
        count = 1  # a warp would not be full
    if count > 1:
        try:
            threads = _row_threads(lengths, count, machine)
            made = _with_rows(schedule, names, run, threads)
            for name, loop in chosen.items():
                made = _on_row(made, name, loop, threads, count)
                made = _row_registers(made, name, loop, moving[name])
            return _shared_rows(made, names)
        except ScheduleError:
            pass  # something may not be in registers
    threads = _row_threads(lengths, 1, machine)
    schedule = _with_rows(schedule, names, run, threads)
    for name, loop in chosen.items():
        schedule = _on_row(schedule, name, loop, threads, 1)
    return _shared_rows(schedule, names)


def _row_threads(lengths: Sequence[int | None], count: int, machine: GpuMachine) -> int:
    """The threads that share rows of some lengths, of which each has so many neighbours."""
    threads = machine.warp
    while threads < THREADS and any(n is None or threads * count < n for n in lengths):
        threads *= 2
    return threads


def _with_rows(
    schedule: Schedule, names: tuple[str, ...], run: tuple[str, ...], threads: int
) -> Schedule:
    """The loops around rows on blocks, or some rows in one block where these have few threads."""
    rows = 1 if threads >= ROW_THREADS else THREADS // 2 // threads
    extents = loop_extents(schedule, names[0])
    last = run[-1] if run else ""
    extent = extents.get(last, 1)
    if rows > 1 and (extent is None or extent > 1):
        tiles = {last: rows if extent is None else min(rows, extent)}
        return _mapped(schedule, names[0], run, tiles, extents)
    if run:
        keep = run[-DIMENSIONS:]
        return schedule.replay(f"map_blocks {names[0]}: {', '.join(keep)}")
    return schedule


def _outer(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The parallel loops that a group shares, if there are any."""
    try:
        return parallel_nest(schedule, names)
    except ScheduleError:
        return ()


def _along(schedule: Schedule, name: str, loops: tuple[str, ...]) -> str:
    """Of the loops inside of the shared ones that along which neighbours lie, "" for none."""
    scored = [(contiguity(schedule, (name,), x), n, x) for n, x in enumerate(loops)]
    best = max(scored, default=(0, 0, ""))
    return best[2] if best[0] > 0 else ""


def _row_neighbours(
    schedule: Schedule, chosen: Mapping[str, str], shared: Sequence[str]
) -> tuple[int, dict[str, tuple[str, ...]]]:
    """How many neighbours each thread of a row has at once, 1 where something lies otherwise, and
    the tensors that move along the row.
    """
    found: dict[str, tuple[str, ...]] = {}
    counts: list[int] = []
    for name, loop in chosen.items():
        try:
            found[name], count = _neighbours(schedule, (name,), loop, ("assign", "update"))
        except ScheduleError:
            return 1, {}
        counts.append(count if schedule.loops(name) == (*shared, loop) else 1)
    return gcd(*counts), found


def _on_row(schedule: Schedule, name: str, loop: str, threads: int, count: int) -> Schedule:
    """A loop shared out among the threads of a row, if they may have it.

    count : neighbours that a thread has at once
    """
    if loop not in schedule.loops(name):
        return schedule  # it shares the loop with one before
    split, along = schedule, loop
    if count > 1:
        along = f"{loop}_g"
        split = attempt(schedule, f"split {name}: {loop} by {count} as {along}, {loop}_v")
    split = attempt(split, f"split {name}: {along} by {threads} as {loop}_o, {loop}_i")
    if f"{loop}_i" not in split.loops(name):
        return schedule
    for step in ("map_threads", "reduce_threads"):
        done = attempt(split, f"{step} {name}: {loop}_i")
        if done is not split:
            return done
    return schedule


def _row_registers(schedule: Schedule, name: str, loop: str, moving: Sequence[str]) -> Schedule:
    """The neighbours of a thread of a row in registers, but for what its threads share.

    Raises
    ------
    ScheduleError : some may not be there.
    """
    lane = f"{loop}_v"
    if lane not in schedule.loops(name):
        return schedule
    schedule = attempt(schedule, f"unroll {name}: {lane}")
    kept = {n.tensor for n in path_to(schedule.tree, name) if isinstance(n, Promote)}
    kept |= {t.name for t in schedule.program.temps}
    for tensor in moving:
        if tensor not in kept:
            schedule = schedule.replay(f"promote {name}: {loop}_i as {tensor}, register")
            check_rows(schedule, name, tensor)
    return schedule


def _shared_rows(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    """What a row needs of temporaries, in memory that its threads share, if there is room."""
    shared = nest(schedule, names)
    written = dict.fromkeys(schedule.scop.statement(n).target.tensor for n in names)
    for tensor in (t.name for t in schedule.program.temps):
        if tensor in written and shared:
            schedule = attempt(schedule, f"promote {names[0]}: {shared[-1]} as {tensor}, shared")
    return schedule


#: What is tried for a group, in this order.
_FORMS = (tensor_cores_on_gpu, contraction_on_gpu, _turned, _rows, _neighbouring, _points)
