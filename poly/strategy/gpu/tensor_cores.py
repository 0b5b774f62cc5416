"""Contractions on tensor cores: tiles of blocks in shared memory, of warps in fragments.

An update ``C[..] += A[..] * B[..]`` as in `poly.strategy.gpu.contraction`, of operands of which an
intrinsic multiplies matrices; of several loops of the reduction one is that of the matrices, and
the others go around.  A block computes a tile of u by v, each of its warps a part of it, in 16 x 16
matrices that it keeps in fragments through the whole reduction; the operands come through shared
memory, a part of the reduction at a time.  What reads the sums element by element does so from
shared memory, with threads of its own.

Where extents are not known, or are no multiples, operands and sums in shared memory are padded, so
that whole matrices are multiplied (`poly.buffers.pad_tiles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.buffers.promotion import SHARED_LIMIT, contiguous_dimension
from poly.deps.scop import ScopStatement
from poly.errors import ScheduleError
from poly.ir.expr import Index, Read, indices_of
from poly.ir.intrinsics import ACCUMULATOR, INTRINSICS, WARP, Intrinsic
from poly.ir.linear_form import linear_form
from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt, dimension_at, loop_extents, nest
from poly.strategy.gpu.contraction import GpuContraction, find_contraction
from poly.strategy.gpu.queries import element_in_register, on_blocks, parallel_nest, shared_tile

#: Tiles of a block along a loop, the best first; and with an epilogue, for which it is shared.
TILES, WITH_EPILOGUE = (128, 64, 32, 16), (64, 32, 16)
#: Terms of the sums for which operands are shared at a time.
DEPTHS = (32, 16, 8)
#: Tiles of a block along a loop of unknown length, and the least beside one.
OPEN_TILES, OPEN_LEAST = (64, 32), 32
#: How much more than the least number of matrices may be multiplied for larger tiles, and how much
#: more than what there is for tensor cores.
TILE_WASTE, WASTE = 1.25, 6.0


@dataclass(frozen=True)
class WarpTile:
    """A tile of a block along one loop: ``block`` elements, in parts of ``warp`` for each warp."""

    block: int
    warp: int

    @property
    def warps(self) -> int:
        return self.block // self.warp


@dataclass(frozen=True)
class Shape:
    """The product as matrices: its loops u, v, k and others, with their lengths where known.

    matrix : the extents of the intrinsic; choices : tiles of a block, the best first
    apart : operands begin in the middle of tiles
    bytes, sums : of an element of operands, and of sums that a block shares, 0 if it does not
    """

    loops: tuple[str, str, str]
    lengths: tuple[int | None, int | None, int | None]
    others: int
    matrix: tuple[int, int, int]
    choices: tuple[int, ...]
    apart: bool
    bytes: int
    sums: int

    @property
    def padded(self) -> bool:
        """Whether shared memory is."""
        return self.apart or not self.divides

    @property
    def padding(self) -> str:
        """How a step says so."""
        return ", padded" if self.padded else ""

    @property
    def waste(self) -> float:
        """Products of whole matrices for each one that is asked for, as far as that is known."""
        found = 1.0
        for length, extent in zip(self.lengths, self.matrix, strict=True):
            found *= _up_to(length, extent) / length if length else 1
        return found

    @property
    def divides(self) -> bool:
        """Whether tiles that divide are as good as larger ones."""
        for length, extent in zip(self.lengths, self.matrix, strict=True):
            if length is None or length % extent:
                return False
        return all(
            2 * self.dividing(n)[0] >= self.fitting(n)[0] for n, _ in enumerate(self.loops[:2])
        )

    def dividing(self, n: int) -> tuple[int, ...]:
        """Tiles along u or v without a rest."""
        length = self.lengths[n] or 1
        return tuple(c for c in self.choices if length % c == 0)

    def fitting(self, n: int) -> tuple[int, ...]:
        """Tiles along u or v with a small rest."""
        length = self.lengths[n]
        if length is None:
            return tuple(c for c in self.choices if c in OPEN_TILES)
        least = TILE_WASTE * _up_to(length, self.matrix[n])
        return tuple(c for c in self.choices if _up_to(length, c) <= least)

    def depth(self, rows: WarpTile, columns: WarpTile) -> int:
        """Terms for which operands are shared at a time, in two halves that take turns; a warp may
        need memory for a matrix of sums on its way, too.
        """
        length, (m, n, terms) = self.lengths[2], self.matrix
        own = rows.warps * columns.warps * m * n * ACCUMULATOR.bytes
        own += rows.block * columns.block * self.sums

        def suits(d: int) -> bool:
            if 2 * (rows.block + columns.block) * d * self.bytes + own > SHARED_LIMIT:
                return False
            if length is None:
                return True
            if self.divides:
                return length % d == 0
            return _up_to(length, d) <= TILE_WASTE * _up_to(length, terms)

        return next((d for d in DEPTHS if d % terms == 0 and suits(d)), terms)


def _up_to(length: int, extent: int) -> int:
    """A length as a whole number of extents."""
    return -(-length // extent) * extent


def tensor_cores_on_gpu(
    schedule: Schedule, names: tuple[str, ...], machine: GpuMachine
) -> Schedule:
    """The schedule of a group with a contraction that tensor cores can do.

    Raises
    ------
    ScheduleError : there is none, it does not suit, or the machine has no tensor cores.
    """
    run = parallel_nest(schedule, names)
    if not machine.tensor_cores or run != nest(schedule, names):
        raise ScheduleError("there are no tensor cores, or not all shared loops are parallel")
    found = find_contraction(schedule, names, run)
    s, u, v = found.statement, found.rows, found.columns[0]
    statement = schedule.scop.statement(s)
    intrinsic = _intrinsic(schedule, statement, machine)
    extents = loop_extents(schedule, s)
    k, around = _reduction(schedule, statement, extents)
    operands, apart = _operands(schedule, found, (u, v, k))
    start = f"{s}_init"
    epilogue = [n for n in names if n not in (s, start)]
    if start not in names or any(schedule.loops(n) != run for n in epilogue):
        raise ScheduleError("another statement has loops of its own")
    others = 1
    for x in run:
        others *= 1 if x in (u, v) else extents[x] or 1
    choices = WITH_EPILOGUE if epilogue else TILES
    lengths = (extents[u], extents[v], extents[k])
    sums = schedule.program.tensors[statement.target.tensor].dtype.bytes if epilogue else 0
    shape = Shape(
        (u, v, k), lengths, others, intrinsic.extents, choices, apart, intrinsic.operand.bytes, sums
    )
    if shape.waste > WASTE:
        raise ScheduleError("the matrices would be almost empty")
    rows, columns = _tiles(shape, machine)
    blocks = [*(x for x in run if x not in (u, v)), f"{u}_b", f"{v}_b"]
    mapped, rest = on_blocks(blocks, extents)
    schedule = schedule.replay(f"""
split {s}: {u} by {rows.block} as {u}_b, {u}_x
split {s}: {v} by {columns.block} as {v}_b, {v}_x
reorder {s}: {", ".join([*mapped, *rest, f"{u}_x", f"{v}_x"])}
map_blocks {s}: {", ".join(mapped)}""")
    if epilogue:
        schedule = schedule.replay(f"distribute {s}: {u}_x\nfuse {start}, {s}: {u}_x, {v}_x")
        target = statement.target.tensor
        inner = [*mapped, *rest][-1]
        schedule = schedule.replay(f"promote {s}: {inner} as {target}, shared{shape.padding}")
    schedule = _warps(schedule, s, (rows, columns), shape, around, intrinsic, operands)
    together = [[n] for n in epilogue[:1]]
    for n in epilogue[1:]:
        fused = attempt(schedule, f"fuse {together[-1][0]}, {n}: {u}_x, {v}_x")
        if fused is schedule:
            together.append([n])
        else:
            together[-1].append(n)
        schedule = fused
    for group in together:
        schedule = _by_threads(schedule, group[0], (u, v), (rows, columns))
        schedule = element_in_register(schedule, tuple(group), (f"{v}_t",))
    return schedule


def _intrinsic(schedule: Schedule, s: ScopStatement, machine: GpuMachine) -> Intrinsic:
    """What multiplies operands of these types.

    Raises
    ------
    ScheduleError : nothing does.
    """
    tensors = schedule.program.tensors
    types = {tensors[r.tensor].dtype for r in s.source.reads}
    for i in INTRINSICS.values():
        if types == {i.operand} and (not i.rounds or machine.rounded_float32):
            return i
    raise ScheduleError(f"there is no instruction for {', '.join(map(str, types))}")


def _reduction(
    schedule: Schedule, s: ScopStatement, extents: Mapping[str, int | None]
) -> tuple[str, list[str]]:
    """The longest loop of the reduction along which both operands have a dimension, and the others.

    Raises
    ------
    ScheduleError : there is none.
    """
    loops = [x for x in s.source.reductions if x in schedule.loops(s.name)]
    reads = s.source.reads
    own = [x for x in loops if all(_dimension(r, x) is not None for r in reads)]
    if not own:
        raise ScheduleError("no loop of the reduction moves both operands by one")

    def worth(x: str) -> tuple[float, int]:
        extent = extents[x]
        last = sum(_dimension(r, x) == len(r.indices) - 1 for r in reads)
        return float("inf") if extent is None else extent, last

    k = max(own, key=worth)
    return k, [x for x in loops if x != k]


def _operands(
    schedule: Schedule, found: GpuContraction, loops: tuple[str, str, str]
) -> tuple[list[str], bool]:
    """The operands as they are shared, in an order of dimensions in which a matrix has rows or
    columns in one piece: ``A, shared, 2, 0, 1``; and whether one begins elsewhere than its loops.

    Raises
    ------
    ScheduleError : one is no matrix, or the sums have none in one piece.
    """
    s = found.statement
    u, v, k = (dimension_at(schedule, s, x) for x in loops)
    tensors = schedule.program.tensors
    target = schedule.scop.statement(s).target
    if any(len(side) != 1 for side in found.sides):
        raise ScheduleError("a side has several operands")
    words: list[str] = []
    begins = True
    for read, own in ((target, (u, v)), (found.sides[0][0], (u, k)), (found.sides[1][0], (v, k))):
        dims = [_dimension(read, x) for x in own]
        apart = contiguous_dimension(tensors[read.tensor]) not in dims and read is target
        if None in dims or apart:
            raise ScheduleError(f"{read} has no rows or columns in one piece")
        begins &= all(Index(x) in read.indices for x in own)
        order = sorted(range(len(read.indices)), key=lambda d: d in dims)
        listed = [] if order == sorted(order) else [str(d) for d in order]
        words.append(", ".join([read.tensor, "shared", *listed]))
    return words[1:], not begins


def _dimension(read: Read, loop: str) -> int | None:
    """The one dimension of a read that moves with a loop, if it does so by one."""
    moving = [d for d, i in enumerate(read.indices) if loop in indices_of(i)]
    if len(moving) != 1:
        return None
    form = linear_form(read.indices[moving[0]])
    rest = form.without(Index(loop))
    plain = form.coefficient(Index(loop)) == 1 and all(loop not in indices_of(a) for a, _ in
                                                       rest.terms)  # fmt: skip
    return moving[0] if plain else None


def _tiles(shape: Shape, machine: GpuMachine) -> tuple[WarpTile, WarpTile]:
    """Tiles as large as leaves every processor a block."""
    own = [shape.dividing(n) if shape.divides else shape.fitting(n) for n in (0, 1)]
    at = [0, 0]

    def blocks() -> int:
        found = shape.others
        for n in (0, 1):
            length, tile = shape.lengths[n], own[n][at[n]]
            found *= 1 if length is None else -(-length // tile)
        return found

    known = [n for n in (0, 1) if shape.lengths[n] is not None]
    while known and blocks() < machine.processors:
        # The larger one is cut, as long as it is.
        best = max(known, key=lambda n: own[n][at[n]])
        if at[best] + 1 == len(own[best]):
            break
        if len(known) < 2 and own[best][at[best] + 1] < OPEN_LEAST:
            break  # there may be blocks enough
        at[best] += 1
    height, width = (own[n][at[n]] for n in (0, 1))
    return (
        WarpTile(height, max(16, height // 2)),
        WarpTile(width, max(16, width // (4 if width >= 128 else 2))),
    )


def _warps(
    schedule: Schedule,
    s: str,
    tiles: tuple[WarpTile, WarpTile],
    shape: Shape,
    around: list[str],
    intrinsic: Intrinsic,
    operands: list[str],
) -> Schedule:
    """The sums of a tile by warps, with operands in shared memory.

    around : other loops of the reduction
    """
    (u, v, k), (*_, length) = shape.loops, shape.lengths
    rows, columns = tiles
    depth = shape.depth(rows, columns)
    m, n, terms = intrinsic.extents
    matrices, elements = f"{u}_m, {v}_m", f"{u}_f, {v}_f"
    schedule = schedule.replay(f"""
tile {s}: {u}_x, {v}_x by {rows.warp}, {columns.warp} as {u}_w, {v}_w, {u}_y, {v}_y
tile {s}: {u}_y, {v}_y by {m}, {n} as {matrices}, {elements}
distribute {s}: {u}_m
map_threads {s}: {u}_w, {v}_w
split {s}: {k} by {depth} as {k}_o, {k}_i
split {s}: {k}_i by {terms} as {k}_m, {k}_f
reorder {s}: {", ".join([*around, f"{k}_o"])}, {k}_m, {matrices}, {elements}, {k}_f""")
    for operand in operands:
        what = f"{operand}{shape.padding}"
        if length is not None and length <= depth:  # there is no next part
            schedule = attempt(schedule, f"promote {s}: {k}_o as {what}")
        else:
            schedule = shared_tile(schedule, s, f"{k}_o", what)
    schedule = schedule.replay(f"""
tensorize {s}_init: {elements} as {intrinsic.name}
tensorize {s}: {elements}, {k}_f as {intrinsic.name}
promote {s}: {v}_w as {schedule.scop.statement(s).target.tensor}, fragment""")
    for name in (f"{s}_init", s):
        schedule = schedule.replay(f"unroll {name}: {u}_m\nunroll {name}: {v}_m")
    return schedule


def _by_threads(
    schedule: Schedule, name: str, loops: tuple[str, str], tiles: tuple[WarpTile, WarpTile]
) -> Schedule:
    """What reads the sums of a tile, on the same threads as its warps, a row on each warp.

    name : of one statement of those that share their loops
    """
    (u, v), (rows, columns) = loops, tiles
    lanes = min(WARP, columns.block)
    return schedule.replay(f"""
tile {name}: {u}_x, {v}_x by {rows.warps * columns.warps}, {lanes} as {u}_o, {v}_o, {u}_i, {v}_t
split {name}: {u}_i by {columns.warps} as {u}_z, {u}_t
reorder {name}: {u}_o, {v}_o, {u}_z, {u}_t, {v}_t
map_threads {name}: {u}_z, {u}_t, {v}_t""")
