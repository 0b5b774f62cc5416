"""Contractions on tensor cores: tiles of blocks in shared memory, of warps in fragments.

An update ``C[..] += A[..] * B[..]`` as in `poly.gpu_contraction`, of operands of which an intrinsic
multiplies matrices.  A block computes a tile of u by v, each of its warps a part of it, in 16 x 16
matrices that it keeps in fragments through the whole reduction; the operands come through shared
memory, a part of the reduction at a time.  What reads the sums element by element does so from
shared memory, with threads of its own.

All extents have to be known multiples of those of the intrinsic: a tile that is not full has no
meaning as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.analysis import loop_extents, plain_dimension
from poly.errors import ScheduleError
from poly.gpu_contraction import GpuContraction, find_contraction
from poly.gpu_machine import GpuMachine
from poly.gpu_nest import on_blocks, parallel_nest, shared_tile
from poly.intrinsics import INTRINSICS, WARP, Intrinsic
from poly.promotion import contiguous_dimension
from poly.rows import dimension_at, nest
from poly.schedule import Schedule
from poly.scop import ScopStatement

#: Tiles of a block along a loop, the best first; and with an epilogue, for which it is shared.
TILES, WITH_EPILOGUE = (128, 64, 32, 16), (64, 32, 16)
#: Terms of the sums for which operands are shared at a time.
DEPTHS = (32, 16, 8)


@dataclass(frozen=True)
class WarpTile:
    """A tile of a block along one loop: ``block`` elements, in parts of ``warp`` for each warp."""

    block: int
    warp: int

    @property
    def warps(self) -> int:
        return self.block // self.warp


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
    k = _reduction(schedule, statement)
    extents = loop_extents(schedule, s)
    _check_matrices(schedule, found, (u, v, k), extents, intrinsic)
    start = f"{s}_init"
    epilogue = [n for n in names if n not in (s, start)]
    if start not in names or any(schedule.loops(n) != run for n in epilogue):
        raise ScheduleError("another statement has loops of its own")
    rows, columns = _tiles((u, v), run, extents, machine, WITH_EPILOGUE if epilogue else TILES)
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
        schedule = schedule.replay(f"promote {s}: {[*mapped, *rest][-1]} as {target}, shared")
    schedule = _warps(schedule, found, (rows, columns), k, extents, intrinsic)
    for n in epilogue:
        schedule = _by_threads(schedule, n, (u, v), (rows, columns))
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


def _reduction(schedule: Schedule, s: ScopStatement) -> str:
    """The one loop of the reduction.

    Raises
    ------
    ScheduleError : there are several, or none.
    """
    if len(s.source.reductions) != 1 or s.source.reductions[0] not in schedule.loops(s.name):
        raise ScheduleError("the reduction has not one loop")
    return s.source.reductions[0]


def _check_matrices(
    schedule: Schedule,
    found: GpuContraction,
    loops: tuple[str, str, str],
    extents: Mapping[str, int | None],
    intrinsic: Intrinsic,
) -> None:
    """Refuse what would not be whole matrices with rows or columns in one piece.

    Raises
    ------
    ScheduleError : naming what does not fit.
    """
    s = found.statement
    for loop, extent in zip(loops, intrinsic.extents, strict=True):
        length = extents[loop]
        if length is None or length % extent:
            raise ScheduleError(f"{loop} is not known to be a multiple of {extent}")
    u, v, k = (dimension_at(schedule, s, x) for x in loops)
    tensors = schedule.program.tensors
    target = schedule.scop.statement(s).target
    if any(len(side) != 1 for side in found.sides):
        raise ScheduleError("a side has several operands")
    for read, own in ((target, (u, v)), (found.sides[0][0], (u, k)), (found.sides[1][0], (v, k))):
        dims = [plain_dimension(read, x) for x in own]
        if None in dims or contiguous_dimension(tensors[read.tensor]) not in dims:
            raise ScheduleError(f"{read} has no rows or columns in one piece")


def _tiles(
    loops: tuple[str, str],
    run: tuple[str, ...],
    extents: Mapping[str, int | None],
    machine: GpuMachine,
    choices: tuple[int, ...],
) -> tuple[WarpTile, WarpTile]:
    """Tiles that divide the loops, as large as leaves every processor a block."""
    lengths = [extents[x] or 0 for x in loops]
    own = [[c for c in choices if length % c == 0] for length in lengths]
    others = 1
    for x in run:
        others *= 1 if x in loops else extents[x] or 1
    at = [0, 0]

    def blocks() -> int:
        return others * (lengths[0] // own[0][at[0]]) * (lengths[1] // own[1][at[1]])

    while blocks() < machine.processors:
        # The larger one is cut, as long as it is.
        best = max((0, 1), key=lambda n: own[n][at[n]])
        if at[best] + 1 == len(own[best]):
            break
        at[best] += 1
    height, width = (own[n][at[n]] for n in (0, 1))
    return (
        WarpTile(height, max(16, height // 2)),
        WarpTile(width, max(16, width // (4 if width >= 128 else 2))),
    )


def _warps(
    schedule: Schedule,
    found: GpuContraction,
    tiles: tuple[WarpTile, WarpTile],
    k: str,
    extents: Mapping[str, int | None],
    intrinsic: Intrinsic,
) -> Schedule:
    """The sums of a tile by warps, with operands in shared memory."""
    s, u, v = found.statement, found.rows, found.columns[0]
    rows, columns = tiles
    m, n, terms = intrinsic.extents
    length = extents[k] or 0
    depth = next(d for d in DEPTHS if length % d == 0)
    matrices, elements = f"{u}_m, {v}_m", f"{u}_f, {v}_f"
    schedule = schedule.replay(f"""
tile {s}: {u}_x, {v}_x by {rows.warp}, {columns.warp} as {u}_w, {v}_w, {u}_y, {v}_y
tile {s}: {u}_y, {v}_y by {m}, {n} as {matrices}, {elements}
distribute {s}: {u}_m
map_threads {s}: {u}_w, {v}_w
split {s}: {k} by {depth} as {k}_o, {k}_i
split {s}: {k}_i by {terms} as {k}_m, {k}_f
reorder {s}: {k}_o, {k}_m, {matrices}, {elements}, {k}_f
tensorize {s}_init: {elements} as {intrinsic.name}
tensorize {s}: {elements}, {k}_f as {intrinsic.name}
promote {s}: {v}_w as {schedule.scop.statement(s).target.tensor}, fragment""")
    for read in (*found.sides[0], *found.sides[1]):
        schedule = shared_tile(schedule, s, f"{k}_o", f"{read.tensor}, shared")
    for name in (f"{s}_init", s):
        schedule = schedule.replay(f"unroll {name}: {u}_m\nunroll {name}: {v}_m")
    return schedule


def _by_threads(
    schedule: Schedule, name: str, loops: tuple[str, str], tiles: tuple[WarpTile, WarpTile]
) -> Schedule:
    """What reads the sums of a tile, on the same threads as its warps, a row on each warp."""
    (u, v), (rows, columns) = loops, tiles
    lanes = min(WARP, columns.block)
    return schedule.replay(f"""
tile {name}: {u}_x, {v}_x by {rows.warps * columns.warps}, {lanes} as {u}_o, {v}_o, {u}_i, {v}_t
split {name}: {u}_i by {columns.warps} as {u}_z, {u}_t
reorder {name}: {u}_o, {v}_o, {u}_z, {u}_t, {v}_t
map_threads {name}: {u}_z, {u}_t, {v}_t""")
