"""Contractions on tensor cores: tiles of blocks in shared memory, of warps in fragments.

An update ``C[..] += A[..] * B[..]`` as in `poly.strategy.gpu.contraction`, with operands whose
matrices an intrinsic multiplies; one of the loops of the reduction is that of the matrices, and
the others are around it.  A block computes a tile of u by v, each of its warps a part of it, in
16 x 16 matrices that it keeps in fragments through the whole reduction; the operands come through
shared memory, a part of the reduction at a time.  The epilogue reads the sums element by element
from shared memory, with threads of its own.

Where extents are unknown, or are not multiples, operands and sums in shared memory are padded, so
that whole matrices are multiplied (`poly.buffers.pad_tiles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from poly.buffers.copies import contiguous_dimension
from poly.deps.scop import ScopStatement
from poly.ir.expr import Index, Read, indices_of
from poly.ir.instruction_tables import MATRIX_INTRINSICS
from poly.ir.intrinsics import ACCUMULATOR, MatrixIntrinsic
from poly.ir.linear_form import linear_form
from poly.machine.gpu import SHARED_BYTES, WARP, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt, dimension_at, loop_extents, nest
from poly.strategy.common.tactic import Group, NoMatch, Tactic
from poly.strategy.gpu.contraction import GpuContraction, find_contraction, reduction_loops
from poly.strategy.gpu.queries import element_in_register, on_blocks, parallel_nest, shared_tile
from poly.strategy.gpu.update import UpdateWithReuse, core_of
from poly.tree.kinds import Scope

#: Tiles of a block along a loop, the best first; and those with a shared epilogue.
TILES, WITH_EPILOGUE = (128, 64, 32, 16), (64, 32, 16)
#: Terms of the sums for which operands are shared at a time.
DEPTHS = (32, 16, 8)
#: Tiles of a block along a loop of unknown length, and the least along the other one.
OPEN_TILES, OPEN_LEAST = (64, 32), 32
#: By how much the number of matrices may exceed the least for larger tiles, and by how much the
#: least may exceed the actual product, for tensor cores to pay.
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
        """Whether shared memory is padded."""
        return self.apart or not self.divides

    @property
    def waste(self) -> float:
        """Products of whole matrices for each one requested, as far as that is known."""
        found = 1.0
        for length, extent in zip(self.lengths, self.matrix, strict=True):
            found *= _up_to(length, extent) / length if length else 1
        return found

    @property
    def divides(self) -> bool:
        """Whether tiles that divide the extents are as good as larger ones."""
        for length, extent in zip(self.lengths, self.matrix, strict=True):
            if length is None or length % extent:
                return False
        return all(
            2 * self.dividing(n)[0] >= self.fitting(n)[0] for n, _ in enumerate(self.loops[:2])
        )

    def dividing(self, n: int) -> tuple[int, ...]:
        """Tiles along u or v without a remainder."""
        length = self.lengths[n] or 1
        return tuple(c for c in self.choices if length % c == 0)

    def fitting(self, n: int) -> tuple[int, ...]:
        """Tiles along u or v with a small remainder."""
        length = self.lengths[n]
        if length is None:
            return tuple(c for c in self.choices if c in OPEN_TILES)
        least = TILE_WASTE * _up_to(length, self.matrix[n])
        return tuple(c for c in self.choices if _up_to(length, c) <= least)

    def depth(self, rows: WarpTile, columns: WarpTile) -> int:
        """Terms for which operands are shared at a time, double-buffered.

        A warp may need memory to store a matrix of sums, too.
        """
        length, (m, n, terms) = self.lengths[2], self.matrix
        own = rows.warps * columns.warps * m * n * ACCUMULATOR.bytes
        own += rows.block * columns.block * self.sums

        def suits(d: int) -> bool:
            if 2 * (rows.block + columns.block) * d * self.bytes + own > SHARED_BYTES:
                return False
            if length is None:
                return True
            if self.divides:
                return length % d == 0
            return _up_to(length, d) <= TILE_WASTE * _up_to(length, terms)

        return next((d for d in DEPTHS if d % terms == 0 and suits(d)), terms)


def _up_to(length: int, extent: int) -> int:
    """A length rounded up to a multiple of an extent."""
    return -(-length // extent) * extent


@dataclass(frozen=True)
class MatrixPlan:
    """A contraction as products of matrices.

    run : the parallel loops; around : loops of the reduction other than that of the matrices
    operands : those in shared memory, with the order of their dimensions there
    epilogue : the statements that read the sums
    """

    found: GpuContraction
    run: tuple[str, ...]
    shape: Shape
    intrinsic: MatrixIntrinsic
    around: tuple[str, ...]
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    epilogue: tuple[str, ...]


class TensorCores(Tactic[GpuMachine, MatrixPlan]):
    """A contraction on tensor cores: tiles of blocks in shared memory, of warps in fragments."""

    name = "tensor cores"

    def core(self, group: Group[GpuMachine]) -> UpdateWithReuse | None:
        return core_of(group)

    def match(self, group: Group[GpuMachine]) -> MatrixPlan | NoMatch:
        schedule, names, machine = group.schedule, group.names, group.machine
        run = parallel_nest(schedule, names)
        if not machine.tensor_cores:
            return NoMatch("the machine has no tensor cores")
        if not run or run != nest(schedule, names):
            return NoMatch("not all loops that the group shares are parallel")
        found = find_contraction(schedule, names, run)
        if found is None:
            return NoMatch("no update with reuse of two operands")
        s, u, v = found.statement, found.rows, found.columns[0]
        statement = schedule.scop.statement(s)
        intrinsic = _intrinsic(schedule, statement, machine)
        if isinstance(intrinsic, NoMatch):
            return intrinsic
        extents = loop_extents(schedule, s)
        k = _matrix_loop(schedule, statement, extents)
        if k is None:
            return NoMatch("no loop of the reduction moves both operands by one")
        operands = _operands(schedule, found, (u, v, k))
        if isinstance(operands, NoMatch):
            return operands
        epilogue = tuple(n for n in names if n not in (s, f"{s}_init"))
        if f"{s}_init" not in names or any(schedule.loops(n) != run for n in epilogue):
            return NoMatch("another statement has loops of its own")
        others = prod(extents[x] or 1 for x in run if x not in (u, v))
        target = schedule.program.tensors[statement.target.tensor]
        shape = Shape(
            (u, v, k),
            (extents[u], extents[v], extents[k]),
            others,
            intrinsic.extents,
            WITH_EPILOGUE if epilogue else TILES,
            operands.apart,
            intrinsic.operand.bytes,
            target.dtype.bytes if epilogue else 0,
        )
        if shape.waste > WASTE:
            return NoMatch("the matrices would be almost empty")
        around = tuple(x for x in reduction_loops(schedule, s) if x != k)
        return MatrixPlan(found, run, shape, intrinsic, around, operands.orders, epilogue)

    def apply(self, group: Group[GpuMachine], plan: MatrixPlan) -> Schedule:
        schedule, shape, s = group.schedule, plan.shape, plan.found.statement
        u, v, _ = shape.loops
        extents = loop_extents(schedule, s)
        rows, columns = _tiles(shape, group.machine)
        blocks = [*(x for x in plan.run if x not in (u, v)), f"{u}_b", f"{v}_b"]
        mapped, rest = on_blocks(blocks, extents)
        schedule = schedule.split(s, u, rows.block, (f"{u}_b", f"{u}_x"))
        schedule = schedule.split(s, v, columns.block, (f"{v}_b", f"{v}_x"))
        schedule = schedule.reorder(s, [*mapped, *rest, f"{u}_x", f"{v}_x"])
        schedule = schedule.map_blocks(s, mapped)
        if plan.epilogue:
            schedule = schedule.distribute(s, f"{u}_x")
            schedule = schedule.fuse(f"{s}_init", s, [f"{u}_x", f"{v}_x"])
            target = schedule.scop.statement(s).target.tensor
            inner = [*mapped, *rest][-1]
            schedule = schedule.promote(s, inner, target, Scope.SHARED, padded=shape.padded)
        schedule = _warps(schedule, plan, (rows, columns))
        schedule, together = _fused_epilogue(schedule, plan.epilogue, (f"{u}_x", f"{v}_x"))
        for names in together:
            schedule = _by_threads(schedule, names[0], (u, v), (rows, columns))
            schedule = element_in_register(schedule, names, (f"{v}_t",))
        return schedule


def _fused_epilogue(
    schedule: Schedule, epilogue: tuple[str, ...], loops: tuple[str, str]
) -> tuple[Schedule, list[tuple[str, ...]]]:
    """Fuse the statements that read the sums as far as is legal; also returns which share loops."""
    together: list[tuple[str, ...]] = [(n,) for n in epilogue[:1]]
    for name in epilogue[1:]:
        fused = attempt(schedule, Schedule.fuse, together[-1][0], name, loops)
        if fused is schedule:
            together.append((name,))
        else:
            together[-1] = (*together[-1], name)
        schedule = fused
    return schedule, together


def _intrinsic(
    schedule: Schedule, s: ScopStatement, machine: GpuMachine
) -> MatrixIntrinsic | NoMatch:
    """The intrinsic that multiplies operands of these types."""
    tensors = schedule.program.tensors
    types = {tensors[r.tensor].dtype for r in s.source.reads}
    for i in MATRIX_INTRINSICS.values():
        if types == {i.operand} and (not i.rounds or machine.rounded_float32):
            return i
    return NoMatch(f"no instruction for {', '.join(sorted(map(str, types)))}")


def _matrix_loop(
    schedule: Schedule, s: ScopStatement, extents: Mapping[str, int | None]
) -> str | None:
    """The longest loop of the reduction along which both operands have a dimension."""
    reads = s.source.reads
    loops = reduction_loops(schedule, s.name)
    own = [x for x in loops if all(_dimension(r, x) is not None for r in reads)]

    def worth(x: str) -> tuple[float, int]:
        extent = extents[x]
        last = sum(_dimension(r, x) == len(r.indices) - 1 for r in reads)
        return float("inf") if extent is None else extent, last

    return max(own, key=worth, default=None)


@dataclass(frozen=True)
class Operands:
    """Both operands with the order of their dimensions in shared memory.

    apart : one does not begin at the same index as its loops
    """

    orders: tuple[tuple[str, tuple[int, ...]], ...]
    apart: bool


def _operands(
    schedule: Schedule, found: GpuContraction, loops: tuple[str, str, str]
) -> Operands | NoMatch:
    """Order the dimensions of the operands so that rows or columns of a matrix are contiguous."""
    s = found.statement
    u, v, k = (dimension_at(schedule, s, x) for x in loops)
    tensors = schedule.program.tensors
    target = schedule.scop.statement(s).target
    if any(len(side) != 1 for side in found.sides):
        return NoMatch("a side has several operands")
    orders: list[tuple[str, tuple[int, ...]]] = []
    begins = True
    for read, own in ((target, (u, v)), (found.sides[0][0], (u, k)), (found.sides[1][0], (v, k))):
        dims = [_dimension(read, x) for x in own]
        apart = contiguous_dimension(tensors[read.tensor]) not in dims and read is target
        if None in dims or apart:
            return NoMatch(f"{read} has no contiguous rows or columns")
        begins &= all(Index(x) in read.indices for x in own)
        order = sorted(range(len(read.indices)), key=lambda d: d in dims)
        orders.append((read.tensor, () if order == sorted(order) else tuple(order)))
    return Operands(tuple(orders[1:]), not begins)


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
    """The largest tiles that leave a block for every SM."""
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
        # The larger one is cut, as long as possible.
        best = max(known, key=lambda n: own[n][at[n]])
        if at[best] + 1 == len(own[best]):
            break
        if len(known) < 2 and own[best][at[best] + 1] < OPEN_LEAST:
            break  # there may be enough blocks
        at[best] += 1
    height, width = (own[n][at[n]] for n in (0, 1))
    return (
        WarpTile(height, max(16, height // 2)),
        WarpTile(width, max(16, width // (4 if width >= 128 else 2))),
    )


def _warps(schedule: Schedule, plan: MatrixPlan, tiles: tuple[WarpTile, WarpTile]) -> Schedule:
    """Compute the sums of a tile by warps, with operands in shared memory."""
    shape, s, name = plan.shape, plan.found.statement, plan.intrinsic.name
    (u, v, k), (*_, length) = shape.loops, shape.lengths
    rows, columns = tiles
    depth = shape.depth(rows, columns)
    m, n, terms = plan.intrinsic.extents
    matrices, elements = [f"{u}_m", f"{v}_m"], [f"{u}_f", f"{v}_f"]
    warps, rest = [f"{u}_w", f"{v}_w"], [f"{u}_y", f"{v}_y"]
    sizes = [rows.warp, columns.warp]
    schedule = schedule.tile(s, [f"{u}_x", f"{v}_x"], sizes, [*warps, *rest])
    schedule = schedule.tile(s, rest, [m, n], [*matrices, *elements])
    schedule = schedule.distribute(s, f"{u}_m").map_threads(s, warps)
    schedule = schedule.split(s, k, depth, (f"{k}_o", f"{k}_i"))
    schedule = schedule.split(s, f"{k}_i", terms, (f"{k}_m", f"{k}_f"))
    order = [*plan.around, f"{k}_o", f"{k}_m", *matrices, *elements, f"{k}_f"]
    schedule = schedule.reorder(s, order)
    single = length is not None and length <= depth  # no next part to prefetch
    for tensor, dimensions in plan.operands:
        where = (s, f"{k}_o", tensor)
        schedule = shared_tile(schedule, *where, dimensions, shape.padded, not single)
    schedule = schedule.tensorize(f"{s}_init", elements, name)
    schedule = schedule.tensorize(s, [*elements, f"{k}_f"], name)
    target = schedule.scop.statement(s).target.tensor
    schedule = schedule.promote(s, f"{v}_w", target, Scope.FRAGMENT)
    for statement in (f"{s}_init", s):
        for loop in matrices:
            schedule = schedule.unroll(statement, loop)
    return schedule


def _by_threads(
    schedule: Schedule, name: str, loops: tuple[str, str], tiles: tuple[WarpTile, WarpTile]
) -> Schedule:
    """Run the epilogue of a tile on the threads of its warps, a row on each warp.

    name : of one of the statements that share their loops
    """
    (u, v), (rows, columns) = loops, tiles
    lanes = min(WARP, columns.block)
    sizes = [rows.warps * columns.warps, lanes]
    words = [f"{u}_o", f"{v}_o", f"{u}_i", f"{v}_t"]
    schedule = schedule.tile(name, [f"{u}_x", f"{v}_x"], sizes, words)
    schedule = schedule.split(name, f"{u}_i", columns.warps, (f"{u}_z", f"{u}_t"))
    schedule = schedule.reorder(name, [f"{u}_o", f"{v}_o", f"{u}_z", f"{u}_t", f"{v}_t"])
    return schedule.map_threads(name, [f"{u}_z", f"{u}_t", f"{v}_t"])
