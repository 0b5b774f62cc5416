"""The loops of a launch, run for many threads at once: a number is an array where threads differ.

The accesses are written down as rows of arrays, which `tests.gpu.races` searches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

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
from poly.errors import ProgramError
from poly.ir.expr import INTEGER_MEANING, Const, Expr, Index, Op, Read, Size, reads_of
from poly.ir.instruction_tables import MATRIX_INTRINSICS

Place = tuple[int, ...]
Array = np.ndarray[Any, Any]
#: What is the same for all threads, or one for each.
Number = int | Array
Env = Mapping[str, Number]


# --- index arithmetic -------------------------------------------------------------------------


def _quotient(a: Number, b: Number) -> Array:
    return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b)))


def _remainder(a: Number, b: Number) -> Array:
    return np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b)))


#: The operators of `INTEGER_MEANING` on arrays, where they are not the same.
_ON_ARRAYS: dict[str, Callable[..., Array]] = {
    "div": lambda a, b: _quotient(np.abs(a), np.abs(b)) * np.where((a < 0) == (b < 0), 1, -1),
    "fmod": lambda a, b: _remainder(np.abs(a), np.abs(b)) * np.where(a >= 0, 1, -1),
    "floordiv": _quotient,
    "mod": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
}


@lru_cache(maxsize=1 << 14)
def compiled(expr: Expr) -> Callable[[Env], Number]:
    """`poly.ir.expr.evaluate_int` for all threads, of an expression that is taken apart once."""
    if isinstance(expr, Const) and not isinstance(expr.value, float):
        value = int(expr.value)
        return lambda env: value
    if isinstance(expr, (Index, Size)):
        name = expr.name
        return lambda env: env[name]
    if not isinstance(expr, Op) or expr.fn not in INTEGER_MEANING:
        raise ProgramError(f"{expr} has no integer value")
    parts, alone = [compiled(a) for a in expr.args], INTEGER_MEANING[expr.fn]
    on_arrays = _ON_ARRAYS.get(expr.fn, alone)

    def run(env: Env) -> Number:
        values = [part(env) for part in parts]
        for v in values:
            if isinstance(v, np.ndarray):
                return np.asarray(on_arrays(*values), np.int64)
        return int(alone(*values))

    return run


# --- accesses ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Accesses of one statement to an array at one time, by some threads.

    order : of batches; lanes : which thread; element : for each dimension
    time : of sums that a warp loads or stores, how often it has done so
    """

    order: int
    statement: str
    writes: bool
    lanes: Array
    element: tuple[Number, ...]
    phase: Array
    time: Array | None


@dataclass(frozen=True)
class Rows:
    """All accesses to an array, a row for each; in the order in which each thread makes them."""

    batches: Sequence[Batch]
    batch: Array
    lanes: Array
    element: Array
    writes: Array
    phase: Array
    time: Array

    @staticmethod
    def of(batches: Sequence[Batch]) -> Rows:
        counts = [len(b.lanes) for b in batches]
        element = np.empty((len(batches[0].element), sum(counts)), np.int64)
        time, end = np.zeros(sum(counts), np.int32), 0
        for b, count in zip(batches, counts, strict=True):
            here, end = slice(end, end + count), end + count
            for d, place in enumerate(b.element):
                element[d, here] = place
            if b.time is not None:
                time[here] = b.time
        return Rows(
            batches,
            np.repeat(np.arange(len(batches)), counts),
            np.concatenate([b.lanes for b in batches]),
            element,
            np.repeat([b.writes for b in batches], counts),
            np.concatenate([b.phase for b in batches]),
            time,
        )


class Lanes:
    """Runs the loops for the threads of some blocks.

    accesses : to memory of more than one thread, for each array
    empty : what a thread reads in buffers of its own and has not stored: thread, array, access
    """

    def __init__(self, blocks: Sequence[Place], threads: Sequence[Place], first: int) -> None:
        self.count, self.first = len(blocks) * len(threads), first
        self.all = np.ones(self.count, bool)
        block = np.repeat(np.asarray(blocks, np.int64), len(threads), axis=0)
        thread = np.tile(np.asarray(threads, np.int64), (len(blocks), 1))
        self._lane = thread[:, 0] % 32
        self._places = {"block": _columns(block), "thread": _columns(thread)}
        #: How many barriers each thread has passed, how often it has combined what it has with
        #: others, who wait for it, too, and how often its warp has loaded or stored sums.
        self.phase, self.combined, self.moves = np.zeros((3, self.count), np.int32)
        self.accesses: dict[str, list[Batch]] = defaultdict(list)
        self.shared: set[str] = set()
        self.empty: list[tuple[int, str, Batch, Place]] = []
        self._stored: dict[str, dict[Place, Array]] = defaultdict(dict)
        self._batches = 0

    def run(self, node: LoopNode, env: Env, scopes: Mapping[str, str], active: Array) -> None:
        if isinstance(node, Block):
            for child in node.children:
                self.run(child, env, scopes, active)
        elif isinstance(node, For):
            self._loop(node, env, scopes, active)
        elif isinstance(node, If):
            self._branch(node, env, scopes, active)
        elif isinstance(node, Buffer):
            for stored in self._stored[node.name].values():
                stored &= ~active
            self.run(node.body, env, {**scopes, node.name: node.scope}, active)
        elif isinstance(node, Wait):
            self.phase = self.phase + active
        elif isinstance(node, Combine):
            self.combined = self.combined + active
        elif isinstance(node, MoveSums):
            self.moves = self.moves + active
            if node.memory is not None:
                counts = node.counts or (Const(16), Const(16))
                rows, columns = (np.minimum(16, compiled(e)(env)) for e in counts)
                writes = node.action != "load"
                self._matrix(node, node.memory, rows, columns, writes, env, scopes, active)
        elif isinstance(node, MultiplyMatrices):
            m, n, k = MATRIX_INTRINSICS[node.intrinsic].extents
            for _, a, b in node.products:
                self._matrix(node, a, m, k, False, env, scopes, active)
                self._matrix(node, b, k, n, False, env, scopes, active)
        else:
            assert isinstance(node, Store)
            reads = [*reads_of(node.value), *([] if node.op == "=" else [node.target])]
            for read in reads:
                self._element(node, read, False, env, scopes, active)
            self._element(node, node.target, True, env, scopes, active)

    def _loop(self, node: For, env: Env, scopes: Mapping[str, str], active: Array) -> None:
        if node.mark in ("block", "thread"):
            place = self._places[node.mark][axis_of(node)]
            self.run(node.body, {**env, node.var: place}, scopes, active)
            return
        lower, upper = compiled(node.lower)(env), compiled(node.upper)(env)
        if not isinstance(lower, np.ndarray) and not isinstance(upper, np.ndarray):
            for value in range(lower, upper, node.step):
                self.run(node.body, {**env, node.var: value}, scopes, active)
            return
        while (still := active & (lower < upper)).any():
            self.run(node.body, {**env, node.var: lower}, scopes, still)
            lower = lower + node.step

    def _branch(self, node: If, env: Env, scopes: Mapping[str, str], active: Array) -> None:
        holds = np.asarray(compiled(node.cond)(env), bool)
        for child, lanes in ((node.then, active & holds), (node.other, active & ~holds)):
            if child is not None and lanes.any():
                self.run(child, env, scopes, lanes)

    def _matrix(
        self, node: MoveSums | MultiplyMatrices, matrix: Matrix, rows: Number, columns: Number,
        writes: bool, env: Env, scopes: Mapping[str, str], active: Array,
    ) -> None:  # fmt: skip
        """All elements, any of which a thread may read; each is written by one of a warp, which
        is not said to be the same as read it.
        """
        scope = scopes.get(matrix.first.tensor, "global")
        if scope == "fragment":
            return
        assert scope in ("global", "shared")
        lanes = np.flatnonzero(active)
        high, wide = (np.broadcast_to(x, self.count)[lanes, None] for x in (rows, columns))
        r, c = (x.ravel() for x in np.indices((int(high.max()), int(wide.max()))))
        taken = (r < high) & (c < wide)
        if writes:
            taken &= (r * wide + c) % 32 == self._lane[lanes, None]
        which, at = np.nonzero(taken)
        lanes = lanes[which]
        place = [self._of(lanes, compiled(i)(env)) for i in matrix.first.indices]
        place[matrix.rows] = place[matrix.rows] + r[at]
        place[matrix.columns] = place[matrix.columns] + c[at]
        self._access(node, matrix.first.tensor, lanes, tuple(place), writes, scope)

    def _element(
        self, node: Store, read: Read, writes: bool, env: Env, scopes: Mapping[str, str],
        active: Array,
    ) -> None:  # fmt: skip
        scope = scopes.get(read.tensor, "global")
        if scope != "fragment":
            lanes = np.flatnonzero(active)
            element = tuple([self._of(lanes, compiled(i)(env)) for i in read.indices])
            self._access(node, read.tensor, lanes, element, writes, scope)

    def _of(self, lanes: Array, value: Number) -> Number:
        return value[lanes] if isinstance(value, np.ndarray) else value

    def _access(
        self, node: Store | MoveSums | MultiplyMatrices, array: str, lanes: Array,
        element: tuple[Number, ...], writes: bool, scope: str,
    ) -> None:  # fmt: skip
        time = self.moves[lanes] if isinstance(node, MoveSums) else None
        self._batches += 1
        batch = Batch(
            self._batches, node.statement, writes, lanes + self.first, element,
            self.phase[lanes], time,
        )  # fmt: skip
        if scope in ("register", "local"):
            self._own(array, batch, lanes)
            return
        if scope == "shared":
            self.shared.add(array)
        self.accesses[array].append(batch)

    def _own(self, array: str, batch: Batch, lanes: Array) -> None:
        """An access to a buffer that each thread has for itself."""
        stored = self._stored[array]
        for element, some in _apart(batch.element, lanes):
            if element not in stored:
                stored[element] = np.zeros(self.count, bool)
            if batch.writes:
                stored[element][some] = True
            else:
                missing = some[~stored[element][some]]
                self.empty += [(int(n), array, batch, element) for n in missing]


def _columns(places: Array) -> list[Number]:
    """Each coordinate, as a number where it is always the same."""
    return [c if (c != c[0]).any() else int(c[0]) for c in places.T]


def _apart(element: tuple[Number, ...], lanes: Array) -> list[tuple[Place, Array]]:
    """The different elements, and which threads have each."""
    if not any(isinstance(e, np.ndarray) for e in element):
        return [(element, lanes)]  # type: ignore[list-item]
    all_, which = np.unique(
        np.stack([np.broadcast_to(e, len(lanes)) for e in element]), axis=1, return_inverse=True
    )
    which = which.reshape(-1)
    return [(tuple(e.tolist()), lanes[which == n]) for n, e in enumerate(all_.T)]
