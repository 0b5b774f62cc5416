"""Stencils: updates in which taps reach along the rows of an image, as in a depthwise convolution.

Where each channel has its own weights, nothing but the taps reuses the image.  Lanes along the
channels would have to turn it around in memory first, and the result back; lanes along its rows
need neither.  Vectors begin at multiples of the lanes, and a tap that lies on the padding, or the
end of a row, leaves some lanes out.  With the taps written out and several rows a tile, a vector
that has been loaded serves all rows that it is a tap of.

Where the extents are not known, what is left of an image is written out once for each number of
rows, see `codegen.loops.loop_versioning`, and a vector's ends are masks that are computed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from poly.deps.scop import Scop, ScopStatement
from poly.errors import ScheduleError
from poly.ir.accesses import (
    loops_of_read,
    moving_dimensions,
    plain_dimension,
    stride_of,
    vector_stride,
)
from poly.ir.cost import CASES_LIMIT
from poly.ir.expr import Read
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    fused_around,
    has_lane_epilogue,
    is_rectangular,
    loop_extents,
    shared_loop,
    static_extents,
    tile_operands,
)
from poly.strategy.cpu.register_tile import (
    IN_FLIGHT,
    UNROLLED_TAPS,
    Contraction,
    find_contraction,
    reuse_of,
)

#: Vectors of a row are written out where that gives no more multiply-adds than this.
WRITTEN_OUT = 400
#: The most rows of a tile, and registers that they leave for what is loaded.
MOST_ROWS, LOADED = 14, 10
#: The most rows of a tile if their number is not known: images often have a multiple of 7.
OPEN_ROWS = 7
#: The extent that a loop of unknown extent is taken to have.
USUAL = 64
#: Vectors of so many bytes have masked instructions, which vectors of unknown ends need.
MASKED = 64
#: What a multiply-add takes with its load: of neighbours, and of every other element.
LOAD, LOAD_EVEN = 1.7, 3.3
#: Cycles to turn around and move one vector.
TURN = 8


@dataclass(frozen=True)
class Stencil:
    """An update to tile along rows.

    v, w : the loop along a row, and the loop over the rows of a tile ("" if there is none)
    lanes, rows : the tile; of the last lanes of a row some are left out
    taps : the reductions to write out, those along the row first
    rest : the other reductions
    cost : processor cycles for an element of the result, about
    known : whether the extents of `v` and `w` are
    """

    statement: str
    v: str
    w: str
    lanes: int
    rows: int
    free: tuple[str, ...]
    taps: tuple[str, ...]
    rest: tuple[str, ...]
    vectors: int
    cost: float
    known: bool


def find_tile(
    scop: Scop,
    s: ScopStatement,
    machine: Machine,
    rearranged: Collection[str] = (),
    outside: Collection[str] = (),
) -> Contraction | Stencil | None:
    """How to tile a statement: as a contraction or as a stencil, whichever is cheaper.

    rearranged : tensors that can be had in any layout
    outside : loops around the steps of a block
    """
    contraction = find_contraction(scop, s, machine, rearranged, outside)
    stencil = None if outside else find_stencil(scop, s, machine)
    if contraction is None or stencil is None:
        return contraction or stencil
    return stencil if stencil.cost < cost_of(s, contraction, rearranged) else contraction


def find_stencil(scop: Scop, s: ScopStatement, machine: Machine) -> Stencil | None:
    """How to tile `s` along rows, or None if no taps reach along its innermost dimension."""
    dtype = scop.program.tensors[s.target.tensor].dtype
    reads = tile_operands(scop, s)
    if not reads or not s.target.indices:
        return None
    free, reductions = s.free, s.source.reductions
    extents = {x: e for x, e in static_extents(s).items() if e}
    unknown = [x for x, e in static_extents(s).items() if e is None]
    extents.update({x: USUAL for x in unknown if x in free})
    last = len(s.target.indices) - 1
    v = next((x for x in free if plain_dimension(s.target, x) == last), "")
    if not v or len(extents) < len(s.loops):
        return None
    strides = [stride_of(r, v) for r in reads]
    moving = [r for r in reads if v in loops_of_read(r)]
    taps = tuple(r for r in reductions if extents[r] <= UNROLLED_TAPS)
    along = [t for t in taps if any(_meet(r, v, t) for r in moving)]
    if not along or any(x is None or x not in (0, 1, 2) for x in strides):
        return None
    if any(not is_rectangular(s, v, (r,)) for r in (*free, *reductions) if r not in (v, *along)):
        return None
    if v in unknown and machine.vector_bytes < MASKED:
        return None
    lanes = machine.vector_bytes // dtype.bytes
    while lanes // 2 >= extents[v]:
        lanes //= 2
    vectors = -(-extents[v] // lanes)
    if lanes < 4:
        return None
    # Windows with one operand, as of pooling, are bound by memory, see
    # `poly.strategy.cpu.memory_bound`; but for rows so short that most of their elements have taps
    # on the padding.
    if len(reads) < 2 and (vectors > 2 or all(is_rectangular(s, v, (t,)) for t in along)):
        return None
    w = _rows_loop(s, v, extents, moving)
    across = [t for t in taps if t not in along and w and any(_meet(r, w, t) for r in moving)]
    most = min(MOST_ROWS, machine.registers - LOADED)
    count = prod(extents[t] for t in (*along, *across))
    fit = [k for k in range(1, most + 1) if w and extents[w] % k == 0]
    rows = max((k for k in fit if count * k * vectors <= WRITTEN_OUT), default=0)
    rows = rows or max((k for k in fit if count * k <= WRITTEN_OUT // 2), default=1)
    if w in unknown:
        # What is left of an image has fewer rows, and a case for each number of them.
        most = min(most, OPEN_ROWS)
        fit = [k for k in range(1, most + 1) if (count + 2) * k * (k + 1) // 2 <= CASES_LIMIT]
        rows = max(fit, default=1)
    load = LOAD_EVEN if 2 in strides else LOAD
    if rows < IN_FLIGHT:
        load *= 1.1
    # Half as many lanes, and processors do two vectors at a time.
    load *= lanes * dtype.bytes / machine.vector_bytes
    cost = load * prod(extents[r] for r in reductions) * vectors / extents[v]
    rest = tuple(r for r in reductions if r not in along and r not in across)
    known = v not in unknown and w not in unknown
    return Stencil(s.name, v, w, lanes, rows, free, (*along, *across), rest, vectors, cost, known)


def _meet(read: Read, loop: str, other: str) -> bool:
    """Whether two loops move the same dimension of a tensor."""
    return bool(set(moving_dimensions(read, loop)) & set(moving_dimensions(read, other)))


def _rows_loop(s: ScopStatement, v: str, extents: dict[str, int], moving: list[Read]) -> str:
    """The loop over a tile's rows: best one that taps reach along, else one with reuse."""
    best = (0, 0)
    choice = ""
    for position, x in enumerate(s.free):
        if x == v or extents[x] == 1 or plain_dimension(s.target, x) is None:
            continue
        reached = any(_meet(r, x, t) for r in moving for t in s.source.reductions)
        reused = all(x not in loops_of_read(r) for r in moving)
        if (reached or reused) and (1 + reached, position) > best:
            best, choice = (1 + reached, position), x
    return choice


def cost_of(s: ScopStatement, core: Contraction, rearranged: Collection[str] = ()) -> float:
    """What a contraction's tile takes for an element of the result, as the cost of a stencil.

    What does not lie along the lanes is turned around: the result, and each element that is
    packed as often as it is used for another result.
    """
    extents = {x: core.extent(x) or 64 for x in s.loops}
    length = prod(extents[r] for r in core.reductions)
    extent = extents[core.v]
    moving = [r for r in s.source.reads if core.v in loops_of_read(r)]
    loads = sum(1 if core.w in loops_of_read(r) else 1 / core.rows for r in moving)
    cost = (1 + loads / 2) * length * -(-extent // core.lanes) / extent
    if vector_stride(s.target, core.v, core.lanes) != 1:
        cost += TURN / core.lanes
    packed = {tensor for tensor, _ in core.packed} - set(rearranged)
    for read in s.source.reads:
        if read.tensor in packed:
            cost += TURN / core.lanes * length / reuse_of(s, read, dict(core.extents))
    return cost


def stencil_steps(
    schedule: Schedule, names: tuple[str, ...], core: Stencil, machine: Machine
) -> Schedule:
    """The schedule of the group `names` tiled along the rows of `core`.

    Raises
    ------
    ScheduleError : if a step that the tile needs is refused.
    """
    s, v, w = core.statement, core.v, core.w
    if not set(core.free) <= set(schedule.loops(s)):
        raise ScheduleError(f"the loops of {s} are others by now")
    together = fused_around(schedule, names, s)
    if not has_lane_epilogue(schedule, together, s):
        raise ScheduleError("an epilogue is not made of operators on lanes")
    schedule = schedule.split(s, v, core.lanes, (f"{v}_o", f"{v}_i"))
    tiles, points = [f"{v}_o"], [f"{v}_i"]
    if w:
        schedule = schedule.split(s, w, core.rows, (f"{w}_o", f"{w}_i"))
        tiles, points = [f"{w}_o", *tiles], [f"{w}_i", *points]
    others = [loop for loop in core.free if loop not in (v, w)]
    outer = [*others, *tiles]
    # Threads along a row would all have masks, and share lines of the cache.
    shared = shared_loop(schedule, s, outer[:-1], machine) or shared_loop(
        schedule, s, tiles[-1:], machine
    )
    if shared:
        outer = [shared, *(x for x in outer if x != shared)]
    schedule = schedule.reorder(s, [*outer, *points])
    if shared:
        schedule = schedule.parallelize(s, shared)
        schedule = _share_next(schedule, s, outer, shared)
    if len(together) > 1:
        schedule = schedule.distribute(s, points[0])
    schedule = schedule.reorder(s, [*core.rest, *core.taps, *points])
    target = schedule.scop.statement(s).target.tensor
    schedule = schedule.promote(s, outer[-1], target, "register")
    for name in together:
        schedule = schedule.vectorize(name, f"{v}_i")
        if w:
            schedule = schedule.unroll(name, f"{w}_i")
    for tap in core.taps:
        schedule = schedule.unroll(s, tap)
    if core.known and core.vectors > 1 and tiles[-1] == outer[-1] != shared:
        if core.vectors * core.rows * _taps(schedule, core) <= WRITTEN_OUT:
            return schedule.unroll(s, outer[-1])
        return schedule.isolate(s, outer[-1])
    return schedule


def _share_next(schedule: Schedule, s: str, outer: list[str], shared: str) -> Schedule:
    """Share the next loop, too, where the one that is shared may be short for all that is known."""
    following = outer[outer.index(shared) + 1 : -1]
    if not following or loop_extents(schedule, s)[shared] is not None:
        return schedule
    try:
        return schedule.parallelize(s, following[0])
    except ScheduleError:
        return schedule


def _taps(schedule: Schedule, core: Stencil) -> int:
    extents = static_extents(schedule.scop.statement(core.statement))
    return prod(extents[t] or 1 for t in core.taps)
