"""Stencils: updates with filter taps along the rows of an image, as in a depthwise convolution.

Where each channel has its own weights, only the filter taps reuse the image.  Lanes along the
channels would need a transpose of the image in memory first, and of the result after; lanes along
its rows need neither.  Vectors begin at multiples of the lanes, and a filter tap that is on the
padding, or beyond the end of a row, masks some lanes.  With the filter taps unrolled and several
rows per tile, a loaded vector serves all rows that use it.  Without padding, this takes only the
taps of a column unrolled, and those along the rows are a loop.

Where the extents are unknown, the remainder of an image is unrolled once for each number of
rows, see `codegen.loops.loop_versioning`, and the masks at a vector's ends are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from poly.deps.scop import Scop, ScopStatement
from poly.ir.accesses import (
    loops_of_read,
    moving_dimensions,
    plain_dimension,
    stride_of,
)
from poly.ir.cost import CASES_LIMIT
from poly.ir.expr import Read
from poly.machine.cpu import VECTOR_BYTES, Machine
from poly.strategy.common.queries import (
    is_rectangular,
    result_of,
    static_extents,
    tile_operands,
)
from poly.strategy.cpu.register_tile import IN_FLIGHT, UNROLLED_TAPS, wasted_on
from poly.strategy.cpu.reuse import USUAL

#: Vectors of a row are unrolled if that gives no more multiply-adds than this.
UNROLLED = 400
#: With fewer rows, a tile may be partial, as where their number is a prime.
FEW_ROWS = 4
#: The most rows of a tile, and the registers that they leave for loaded values.
MOST_ROWS, LOADED = 14, 10
#: The most rows of a tile if their number is unknown: images often have a multiple of 7.
OPEN_ROWS = 7
#: The cost of a load beside its multiply-add: of adjacent elements, and of every other element.
LOAD, LOAD_EVEN = 0.7, 2.3
#: Cycles to transpose and move one vector.
TURN = 8


@dataclass(frozen=True)
class Stencil:
    """An update to tile along rows.

    v, w : the loop along a row, and the loop over the rows of a tile ("" if there is none)
    lanes, rows : the tile; some of the last lanes of a row are masked
    taps : the reductions to unroll: filter taps, those along the row first
    rest : the other reductions, which remain loops around them
    cost : approximate processor cycles per element of the result
    known : whether the extents of `v` and `w` are known
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


def find_stencil(scop: Scop, s: ScopStatement, machine: Machine) -> Stencil | None:
    """Find a tile of `s` along rows; None if no filter taps run along its innermost dimension."""
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
    taps = tuple(r for r in reductions if is_tap(extents[r]))
    along = [t for t in taps if any(_meet(r, v, t) for r in moving)]
    if not along or any(x is None or x not in (0, 1, 2) for x in strides):
        return None
    if any(not is_rectangular(s, v, (r,)) for r in (*free, *reductions) if r not in (v, *along)):
        return None
    if v in unknown and machine.vector_bytes < VECTOR_BYTES:
        return None
    lanes = machine.vector_bytes // dtype.bytes
    while lanes // 2 >= extents[v]:
        lanes //= 2
    vectors = -(-extents[v] // lanes)
    if lanes < 4:
        return None
    # Windows with one operand, as of pooling, are bound by memory, see
    # `poly.strategy.cpu.memory_bound`; except rows so short that most of their elements have filter
    # taps on the padding.
    padded = not all(is_rectangular(s, v, (t,)) for t in along)
    if len(reads) < 2 and (vectors > 2 or not padded):
        return None
    w = _rows_loop(s, v, extents, moving)
    across = [t for t in taps if t not in along and w and any(_meet(r, w, t) for r in moving)]
    most = min(MOST_ROWS, machine.registers - LOADED)
    columns_only = bool(across) and not padded
    unrolled = tuple(across if columns_only else (*along, *across))
    count = prod(extents[t] for t in unrolled)
    rows = _rows(extents[w], most, count, 1 if columns_only else vectors) if w else 1
    if w in unknown:
        # The remainder of an image has fewer rows, and a case for each number of them.
        most = min(most, OPEN_ROWS)
        fit = [k for k in range(1, most + 1) if (count + 2) * k * (k + 1) // 2 <= CASES_LIMIT]
        rows = max(fit, default=1)
    loads = (rows + count - 1) / (rows * count) if columns_only else 1.0
    term = _term(2 in strides, rows, loads) * lanes * dtype.bytes / machine.vector_bytes
    cost = term * prod(extents[r] for r in reductions) * vectors / extents[v]
    if stride_of(result_of(scop, s), v) not in (1, 2):
        cost += TURN / lanes
    rest = tuple(r for r in reductions if r not in unrolled)
    known = v not in unknown and w not in unknown
    return Stencil(s.name, v, w, lanes, rows, free, unrolled, rest, vectors, cost, known)


def is_tap(extent: int | None) -> bool:
    """Whether a reduction of so many terms may be that of a filter's taps."""
    return extent is not None and extent <= UNROLLED_TAPS


def _term(even: bool, rows: int, loads: float) -> float:
    """The cost of a multiply-add of the largest vectors; half as large ones issue two at a time.

    even : whether loads take every other element; loads : for each multiply-add
    """
    cost = 1 + (LOAD_EVEN if even else LOAD) * loads
    return cost * 1.1 if rows < IN_FLIGHT else cost


def _rows(extent: int, most: int, count: int, vectors: int) -> int:
    """The rows of a tile: enough to hide the latency of multiply-adds, few of them in vain.

    count : multiply-adds for a row of one vector; vectors : of a row of the image
    """

    full = [k for k in range(1, most + 1) if extent % k == 0]
    rows = max((k for k in full if count * k * vectors <= UNROLLED), default=0)
    rows = rows or max((k for k in full if count * k <= UNROLLED // 2), default=1)
    if rows >= FEW_ROWS:
        return rows
    fit = [k for k in range(rows, min(most, extent) + 1) if count * k <= UNROLLED // 2]
    return min(
        fit, key=lambda k: (wasted_on(extent, k) * max(1.0, IN_FLIGHT / k), -k), default=rows
    )


def _meet(read: Read, loop: str, other: str) -> bool:
    """Whether two loops move the same dimension of a tensor."""
    return bool(set(moving_dimensions(read, loop)) & set(moving_dimensions(read, other)))


def _rows_loop(s: ScopStatement, v: str, extents: dict[str, int], moving: list[Read]) -> str:
    """The loop over a tile's rows: best one with filter taps along it, else one with reuse."""
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
