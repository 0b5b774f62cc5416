"""Contractions: updates with reuse, and the register tile that suits them.

Everything is derived from the access relations: which operands move with which loop, and how far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import gcd, log, prod

from poly.buffers.promotion import BUFFER_LIMIT
from poly.deps.scop import Scop, ScopStatement
from poly.ir.accesses import (
    block_of,
    element_stride,
    lane_dimension,
    loops_of_read,
    plain_dimension,
    vector_stride,
)
from poly.ir.expr import Read
from poly.machine.cpu import Machine
from poly.strategy.common.queries import (
    is_rectangular,
    result_of,
    static_extents,
    tile_operands,
)
from poly.strategy.cpu.dot_products import DotProduct, find_dot_product, has_dot_product
from poly.strategy.cpu.reuse import USUAL, pays_in_place, reuse_of

#: Multiply-adds that have to be in flight to keep the processor busy.
IN_FLIGHT = 8
#: Vector loops whose times are estimated to be within this factor are as good as each other.
STEP = 1.02
#: Instructions to pack a vector of an operand that is transposed in registers, or only copied.
PACK, COPY = 8, 2
#: The expected waste of lanes along a loop of unknown extent: that of adjacent results, such as the
#: length of a signal, and any other, such as a number of images, of which there is often one.
SHORT, BATCH = 0.3, 3.0
#: What it costs to read the rows of an operand in another page in each iteration of the reduction.
PAGE, TURN_PAGE = 4096, 8
#: Instructions to transpose one of the vectors in registers and store it.
SCATTER = 6
#: Sides of the largest register tile.
MOST_VECTORS, MOST_ROWS = 4, 14
#: What partial tiles at the end of columns cost beside their own time, by more code and branches;
#: and those at the end of rows, after which threads cannot share columns and rows together.
PARTIAL_COLUMNS, PARTIAL_ROWS = 1.05, 1.15
#: The fraction of busy lanes from which on the only tile may be partial.
NEARLY_FULL = 0.9
#: Extents up to this are unrolled where they bound the loops of a tile, or its lanes (padding).
UNROLLED_TAPS = 11
#: An operand is packed if each of its elements is used at least this often.
PACKING_REUSE = 1.5
#: With so many terms in a sum, or uses of an element of an operand, moving elements is cheap.
SURE = 32


@dataclass(frozen=True)
class Contraction:
    """An update with reuse, and the loops to tile.

    v, w : the vector loop, and the loop along which the vector operands are reused ("" if none)
    lanes, vectors, rows : the register tile is ``rows`` by ``vectors`` vectors of ``lanes``
    packed : tensors that move with v but are not contiguous along it, with the dimension of v
    free, reductions : the statement's loops; `shaped` are reductions that bound w (padding)
    dot : an instruction for several terms of a vector
    """

    statement: str
    v: str
    w: str
    lanes: int
    vectors: int
    rows: int
    packed: tuple[tuple[str, int], ...]
    free: tuple[str, ...]
    reductions: tuple[str, ...]
    shaped: tuple[str, ...]
    extents: tuple[tuple[str, int | None], ...]
    dot: DotProduct | None = None

    def extent(self, loop: str) -> int | None:
        return dict(self.extents).get(loop)

    @property
    def width(self) -> int:
        """Elements of v in a tile."""
        return self.vectors * self.lanes


def reads_in_place(scop: Scop, core: Contraction) -> bool:
    """Whether tiles read what moves with v where it is, although a copy could be read in order."""
    s = scop.statement(core.statement)
    return core.dot is None and pays_in_place(scop, s, core.v, dict(core.extents))


def find_contraction(
    scop: Scop,
    s: ScopStatement,
    machine: Machine,
    rearranged: Collection[str] = (),
    outside: Collection[str] = (),
) -> Contraction | None:
    """Find a register tile for `s`; None if it is not a contraction with a usable vector loop.

    rearranged : tensors that are available in any layout, so that they need not be packed
    outside : loops around the steps of a block, which are not part of a tile
    """
    update = find_update(scop, s, machine, rearranged, outside)
    if update is None:
        return None
    made = [x for v in update.free if (x := update.with_vector(v)) is not None]
    return max(made, key=lambda x: x[0])[1] if made else None


def find_update(
    scop: Scop,
    s: ScopStatement,
    machine: Machine,
    rearranged: Collection[str] = (),
    outside: Collection[str] = (),
) -> Update | None:
    """The update of a contraction, whose tile is not chosen yet; see `find_contraction`."""
    tensor, reductions = scop.program.tensors[s.target.tensor], s.source.reductions
    reads = tile_operands(scop, s)
    if not reads and s.is_reduction and has_dot_product(scop, s, machine):
        reads = [r for r in s.source.reads if r.indices]
    if not reductions or not reads:
        return None
    free = tuple(x for x in s.free if x not in outside)
    moves = {r: loops_of_read(r) for r in reads}
    if all(set(free) <= moved for moved in moves.values()):
        return None
    extents = static_extents(s) | dict.fromkeys(outside, 1)
    result = result_of(scop, s)
    size = tensor.dtype.bytes
    return Update(scop, s, free, reads, moves, result, extents, size, machine, rearranged)


@dataclass(frozen=True)
class Update:
    """An update with reuse, each free loop of which may become the vector loop.

    reads : its operands; moves : the loops that each moves with; result : see `result_of`
    element : bytes of an element of the result; rearranged : see `find_contraction`
    """

    scop: Scop
    s: ScopStatement
    free: tuple[str, ...]
    reads: list[Read]
    moves: dict[Read, frozenset[str]]
    result: Read
    extents: dict[str, int | None]
    element: int
    machine: Machine
    rearranged: Collection[str]

    def with_vector(
        self, v: str, row_loop: str | None = None
    ) -> tuple[tuple[int, ...], Contraction] | None:
        """The contraction with vector loop v, and its score (greater is better).

        row_loop : that of the rows of its tile; None: the one that costs the fewest loads
        """
        s, extents = self.s, self.extents
        lanes = self.lanes(v)
        if (
            lanes < (2 if self.element == 8 else 4)
            or lane_dimension(s.target, v, lanes) is None
            or not is_rectangular(s, v)
        ):
            return None
        moving = [r for r in self.reads if v in self.moves[r]]
        still = [r for r in self.reads if v not in self.moves[r]]
        lanes, dot = self.instruction(v, lanes)
        if dot is None and not tile_operands(self.scop, s):
            return None
        packed = self.packed(v, lanes, moving, dot)
        if not moving or packed is None:
            return None
        scattered = vector_stride(self.result, v, lanes) != 1
        if extents[v] is None and scattered and len(packed) == len(moving):
            # Nothing is contiguous along it, and it may be short: a batch, say.
            wide = (x for x in self.free if (extents[x] or 0) >= lanes)
            if any(vector_stride(self.result, x, lanes) == 1 for x in wide):
                return None
        for r in moving:
            packs = not self.is_stored(r, v, lanes, dot) and r.tensor not in self.rearranged
            if packs and reuse_of(s, r, extents) < PACKING_REUSE:
                return None
        w = _row_loop(v, self.free, moving, still, extents) if row_loop is None else row_loop
        reductions = s.source.reductions
        vectors, rows, quality = self.tile(v, w, lanes, moving, still, packed, scattered)
        shaped = tuple(r for r in reductions if w and not is_rectangular(s, w, (r,)))
        found = Contraction(
            s.name, v, w, lanes, vectors, rows, packed, self.free, reductions, shaped,
            tuple(extents.items()), dot,
        )  # fmt: skip
        repacked = sum(
            dot is not None and r not in dot.in_place and r.tensor not in self.rearranged
            for r in still
        )
        return self.score(found, moving, scattered, repacked, quality), found

    def lanes(self, v: str) -> int:
        """Lanes of a vector along a loop: fewer than the machine has if it is shorter."""
        lanes, extent = self.machine.vector_bytes // self.element, self.extents[v]
        while extent is not None and lanes > extent:
            lanes //= 2
        return lanes

    def instruction(self, v: str, lanes: int) -> tuple[int, DotProduct | None]:
        """The instruction for a vector loop, and its lanes: more than iterations, if those that are
        left are less than half.
        """
        dot = find_dot_product(self.scop, self.s, v, lanes, self.machine)
        if (
            self.extents[v] or lanes
        ) % lanes and 2 * lanes * self.element <= self.machine.vector_bytes:
            wider = find_dot_product(self.scop, self.s, v, 2 * lanes, self.machine)
            if wider is not None and wider.windows:
                return 2 * lanes, wider
        return lanes, dot

    def is_stored(self, r: Read, v: str, lanes: int, dot: DotProduct | None) -> bool:
        """Whether an operand is stored as a vector along v reads it."""
        return vector_stride(r, v, lanes) == 1 if dot is None else r in dot.in_place

    def packed(
        self, v: str, lanes: int, moving: list[Read], dot: DotProduct | None
    ) -> tuple[tuple[str, int], ...] | None:
        """Operands that are not contiguous along v, with its dimension; None if one has none."""
        found: list[tuple[str, int]] = []
        for r in moving:
            if self.is_stored(r, v, lanes, dot):
                continue
            dim = plain_dimension(r, v)
            if dim is None:
                return None
            found.append((r.tensor, dim))
        return tuple(found)

    def tile(
        self, v: str, w: str, lanes: int, moving: list[Read], still: list[Read],
        packed: tuple[tuple[str, int], ...], scattered: bool,
    ) -> tuple[int, int, float]:  # fmt: skip
        """Vectors and rows of the register tile, and its quality; see `register_tile`."""
        packed_bytes, length = self.element * lanes, 1
        for loop in self.s.source.reductions:
            packed_bytes *= self.extents[loop] or 1
            length *= self.extents[loop] or 64
        in_buffer = any(tensor not in self.rearranged for tensor, _ in packed)
        most = max(1, BUFFER_LIMIT // packed_bytes) if in_buffer else self.machine.registers

        def loads(vectors: int, rows: int) -> tuple[int, int]:
            """A row needs another load of what moves with w."""
            of_vectors = sum(vectors * (rows if w in loops_of_read(r) else 1) for r in moving)
            return of_vectors, sum(rows if w in loops_of_read(r) else 1 for r in still)

        # Lanes strided in memory are transposed in registers, `lanes` rows at a time.
        store = (SCATTER * lanes if scattered else 1) / length
        # Beside operands that are packed for several tiles, rows in other pages are, too, and once.
        packs = any(plain_dimension(r, v) is not None for r in moving) and not scattered
        times = max(1.0, (self.extents[v] or USUAL) / (2 * lanes)) if packs else 1.0
        pages = sum(w in loops_of_read(r) and self.turns_pages(r) for r in still) / times
        cost = TileCost(loads, store, pages * TURN_PAGE)
        height = self.extents.get(w) if w else 1
        whole = None
        if w and height and plain_dimension(self.s.target, w) is None:
            # Where the target's row index is not just w, only full tiles begin at multiples.
            whole = gcd(height, block_of(self.s.target, w) or height)
        return register_tile(self.extents[v], height, lanes, self.machine, most, whole, cost)

    def turns_pages(self, r: Read) -> bool:
        """Whether each iteration of the reduction reads another page of an operand."""
        shape = self.scop.program.tensors[r.tensor].shape
        long = [x for x in self.s.source.reductions if (self.extents[x] or USUAL) > UNROLLED_TAPS]
        along = next((x for x in reversed(long) if x in loops_of_read(r)), None)
        stride = element_stride(r, shape, along, 1) if along else None
        return stride is not None and stride * self.element >= PAGE

    def is_risky(self, found: Contraction, scattered: bool) -> bool:
        """Whether packing operands, or transposing results, may not pay for some unknown sizes."""
        if None not in self.extents.values():
            return False
        known: dict[str, int | None] = {x: e or 1 for x, e in self.extents.items()}
        length = prod(self.extents[r] or 1 for r in found.reductions)
        turned = {tensor for tensor, _ in found.packed}
        return (scattered and length < SURE) or any(
            reuse_of(self.s, r, known) < SURE for r in self.reads if r.tensor in turned
        )

    def score(
        self, found: Contraction, moving: list[Read], scattered: bool, repacked: int, quality: float
    ) -> tuple[int, ...]:
        """The score of a vector loop, the most important criterion first.

        repacked : operands that are packed for each tile; quality : of its tile
        """
        v, extents = found.v, self.extents
        risky = self.is_risky(found, scattered)
        return (
            -self.time(found, quality, risky, repacked),
            # The more loops reuse the vector operand, the less packing and loading it costs.
            sum(extents[x] != 1 and all(x not in self.moves[r] for r in moving) for x in self.free),
            int(not scattered),
            -len(found.packed),
            extents[v] or 1 << 30,
        )

    def time(self, found: Contraction, quality: float, risky: bool, repacked: int) -> int:
        """The time of a multiply-add with a vector loop, in steps of `STEP`.

        Packing an operand, or transposing results, pays if it is worth it for known sizes alone
        (`risky`: it may not be).
        """
        turned = {tensor for tensor, _ in found.packed}
        copied = () if reads_in_place(self.scop, found) else self.reads
        packing = sum(
            (PACK if r.tensor in turned else COPY) / reuse_of(self.s, r, self.extents)
            for r in copied
            if found.v in self.moves[r] and r.tensor not in self.rearranged
        )
        unknown = 0.0 if self.extents[found.v] else SHORT
        if is_batch(found, self.result):
            unknown = BATCH
        spent = 1 / quality + packing + risky + repacked / 2 + unknown
        terms = found.dot.group if found.dot else 1
        return round(log(spent / (found.lanes * terms)) / log(STEP))


def _row_loop(
    v: str,
    free: tuple[str, ...],
    moving: list[Read],
    still: list[Read],
    extents: dict[str, int | None],
) -> str:
    """The loop of a tile's rows: the one along which the fewest operands must be loaded again.

    Reloading a vector costs more than reloading a scalar.  Of equal loops with enough rows, the
    innermost keeps adjacent reads together.  "" if every row needs all operands.
    """
    costs = {}
    for w in free:
        if w != v and extents[w] != 1:
            loads = [2 * (w in loops_of_read(r)) for r in moving] + [
                w in loops_of_read(r) for r in still
            ]
            if sum(loads) < 2 * len(moving) + len(still):
                costs[w] = sum(loads)
    least = [w for w in costs if costs[w] == min(costs.values())]
    enough = [w for w in least if extents[w] is None or (extents[w] or 0) >= 4]
    if enough:
        return enough[-1]
    return max(least, key=lambda w: (extents[w] or 0, free.index(w)), default="")


@dataclass(frozen=True)
class TileCost:
    """The cost of one iteration of the reduction, in vector multiply-adds.

    loads : the numbers of vectors and of scalars that a tile of (vectors, rows) loads
    store : of a vector of the result, amortised over the iterations; pages : of those turned
    """

    loads: Callable[[int, int], tuple[int, int]] = lambda vectors, rows: (vectors, rows)
    store: float = 0.0
    pages: float = 0.0

    def __call__(self, vectors: int, rows: int) -> float:
        of_vectors, of_scalars = self.loads(vectors, rows)
        loads = of_vectors + of_scalars
        # Loads overlap with multiply-adds, but are not quite free; vectors come from the second
        # cache, where the packed operand is, and a row of scalars from the first.
        beside = loads / 8 + of_vectors / 4
        return max(vectors * rows, loads, IN_FLIGHT) + beside + self.pages + vectors * self.store


def wasted_on(extent: int | None, rows: int) -> float:
    """The time that tiles of so many rows take, over that of full ones: a partial tile runs several
    times slower.
    """
    left = extent % rows if extent is not None else 0
    return 1.1 + 3 * left / extent if extent and left else 1.0


def is_batch(found: Contraction, result: Read) -> bool:
    """Whether lanes go along a loop of unknown extent, and not along adjacent results."""
    unknown = found.extent(found.v) is None
    return unknown and vector_stride(result, found.v, found.lanes) != 1


def register_tile(
    columns: int | None,
    rows: int | None,
    lanes: int,
    machine: Machine,
    most_vectors: int = 4,
    whole: int | None = None,
    cost: TileCost | None = None,
) -> tuple[int, int, float]:
    """(vectors, rows) of accumulators that fit the registers besides operands, for given extents.

    Also the quality: useful multiply-adds of whole vectors over the time of all tiles.  It does not
    include `PARTIAL_ROWS`, by which rows are chosen: other lanes have other rows.

    whole : rows are a divisor of this
    """
    cost = cost or TileCost()
    if rows is None:
        # A symbolic extent has a tail of up to rows - 1; a moderate tile keeps it short.
        vectors = 2 if columns is None or columns // lanes % 2 == 0 else 1
        count = 8
        return vectors, count, _quality(columns, vectors * count, lanes, vectors, count, cost)
    rows = max(1, rows)
    accumulators = machine.registers - 4
    best, chosen = (0.0, 1, 1), 0.0
    for vectors in range(1, min(most_vectors, MOST_VECTORS) + 1):
        if columns is not None and vectors > 1 and columns < NEARLY_FULL * vectors * lanes:
            break
        for count in range(1, min(accumulators // vectors, MOST_ROWS, rows) + 1):
            if whole is not None and whole % count:
                continue
            quality = _quality(columns, rows, lanes, vectors, count, cost)
            uneven = PARTIAL_ROWS if rows % count else 1.0
            if quality / uneven > best[0] * 1.01:
                best, chosen = (quality / uneven, vectors, count), quality
    return best[1], best[2], chosen


def _quality(
    columns: int | None, rows: int, lanes: int, vectors: int, count: int, cost: TileCost
) -> float:
    """Useful multiply-adds over the time of full tiles and of those that are left at the ends."""
    width = vectors * lanes
    columns = columns or width
    across = [(columns // width, vectors), (1, -(-(columns % width) // lanes))]
    down = [(rows // count, count), (1, rows % count)]
    time = sum(n * m * cost(v, r) for n, v in across for m, r in down if n * m * v * r)
    ends = PARTIAL_COLUMNS if columns % width else 1
    return columns * rows / lanes / (time * ends)
