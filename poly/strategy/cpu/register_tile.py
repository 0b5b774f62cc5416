"""Contractions: updates with reuse, and the register tile that suits them.

Everything is read off the access relations: which operands move with which loop, and how far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from poly.buffers.promotion import BUFFER_LIMIT
from poly.deps.scop import Scop, ScopStatement
from poly.ir.accesses import (
    elements_read,
    lane_dimension,
    loops_of_read,
    plain_dimension,
    vector_stride,
)
from poly.ir.expr import Read
from poly.machine.cpu import Machine
from poly.strategy.common.queries import is_rectangular, static_extents, tile_operands

#: Multiply-adds that have to be under way to keep the processor busy.
IN_FLIGHT = 8
#: Instructions to turn one of the vectors around in registers and store it.
SCATTER = 6
#: The part of the lanes that has work, from which on a vector loop counts as full.
FULL = 0.8
#: Extents up to this are written out where they bound the loops of a tile, or its lanes (padding).
UNROLLED_TAPS = 11
#: An operand is packed if each of its elements is used this often at least.
PACKING_REUSE = 1.5


@dataclass(frozen=True)
class Contraction:
    """An update with reuse, and the loops to tile.

    v, w : the vector loop, and the loop along which the vector operands are reused ("" if none)
    lanes, vectors, rows : the register tile is ``rows`` by ``vectors`` vectors of ``lanes``
    packed : tensors that move with v but are not contiguous along it, with the dimension of v
    free, reductions : the statement's loops; `shaped` are reductions that bound w (padding)
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

    def extent(self, loop: str) -> int | None:
        return dict(self.extents).get(loop)


def find_contraction(
    scop: Scop,
    s: ScopStatement,
    machine: Machine,
    rearranged: Collection[str] = (),
    outside: Collection[str] = (),
) -> Contraction | None:
    """How to register-tile `s`, or None if it is no contraction with a usable vector loop.

    rearranged : tensors that can be had in any layout, so that they need not be packed
    outside : loops around the steps of a block, which a tile has no part in
    """
    tensor, reductions = scop.program.tensors[s.target.tensor], s.source.reductions
    reads = tile_operands(scop, s)
    if not reductions or not reads:
        return None
    free = tuple(x for x in s.free if x not in outside)
    moves = {r: loops_of_read(r) for r in reads}
    if all(set(free) <= moved for moved in moves.values()):
        return None
    extents = static_extents(s) | dict.fromkeys(outside, 1)
    lanes = machine.vector_bytes // tensor.dtype.bytes
    best: tuple[tuple[int, ...], Contraction] | None = None
    for v in free:
        made = _with_vector(
            s,
            v,
            free,
            reductions,
            reads,
            moves,
            extents,
            lanes,
            tensor.dtype.bytes,
            machine,
            rearranged,
        )
        if made is not None and (best is None or made[0] > best[0]):
            best = made
    return best[1] if best is not None else None


def _with_vector(
    s: ScopStatement,
    v: str,
    free: tuple[str, ...],
    reductions: tuple[str, ...],
    reads: list[Read],
    moves: dict[Read, frozenset[str]],
    extents: dict[str, int | None],
    lanes: int,
    tensor_bytes: int,
    machine: Machine,
    rearranged: Collection[str],
) -> tuple[tuple[int, ...], Contraction] | None:
    """The contraction with vector loop v, and how good that is (greater is better)."""
    extent = extents[v]
    while extent is not None and lanes > extent:
        lanes //= 2
    if (
        lanes < (2 if tensor_bytes == 8 else 4)
        or lane_dimension(s.target, v, lanes) is None
        or not is_rectangular(s, v)
    ):
        return None
    moving = [r for r in reads if v in moves[r]]
    still = [r for r in reads if v not in moves[r]]
    if not moving:
        return None
    packed: list[tuple[str, int]] = []
    for r in moving:
        if vector_stride(r, v, lanes) == 1:
            continue
        dim = plain_dimension(r, v)
        if dim is None:
            return None
        packed.append((r.tensor, dim))
    scattered = vector_stride(s.target, v, lanes) != 1
    if extent is None and scattered and len(packed) == len(moving):
        # Nothing is contiguous along it, and it may be short: a batch, say.
        wide = (x for x in free if (extents[x] or 0) >= lanes)
        if any(vector_stride(s.target, x, lanes) == 1 for x in wide):
            return None
    w = _row_loop(v, free, moving, still, extents)
    for r in moving:
        packs = vector_stride(r, v, lanes) != 1 and r.tensor not in rearranged
        if packs and reuse_of(s, r, extents) < PACKING_REUSE:
            return None
    panel = tensor_bytes * lanes
    for loop in reductions:
        panel *= extents[loop] or 1
    in_buffer = any(tensor not in rearranged for tensor, _ in packed)
    most = max(1, BUFFER_LIMIT // panel) if in_buffer else machine.registers
    # Where the rows' place in the target is not just w, only whole tiles begin at multiples.
    exact = bool(w) and plain_dimension(s.target, w) is None
    height = extents.get(w) if w else 1
    length = 1
    for loop in reductions:
        length *= extents[loop] or 64

    def loads(vectors: int, rows: int) -> tuple[int, int]:
        """A row needs again what moves with w."""
        of_vectors = sum(vectors * (rows if w in loops_of_read(r) else 1) for r in moving)
        return of_vectors, sum(rows if w in loops_of_read(r) else 1 for r in still)

    # Lanes that lie apart in memory are turned around in registers, `lanes` rows at a time.
    cost = TileCost(loads, (SCATTER * lanes if scattered else 1) / length)
    vectors, rows = register_tile(extent, height, lanes, machine, most, exact, cost)
    shaped = tuple(r for r in reductions if w and not is_rectangular(s, w, (r,)))
    whole = all(plain_dimension(r, v) is not None for r in moving)
    full = extent is None or extent >= FULL * (-(-extent // lanes) * lanes)
    score = (
        int(full),
        lanes,
        int(bool(w)),
        # Whether packing or turning results around pays depends on sizes: neither is safe.
        int(None in extents.values() and whole and not scattered and not packed),
        # The more loops reuse the vector operand, the less packing and loading it costs.
        sum(all(x not in moves[r] for r in moving) for x in free),
        int(vector_stride(s.target, v, lanes) == 1),
        -len(packed),
        extent or 1 << 30,
    )
    found = Contraction(
        s.name, v, w, lanes, vectors, rows, tuple(packed), free, reductions, shaped,
        tuple(extents.items()),
    )  # fmt: skip
    return score, found


def _row_loop(
    v: str,
    free: tuple[str, ...],
    moving: list[Read],
    still: list[Read],
    extents: dict[str, int | None],
) -> str:
    """The loop of a tile's rows: the one along which the fewest operands have to be loaded again.

    A vector that is loaded again costs more than a scalar.  Of equal loops that offer enough
    rows, the innermost keeps neighbouring reads together.  "" if every row needs all operands.
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


def reuse_of(s: ScopStatement, read: Read, extents: dict[str, int | None]) -> float:
    """How often an element of a read is used: instances over elements, as far as extents are
    known; where some are not, the loops that do not move it count as large.
    """
    loops = loops_of_read(read)
    if any(extents[x] is None for x in s.loops):
        return float(PACKING_REUSE if any(x not in loops for x in s.loops) else 1)
    instances = 1
    for x in s.loops:
        instances *= extents[x] or 1
    return instances / elements_read([read], extents)


@dataclass(frozen=True)
class TileCost:
    """What one iteration of the reduction costs, in multiply-adds of a vector.

    loads : the numbers of vectors and of scalars that a tile of (vectors, rows) loads
    store : of a vector of the result, shared among the iterations
    """

    loads: Callable[[int, int], tuple[int, int]] = lambda vectors, rows: (vectors, rows)
    store: float = 0.0

    def __call__(self, vectors: int, rows: int) -> float:
        of_vectors, of_scalars = self.loads(vectors, rows)
        loads = of_vectors + of_scalars
        # Loads run beside multiply-adds, but not quite for nothing; those of vectors come from
        # the second cache, where the panel lies, and a row of scalars from the first.
        beside = loads / 8 + of_vectors / 4
        return max(vectors * rows, loads, IN_FLIGHT) + beside + vectors * self.store


def register_tile(
    columns: int | None,
    rows: int | None,
    lanes: int,
    machine: Machine,
    most_vectors: int = 4,
    exact: bool = False,
    cost: TileCost | None = None,
) -> tuple[int, int]:
    """(vectors, rows) of accumulators that fit the registers beside operands, for given extents.

    Rows are a divisor of the extent where a good one exists, so that no tile is partial;
    `exact` allows nothing else.
    """
    cost = cost or TileCost()
    accumulators = machine.registers - 4
    best = (0.0, 1, 1)
    for vectors in (1, 2, 4):
        if vectors > most_vectors or (columns is not None and columns // lanes % vectors):
            continue
        most = min(accumulators // vectors, 14)
        for count in range(1, most + 1):
            if rows is not None and count > rows:
                break
            # A partial tile runs several times slower than a full one.
            partial = 0.0 if rows is None else rows % count / rows
            wasted = 1.0 + 3 * partial if partial == 0 else 1.1 + 3 * partial
            if exact and partial:
                continue
            quality = vectors * count / cost(vectors, count) / wasted
            if quality > best[0] * 1.01:
                best = (quality, vectors, count)
    if rows is None:
        # A symbolic extent has a tail of up to rows - 1; a moderate tile keeps it short.
        return 2 if columns is None or columns // lanes % 2 == 0 else 1, 8
    return best[1], best[2]
