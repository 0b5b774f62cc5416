"""Where a register tile converts operands in 16-bit floats to float32.

Converting an element at each use, in the innermost loop, would take longer than its products.  What
a tile reads in vectors is converted where it is packed, see `poly.strategy.cpu.packing`.  This is
about the rest: a copy for all rows of a tile, or before the program runs, once for all threads, see
`poly.strategy.cpu.widen_operands`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from math import prod

from poly.ir.accesses import elements_read, loops_of_read, plain_dimension
from poly.ir.expr import Read
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt
from poly.strategy.cpu.cache_blocks import Blocks
from poly.strategy.cpu.packing import wider_type
from poly.strategy.cpu.register_tile import Contraction
from poly.tree.kinds import Scope

#: Converting rows takes about a tenth of the time of a tile that uses them; to get from its cache
#: what another thread converted takes as long as in so many tiles.  It takes five cycles an element
#: if that is all in such a cache, of which it fills the given fraction at most, and one if it has
#: been pushed out in part.
MOST_TILES, FEW_TILES, KEPT = 32, 6, 3
#: Bytes of a converted element.
WIDE_BYTES = 4


class Place(StrEnum):
    """Where the rows of an operand, the same in all lanes of a tile, are converted."""

    BATCH = "for each product of a batch"
    BLOCK = "for all tiles of a block, by each thread"
    TILE = "for each tile"
    BEFORE = "once, for all threads"


def place_of_rows(
    read: Read, core: Contraction, operands: Collection[Read], blocks: Blocks, machine: Machine
) -> Place:
    """The best place to convert the rows of one of the operands of a tile."""
    if any(is_batched(operands, i) for i in core.free):
        return Place.BATCH
    tiles = _tiles_of(read, core)
    if tiles == 1:
        return Place.TILE
    if machine.cores > 1 and (blocks.packed or blocks.rows):
        rows = {x: core.extent(x) for x in (*core.reductions, core.w, *blocks.inside)}
        rows |= dict(blocks.reductions) | dict([blocks.rows] if blocks.rows else [])
        if None not in rows.values() and _bytes(read, rows) <= machine.l2 // 2:
            return Place.BLOCK
    size = _bytes(read, {x: core.extent(x) for x in loops_of_read(read)})
    most = MOST_TILES if size <= machine.l2 // KEPT else FEW_TILES if size <= machine.l2 else 1
    few = tiles is not None and tiles <= most
    return Place.TILE if few and machine.cores > 1 else Place.BEFORE


def _tiles_of(read: Read, core: Contraction) -> int | None:
    """How many tiles need the same rows, if these are contiguous; None if that is not known."""
    moving, last = loops_of_read(read), len(read.indices) - 1
    if core.w not in moving or core.v in moving:
        return None
    if not any(plain_dimension(read, x) == last for x in (*core.reductions, core.w)):
        return None
    columns = core.extent(core.v)
    others = [core.extent(x) for x in core.free if x not in moving and x != core.v]
    if columns is None or None in others:
        return None
    return -(-columns // core.width) * prod(x or 1 for x in others)


def _bytes(read: Read, loops: dict[str, int | None]) -> int:
    return WIDE_BYTES * elements_read([read], loops)


def is_batched(operands: Collection[Read], loop: str) -> bool:
    """Whether nothing is reused along a loop: each of its iterations is a product of its own."""
    return all(loop in loops_of_read(r) for r in operands)


def convert_rows(
    schedule: Schedule, core: Contraction, blocks: Blocks, outer: list[str], machine: Machine
) -> Schedule:
    """Copy operands that are the same in all lanes as float32 where `place_of_rows` says.

    outer : the loops around a tile
    """
    s = schedule.scop.statement(core.statement)
    operands = [r for r in s.source.reads if r.indices]
    for read in operands if core.dot is None else ():
        moving = loops_of_read(read)
        if not wider_type(schedule, read) or core.v in moving:
            continue
        place = place_of_rows(read, core, operands, blocks, machine)
        around = [x for x in outer if x in moving and x in core.free]
        above = outer[: outer.index(f"{core.v}_o")]
        loop = {
            Place.BATCH: around[-1] if around and is_batched(operands, around[-1]) else "",
            Place.BLOCK: above[-1] if above else "",
            Place.TILE: outer[-1],
            Place.BEFORE: "",
        }[place]
        if loop:
            schedule = attempt(
                schedule, Schedule.promote, s.name, loop, read.tensor, Scope.LOCAL,
                dtype=wider_type(schedule, read),
            )  # fmt: skip
    return schedule
