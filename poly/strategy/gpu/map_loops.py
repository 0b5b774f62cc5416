"""Mapping of parallel loops to the blocks and threads of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poly.machine.gpu import DIMENSIONS
from poly.schedule.schedule import Schedule
from poly.strategy.gpu.queries import on_blocks

#: Threads of a block.
THREADS = 256


def thread_tiles(
    run: Sequence[str], along: str, extents: Mapping[str, int | None]
) -> dict[str, int]:
    """Choose thread counts of loops, from the one with adjacent elements outwards, until a block is
    full; none if no loop has several iterations.
    """
    left, tiles = THREADS, dict[str, int]()
    for loop in (along, *(x for x in reversed(run) if x != along)):
        extent = extents[loop]
        if left < 2 or len(tiles) == DIMENSIONS:
            break
        if extent is None or extent > 1:
            tiles[loop] = left if extent is None else min(left, extent)
            left //= tiles[loop]
    return tiles


def map_loops(
    schedule: Schedule,
    name: str,
    run: tuple[str, ...],
    tiles: dict[str, int],
    extents: Mapping[str, int | None],
    inner: tuple[str, ...] = (),
) -> Schedule:
    """Map the loops of a nest to blocks and threads.

    tiles : threads of some of them, the innermost of a block first; inner : loops inside these
    """
    threads: dict[str, str] = {}  # by the loop of the nest
    blocks: list[str] = []
    rest: list[str] = []
    for loop in run:
        if loop not in tiles:
            (blocks if extents[loop] != 1 else rest).append(loop)
        elif extents[loop] == tiles[loop]:
            threads[loop] = loop
        else:
            schedule = schedule.split(name, loop, tiles[loop])
            blocks.append(f"{loop}_o")
            threads[loop] = f"{loop}_i"
    on_threads = [threads[loop] for loop in reversed(tiles)]
    blocks, more = on_blocks(blocks, extents)
    rest += more
    wanted = [*blocks, *rest, *on_threads, *inner]
    if len(wanted) > 1:
        schedule = schedule.reorder(name, wanted)
    if blocks:
        schedule = schedule.map_blocks(name, blocks)
    return schedule.map_threads(name, on_threads)
