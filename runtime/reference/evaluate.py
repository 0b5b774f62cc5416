"""Evaluate programs with numpy, straight from their meaning in `poly.ir.program`.

This is the reference for generated code, and shares nothing with the polyhedral path.  It is exact:
float updates happen in the written order for every element, so the result equals that of the
plain loop nest bit for bit.  It stays fast enough for whole models by running the free indices
as vectors wherever no instance reads what another one writes, and only the reduction indices one
after the other.

Elements that no statement writes are zero here and unspecified in compiled code; `run` reports
which ones were written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from poly.errors import ProgramError
from poly.ir.dtypes import INT64, DType, identity
from poly.ir.expr import Const, Expr, Read, evaluate_int, reads_of
from poly.ir.program import Program, Range, Statement, Tensor
from poly.ir.size_values import by_name
from runtime.common.arguments import bind, check_input, check_program
from runtime.reference.scalar_semantics import (
    Array,
    Function,
    Lowered,
    NothingToReadError,
    Points,
    Scope,
    convert,
    lower,
    lower_guard,
    offsets_of,
    store,
    update,
)

_CHUNK_ELEMENTS = 1 << 20
_NARROW = 64  # with fewer vector elements than this, sums run along the reduction instead


@dataclass(frozen=True)
class Evaluation:
    """All arrays after a program ran, and for each a bool array of the elements written."""

    values: Mapping[str, Array]
    written: Mapping[str, Array]


def evaluate(
    program: Program, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """The outputs of a program.

    Parameters
    ----------
    arrays : an array for each input, of its dtype and shape; none of them is changed
    sizes : values of sizes that no input's shape determines

    Raises
    ------
    ArgumentError : arrays or sizes that do not match the program.
    ProgramError : an index that is not data-dependent is out of range.
    """
    values = run(program, arrays, sizes).values
    return {t.name: values[t.name] for t in program.outputs}


def run(
    program: Program, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> Evaluation:
    """Evaluate a program and keep everything; see `evaluate` for arguments and errors."""
    scope = make_scope(program, arrays, sizes)
    written = {t.name: np.zeros(scope.arrays[t.name].shape, bool) for t in _written(program)}
    with np.errstate(all="ignore"):
        for group in program.groups:
            runners = [_Runner(s, scope, written[s.target.tensor]) for s in group]
            if not group[0].block:
                runners[0].run()
                continue
            steps = group[0].ranges[0]
            lo, hi = (evaluate_int(bound, scope.sizes) for bound in (steps.lo, steps.hi))
            for step in range(lo, hi):
                for runner in runners:
                    runner.run(step)
    return Evaluation(scope.arrays, written)


def make_scope(
    program: Program, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> Scope:
    """Checked arrays and sizes: inputs as they are, updated ones copied, the others zero."""
    check_program(program)
    arrays = by_name("arrays", arrays)
    missing = [t.name for t in program.inputs if t.name not in arrays]
    if missing:
        raise ProgramError(f"{program.name} needs {', '.join(missing)}, not given")
    inputs = {t.name: check_input(t, arrays[t.name]) for t in program.inputs}
    binding = bind(program, {n: a.shape for n, a in inputs.items()}, by_name("sizes", sizes))
    held: dict[str, Array] = dict(inputs)
    for tensor in _written(program):
        if tensor.name in inputs:
            held[tensor.name] = inputs[tensor.name].copy()
        else:
            held[tensor.name] = np.zeros(binding.shapes[tensor.name], tensor.dtype.numpy)
    return Scope(program.dtypes, held, binding.sizes)


def _written(program: Program) -> tuple[Tensor, ...]:
    return (*program.outputs, *program.temps)


@dataclass(frozen=True)
class _Box:
    """Index ranges in execution order: ``(name, lo, hi)``, each of at least one point."""

    ranges: tuple[tuple[str, int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for _, lo, hi in self.ranges)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def split(self) -> Iterator[_Box]:
        """The slices along the outermost index of more than one point, in order."""
        for at, (name, lo, hi) in enumerate(self.ranges):
            if hi - lo > 1:
                for value in range(lo, hi):
                    one = ((name, value, value + 1),)
                    yield _Box(self.ranges[:at] + one + self.ranges[at + 1 :])
                return
        yield self

    def grids(self) -> dict[str, Array]:
        """One int64 array per index; together they broadcast to the box."""
        axes = [np.arange(lo, hi, dtype=np.int64) for _, lo, hi in self.ranges]
        count = len(axes)
        return {
            name: axis.reshape(tuple(-1 if i == at else 1 for i in range(count)))
            for at, ((name, _, _), axis) in enumerate(zip(self.ranges, axes, strict=True))
        }


def box_of(ranges: tuple[Range, ...], sizes: Mapping[str, int]) -> _Box | None:
    """The box of some ranges, None if it is empty."""
    found = []
    for r in ranges:
        lo, hi = evaluate_int(r.lo, sizes), evaluate_int(r.hi, sizes)
        if lo >= hi:
            return None
        found.append((r.index, lo, hi))
    return _Box(tuple(found))


class _Runner:
    """Runs one statement on its arrays."""

    def __init__(self, statement: Statement, scope: Scope, written: Array) -> None:
        self.statement, self.scope = statement, scope
        self.dtype: DType = scope.dtypes[statement.target.tensor]
        self.array = scope.arrays[statement.target.tensor]
        self.flat = self.array.reshape(-1)
        self.written = written.reshape(-1)
        self.value: Lowered = lower(statement.value, scope, self.dtype)
        self.guards = tuple(lower_guard(g, scope) for g in statement.guards)
        self.offset: Function = offsets_of(statement.target.indices, self.array.shape, scope)
        self.own_reads = tuple(r for r in statement.reads if r.tensor == statement.target.tensor)

    def run(self, step: int | None = None) -> None:
        """Initialise, then run every instance; or only one step of a block."""
        s = self.statement
        free = tuple(r for r in s.ranges if r.index not in s.reductions)
        if step is not None:
            free = (Range(free[0].index, Const(step), Const(step + 1)), *free[1:])
        box = box_of(free, self.scope.sizes)
        if box is None:
            return
        if s.init:
            self._initialise(box)
        reductions = box_of(tuple(r for r in s.ranges if r.index in s.reductions), self.scope.sizes)
        if reductions is not None:
            self._run_box(box, reductions)

    def _initialise(self, box: _Box) -> None:
        guards = tuple(lower_guard(g, self.scope) for g in self.statement.free_guards)
        points = Points(box.grids())
        mask = _mask(guards, points, box.shape)
        self._check_target(points, mask, box.shape)
        offsets = np.broadcast_to(self.offset(points), box.shape)[mask]
        self.flat[offsets] = np.asarray(identity(self.statement.op, self.dtype)).astype(
            self.dtype.numpy
        )
        self.written[offsets] = True

    def _run_box(self, box: _Box, reductions: _Box) -> None:
        """Run a box at once, or its slices in order if an instance could read another's result."""
        if self.own_reads and box.size > 1 and self._conflicts(box, reductions):
            for part in box.split():
                self._run_box(part, reductions)
            return
        offsets = np.broadcast_to(self.offset(Points(box.grids())), box.shape)
        layers = _layers(offsets.reshape(-1))
        if layers is None:
            self._run_points(box.grids(), box.shape, reductions)
            return
        grids = {n: np.broadcast_to(g, box.shape).reshape(-1) for n, g in box.grids().items()}
        for layer in layers:
            self._run_points({n: g[layer] for n, g in grids.items()}, layer.shape, reductions)

    def _conflicts(self, box: _Box, reductions: _Box) -> bool:
        """Whether, in this box, an instance may read an element that another one writes."""
        if any(reads_of(i) for read in self.own_reads for i in read.indices):
            return True
        joint = _Box(box.ranges + reductions.ranges)
        points = Points(joint.grids())
        mask = _mask(self.guards, points, joint.shape)
        target = np.broadcast_to(self.offset(points), joint.shape)[mask]
        injective: bool | None = None
        for read in self.own_reads:
            offset = offsets_of(read.indices, self.array.shape, self.scope)
            source = np.broadcast_to(offset(points), joint.shape)[mask]
            if np.array_equal(source, target):
                if injective is None:
                    free = np.broadcast_to(self.offset(Points(box.grids())), box.shape)
                    injective = len(np.unique(free)) == free.size
                if injective:
                    continue
            if np.isin(source, target).any():
                return True
        return False

    def _run_points(
        self, free: Mapping[str, Array], shape: tuple[int, ...], reductions: _Box
    ) -> None:
        """Run free points that write different elements: vectors, one reduction point at a time
        or, where the value cannot read what was just written, a chunk of them."""
        size = math.prod(shape)
        total = reductions.size
        chunk = 1 if self.own_reads else max(1, min(total, _CHUNK_ELEMENTS // max(size, 1)))
        offsets = np.broadcast_to(self.offset(Points(free)), shape)
        for start in range(0, total, chunk):
            stop = min(start + chunk, total)
            column = (stop - start,) + (1,) * len(shape)
            at = np.unravel_index(np.arange(start, stop), reductions.shape) if total > 1 else ()
            indices = {name: grid[np.newaxis] for name, grid in free.items()}
            for number, (name, lo, _) in enumerate(reductions.ranges):
                step = at[number] if at else np.zeros(1, np.int64)
                indices[name] = (step.astype(np.int64) + lo).reshape(column)
            self._run_chunk(Points(indices), (stop - start, *shape), offsets)

    def _run_chunk(self, points: Points, shape: tuple[int, ...], offsets: Array) -> None:
        """Run ``shape[0]`` reduction points in order, each over vectors of ``shape[1:]``."""
        mask = _mask(self.guards, points, shape)
        if not mask.any():
            return
        points = Points(points.indices, None if mask.all() else mask)
        self._check_target(points, mask, shape)
        try:
            values = np.broadcast_to(self.value(points), shape)
        except NothingToReadError:
            return
        op = self.statement.op
        if op == "=":
            chosen = mask[0]
            stored = store(values[0], self.value.dtype, self.dtype)
            self.flat[offsets[chosen]] = stored[chosen]
            self.written[offsets[chosen]] = True
            return
        values = convert(values, self.value.dtype, self.dtype)
        touched = mask.any(axis=0)
        where = offsets[touched]
        held = self.flat[where].astype(self.dtype.compute.numpy)
        values, mask = values[:, touched], mask[:, touched]
        self.flat[where] = self._accumulate(op, held, values, mask).astype(self.dtype.numpy)
        self.written[where] = True

    def _accumulate(self, op: str, held: Array, values: Array, mask: Array) -> Array:
        """Apply updates in order along axis 0, where `mask` holds."""
        rounds = self.dtype.compute != self.dtype
        if not rounds and op in ("+=", "*=") and held.size < _NARROW and len(values) > _NARROW:
            # Adding -0.0 or multiplying by 1 changes nothing; accumulate runs in order.
            neutral = np.asarray(-0.0 if op == "+=" else 1.0).astype(values.dtype)
            steps = np.concatenate([held[np.newaxis], np.where(mask, values, neutral)])
            run = np.add.accumulate if op == "+=" else np.multiply.accumulate
            return np.asarray(run(steps, axis=0, dtype=values.dtype)[-1])
        full = bool(mask.all())
        for number in range(len(values)):
            new = update(op, held, values[number])
            if rounds:  # a 16-bit target is rounded by every store
                new = new.astype(self.dtype.numpy).astype(held.dtype)
            held = new if full else np.where(mask[number], new, held)
        return held

    def _check_target(self, points: Points, mask: Array, shape: tuple[int, ...]) -> None:
        target: Read = self.statement.target
        for axis, index in enumerate(target.indices):
            if reads_of(index):
                continue
            values = _index_values(index, self.scope, points)
            outside = (values < 0) | (values >= self.array.shape[axis])
            if outside.any() and (np.broadcast_to(outside, shape) & mask).any():
                raise ProgramError(
                    f"statement {self.statement.name}: {target}: index {index} leaves the range "
                    f"0:{self.array.shape[axis]} of dimension {axis}"
                )


def _index_values(index: Expr, scope: Scope, points: Points) -> Array:
    lowered = lower(index, scope, INT64)
    return convert(lowered(points), lowered.dtype, INT64)


def _mask(guards: tuple[Lowered, ...], points: Points, shape: tuple[int, ...]) -> Array:
    """The points, as a bool array of `shape`, at which all guards hold."""
    mask = np.ones(shape, bool)
    for guard in guards:
        mask &= guard(points)
    return mask


def _layers(offsets: Array) -> list[Array] | None:
    """None if all offsets differ; else sets of points with distinct offsets, to run in turn.

    The n-th set has the n-th point of every offset, so each element sees its points in order.
    """
    if len(offsets) < 2:
        return None
    order = np.argsort(offsets, kind="stable")
    ranked = offsets[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    if len(starts) == len(offsets):
        return None
    lengths = np.diff(np.concatenate([starts, [len(offsets)]]))
    rank = np.empty(len(offsets), np.int64)
    rank[order] = np.arange(len(offsets)) - np.repeat(starts, lengths)
    return [np.flatnonzero(rank == number) for number in range(int(lengths.max()))]
