"""Races of a launch, found by running its loops for all threads, without
`poly.lower.place_barriers`.

Every access of every thread is written down with its *phase*, the number of barriers that the
thread has passed.  Two accesses to one element race if one of them writes and they are made by

* different blocks, or
* different threads of a block in the same phase, but for sums that a warp stores where it has
  loaded some: it waits for all of its threads behind such a load.

What nobody has stored in a buffer is not to be read from it, either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product

import numpy as np

from codegen.gpu.emit import GpuSource, lower_kernel
from codegen.loops.from_schedule import build_kernel
from codegen.loops.nodes import Block, LoopNode, Wait
from codegen.loops.traverse import map_children, walk_loops
from poly.lower.launches import Launch, launches
from poly.schedule.schedule import Schedule
from runtime.gpu.gpu_program import launches_of
from tests.gpu.lanes import Array, Batch, Lanes, Place, Rows

#: How many threads are run at once, whole blocks at a time.
TOGETHER = 1024
#: Behind every barrier, and every load or store of sums.
NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Access:
    """One access of a thread to an element of an array.

    time : of sums that a warp loads or stores, how often it has done so
    """

    statement: str
    array: str
    element: Place
    writes: bool
    block: Place
    thread: Place
    phase: int
    time: int = 0


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders, threads that wait at different barriers, or a read of what
    nobody has stored.
    """

    what: str
    first: Access | None = None
    second: Access | None = None


def races(schedule: Schedule, source: GpuSource, sizes: Mapping[str, int]) -> list[Race]:
    """The races of all launches at some sizes."""
    _, found = launches(schedule.tree, schedule.scop)
    bodies = [lower_kernel(build_kernel(schedule, launch)) for launch in found]
    result: list[Race] = []
    for kernel, grid, env in launches_of(source, sizes):
        number = source.kernels.index(kernel)
        result += races_of(bodies[number], found[number], grid, env)
    return result


def without_wait(body: LoopNode, number: int) -> LoopNode:
    """Loops without one of their barriers, by its place in the text."""
    assert number < sum(isinstance(n, Wait) for n in walk_loops(body))
    seen = count()

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, Wait):
            return Block(()) if next(seen) == number else node
        return map_children(node, visit)

    return visit(body)


def races_of(
    body: LoopNode, launch: Launch, grid: tuple[int, int, int], env: Mapping[str, int]
) -> list[Race]:
    """The races of one launch: of one block after the other, and then between blocks."""
    blocks = list(product(*(range(n) for n in grid)))
    search = _Search(blocks, list(product(*(range(n) for n in launch.block))))
    found: list[tuple[_Order, Race]] = []
    everywhere: dict[str, list[Batch]] = defaultdict(list)
    step = max(1, TOGETHER // len(search.threads))
    for first in range(0, len(blocks), step):
        some = blocks[first : first + step]
        lanes = Lanes(some, search.threads, first * len(search.threads))
        lanes.run(body, env, {}, lanes.all)
        found += search.alone(lanes, first, len(some))
        for array, batches in lanes.accesses.items():
            rows = Rows.of(batches)
            if array in lanes.shared:
                found += search.wanted(array, rows)
            else:
                everywhere[array] += batches
            found += search.between_threads(array, rows)
    for array, batches in everywhere.items():
        found += search.between_blocks(array, Rows.of(batches))
    return [race for _, race in sorted(found, key=lambda f: f[0])]


#: The order in which races are told: the block, what kind, and where its first access is.
_Order = tuple[int, ...]


class _Search:
    """What is wrong with accesses, each with its place in the order."""

    def __init__(self, blocks: Sequence[Place], threads: Sequence[Place]) -> None:
        self.blocks, self.threads = blocks, threads
        warps = {rest: n for n, rest in enumerate(dict.fromkeys(t[1:] for t in threads))}
        #: The warp of each thread of a block.
        self.warps = np.asarray([warps[t[1:]] for t in threads])

    def alone(self, lanes: Lanes, first: int, blocks: int) -> Iterator[tuple[_Order, Race]]:
        """What threads read in buffers of their own, and how often they wait."""
        for lane, array, b, element in lanes.empty:
            what = f"{array}{list(element)} of a thread is read, but not stored"
            phase = int(b.phase[np.searchsorted(b.lanes, lane + lanes.first)])
            access = self._access(lane + lanes.first, b, array, element, phase, 0)
            yield self._order(lane + lanes.first, 0, b.order, 0), Race(what, access)
        each = np.stack([lanes.phase, lanes.combined], axis=1).reshape(blocks, -1, 2)
        for n in np.flatnonzero((each != each[:, :1]).any(axis=(1, 2))):
            waits = sorted(set(map(tuple, each[n].tolist())))
            what = f"block {self.blocks[first + n]}: threads wait {waits} times"
            yield (first + int(n), 1), Race(what)

    def wanted(self, array: str, rows: Rows) -> Iterator[tuple[_Order, Race]]:
        """The first read of each element that is shared in a block and that nobody has stored."""
        key, count = _keys(*rows.element, rows.lanes // len(self.threads))
        first = np.full(count, NEVER, np.int32)
        np.minimum.at(first, key[rows.writes], rows.phase[rows.writes])
        missing = ~rows.writes & (first[key] >= rows.phase)
        if missing.any():
            own, _ = _keys(key, rows.phase, rows.lanes)
            missing &= ~np.isin(own, own[rows.writes])
        reads = np.flatnonzero(missing)
        reads = reads[np.argsort(rows.lanes[reads], kind="stable")]
        _, firsts = np.unique(key[reads], return_index=True)
        for n in reads[firsts]:
            access = self._row(array, rows, n)
            what = f"{array}{list(access.element)} is read, but not stored"
            yield self._order(int(rows.lanes[n]), 2, *_place(rows, n)), Race(what, access)

    def between_threads(self, array: str, rows: Rows) -> Iterator[tuple[_Order, Race]]:
        key, count = _keys(*rows.element, rows.phase, rows.lanes // len(self.threads))
        racing = _racing(key, count, rows, rows.lanes, self._warp(rows.lanes))
        for first, race in self._clashes(array, rows, key, rows.lanes, racing, "threads"):
            yield self._order(int(rows.lanes[first]), 3, *_place(rows, first)), race

    def between_blocks(self, array: str, rows: Rows) -> Iterator[tuple[_Order, Race]]:
        key, count = _keys(0 * rows.lanes, *rows.element)
        block = rows.lanes // len(self.threads)
        racing = _racing(key, count, rows, block, None)
        for first, race in self._clashes(array, rows, key, block, racing, "blocks"):
            yield (len(self.blocks), int(rows.lanes[first]), *_place(rows, first)), race

    def _clashes(
        self, array: str, rows: Rows, key: Array, owner: Array, racing: Array, what: str
    ) -> Iterator[tuple[int, Race]]:
        """The first two accesses that race of each element, and the number of its first access."""
        chosen = np.flatnonzero(racing[key])
        chosen = chosen[np.lexsort((rows.lanes[chosen], key[chosen]))]
        if not len(chosen):
            return
        for found in np.split(chosen, np.flatnonzero(np.diff(key[chosen])) + 1):
            for n in found[rows.writes[found]]:
                a = self._row(array, rows, n)
                others = found[owner[found] != owner[n]]
                accesses = (self._row(array, rows, m) for m in others)
                b = next((b for b in accesses if not _in_warp(b, a)), None)
                if b is not None:
                    yield int(found[0]), Race(f"{array}{list(a.element)} on two {what}", a, b)
                    break

    def _row(self, array: str, rows: Rows, n: int) -> Access:
        element = tuple(rows.element[:, n].tolist())
        batch = rows.batches[rows.batch[n]]
        phase, time = int(rows.phase[n]), int(rows.time[n])
        return self._access(int(rows.lanes[n]), batch, array, element, phase, time)

    def _access(
        self, lane: int, batch: Batch, array: str, element: Place, phase: int, time: int
    ) -> Access:
        block, thread = divmod(lane, len(self.threads))
        return Access(
            batch.statement, array, element, batch.writes, self.blocks[block],
            self.threads[thread], phase, time,
        )  # fmt: skip

    def _order(self, lane: int, kind: int, *rest: int) -> _Order:
        return (lane // len(self.threads), kind, lane, *rest)

    def _warp(self, lanes: Array) -> Array:
        block, thread = np.divmod(lanes, len(self.threads))
        return block * len(self.threads) + self.warps[thread]


def _place(rows: Rows, n: int) -> tuple[int, int]:
    return rows.batches[rows.batch[n]].order, int(n)


def _keys(*columns: Array) -> tuple[Array, int]:
    """A number for each row, the same for equal ones, and how many numbers there are."""
    key, size = np.zeros(columns[0].shape, np.int64), 1
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least + 1
        key = key * span + (column - least)
        size *= span
    if size > 8 * len(key) + (1 << 16):
        all_, key = np.unique(key, return_inverse=True)
        size = len(all_)
    return key, size


def _racing(key: Array, count: int, rows: Rows, owner: Array, warp: Array | None) -> Array:
    """Of which keys two accesses of different owners race.

    warp : of each access, if a warp waits behind its loads of sums
    """
    racing = np.zeros(count, bool)
    writer = np.full(count, -1, np.int64)
    stores = np.flatnonzero(rows.writes)
    writer[key[stores]] = stores  # the last one
    racing[key[stores][owner[writer[key[stores]]] != owner[stores]]] = True
    last = writer[key]
    loads = np.flatnonzero(~rows.writes & (last >= 0) & (owner[last] != owner))
    if warp is not None and len(loads):
        earliest = np.full(count, NEVER, np.int32)
        np.minimum.at(earliest, key[stores], rows.time[stores])
        time = rows.time[loads]
        ordered = (warp[loads] == warp[last[loads]]) & (time > 0) & (time < earliest[key[loads]])
        loads = loads[~ordered]
    racing[key[loads]] = True
    return racing


def _in_warp(load: Access, store: Access) -> bool:
    """Whether a warp has loaded sums before it stores some."""
    same = load.block == store.block and load.thread[1:] == store.thread[1:]
    return same and not load.writes and 0 < load.time < store.time
