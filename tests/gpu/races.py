"""Races of a launch, found by running its loops for all threads, without
`poly.lower.place_barriers`.

Every access of every thread is written down with its *phase*, the number of barriers that the
thread has passed.  Two accesses to one element race if one of them writes and they are made by

* different blocks, or
* different threads of a block in the same phase, but for sums that a warp stores where it has
  loaded some: it waits for all of its threads behind such a load.

What nobody has stored in a buffer is not to be read from it, either.

All threads of a block are run at once: a number is an array with an element for each of them.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from typing import Any

import numpy as np

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
from poly.ir.expr import Const, Expr, Index, Op, Read, Size, reads_of
from poly.ir.intrinsics import INTRINSICS
from poly.lower.launches import Launch, launches
from poly.schedule.schedule import Schedule
from runtime.gpu.gpu_program import launches_of

Place = tuple[int, ...]

#: Races of one kind, of one array, that are told.
SHOWN = 10


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
    """The races of one launch, a few of each kind if there are many."""
    result: list[Race] = []
    everywhere: dict[str, list[Accesses]] = defaultdict(list)
    for block in product(*(range(n) for n in grid)):
        run = _Block(block, launch.block)
        run.node(body, dict(env), {}, np.ones(len(run.threads), bool))
        result += run.empty
        waits = {*zip(run.phase.tolist(), run.combined.tolist(), strict=True)}
        if len(waits) > 1:
            result.append(Race(f"block {block}: threads wait {sorted(waits)} times"))
        for (array, shared), parts in run.accesses.items():
            made = Accesses.joined(array, parts)
            if shared:
                result += _missing(made)
            else:
                everywhere[array].append(made)
            cells = np.column_stack([made.elements, made.phase])
            result += _clashes(made, cells, made.threads, "threads", lambda x: x.thread)
    for array, parts in everywhere.items():
        made = Accesses.joined(array, parts)
        numbers = _ids(np.array(made.blocks))
        result += _clashes(made, made.elements, numbers, "blocks", lambda x: x.block)
    return result


@dataclass(frozen=True, eq=False)
class Accesses:
    """Accesses to one array, one a row.

    elements : indices, a column for each dimension; threads : by number, of `names`
    """

    array: str
    statements: list[str]
    elements: np.ndarray
    writes: np.ndarray
    blocks: list[Place]
    threads: np.ndarray
    names: list[Place]
    phase: np.ndarray
    time: np.ndarray

    @staticmethod
    def joined(array: str, parts: Sequence[Accesses]) -> Accesses:
        """All of some parts, in order."""

        def rows(field: str) -> np.ndarray:
            return np.concatenate([getattr(p, field) for p in parts])

        return Accesses(
            array, [s for p in parts for s in p.statements], rows("elements"), rows("writes"),
            [b for p in parts for b in p.blocks], rows("threads"), parts[0].names, rows("phase"),
            rows("time"),
        )  # fmt: skip

    def __getitem__(self, row: int) -> Access:
        return Access(
            self.statements[row], self.array, tuple(self.elements[row].tolist()),
            bool(self.writes[row]), self.blocks[row], self.names[self.threads[row]],
            int(self.phase[row]), int(self.time[row]),
        )  # fmt: skip


def _ids(rows: np.ndarray) -> np.ndarray:
    """A number for each row, the same for equal rows."""
    if rows.shape[1] == 0 or not len(rows):
        return np.zeros(len(rows), np.int64)
    least = rows.min(0)
    extents = tuple((rows.max(0) - least + 1).tolist())
    flat = np.ravel_multi_index(tuple((rows - least).T), extents)
    return np.unique(flat, return_inverse=True)[1]


def _clashes(
    made: Accesses, cells: np.ndarray, owners: np.ndarray, what: str, owner: Callable[..., object]
) -> list[Race]:
    """Cells that several owners access, one of which writes."""
    ids = _ids(cells)
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
    first, last = (f.reduceat(owners[order], starts) for f in (np.minimum, np.maximum))
    suspect = np.logical_or.reduceat(made.writes[order], starts) & (first != last)
    ends = np.append(starts[1:], len(order))
    found: list[Race] = []
    for number in np.flatnonzero(suspect):
        rows = order[starts[number] : ends[number]]
        found += _clash([made[row] for row in rows], what, owner)
        if len(found) >= SHOWN:
            break
    return found


def _clash(found: list[Access], what: str, owner: Callable[..., object]) -> list[Race]:
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


def _missing(made: Accesses) -> list[Race]:
    """Reads of elements that nobody has stored before: in an earlier phase, or the thread itself
    in the same one.
    """
    ids, writes = _ids(made.elements), made.writes
    earliest = np.full(ids.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, ids[writes], made.phase[writes])
    own = _ids(np.column_stack([ids, made.phase, made.threads]))
    known = writes | (earliest[ids] < made.phase) | np.isin(own, own[writes])
    reads = [made[row] for row in np.flatnonzero(~known)[:SHOWN]]
    return [Race(f"{a.array}{list(a.element)} is read, but not stored", a) for a in reads]


class _Block:
    """Runs the loops of the threads of a block, and keeps their accesses."""

    def __init__(self, block: Place, shape: Place) -> None:
        self.block, self.threads = block, list(product(*(range(n) for n in shape)))
        self.axes = np.array(self.threads).T
        self.phase, self.combined, self.moves = np.zeros((3, len(self.threads)), np.int64)
        #: What threads have stored in buffers of their own, and where they read what they had not.
        self.stored: dict[str, np.ndarray] = {}
        self.empty: list[Race] = []
        #: By array, and whether that is shared memory.
        self.accesses: dict[tuple[str, bool], list[Accesses]] = defaultdict(list)

    def node(
        self, node: LoopNode, env: dict[str, Any], scopes: dict[str, str], mask: np.ndarray
    ) -> None:
        """Run loops for the threads of a mask."""
        if not mask.any():
            return
        if isinstance(node, Block):
            for child in node.children:
                self.node(child, env, scopes, mask)
        elif isinstance(node, For):
            self._for(node, env, scopes, mask)
        elif isinstance(node, If):
            cond = np.broadcast_to(np.asarray(_value(node.cond, env)) != 0, mask.shape)
            self.node(node.then, env, scopes, mask & cond)
            if node.other is not None:
                self.node(node.other, env, scopes, mask & ~cond)
        elif isinstance(node, Buffer):
            known = self.stored.setdefault(node.name, np.zeros((len(mask), *node.shape), bool))
            known[mask] = False
            self.node(node.body, env, {**scopes, node.name: node.scope}, mask)
        elif isinstance(node, Wait):
            self.phase[mask] += 1
        elif isinstance(node, Combine):
            self.combined[mask] += 1
        elif isinstance(node, MoveSums):
            self._move(node, env, scopes, mask)
        elif isinstance(node, MultiplyMatrices):
            m, n, k = INTRINSICS[node.intrinsic].extents
            for _, a, b in node.products:
                self._matrix(node, a, m, k, False, env, scopes, mask)
                self._matrix(node, b, k, n, False, env, scopes, mask)
        else:
            assert isinstance(node, Store)
            reads = [*reads_of(node.value), *([] if node.op == "=" else [node.target])]
            for read, writes in [*((r, False) for r in reads), (node.target, True)]:
                self._read_or_write(node, read, writes, env, scopes, mask)

    def _for(
        self, node: For, env: dict[str, Any], scopes: dict[str, str], mask: np.ndarray
    ) -> None:
        if node.mark in ("block", "thread"):
            place = self.block if node.mark == "block" else self.axes
            self.node(node.body, {**env, node.var: place[axis_of(node)]}, scopes, mask)
            return
        lower, upper = np.broadcast_arrays(_value(node.lower, env), _value(node.upper, env))
        if lower.ndim == 0:
            for value in range(int(lower), int(upper), node.step):
                self.node(node.body, {**env, node.var: value}, scopes, mask)
            return
        for step in range(0, int((upper - lower)[mask].max()), node.step):
            value = lower + step
            self.node(node.body, {**env, node.var: value}, scopes, mask & (value < upper))

    def _move(
        self, node: MoveSums, env: dict[str, Any], scopes: dict[str, str], mask: np.ndarray
    ) -> None:
        self.moves[mask] += 1
        if node.memory is None:
            return
        counts = [_value(e, env) for e in node.counts or (Const(16), Const(16))]
        rows, columns = (np.broadcast_to(np.minimum(16, c), mask.shape) for c in counts)
        for r, c in {*zip(rows[mask].tolist(), columns[mask].tolist(), strict=True)}:
            some = mask & (rows == r) & (columns == c)
            self._matrix(node, node.memory, r, c, node.action == "store", env, scopes, some)

    def _matrix(
        self, node: MoveSums | MultiplyMatrices, matrix: Matrix, rows: int, columns: int,
        writes: bool, env: dict[str, Any], scopes: dict[str, str], mask: np.ndarray,
    ) -> None:  # fmt: skip
        """All elements.  Each is written by one thread of a warp, which is not said to be the one
        that reads it, and read by any: two stand for these, since one of them is not the writer.
        """
        lanes = self.axes[0] % 32
        at = np.arange(rows * columns)
        if writes:
            taken = mask[:, None] & (at[None, :] % 32 == lanes[:, None])
        else:
            taken = np.broadcast_to((mask & (lanes < 2))[:, None], (len(mask), len(at)))
        threads, at = np.nonzero(taken)
        first = [_value(i, env) for i in matrix.first.indices]
        element = [np.broadcast_to(e, mask.shape)[threads] for e in first]
        element[matrix.rows] = element[matrix.rows] + at // columns
        element[matrix.columns] = element[matrix.columns] + at % columns
        self._access(node, matrix.first.tensor, element, writes, scopes, threads)

    def _read_or_write(
        self, node: Store, read: Read, writes: bool, env: dict[str, Any], scopes: dict[str, str],
        mask: np.ndarray,
    ) -> None:  # fmt: skip
        threads = np.flatnonzero(mask)
        element = [np.broadcast_to(_value(i, env), mask.shape)[threads] for i in read.indices]
        self._access(node, read.tensor, element, writes, scopes, threads)

    def _access(
        self, node: Store | MoveSums | MultiplyMatrices, tensor: str, element: list[np.ndarray],
        writes: bool, scopes: dict[str, str], threads: np.ndarray,
    ) -> None:  # fmt: skip
        scope, count = scopes.get(tensor, "global"), len(threads)
        if scope == "fragment" or not count:
            return
        time = self.moves[threads] if isinstance(node, MoveSums) else np.zeros(count, np.int64)
        made = Accesses(
            tensor, [node.statement] * count, np.array(element, np.int64).reshape(-1, count).T,
            np.full(count, writes), [self.block] * count, threads, self.threads,
            self.phase[threads], time,
        )  # fmt: skip
        if scope not in ("register", "local"):
            self.accesses[tensor, scope == "shared"].append(made)
            return
        where = (threads, *made.elements.T)
        if writes:
            self.stored[tensor][where] = True
        else:
            for row in np.flatnonzero(~self.stored[tensor][where])[:SHOWN]:
                what = f"{tensor}{list(made[row].element)} of a thread is read, but not stored"
                self.empty.append(Race(what, made[row]))


# --- numbers of all threads ----------------------------------------------------------------------

_INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "eq": "==", "ne": "!="}  # fmt: skip
#: As `poly.ir.expr.INTEGER_MEANING`, of arrays.
_MEANING: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "div": lambda a, b: np.where(np.equal(b, 0), 0, _quotient(a, b)),
    "fmod": lambda a, b: np.where(np.equal(b, 0), 0, a - b * _quotient(a, b)),
    "floordiv": lambda a, b: np.where(np.equal(b, 0), 0, a // np.where(np.equal(b, 0), 1, b)),
    "mod": lambda a, b: np.where(np.equal(b, 0), 0, a % np.where(np.equal(b, 0), 1, b)),
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: np.not_equal(a, 0) & np.not_equal(b, 0),
    "or": lambda a, b: np.not_equal(a, 0) | np.not_equal(b, 0),
    "not": lambda a: np.equal(a, 0),
    "select": lambda c, a, b: np.where(np.not_equal(c, 0), a, b),
}


def _quotient(a: Any, b: Any) -> Any:
    """Towards zero."""
    found = np.abs(a) // np.where(np.equal(b, 0), 1, np.abs(b))
    return np.where(np.equal(np.less(a, 0), np.less(b, 0)), found, -found)


def _value(expr: Expr, env: Mapping[str, Any]) -> Any:
    """An expression whose variables are numbers, or arrays with one for each thread."""
    return _compiled(expr)(env)


@cache
def _compiled(expr: Expr) -> Callable[[Mapping[str, Any]], Any]:
    made: Callable[[Mapping[str, Any]], Any] = eval(
        f"lambda env: {_python(expr)}", {"meaning": _MEANING}
    )
    return made


def _python(expr: Expr) -> str:
    if isinstance(expr, (Index, Size)):
        return f"env[{expr.name!r}]"
    if isinstance(expr, Op):
        args = [_python(a) for a in expr.args]
        # Times 1, so that conditions are numbers, too.
        infix = expr.fn in _INFIX
        made = _INFIX[expr.fn].join(args) if infix else ", ".join(args)
        return f"(({made}) * 1)" if infix else f"(meaning[{expr.fn!r}]({made}) * 1)"
    assert isinstance(expr, Const) and not isinstance(expr.value, float), expr
    return repr(int(expr.value))
