"""Register tiling of one contraction and what is fused with it, as schedule steps."""

from __future__ import annotations

from poly.analysis import (
    block_of,
    lane_dimension,
    lane_value,
    loop_extents,
    loops_of_read,
    plain_dimension,
)
from poly.contraction import Contraction
from poly.errors import ScheduleError
from poly.expr import Const
from poly.legality import coincident_members
from poly.machine import Machine
from poly.schedule import Schedule

#: Reduction extents up to this are written out when they bound the rows of a tile (padding).
UNROLLED_TAPS = 11
#: Rows at a multiple of so many bytes from each other share a set of the first cache, which holds
#: about as many lines.
ALIASING, ALIASING_ROWS = 4096, 4
#: Iterations of the reduction between two passes over the accumulators, when it is symbolic.
REDUCTION_BLOCK = 256
#: Columns of the vector operand that one thread packs at a time, when extents are symbolic.
PANEL = 256


def contraction_steps(
    schedule: Schedule, names: tuple[str, ...], core: Contraction, machine: Machine
) -> Schedule:
    """The register-tiled schedule of the group `names` around `core`.

    Raises
    ------
    ScheduleError : if a step that the tile needs is refused.
    """
    if core.extent(core.v) is None or any(core.extent(r) is None for r in core.reductions):
        return _blocked(schedule, names, core, machine)
    return _direct(schedule, names, core, machine)


def _direct(
    schedule: Schedule, names: tuple[str, ...], core: Contraction, machine: Machine
) -> Schedule:
    """The whole reduction for one register tile: zero, accumulate, store with its epilogue."""
    s, v, w = core.statement, core.v, core.w
    together = fused_around(schedule, names, s)
    target = schedule.scop.statement(s).target.tensor
    epilogue = [n for n in together if n != s and not n.startswith(f"{s}_init")]
    if any(not lane_value(schedule.scop.statement(n).value) for n in epilogue):
        raise ScheduleError("an epilogue is not made of operators on lanes")
    width = core.vectors * core.lanes
    schedule = schedule.split(s, v, width, (f"{v}_o", f"{v}_i"))
    tiles, points = [f"{v}_o"], [f"{v}_i"]
    if w:
        schedule = schedule.split(s, w, core.rows, (f"{w}_o", f"{w}_i"))
        tiles, points = [*tiles, f"{w}_o"], [f"{w}_i", f"{v}_i"]
    others = [loop for loop in core.free if loop not in (v, w)]
    # Tiles of v stay outside the loops that reuse its packed operand.
    outer = [f"{v}_o", *others, *tiles[1:]]
    shared = shared_loop(schedule, s, outer, machine)
    if shared and shared != tiles[-1]:
        outer = [shared, *(x for x in outer if x != shared)]
    schedule = schedule.reorder(s, [*outer, *points])
    if shared:
        schedule = schedule.parallelize(s, shared)
    last = outer[-1]
    if len(together) > 1:
        schedule = schedule.distribute(s, points[0])
    order: list[str] = []
    for loop in reduction_order(core):
        block = _block_along(schedule, s, loop)
        if block is not None and (core.extent(loop) or 0) > block:
            # Within a block, neighbours in memory are neighbours in the loop.
            schedule = schedule.split(s, loop, block, (f"{loop}_o", f"{loop}_i"))
            order += [f"{loop}_o", f"{loop}_i"]
        else:
            order.append(loop)
    schedule = schedule.reorder(s, [*order, *points])
    schedule = _pack(schedule, core, f"{v}_o")
    schedule = _pack_rows(schedule, core, last)
    schedule = schedule.promote(s, last, target, "register", _lanes_last(schedule, core))
    for name in together:
        schedule = schedule.vectorize(name, f"{v}_i", core.lanes)
        if core.vectors > 1:
            schedule = schedule.unroll(name, f"{v}_i_o")
        if w:
            schedule = schedule.unroll(name, f"{w}_i")
    for tap in _shaped(core):
        schedule = schedule.unroll(s, tap)
    if (core.extent(v) or 1) % width or (w and (core.extent(w) or 1) % core.rows):
        schedule = schedule.isolate(s, last)
    return schedule


def _shaped(core: Contraction) -> list[str]:
    """The reductions to write out because they bound the rows of a tile."""
    return [r for r in core.shaped if (core.extent(r) or 99) <= UNROLLED_TAPS]


def reduction_order(core: Contraction) -> tuple[str, ...]:
    """The reductions around a register tile of static extents, outermost first."""
    shaped = _shaped(core)
    rest = [r for r in core.reductions if r not in shaped]
    taps = [r for r in rest if (core.extent(r) or 0) <= UNROLLED_TAPS]
    return (*taps, *shaped, *(r for r in rest if r not in taps))


def _block_along(schedule: Schedule, s: str, loop: str) -> int | None:
    """The block size of an operand that is kept in blocks along a loop."""
    found = (block_of(r, loop) for r in schedule.scop.statement(s).source.reads)
    return next((b for b in found if b is not None), None)


def _blocked(
    schedule: Schedule, names: tuple[str, ...], core: Contraction, machine: Machine
) -> Schedule:
    """Symbolic extents: panels of v, blocks of the reduction, accumulators loaded and stored."""
    s, v, w = core.statement, core.v, core.w
    scop_statement = schedule.scop.statement(s)
    shaped = [r for r in core.shaped if (core.extent(r) or 99) <= UNROLLED_TAPS]
    long = [r for r in core.reductions if core.extent(r) is None]
    taps = [r for r in core.reductions if r not in shaped and r not in long]
    if not w or len(long) > 1 or len(shaped) != len(core.shaped):
        raise ScheduleError("no blocked form for this shape yet")
    if len(fused_around(schedule, names, s)) > 1:
        schedule = schedule.distribute(s, core.free[0])
    width = core.vectors * core.lanes
    with_taps = bool(taps or shaped)
    schedule = schedule.split(s, v, width if with_taps else PANEL, (f"{v}_p", f"{v}_q"))
    schedule = schedule.split(s, f"{v}_q", width, (f"{v}_o", f"{v}_i"))
    block = REDUCTION_BLOCK // 4 if with_taps else REDUCTION_BLOCK
    for k in long:
        schedule = schedule.split(s, k, block, (f"{k}_o", f"{k}_i"))
    schedule = schedule.split(s, w, core.rows, (f"{w}_o", f"{w}_i"))
    moved = {
        i for r in scop_statement.source.reads if v in loops_of_read(r) for i in loops_of_read(r)
    }
    others = [loop for loop in core.free if loop not in (v, w)]
    before = [loop for loop in others if loop in moved]
    after = [loop for loop in others if loop not in moved]
    outer = [*before, f"{v}_p", *(f"{k}_o" for k in long)]
    points = [*taps, *shaped, *(f"{k}_i" for k in long), f"{w}_i", f"{v}_i"]
    schedule = schedule.reorder(s, [*outer, f"{v}_o", *after, f"{w}_o", *points])
    schedule = schedule.parallelize(s, before[0] if before else f"{v}_p")
    for r in scop_statement.source.reads:
        dim = plain_dimension(r, v)
        if dim is not None:
            dims = (*(d for d in range(len(r.indices)) if d != dim), dim)
            schedule = schedule.promote(s, outer[-1], r.tensor, "local", dims)
    target = scop_statement.target.tensor
    schedule = schedule.promote(s, f"{w}_o", target, "register", _lanes_last(schedule, core))
    schedule = schedule.vectorize(s, f"{v}_i", core.lanes)
    if core.vectors > 1:
        schedule = schedule.unroll(s, f"{v}_i_o")
    schedule = schedule.unroll(s, f"{w}_i")
    for tap in shaped:
        schedule = schedule.unroll(s, tap)
    schedule = schedule.isolate(s, f"{w}_o")
    for name in names:
        if name != s:
            schedule = _plain(schedule, name)
    return schedule


def _lanes_last(schedule: Schedule, core: Contraction) -> tuple[int, ...]:
    """The dimensions of the target with the one in which the lanes lie last."""
    target = schedule.scop.statement(core.statement).target
    dim = lane_dimension(target, core.v, core.lanes)
    rest = tuple(d for d in range(len(target.indices)) if d != dim)
    return rest if dim is None else (*rest, dim)


def _plain(schedule: Schedule, name: str) -> Schedule:
    """Threads and lanes for a statement that was split off a contraction."""
    flags = coincident_members(schedule.tree, name, schedule.dependences)
    loops = schedule.loops(name)
    for step in (f"vectorize {name}: {loops[-1]}", f"parallelize {name}: {loops[0]}"):
        if flags[loops[-1]] and len(loops) > 1:
            try:
                schedule = schedule.replay(step)
            except ScheduleError:
                continue
    return schedule


def fused_around(schedule: Schedule, names: tuple[str, ...], s: str) -> tuple[str, ...]:
    """The statements of the group that share the free loops with `s`."""
    own = schedule.loops(s)[0]
    return tuple(n for n in names if schedule.loops(n) and schedule.loops(n)[0] == own)


def _pack(schedule: Schedule, core: Contraction, loop: str) -> Schedule:
    """Copy the operands that move with v into contiguous panels of one v tile.

    An operand that is contiguous along v and no wider than the tile is a panel already; one
    whose panel is too large for a buffer stays where it is.
    """
    s = schedule.scop.statement(core.statement)
    width = core.vectors * core.lanes
    if not core.w:
        return schedule
    for read in s.source.reads:
        dim = plain_dimension(read, core.v)
        rank = len(read.indices)
        if dim is None or (dim == rank - 1 and (core.extent(core.v) or width + 1) <= width):
            continue
        order = (*(d for d in range(rank) if d != dim), dim)
        try:
            schedule = schedule.promote(core.statement, loop, read.tensor, "local", order)
        except ScheduleError:
            continue
    return schedule


def _pack_rows(schedule: Schedule, core: Contraction, loop: str) -> Schedule:
    """Copy the rows of operands whose rows would all lie in one set of the cache."""
    s = schedule.scop.statement(core.statement)
    for read in s.source.reads:
        dim = plain_dimension(read, core.w) if core.w else None
        if dim is None or core.v in loops_of_read(read) or core.rows <= ALIASING_ROWS:
            continue
        tensor = schedule.program.tensors[read.tensor]
        stride = tensor.dtype.bytes
        for extent in tensor.shape[dim + 1 :]:
            stride *= int(extent.value) if isinstance(extent, Const) else 1
        if stride % ALIASING == 0:
            try:
                schedule = schedule.promote(core.statement, loop, read.tensor, "local")
            except ScheduleError:
                continue
    return schedule


def shared_loop(schedule: Schedule, s: str, outer: list[str], machine: Machine) -> str:
    """The loop to share among threads: the outermost that balances them well."""
    extents = loop_extents(schedule, s)
    flags = coincident_members(schedule.tree, s, schedule.dependences)
    best, choice = 0.0, ""
    for loop in outer:
        extent = extents[loop]
        if not flags.get(loop) or extent == 1:
            continue
        rounds = 1 << 30 if extent is None else -(-extent // machine.cores)
        balance = 1.0 if extent is None else extent / (rounds * machine.cores)
        # An outer loop keeps packed panels in one thread: it need only be nearly balanced.
        if balance > best + 0.1:
            best, choice = balance, loop
    return choice
