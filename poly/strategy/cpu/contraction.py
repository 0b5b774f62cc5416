"""Register tiling of one contraction and what is fused with it, as schedule steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from poly.deps.legality import coincident_members
from poly.deps.scop import ScopStatement
from poly.ir.accesses import block_of, lane_dimension
from poly.ir.cost import WORTH_SHARING_STEP
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    BETTER_BALANCED,
    attempt,
    balance,
    dimensions_at,
    fused_around,
    has_lane_epilogue,
    loop_extents,
    on_threads,
    shared_loop,
    work_of,
)
from poly.strategy.common.tactic import Group, NoMatch, Tactic
from poly.strategy.cpu.cache_blocks import Blocks
from poly.strategy.cpu.choose_tile import core_of
from poly.strategy.cpu.contraction_plan import (
    BALANCED,
    CONTRACTION_PARAMETERS,
    ContractionPlan,
    plan_around,
)
from poly.strategy.cpu.conversions import convert_rows
from poly.strategy.cpu.dot_products import DotProduct
from poly.strategy.cpu.packing import (
    is_packed,
    pack_operands,
    pack_rows,
    reduction_order,
    unrolled_reductions,
)
from poly.strategy.cpu.register_tile import Contraction
from poly.strategy.cpu.stencil_tile import Stencil
from poly.tree.kinds import Scope

#: Blocking a reduction doubles the cases of a tile (first block or not, last or not) and so the
#: code: a convolution of unknown channels and window had 2,000 lines, and isl took twice as long
#: for the loops of two blocked reductions.
MOST_CHUNKS = 1
#: Loops are collapsed until each thread has this many iterations: one more or less matters little
#: then, and other threads can take some from a late one.  A thread still packs its own operands,
#: except the first and the last.
PIECES = 16


class RegisterTile(Tactic[Machine, ContractionPlan]):
    """A register tile of a contraction, with packed operands and blocks for the caches."""

    name = "contraction"
    parameters = CONTRACTION_PARAMETERS

    def core(self, group: Group[Machine]) -> Contraction | None:
        found = core_of(group)
        return found if isinstance(found, Contraction) else None

    def match(self, group: Group[Machine]) -> ContractionPlan | NoMatch:
        return self._plan(group, core_of(group))

    def asked_for(self, group: Group[Machine]) -> ContractionPlan | NoMatch:
        return self._plan(group, core_of(group, Contraction))

    def _plan(
        self, group: Group[Machine], core: Contraction | Stencil | None
    ) -> ContractionPlan | NoMatch:
        if not isinstance(core, Contraction):
            return NoMatch("no update with a loop along which an operand is reused")
        return plan_around(group, core)

    def apply(self, group: Group[Machine], plan: ContractionPlan) -> Schedule:
        return _tiled(group.schedule, group.names, plan, group.machine)


def _tiled(
    schedule: Schedule, names: tuple[str, ...], plan: ContractionPlan, machine: Machine
) -> Schedule:
    """The register-tiled schedule of the group `names`.

    A tile is: zero, accumulate, store with the epilogue.  Where the reduction is blocked, a tile is
    zeroed at the first block, stored with the epilogue at the last one, and loaded and stored in
    between.
    """
    core, blocks = plan.core, plan.blocks
    s, v, w = core.statement, core.v, core.w
    schedule, together = _with_epilogue(schedule, names, core, blocks)
    # Blocks of the reduction.
    schedule, chunks, order = _reductions(schedule, core, dict(blocks.reductions))
    if chunks:
        schedule = schedule.reorder(s, [*chunks, *order])
    for chunk in chunks if len(together) > 1 else ():
        schedule = schedule.sink(s, chunk)
    # Packed blocks, loops on threads, blocks of rows, register tiles.
    inner = {x: x for x in core.free}  # the innermost part of each loop so far
    head = list(blocks.before)
    if blocks.share is not None:
        schedule = _cut(schedule, s, inner, *blocks.share, "tr")
        head.append(f"{blocks.share[0]}_t")
    if blocks.packed:
        schedule = _cut(schedule, s, inner, v, blocks.packed, "pq")
        head.append(f"{v}_p")
    outside = [inner[x] for x in blocks.outside]
    if blocks.rows is not None:
        schedule = _cut(schedule, s, inner, *blocks.rows, "pq")
        outside.append(f"{blocks.rows[0]}_p")
    schedule = _cut(schedule, s, inner, v, core.vectors * core.lanes, "oi")
    columns, rows, points = [f"{v}_o"], [inner[x] for x in blocks.inside], [f"{v}_i"]
    if w:
        schedule = _cut(schedule, s, inner, w, core.rows, "oi")
        rows, points = [*rows, f"{w}_o"], [f"{w}_i", *points]
    tiles = [*rows, *columns] if plan.rows_outside else [*columns, *rows]
    outer = [*head, *chunks, *outside, *tiles]
    shared = _shared(schedule, plan, head, outer, machine)
    if shared and shared[0] != outer[-1]:
        outer = [shared[0], *(x for x in outer if x != shared[0])]
    schedule = schedule.reorder(s, [*outer, *points])
    for loop in shared:
        schedule = schedule.parallelize(s, loop)
    if len(together) > 1:
        schedule = schedule.distribute(s, points[0])
    terms = [f"{core.dot.loop}_k"] if core.dot else []
    schedule = schedule.reorder(s, [*order, *points, *terms])
    tile, last = outer.index(f"{v}_o"), outer[-1]
    around = [x for x in outer[:tile] if x in head or x in chunks] if blocks.packed else []
    if plan.packs:
        schedule = pack_operands(schedule, core, [f"{v}_o", *around][-1], blocks.packed)
    above = outer[tile - 1 : tile] if blocks.packed or blocks.rows else []
    schedule = pack_rows(schedule, core, [*above, last], machine)
    schedule = convert_rows(schedule, core, blocks, outer, machine)
    target = schedule.scop.statement(s).target.tensor
    schedule = schedule.promote(s, last, target, Scope.REGISTER, _lanes_last(schedule, core))
    if plan.unrolled > 1:
        schedule = schedule.unroll(s, order[-1], plan.unrolled)
    return _marks(schedule, core, together, last)


def _work(core: Contraction) -> dict[str, float]:
    """How many full tiles the loops over tiles are worth; the last one may be partial."""
    sizes = {core.v: core.vectors * core.lanes, core.w: core.rows}
    return {
        f"{x}_o": extent / size for x, size in sizes.items() if x and (extent := core.extent(x))
    }


def _shared(
    schedule: Schedule, plan: ContractionPlan, head: list[str], outer: list[str], machine: Machine
) -> list[str]:
    """The loops to share among threads, adjacent once the first is outermost."""
    if plan.threads != BALANCED:
        return [plan.threads]
    core, blocks = plan.core, plan.blocks
    s, work = core.statement, _work(core)
    if on_threads(schedule, s) or _is_short_step(schedule.scop.statement(s)):
        return []
    extents = loop_extents(schedule, s)
    flags = coincident_members(schedule.tree, s, schedule.dependences)
    if any(is_packed(r, core) for r in schedule.scop.statement(s).source.reads):
        # Threads that shared loops inside a packed block would each pack all of it.
        together = list(takewhile(flags.__getitem__, head))
        if any(extents[x] is None for x in together):
            return together
        one = shared_loop(schedule, s, head, machine) or shared_loop(
            schedule, s, outer[:-1], machine, work
        )
        if not one and not core.packed:
            # Inside the packed blocks, whose operands are then read in place: lanes are adjacent.
            one = shared_loop(schedule, s, outer, machine, work)
        return [one] if one else []
    # Rows that are packed for the tiles of a block are packed by one thread.
    pieces = 1 if blocks.rows is not None else PIECES * machine.cores
    dims = {x: dimensions_at(schedule, s, x) for x in outer}
    best, choice = 0.0, list[str]()
    for first in outer:
        if not flags[first] or extents[first] == 1:
            continue
        rest = [] if first == outer[-1] else [x for x in outer if x != first]
        loops = list(takewhile(flags.__getitem__, [first, *rest]))
        loops, quality = _together(loops, dims, extents, work, machine.cores, pieces)
        if quality > best + BETTER_BALANCED:
            best, choice = quality, loops
    while choice and extents[choice[-1]] == 1:
        choice.pop()
    return choice


def _is_short_step(s: ScopStatement) -> bool:
    """Whether synchronising threads at every step would cost more than they gain."""
    work = work_of(s)
    return bool(s.step) and work is not None and work < WORTH_SHARING_STEP


def _together(
    loops: list[str],
    dims: Mapping[str, frozenset[str]],
    extents: Mapping[str, int | None],
    work: Mapping[str, float],
    cores: int,
    pieces: int,
) -> tuple[list[str], float]:
    """The shortest prefix of the loops with enough iterations to balance threads, and how well.

    Iterations multiply: 5 packed blocks of 7 tiles are 35 tiles.  A loop of unknown extent may have
    only one, so that the next ones are shared, too.
    A loop inside others whose last tile is partial becomes two loops in C, and ends the prefix; so
    does one within a block of an unknown extent, since its end varies.

    dims : the indices that each loop moves along
    """
    count, tiles, quality = 1, 1.0, 0.0
    unknown: set[str] = set()
    for n, loop in enumerate(loops):
        extent = extents[loop]
        if dims[loop] & unknown or (n and not unknown and work.get(loop, extent) != extent):
            return loops[:n], quality
        if extent is None:
            unknown |= dims[loop]
            quality = 1.0
            continue
        count, tiles = count * extent, tiles * work.get(loop, extent)
        balanced = balance(count, cores, tiles)
        quality = 1.0 if unknown else balanced
        enough = max(pieces, cores) if unknown else pieces
        if count >= enough and balanced > 1 - BETTER_BALANCED:
            return loops[: n + 1], quality
    return loops, quality


def _with_epilogue(
    schedule: Schedule, names: tuple[str, ...], core: Contraction, blocks: Blocks
) -> tuple[Schedule, tuple[str, ...]]:
    """The statements of the tile: those fused with `core`, or it alone if they do not suit it."""
    s = core.statement
    together = fused_around(schedule, names, s)
    schedule = _beside_reductions(schedule, together, core)
    # With filter taps unrolled, or two loops, the ends of a blocked reduction would be very
    # much code: tiles are loaded and stored at each block instead.
    long = bool(blocks.reductions and core.shaped) or len(blocks.reductions) > MOST_CHUNKS
    if not long and has_lane_epilogue(schedule, together, s):
        return schedule, together
    if len(together) > 1:
        schedule = schedule.distribute(s, core.free[0])
    for name in together:
        if name != s:
            schedule = _plain(schedule, name)
    return schedule, (s,)


def _beside_reductions(
    schedule: Schedule, together: tuple[str, ...], core: Contraction
) -> Schedule:
    """What runs once beside the reductions, such as the initialisation, out of their loops, into
    which isl's scheduler has put it: ``for k: {T if k = 0; S}`` is ``T; for k: S``.
    """
    s = core.statement
    around = {loop for n in together if n != s for loop in schedule.loops(n)}
    shared = next((x for x in schedule.loops(s) if x in core.reductions and x in around), None)
    return schedule if shared is None else schedule.distribute(s, shared)


def _cut(
    schedule: Schedule, s: str, inner: dict[str, str], loop: str, size: int, ends: str
) -> Schedule:
    """Split the innermost part of a loop, and record its new name; `ends` are the name suffixes."""
    names = (f"{loop}_{ends[0]}", f"{loop}_{ends[1]}")
    schedule = schedule.split(s, inner[loop], size, names)
    inner[loop] = names[1]
    return schedule


def _reductions(
    schedule: Schedule, core: Contraction, blocks: dict[str, int]
) -> tuple[Schedule, list[str], list[str]]:
    """Cut the reductions: the schedule, loops over blocks, and loops inside them."""
    s = core.statement
    chunks: list[str] = []
    order: list[str] = []
    for loop in reduction_order(core):
        inner, block = {loop: loop}, _block_along(schedule, s, loop)
        if loop in blocks:
            whole = block or (core.dot.group if core.dot and core.dot.loop == loop else 1)
            size = -(-blocks[loop] // whole) * whole
            schedule = _cut(schedule, s, inner, loop, size, "pq")
            chunks.append(f"{loop}_p")
        if block is not None and (core.extent(loop) or block + 1) > block:
            # Within a block, adjacent elements in memory are adjacent in the loop.
            schedule = _cut(schedule, s, inner, loop, block, "oi")
            order.append(f"{loop}_o")
        if core.dot is not None and core.dot.loop == loop:
            schedule = _cut(schedule, s, inner, loop, core.dot.group, "gk")
            order.append(f"{loop}_g")
            continue
        order.append(inner[loop])
    return schedule, chunks, order


def _marks(schedule: Schedule, core: Contraction, together: tuple[str, ...], last: str) -> Schedule:
    """Lanes, unrolled loops, and full tiles separated from partial ones."""
    s, v, w = core.statement, core.v, core.w
    if core.dot is not None:
        schedule = _in_instructions(schedule, core, core.dot)
    for name in together if core.dot is None else (n for n in together if n != s):
        schedule = schedule.vectorize(name, f"{v}_i", core.lanes)
        if core.vectors > 1:
            schedule = schedule.unroll(name, f"{v}_i_o")
        if w:
            schedule = schedule.unroll(name, f"{w}_i")
    for reduction in unrolled_reductions(core):
        schedule = schedule.unroll(s, reduction)
    width = core.vectors * core.lanes
    columns, rows = core.extent(v), core.extent(w) if w else None
    if columns and rows and columns % width and rows % core.rows and last != f"{v}_o":
        # The rest along two sides is not a box; isl generates one loop full of conditions for it.
        schedule = schedule.isolate(s, f"{v}_o")
    if (columns or 1) % width or (w and (rows or 1) % core.rows):
        schedule = schedule.isolate(s, last)
    return schedule


def _in_instructions(schedule: Schedule, core: Contraction, dot: DotProduct) -> Schedule:
    """The update of a tile as instructions for its vectors and the terms of a group."""
    s, v, w = core.statement, core.v, core.w
    lanes, terms = f"{v}_i", f"{dot.loop}_k"
    if core.vectors > 1:
        names = (f"{v}_i_o", f"{v}_i_i")
        schedule = schedule.split(s, lanes, core.lanes, names)
        lanes = names[1]
        schedule = schedule.unroll(s, names[0])
    if w:
        schedule = schedule.unroll(s, f"{w}_i")
    return schedule.tensorize(s, [lanes, terms], dot.intrinsic)


def _block_along(schedule: Schedule, s: str, loop: str) -> int | None:
    """The block size of an operand that is stored in blocks along a loop."""
    found = (block_of(r, loop) for r in schedule.scop.statement(s).source.reads)
    return next((b for b in found if b is not None), None)


def _lanes_last(schedule: Schedule, core: Contraction) -> tuple[int, ...]:
    """The dimensions of the target, with the one that the lanes run along last."""
    target = schedule.scop.statement(core.statement).target
    dim = lane_dimension(target, core.v, core.lanes)
    rest = tuple(d for d in range(len(target.indices)) if d != dim)
    return rest if dim is None else (*rest, dim)


def _plain(schedule: Schedule, name: str) -> Schedule:
    """Threads and lanes for a statement that was distributed from a contraction."""
    flags = coincident_members(schedule.tree, name, schedule.dependences)
    extents = loop_extents(schedule, name)
    loops = [x for x in schedule.loops(name) if extents[x] != 1]
    if len(loops) < 2 or not flags[loops[-1]]:
        return schedule
    # An unknown extent may be one.
    outer = loops[:2] if extents[loops[0]] is None and len(loops) > 2 else loops[:1]
    schedule = attempt(schedule, Schedule.vectorize, name, loops[-1])
    for loop in outer:
        schedule = attempt(schedule, Schedule.parallelize, name, loop)
    return schedule
