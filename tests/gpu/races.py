"""Races of a launch, found by running its loops thread by thread, without
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, product

from codegen.gpu.emit import GpuSource, lower_kernel
from codegen.loops.from_schedule import build_kernel
from codegen.loops.nodes import (
    Block,
    Buffer,
    Combine,
    For,
    If,
    LoopNode,
    Matrix,
    MoveSums,
    MultiplyMatrices,
    Store,
    Wait,
    axis_of,
)
from codegen.loops.traverse import map_children, walk_loops
from poly.ir.expr import Const, Read, evaluate_int, reads_of
from poly.ir.intrinsics import INTRINSICS
from poly.lower.launches import Launch, launches
from poly.schedule.schedule import Schedule
from runtime.gpu.gpu_program import launches_of

Place = tuple[int, ...]


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
    """The races of one launch."""
    result: list[Race] = []
    everywhere: dict[tuple[str, Place], list[Access]] = defaultdict(list)
    for block in product(*(range(n) for n in grid)):
        cells: dict[tuple[str, Place, int], list[Access]] = defaultdict(list)
        stored: dict[tuple[str, Place], list[Access]] = defaultdict(list)
        wanted: list[Access] = []
        waits: set[tuple[int, int]] = set()
        for thread in product(*(range(n) for n in launch.block)):
            run = _Thread(block, thread)
            for access, shared in run.node(body, dict(env), {}):
                cells[access.array, access.element, access.phase].append(access)
                if shared and access.writes:
                    stored[access.array, access.element].append(access)
                elif shared:
                    wanted.append(access)
                else:
                    everywhere[access.array, access.element].append(access)
            waits.add((run.phase, run.combined))
            result += run.empty
        if len(waits) > 1:
            result.append(Race(f"block {block}: threads wait {sorted(waits)} times"))
        for a in wanted:
            if not any(_comes_first(w, a) for w in stored[a.array, a.element]):
                result.append(Race(f"{a.array}{list(a.element)} is read, but not stored", a))
        for found in cells.values():
            result += _clash(found, "threads", lambda a: a.thread)
    for found in everywhere.values():
        result += _clash(found, "blocks", lambda a: a.block)
    return result


def _clash(found: list[Access], what: str, owner) -> list[Race]:  # type: ignore[no-untyped-def]
    """Two accesses of different owners of which one writes."""
    for a in found:
        if a.writes:
            other = next((b for b in found if owner(b) != owner(a) and not _in_warp(b, a)), None)
            if other is not None:
                return [Race(f"{a.array}{list(a.element)} on two {what}", a, other)]
    return []


def _in_warp(load: Access, store: Access) -> bool:
    """Whether a warp has loaded sums before it stores some."""
    same = load.block == store.block and load.thread[1:] == store.thread[1:]
    return same and not load.writes and 0 < load.time < store.time


def _comes_first(store: Access, read: Access) -> bool:
    """Whether an element may have been stored when it is read."""
    return store.phase < read.phase or (store.phase, store.thread) == (read.phase, read.thread)


class _Thread:
    """Runs the loops of one thread; gives its accesses, and whether each is to shared memory."""

    def __init__(self, block: Place, thread: Place) -> None:
        self.block, self.thread, self.phase = block, thread, 0
        #: How often it has combined what it has with others; what others wait for, too.
        self.combined = 0
        #: How often its warp has loaded or stored sums.
        self.moves = 0
        #: What it has stored in buffers of its own, and where it has read what it had not.
        self.stored: set[tuple[str, Place]] = set()
        self.empty: list[Race] = []

    def node(
        self, node: LoopNode, env: dict[str, int], scopes: dict[str, str]
    ) -> Iterator[tuple[Access, bool]]:
        if isinstance(node, Block):
            for child in node.children:
                yield from self.node(child, env, scopes)
        elif isinstance(node, For):
            lower_, upper = evaluate_int(node.lower, env), evaluate_int(node.upper, env)
            values = range(lower_, upper, node.step)
            if node.mark in ("block", "thread"):
                place = self.block if node.mark == "block" else self.thread
                values = range(at := place[axis_of(node)], at + 1)
            for value in values:
                yield from self.node(node.body, {**env, node.var: value}, scopes)
        elif isinstance(node, If):
            if evaluate_int(node.cond, env):
                yield from self.node(node.then, env, scopes)
            elif node.other is not None:
                yield from self.node(node.other, env, scopes)
        elif isinstance(node, Buffer):
            self.stored = {x for x in self.stored if x[0] != node.name}
            yield from self.node(node.body, env, {**scopes, node.name: node.scope})
        elif isinstance(node, Wait):
            self.phase += 1
        elif isinstance(node, Combine):
            self.combined += 1
        elif isinstance(node, MoveSums):
            self.moves += 1
            if node.memory is not None:
                loads = node.action == "load"
                rows, columns = (
                    min(16, evaluate_int(e, env)) for e in node.counts or (Const(16), Const(16))
                )
                yield from self._matrix(node, node.memory, rows, columns, not loads, env, scopes)
        elif isinstance(node, MultiplyMatrices):
            m, n, k = INTRINSICS[node.intrinsic].extents
            for _, a, b in node.products:
                yield from self._matrix(node, a, m, k, False, env, scopes)
                yield from self._matrix(node, b, k, n, False, env, scopes)
        else:
            assert isinstance(node, Store)
            reads = [*reads_of(node.value), *([] if node.op == "=" else [node.target])]
            for read in reads:
                yield from self._access(node, read, False, env, scopes)
            yield from self._access(node, node.target, True, env, scopes)

    def _matrix(
        self, node: MoveSums | MultiplyMatrices, matrix: Matrix, rows: int, columns: int,
        writes: bool, env: dict[str, int], scopes: dict[str, str],
    ) -> Iterator[tuple[Access, bool]]:  # fmt: skip
        """All elements, any of which a thread may read; each is written by one of a warp, which
        is not said to be the same as read it.
        """
        first = [evaluate_int(i, env) for i in matrix.first.indices]
        for at, (r, c) in enumerate(product(range(rows), range(columns))):
            if writes and at % 32 != self.thread[0] % 32:
                continue
            place = list(first)
            place[matrix.rows] += r
            place[matrix.columns] += c
            read = Read(matrix.first.tensor, tuple(map(Const, place)))
            yield from self._access(node, read, writes, env, scopes)

    def _access(
        self,
        store: Store | MoveSums | MultiplyMatrices,
        read: Read,
        writes: bool,
        env: dict[str, int],
        scopes: dict[str, str],
    ) -> Iterator[tuple[Access, bool]]:
        scope = scopes.get(read.tensor, "global")
        if scope == "fragment":
            return
        element = tuple(evaluate_int(i, env) for i in read.indices)
        access = Access(
            store.statement, read.tensor, element, writes, self.block, self.thread, self.phase,
            self.moves if isinstance(store, MoveSums) else 0,
        )  # fmt: skip
        if scope in ("register", "local"):
            if writes:
                self.stored.add((read.tensor, element))
            elif (read.tensor, element) not in self.stored:
                what = f"{read.tensor}{list(element)} of a thread is read, but not stored"
                self.empty.append(Race(what, access))
            return
        yield access, scope == "shared"
