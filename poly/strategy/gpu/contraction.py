"""Contractions on a GPU: tiles of blocks in shared memory, of threads in registers.

In an update ``C[..] += A[..] * B[..]`` each operand is invariant in some free loop: with u
a loop that moves A and not B, and v one that moves B and not A, a block computes a tile of u by v,
its threads parts of it in registers.  A and B come through shared memory, a part of the reduction
at a time; each element that is read from there serves a row or a column of registers (Volkov and
Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008).  Operands are loaded, and
results stored, 16 bytes at a time where elements are known to be adjacent, see `Copy.together`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from poly.buffers.copies import TOGETHER
from poly.deps.instances import member_limits
from poly.deps.scop import Role, ScopStatement
from poly.ir.accesses import loops_of_read, plain_dimension, stride_of
from poly.ir.expr import Const, Read
from poly.machine.gpu import DIMENSIONS, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    accesses,
    dimension_at,
    is_determined,
    loop_extents,
    nest,
)
from poly.strategy.common.tactic import Group, NoMatch, Parameter, Tactic
from poly.strategy.gpu.queries import (
    contiguity,
    in_register,
    in_registers,
    on_blocks,
    order_along,
    parallel_nest,
    shared_tile,
    unrolled,
)
from poly.strategy.gpu.update import UpdateWithReuse, core_of
from poly.tree.nodes import Promote, loops_of, path_to

#: Registers of a thread along a loop, and threads of a block.
REGISTERS, ACROSS = 4, 16
#: Registers along a loop where there is work for several waves of blocks on every SM.
LARGE, WAVES = 8, 2
#: A loop shorter than this has no registers along it.
LONG = 32
#: Registers that the epilogue loads and stores together.
GROUP = 16
#: Multiply-adds of one element of the tile for which operands are shared at a time.
DEPTH = 16
#: The most steps of the reduction inside one part of it, and of one of its loops.
MOST_TAPS, LONGEST = 64, 16
#: A longer loop along which an operand has adjacent elements is cut into this many of them, so that
#: what is read at a time is not one element of each row.
PIECE = 4
#: Fewer threads in a block are not worth the tile, and with this many it is large enough.
FEWEST, BUSY = 32, 128
#: The most threads that tuning tries for a block.
MOST_THREADS = 512


@dataclass(frozen=True)
class Tile:
    """How one free loop is cut: ``i = (block * threads + thread) * registers + register``."""

    threads: int
    registers: int = 1

    @property
    def block(self) -> int:
        return self.threads * self.registers


@dataclass(frozen=True)
class GpuContraction:
    """An update with reuse on both sides, by the names of loops.

    rows : a loop along which only one side moves; columns : loops of the other side, first the one
        with adjacent elements
    """

    statement: str
    rows: str
    columns: tuple[str, ...]
    sides: tuple[tuple[Read, ...], tuple[Read, ...]]


@dataclass(frozen=True)
class TilePlan:
    """The contraction, the parallel loops around it, and how some of them are cut."""

    found: GpuContraction
    run: tuple[str, ...]
    tiles: tuple[tuple[str, Tile], ...]


def _tile(plan: TilePlan, side: int) -> Tile:
    """The tile along the rows (0) or the first loop of the columns (1)."""
    loop = plan.found.columns[0] if side else plan.found.rows
    return dict(plan.tiles).get(loop, Tile(1))


def _with_tile(plan: TilePlan, side: int, tile: Tile) -> TilePlan | NoMatch:
    """The plan with another one of these, if a block of a GPU can have its threads."""
    loop = plan.found.columns[0] if side else plan.found.rows
    tiles = {**dict(plan.tiles), loop: tile}
    threads = prod(t.threads for t in tiles.values())
    if loop not in dict(plan.tiles) or not FEWEST <= threads <= MOST_THREADS:
        return NoMatch(f"no block has {threads} threads")
    return replace(plan, tiles=tuple(tiles.items()))


def _threads(side: int, plan: TilePlan) -> int:
    return _tile(plan, side).threads


def _registers(side: int, plan: TilePlan) -> int:
    return _tile(plan, side).registers


def _with_threads(
    side: int, group: Group[GpuMachine], plan: TilePlan, threads: int
) -> TilePlan | NoMatch:
    return _with_tile(plan, side, replace(_tile(plan, side), threads=threads))


def _with_registers(
    side: int, group: Group[GpuMachine], plan: TilePlan, registers: int
) -> TilePlan | NoMatch:
    return _with_tile(plan, side, replace(_tile(plan, side), registers=registers))


def _sides_of_tile() -> Iterator[Parameter[GpuMachine, TilePlan]]:
    """The threads and the registers of a thread, along the rows and the columns of a tile."""
    for side, name in enumerate(("rows", "columns")):
        yield Parameter(
            f"threads along {name}",
            partial(_threads, side),
            lambda group, plan: (4, 8, 16, 32),
            partial(_with_threads, side),
        )
        yield Parameter(
            f"registers along {name}",
            partial(_registers, side),
            lambda group, plan: (1, 2, 4, 8),
            partial(_with_registers, side),
        )


class BlockTile(Tactic[GpuMachine, TilePlan]):
    """A tile of a contraction: operands in shared memory, sums in registers of threads."""

    name = "contraction"
    parameters = tuple(_sides_of_tile())

    def core(self, group: Group[GpuMachine]) -> UpdateWithReuse | None:
        return core_of(group)

    def match(self, group: Group[GpuMachine]) -> TilePlan | NoMatch:
        schedule, names = group.schedule, group.names
        run = parallel_nest(schedule, names)
        if not run or run != nest(schedule, names):
            return NoMatch("not all loops that the group shares are parallel")
        found = find_contraction(schedule, names, run)
        if found is None:
            return NoMatch("no update with reuse of two operands")
        s = found.statement
        if any(schedule.loops(n) != schedule.loops(s)[: len(schedule.loops(n))] for n in names):
            return NoMatch("another statement has loops of its own")
        if not reduction_loops(schedule, s):
            return NoMatch("the reduction has no loops")
        tiles = _tiles(found, run, loop_extents(schedule, s), group.machine)
        if prod(t.threads for t in tiles.values()) < FEWEST:
            return NoMatch("the tile is small")
        return TilePlan(found, run, tuple(tiles.items()))

    def apply(self, group: Group[GpuMachine], plan: TilePlan) -> Schedule:
        schedule, names, found = group.schedule, group.names, plan.found
        tiles = dict(plan.tiles)
        extents = loop_extents(schedule, found.statement)
        beside = {n: dimension_at(schedule, n, found.columns[0]) for n in names}
        schedule, loops = _cut(schedule, found, plan.run, tiles, extents)
        schedule = _on_grid(schedule, found.statement, loops, extents)
        schedule = _reduced(schedule, found, tiles, loops, extents)
        schedule = in_registers(schedule, names, loops.threads[-1])
        if len(loops.registers) > 1:
            schedule = _in_groups(schedule, names, loops.registers[-2:], beside)
        for n in names:
            schedule = unrolled(schedule, n, *loops.registers)
        return schedule


@dataclass(frozen=True)
class Cut:
    """The loops of a nest after it is cut, by what runs their iterations."""

    blocks: tuple[str, ...]
    threads: tuple[str, ...]
    registers: tuple[str, ...]


def _cut(
    schedule: Schedule,
    found: GpuContraction,
    run: tuple[str, ...],
    tiles: Mapping[str, Tile],
    extents: Mapping[str, int | None],
) -> tuple[Schedule, Cut]:
    """Cut the parallel loops into blocks, threads and registers."""
    s = found.statement
    blocks = [x for x in run if x not in tiles]
    threads: dict[str, str] = {}  # by the loop that is cut
    registers: list[str] = []
    for loop in (x for x in run if x in tiles):
        tile, inner, extent = tiles[loop], loop, extents[loop]
        if extent is None or extent > tile.block:
            schedule = schedule.split(s, loop, tile.block, (f"{loop}_b", f"{loop}_w"))
            blocks.append(f"{loop}_b")
            inner = f"{loop}_w"
        if tile.threads == 1:
            registers.append(inner)
            continue
        if tile.registers > 1:
            schedule = schedule.split(s, inner, tile.registers, (f"{loop}_t", f"{loop}_r"))
            registers.append(f"{loop}_r")
            inner = f"{loop}_t"
        threads[loop] = inner
    # Loops adjacent in memory are innermost in a block.
    order = [*found.columns, found.rows]
    in_order = sorted(threads, key=order.index, reverse=True)
    return schedule, Cut(tuple(blocks), tuple(threads[x] for x in in_order), tuple(registers))


def _on_grid(schedule: Schedule, s: str, loops: Cut, extents: Mapping[str, int | None]) -> Schedule:
    """The cut loops in order, on blocks and threads."""
    mapped, rest = on_blocks(loops.blocks, extents)
    schedule = schedule.reorder(s, [*mapped, *rest, *loops.threads, *loops.registers])
    if loops.registers:
        schedule = schedule.distribute(s, loops.registers[0])
    if mapped:
        schedule = schedule.map_blocks(s, mapped)
    return schedule.map_threads(s, loops.threads)


def _in_groups(
    schedule: Schedule,
    names: tuple[str, ...],
    loops: Sequence[str],
    beside: Mapping[str, str],
) -> Schedule:
    """Run the epilogue some rows of registers at a time, with vector loads and stores.

    All loads come first, since a store would keep them from being in flight together.

    loops : over rows of registers and in them; beside : the index of each statement along columns
    """
    row, column = loops
    for name in names:
        s = schedule.scop.statement(name)
        if s.role != Role.ASSIGN or any(x not in schedule.loops(name) for x in loops):
            continue
        kept = {n.tensor for n in path_to(schedule.tree, name) if isinstance(n, Promote)}
        near = [a.tensor for a in accesses(s) if a.tensor not in kept and beside[name]
                and stride_of(a, beside[name]) == 1]  # fmt: skip
        if s.target.tensor not in near:
            continue
        rows, length = _length(schedule, name, row), _length(schedule, name, column)
        if near != [s.target.tensor]:
            rows = min(rows, max(1, GROUP // length))
        schedule = schedule.split(name, row, rows, (f"{row}_g", f"{row}_i"))
        for tensor in dict.fromkeys(near):
            schedule = in_register(schedule, name, f"{row}_g", tensor)
        schedule = unrolled(schedule, name, f"{row}_g", f"{row}_i")
    return schedule


def _length(schedule: Schedule, name: str, loop: str) -> int:
    """The most iterations of a loop, 1 if unknown."""
    member = next(m for m in loops_of(schedule.tree, name) if m.name == loop)
    limits = member_limits(member, schedule.scop)
    return 1 if limits is None else limits[1] + 1


def find_contraction(
    schedule: Schedule, names: tuple[str, ...], run: tuple[str, ...]
) -> GpuContraction | None:
    """The first update of a group that has reuse on both sides, None if there is none."""
    for name in names:
        s = schedule.scop.statement(name)
        reads = tuple(r for r in s.source.reads if r.indices)
        if s.role != Role.UPDATE or s.may_reads or len(reads) < 2:
            continue
        index = {x: dimension_at(schedule, name, x) for x in run}
        if set(index.values()) != set(s.free):
            continue
        if any(is_determined(s, i) for i in s.free):
            continue  # registers would be indexed by a reduction loop
        found = _sides(schedule, s, reads, index)
        if found is not None:
            return found
    return None


def reduction_loops(schedule: Schedule, s: str) -> list[str]:
    """The loops of the reduction that a statement is in."""
    reductions = schedule.scop.statement(s).source.reductions
    return [x for x in reductions if x in schedule.loops(s)]


def _sides(
    schedule: Schedule, s: ScopStatement, reads: tuple[Read, ...], index: Mapping[str, str]
) -> GpuContraction | None:
    extents = loop_extents(schedule, s.name)

    def size(loop: str) -> float:
        extent = extents[loop]
        return float("inf") if extent is None else extent

    def moving(loop: str) -> frozenset[Read]:
        return frozenset(r for r in reads if index[loop] in loops_of_read(r))

    by_contiguity = sorted(index, key=lambda x: -contiguity(schedule, (s.name,), x))
    for v in by_contiguity:
        with_v = moving(v)
        rows = [u for u in index if moving(u) and not moving(u) & with_v]
        if not with_v or not rows or size(v) < 2:
            continue
        u = max(rows, key=size)
        if size(u) < REGISTERS:
            continue
        with_u = moving(u)
        others = [
            x for x in reversed(list(index)) if x != v and moving(x) and not moving(x) & with_u
        ]
        sides = tuple(tuple(r for r in reads if r in side) for side in (with_u, with_v))
        return GpuContraction(s.name, u, (v, *others), (sides[0], sides[1]))
    return None


def _tiles(
    found: GpuContraction,
    run: tuple[str, ...],
    extents: Mapping[str, int | None],
    machine: GpuMachine,
) -> dict[str, Tile]:
    """The tile of each loop that has one."""
    u, (v, *others) = found.rows, found.columns
    tiles = {u: _along(extents[u])}
    width = extents[v]
    long = width is None or width >= LONG
    tiles[v] = _along(width) if long else Tile(width or 1)
    for loop in others:
        left = BUSY // prod(t.threads for t in tiles.values())
        extent = extents[loop]
        if left < 2 or len(tiles) == DIMENSIONS or extent == 1:
            continue
        count = 1 if long else REGISTERS if extent is None else min(REGISTERS, extent)
        threads = left if extent is None else min(left, -(-extent // count))
        tiles[loop] = Tile(threads, count)
        long = True
    known = [extents[x] or 0 for x in run]
    if len(tiles) == 2 and tiles[v].registers == REGISTERS and all(known):
        large = {x: _along(extents[x], LARGE) for x in tiles}
        blocks = (
            -(-(extents[x] or 0) // large[x].block) if x in large else extents[x] for x in run
        )
        if prod(b or 1 for b in blocks) >= WAVES * machine.processors:
            return large
    return tiles


def _along(extent: int | None, most: int = REGISTERS) -> Tile:
    """A tile along a loop that may be long."""
    if extent is None:
        return Tile(ACROSS, most)
    registers = min(most, extent)
    return Tile(min(ACROSS, -(-extent // registers)), registers)


# --- the reduction -------------------------------------------------------------------------


def _reduced(
    schedule: Schedule,
    found: GpuContraction,
    tiles: Mapping[str, Tile],
    cut: Cut,
    extents: Mapping[str, int | None],
) -> Schedule:
    """The reduction part by part, with the operands of a part in shared memory."""
    s = found.statement
    statement = schedule.scop.statement(s)
    loops = reduction_loops(schedule, s)

    def worth(x: str) -> tuple[float, int]:
        extent = extents[x]
        return float("inf") if extent is None else extent, _reach(statement, x)

    k = max(reversed(loops), key=worth)
    inside, around = list[str](), list[str]()
    steps = 1
    for x in reversed([x for x in loops if x != k]):
        extent = extents[x]
        if extent is not None and extent <= LONGEST and steps * extent <= MOST_TAPS:
            steps *= extent
            inside.insert(0, x)
        elif extent and extent % PIECE == 0 and steps == 1 and _reach(statement, x):
            schedule = schedule.split(s, x, PIECE, (f"{x}_o", f"{x}_i"))
            around.insert(0, f"{x}_o")
            inside.insert(0, f"{x}_i")
            steps = PIECE // 2  # twice as many terms at a time, for longer pieces along k
        else:
            around.insert(0, x)
    depth = max(1, DEPTH // steps)
    length = extents[k]
    parts, inner = around, k
    if length is None or length > depth:
        schedule = schedule.split(s, k, depth, (f"{k}_o", f"{k}_i"))
        parts, inner = [*around, f"{k}_o"], f"{k}_i"
    schedule = schedule.reorder(s, [*parts, *inside, inner, *cut.registers])
    at = (parts or cut.threads)[-1]
    # Threads of a warp read few rows at a time, which are in different banks.
    few = prod(tiles[x].threads for x in found.columns if x in tiles) >= ACROSS
    few &= tiles[found.rows].registers <= REGISTERS
    whole = length is not None and length % min(depth, length) == 0
    for side, loop in zip(found.sides, (found.rows, found.columns[0]), strict=True):
        along = k if few and whole and loop == found.rows else ""
        for read in dict.fromkeys(side):
            stays = _contiguous_along(schedule, read, along, depth)
            order = () if stays else order_along(schedule, read, loop)
            schedule = shared_tile(schedule, s, at, read.tensor, order)
    return schedule


def _reach(s: ScopStatement, loop: str) -> int:
    """How many operands have adjacent elements along a loop of the reduction."""
    return sum(plain_dimension(r, loop) == len(r.indices) - 1 for r in s.source.reads if r.indices)


def _contiguous_along(schedule: Schedule, read: Read, loop: str, depth: int) -> bool:
    """Whether an operand keeps its layout in memory, with adjacent elements along a loop of the
    reduction.

    These are copied 16 bytes at a time, without a register, and serve as many steps of it.

    A thread then has these operands of all its rows at once: with 8 rows, half as many threads fit
    on an SM (138 registers instead of 123; with 4, 61 instead of 50).
    """
    tensor = schedule.program.tensors[read.tensor]
    count, length = TOGETHER // tensor.dtype.bytes, tensor.shape[-1]
    whole = isinstance(length, Const) and int(length.value) % count == 0 and depth % count == 0
    along = bool(loop) and plain_dimension(read, loop) == tensor.rank - 1
    return along and whole and tensor.dtype.bits in (16, 32)
