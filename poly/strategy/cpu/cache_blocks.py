"""Cache blocking of a contraction: how much of its operands stays in which cache.

Around the register tile there are up to three levels (Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", TOMS 2008), each only where it pays:

* a *packed block*, the operands of several tiles of v, packed tile by tile, streams from the last
cache;
* a block of the reduction, so that the packed operand of one tile stays in the second cache; if
  that of the whole reduction does, the reduction is not cut, and accumulators stay in registers;
* a block of rows, so that what the tiles of a packed block reuse stays in the second cache, too.

All sizes come from footprints of the reads and from the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

from poly.buffers.promotion import BUFFER_LIMIT
from poly.deps.scop import Scop
from poly.ir.accesses import elements_read, loops_of_read, vector_stride
from poly.ir.expr import Read
from poly.machine.cpu import Machine
from poly.strategy.common.queries import balance
from poly.strategy.cpu.packing import is_apart, is_packed, reduction_order
from poly.strategy.cpu.register_tile import PACK, Contraction
from poly.strategy.cpu.reuse import USUAL

#: Fractions of the second cache: for the packed operand of one tile over a whole reduction, for
#: that over a block of the reduction, and for a block of rows.
WHOLE, PART, ROWS = 4, 8, 4
#: Rows are cut into blocks if they exceed the second cache by this factor; prefetching hides less.
STREAMED = 3
#: Threads may be idle for this fraction of the time if that saves packing.
IDLE = 0.1
#: Iterations of a loop of rows of unknown extent, or of a loop around it, that each thread gets:
#: enough to pay for the operand that each thread packs.
OPEN_ROWS, OPEN_OTHERS = 512, 8


@dataclass(frozen=True)
class Blocks:
    """How the loops of a contraction are cut.

    before : loops that the packed operands move with; they run outside of all blocks
    packed : columns of v that are packed together; 0 if tiles are packed one by one, or not at all
    share : a loop of rows that is split among threads, with its block, if packed blocks are too few
    reductions : those that are cut, with their blocks
    outside : loops of rows around the tiles of a packed block
    rows : the loop of rows that is cut there, with its block
    inside : the other loops of rows, w not among them
    """

    before: tuple[str, ...] = ()
    packed: int = 0
    share: tuple[str, int] | None = None
    reductions: tuple[tuple[str, int], ...] = ()
    outside: tuple[str, ...] = ()
    rows: tuple[str, int] | None = None
    inside: tuple[str, ...] = ()


def find_blocks(scop: Scop, core: Contraction, machine: Machine) -> Blocks:
    """Choose the blocks of a contraction; none if its operands fit the caches anyway."""
    s = scop.statement(core.statement)
    reads = [r for r in s.source.reads if r.indices]
    vectors = [r for r in reads if core.v in loops_of_read(r) and core.w not in loops_of_read(r)]
    streams = [r for r in reads if r not in vectors]
    others = tuple(x for x in core.free if x not in (core.v, core.w))
    if core.dot is not None and core.dot.windows:
        return _image_by_image(core, reads, others)
    if not core.w or not vectors:
        return Blocks(inside=others)
    size = scop.program.tensors[s.target.tensor].dtype.bytes
    extents = {x: core.extent(x) for x in s.loops}
    moved = {i for r in vectors for i in loops_of_read(r)}
    before = tuple(x for x in others if x in moved)
    after = tuple(x for x in others if x not in moved)
    whole = {r: extents[r] for r in core.reductions}
    packed_bytes = partial(_packed_bytes, core, vectors, size)
    # Accumulators with strided lanes are slow to load, and unrolled filter taps are long code.
    scattered = vector_stride(s.target, core.v, core.lanes) != 1
    kept = scattered or bool(core.shaped) or _one_tile_of_rows(core, after, extents)
    cut: dict[str, int] = {}
    if None in whole.values() or (packed_bytes(whole) > machine.l2 // WHOLE and not kept):
        iterations = machine.l2 // PART // (size * core.width * len(vectors))
        cut = cut_loops(reduction_order(core), extents, max(8, iterations))
    if cut and core.shaped:
        return _of_images(core, before, after, extents, cut, machine)
    block = {**whole, **cut}
    work = None if extents[core.v] is None else (extents[core.v] or 1) / core.width
    tiles = None if work is None else ceil(work)
    # Rows that are far apart are packed as well, for all tiles of a packed block.
    apart = any(is_apart(scop, r, core) for r in streams)
    least = machine.l2 // ROWS if apart else machine.l2 // 2 if cut else machine.l2 * STREAMED
    outside, rows, inside = _rows(core, after, extents, streams, block, size, machine, least)
    if tiles == 1 or (rows is None and not outside):
        outside, rows, inside = (), None, after
    packed = any(is_packed(r, core) for r in vectors)
    balanced = any(balance(extents[x], machine.cores) >= 1 - IDLE for x in before)
    most = max(1, BUFFER_LIMIT // max(1, packed_bytes(block)))
    per_block, even = _packed_tiles(work, most, machine.cores)
    share = None if even or balanced else _share(core, after, extents, machine.cores)
    # Each thread packs a block of its own, or threads share the rows of one.
    alone = packed and share and work and _few(work, core, after, machine.cores)
    if not cut and rows is None and not outside and not alone and not (packed and apart):
        batch = packed_bytes({**whole, **{x: extents[x] for x in before}})
        fits = all(extents[x] is not None for x in (core.v, *before)) and (
            batch <= machine.l2 // WHOLE
        )
        # The packed operands of all products of a batch, packed before the first product, would not
        # stay in the cache; and threads that share a batch keep each product to themselves.
        shares = any(extents[x] and balance(extents[x], machine.cores) >= 1 - IDLE for x in before)
        if fits and not shares:
            return Blocks(inside=others)
        return Blocks(before, inside=after)
    if not packed and not cut:
        return Blocks((), 0, None, (), (*before, *outside), rows, inside)
    return Blocks(before, per_block * core.width, share, tuple(cut.items()), outside, rows, inside)


def _of_images(
    core: Contraction,
    before: tuple[str, ...],
    after: tuple[str, ...],
    extents: Mapping[str, int | None],
    cut: Mapping[str, int],
    machine: Machine,
) -> Blocks:
    """The blocks where filter taps bound the rows, and a reduction is cut."""
    share = _share(core, after, extents, machine.cores)
    unknown = [n for n, x in enumerate(after) if extents[x] is None]
    if unknown:
        # Rows of one image, since there may be only one.
        before, after = (*before, *after[: unknown[-1]]), after[unknown[-1] :]
        share = (after[0], OPEN_OTHERS)
    return Blocks(before, core.width, share, tuple(cut.items()), inside=after)


def _image_by_image(core: Contraction, reads: list[Read], others: tuple[str, ...]) -> Blocks:
    """The blocks where operands are read in windows, so that nothing is packed."""
    images = {i for r in reads if core.v in loops_of_read(r) for i in loops_of_read(r)}
    before = tuple(x for x in others if x in images)
    return Blocks(before, inside=tuple(x for x in others if x not in images))


def _packed_bytes(
    core: Contraction, vectors: list[Read], size: int, loops: Mapping[str, int | None]
) -> int:
    """Bytes of the packed operand of one tile of v, for some iterations of other loops.

    size : of an element
    """
    return size * elements_read(vectors, {core.v: core.width, **loops})


def _one_tile_of_rows(
    core: Contraction, after: tuple[str, ...], extents: Mapping[str, int | None]
) -> bool:
    """Whether all rows are in one register tile."""
    rows = [extents[x] for x in (core.w, *after)]
    return None not in rows and prod(x or 1 for x in rows) <= core.rows


def cut_loops(
    loops: tuple[str, ...], extents: Mapping[str, int | None], iterations: int
) -> dict[str, int]:
    """Blocks of adjacent loops (outermost first) with about `iterations` iterations together.

    Known extents are used up from the inside; loops of unknown extent share the rest.  A loop
    that need not be cut is omitted.
    """
    blocks: dict[str, int] = {}
    left = iterations
    for x in reversed(loops):
        extent = extents[x]
        if extent is None:
            continue
        if extent > left:
            count = -(-extent // left)
            blocks[x] = min(extent, -(-extent // count))
            left = 1
        else:
            left = max(1, left // extent)
    unknown = [x for x in loops if extents[x] is None]
    for x in unknown:
        part = left ** (1 / len(unknown)) + 1e-6
        # Powers of two, so that tiles begin at multiples of a cache line.
        blocks[x] = 1 << (max(1, int(part)).bit_length() - 1)
    return {x: blocks[x] for x in loops if x in blocks}


def _rows(
    core: Contraction,
    after: tuple[str, ...],
    extents: Mapping[str, int | None],
    streams: list[Read],
    reductions: Mapping[str, int | None],
    size: int,
    machine: Machine,
    least: int,
) -> tuple[tuple[str, ...], tuple[str, int] | None, tuple[str, ...]]:
    """The loops of rows outside a block, the one that is cut with its block, and those inside.

    least : rows with fewer bytes than this are not cut
    """

    def bytes_of(known: Mapping[str, int | None]) -> int:
        return size * elements_read(streams, {**reductions, **known})

    loops = (*after, core.w)
    every = {x: extents[x] for x in loops}
    if None not in every.values() and bytes_of(every) <= least:
        return (), None, after
    budget = machine.l2 // ROWS
    inner: dict[str, int | None] = {}
    for position in reversed(range(len(loops))):
        x = loops[position]
        step = core.rows if x == core.w else 1
        extent = extents[x]
        if extent is not None and bytes_of({**inner, x: extent}) <= budget:
            inner[x] = extent
            continue
        count = step
        most = 1024 if extent is None else extent
        while count * 2 <= most and bytes_of({**inner, x: count * 2}) <= budget:
            count *= 2
        count = _even(count, step, extent)
        inside = tuple(y for y in loops[position + 1 :] if y != core.w)
        if count == 1 and x != core.w:
            return loops[: position + 1], None, inside
        return loops[:position], (x, count), (*inside, *((x,) if x != core.w else ()))
    return (), None, after


def _even(block: int, step: int, extent: int | None) -> int:
    """A block of a loop, in whole steps, with which all of its blocks are about equally long."""
    if extent is None or block >= extent:
        return block
    blocks = -(-extent // block)
    return -(-extent // (blocks * step)) * step


def _packed_tiles(work: float | None, most: int, cores: int) -> tuple[int, bool]:
    """Tiles in a packed block, and whether the blocks then balance the threads.

    work : the columns in tiles, of which the last may be partial
    """
    if work is None:
        return 1, False  # possibly few tiles
    tiles = ceil(work)
    for count in range(min(most, tiles), 0, -1):
        packed_blocks = -(-tiles // count)
        rounds = -(-packed_blocks // cores)
        if rounds * count * cores <= work * (1 + IDLE):
            return -(-tiles // packed_blocks), True
    return min(most, tiles), False


def _few(work: float, core: Contraction, after: tuple[str, ...], cores: int) -> bool:
    """Whether threads that share so many tiles of columns would be idle for longer than it takes
    each of them to pack all columns.
    """
    tiles = ceil(work)
    rows = prod(core.extent(x) or USUAL for x in (*after, core.w))
    return tiles == 1 or 1 / balance(tiles, cores, work) - 1 > max(IDLE, 2 * PACK / rows)


def _share(
    core: Contraction, after: tuple[str, ...], extents: Mapping[str, int | None], cores: int
) -> tuple[str, int] | None:
    """The outermost suitable loop of rows to share among threads, with a thread's block."""
    for x in (*after, core.w):
        extent = extents[x]
        step = core.rows if x == core.w else 1
        if extent is None:
            return x, OPEN_ROWS if x == core.w else OPEN_OTHERS
        if extent < step * cores:
            continue
        block = -(-extent // (step * cores)) * step
        if extent / (block * cores) >= 1 - 2 * IDLE:
            return x, block
    return None
