"""The gradient of a block in segments: states that are computed again, step by step.

All is one block of 2K steps for each segment, from the last segment to the first: at step
``u = 2K*q + v``, for v < K step v of the segment runs, for v >= K step 2K-1-v is run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from poly.gradients.adjoints import Adjoints
from poly.gradients.along_steps import with_ranges
from poly.gradients.derivatives import ZERO
from poly.gradients.request import active_tensors
from poly.gradients.segments import Segments
from poly.gradients.statements import alone, over_all, statement, stored
from poly.gradients.tidy import shortened
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    floordiv,
    mod,
    mul,
    rewrite,
    simplify,
    sub,
    substitute,
    substitute_value,
)  # fmt: skip
from poly.ir.program import Range, Statement, Tensor


def recomputed(outer: Adjoints, segments: Segments) -> None:
    """Add the gradient of a block to those of a program.

    Raises
    ------
    GradientError : an order that cannot be reversed.
    """
    _Recomputed(outer, segments).add()


class _Recomputed:
    def __init__(self, outer: Adjoints, segments: Segments) -> None:
        self.outer, self.segments, self.names = outer, segments, outer.names
        self.number = 1 + outer.blocks
        outer.blocks += 1
        program = segments.program
        given = {s.given.name: s for s in segments.states}
        left = {s.left.name: s for s in segments.states}
        read = [t.name for t in program.inputs if t.name in outer.active or t.name in given]
        written = [t.name for t in program.outputs if t.name in outer.active or t.name in left]
        active = active_tensors(program, read, written)
        #: The gradients with respect to what a segment leaves, and what it begins with.
        self.after = {n: self._like(s.first, f"d{n}") for n, s in left.items()}
        self.before = {n: self._like(s.first, f"d{n}") for n, s in given.items()}
        others = {
            n: outer.gradient_of(outer.tensors[n])
            for n in (*read, *written)
            if n in active and n not in given and n not in left
        }
        self.inner = Adjoints(program, outer.names, active, {**others, **self.after, **self.before})
        self.index = self.names.tensor("u")

    def _like(self, t: Tensor, name: str) -> Tensor:
        made = replace(t, name=self.names.tensor(name))
        self.outer.temps.append(made)
        return made

    def add(self) -> None:
        """Add what the block passes on."""
        outer, states = self.outer, self.segments.states
        for s in states:
            outer.gradient_of(s.first)
            start = self._read_all(outer.gradient_of(s.last))
            outer.emit(stored(self.names, self.before[s.given.name], start))
        self.inner.run()
        made = [*self._start(), *self._forwards(), *self._backwards()]
        outer.backward += made
        for s in states:
            value = self._read_all(self.before[s.given.name])
            outer.emit(stored(self.names, outer.gradient_of(s.first), value, "+="))
        program, inner = self.segments.program, self.inner
        own = [t for n, t in inner.gradients.items() if n in {x.name for x in program.temps}]
        outer.temps += [*program.temps, *inner.temps, *inner.values.temps, *own]

    # --- one step -------------------------------------------------------------------------------

    @property
    def _at(self) -> Expr:
        """v, the step of a segment, forwards or backwards."""
        return mod(Index(self.index), 2 * self.segments.length)

    @property
    def _segment(self) -> Expr:
        """The number of the segment."""
        done = floordiv(Index(self.index), 2 * self.segments.length)
        return sub(sub(self.segments.count, Const(1)), done)

    def _start(self) -> list[Statement]:
        """A segment passes on what the one after it has left."""
        found = []
        for s in self.segments.states:
            after, before = self.after[s.left.name], self.before[s.given.name]
            found.append(stored(self.names, after, self._read_all(before)))
            found.append(stored(self.names, before, ZERO))
        return [self._in_phase(s, 0) for s in found]

    def _forwards(self) -> list[Statement]:
        """The steps of a segment, without what is there from the first time."""
        found, phase = [], 0
        outputs = {t.name for t in self.segments.program.outputs}
        for s in self.inner.values.statements:
            if s.block:
                phase = self.segments.length
            if s.target.tensor not in outputs:
                found.append(self._moving(s, 0) if s.block else self._in_phase(s, phase))
        return found

    def _backwards(self) -> list[Statement]:
        found, phase = [], self.segments.length
        inner, program = self.inner, self.segments.program
        made = [*inner.temps, *inner.values.temps, *inner.gradients.values()]
        tensors = program.tensors | {t.name: t for t in made}
        for s in shortened(alone(program, tensors, inner.backward)).statements:
            if s.block:
                phase = 2 * self.segments.length - 1
                found.append(self._moving(s, self.segments.length))
            else:
                found.append(self._in_phase(s, phase))
        return found

    def _moving(self, s: Statement, first: int) -> Statement:
        """A statement of a block, for steps from `first` on."""
        length = self.segments.length
        guard = (
            Op("lt", (self._at, Const(length)))
            if first == 0
            else Op("ge", (self._at, Const(length)))
        )
        return self._inside(s, {s.step: add(self._at, Const(-first))}, guard, s.ranges[1:])

    def _in_phase(self, s: Statement, phase: int) -> Statement:
        """A statement that runs once in a segment."""
        return self._inside(s, {}, Op("eq", (self._at, Const(phase))), s.ranges)

    def _inside(
        self, s: Statement, new: dict[str, Expr], guard: Expr, ranges: Iterable[Range]
    ) -> Statement:
        segments = self.segments
        step = mul(self._segment, Const(segments.length))
        sizes = {segments.base: simplify(add(segments.start, step))}
        kept = {t.given.name: t.kept.name for t in segments.states}

        def visit(e: Expr) -> Expr:
            if isinstance(e, Read) and e.tensor in kept:
                return Read(kept[e.tensor], (self._segment, *e.indices))
            return e

        target = substitute_value(s.target, new, sizes)
        assert isinstance(target, Read)
        value = rewrite(substitute_value(s.value, new, sizes), visit)
        guards = [substitute(g, new, sizes) for g in s.guards]
        total = mul(segments.count, Const(2 * segments.length))
        steps = Range(self.index, Const(0), simplify(total))
        made = statement(
            self.names, target, s.op + ("!" if s.init else ""), value,
            (steps, *with_ranges([*ranges], new, sizes)),
            (guard, *guards), self.number, self.index,
        )  # fmt: skip
        return made

    # --- whole tensors --------------------------------------------------------------------------

    def _read_all(self, t: Tensor) -> Read:
        return Read(t.name, over_all(self.names, t)[0])
