"""Blocks whose gradient computes states again, in segments of K steps, instead of keeping all.

    for t in 0:T { H[t+1,j] = f(H[t,k], X[t,j]) }

keeps every K-th state, and two at a time beside:

    for t in 0:T {
        kept[t//K,0,j] = now[t%2,j] where t % K == 0
        now[(t+1)%2,j] = f(now[t%2,k], X[t,j])
    }

The gradient goes through the segments from the last to the first, and in each through its K steps,
forwards from the state that was kept, and backwards.  The steps that K does not divide come first,
and are kept.

After Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse
automatic differentiation", 1992, with two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from poly.errors import GradientError
from poly.gradients.along_steps import along_steps, steps_behind, with_ranges
from poly.gradients.derivatives import ZERO
from poly.gradients.statements import Names, over_all, statement, stored
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    add,
    floordiv,
    indices_of,
    mod,
    rewrite,
    simplify,
    sub,
    substitute,
    substitute_value,
)  # fmt: skip
from poly.ir.linear_form import Linear, linear_form, render
from poly.ir.program import Program, Range, Statement, Tensor

#: Steps of a segment if nobody knows how many there are.
USUAL = 32


@dataclass(frozen=True)
class State:
    """A tensor of a block that steps read from earlier ones, all but that dimension.

    first, last : what is there before and after the block; kept : at the start of each segment
    given, left : the same of one segment, in its program
    """

    first: Tensor
    last: Tensor
    kept: Tensor
    given: Tensor
    left: Tensor


@dataclass(frozen=True)
class Segments:
    """How the gradient of a block goes.

    block : its number; length : K; count : of the segments; start : the first step of the first
    program : one segment, from the step that the size `base` says
    own : names of the statements that move states in and out of the block
    """

    block: int
    length: int
    count: Expr
    start: Expr
    base: str
    program: Program
    states: tuple[State, ...]
    own: frozenset[str]


def in_segments(
    program: Program, block: int, length: int | None, names: Names
) -> tuple[Program, Segments]:
    """The program with a block that keeps the states of every K-th step.

    length : K; None: the root of the number of steps, or `USUAL` if it is not known

    Raises
    ------
    GradientError : what the steps compute is read elsewhere in a way that is not understood.
    """
    program = along_steps(program, block, names)
    return _Splitting(program, block, length, names).made()


# --- the block, its first steps, and one segment ------------------------------------------------


@dataclass(frozen=True)
class _Timed:
    """A tensor that each step of a block writes at its own place in one dimension.

    axis : that dimension; offset : the place of step t is t plus this; depth : steps back that are
    read at most
    """

    tensor: Tensor
    axis: int
    offset: Linear
    depth: int

    def shape(self, length: Expr | None) -> tuple[Expr, ...]:
        """With so many places along the steps, None: without that dimension."""
        shape = list(self.tensor.shape)
        shape[self.axis : self.axis + 1] = [] if length is None else [length]
        return tuple(shape)

    def indices(self, indices: Sequence[Expr], place: Expr | None) -> tuple[Expr, ...]:
        found = list(indices)
        found[self.axis : self.axis + 1] = [] if place is None else [place]
        return tuple(found)

    def place(self, read: Read, step: Expr) -> Linear:
        """The place of an element, from the first that step `step` may read."""
        return linear_form(read.indices[self.axis]) - linear_form(step) - self.offset + self.depth


class _Splitting:
    """The parts of a block."""

    def __init__(self, program: Program, block: int, length: int | None, names: Names) -> None:
        self.program, self.names, self.block = program, names, block
        self.group = [s for s in program.statements if s.block == block]
        self.steps = self.group[0].ranges[0]
        self.step = Index(self.steps.index)
        outputs = {t.name for t in program.outputs}
        self.timed = {
            n: self._timed(program.tensors[n])
            for n in dict.fromkeys(s.target.tensor for s in self.group)
            if n not in outputs and self._keeps(n)
        }
        self._check_others()
        number = simplify(sub(self.steps.hi, self.steps.lo))
        self.length = length or _root(number)
        self.rest = simplify(mod(number, self.length))
        self.count = simplify(floordiv(number, self.length))
        self.start = simplify(add(self.steps.lo, self.rest))
        self.temps: list[Tensor] = []

    def made(self) -> tuple[Program, Segments]:
        states = {n: self._state(t) for n, t in self.timed.items() if t.depth}
        if not states:
            raise GradientError("no step of this block reads what an earlier one computed")
        now = {n: self._tensor("now", t, self._slots(t)) for n, t in self.timed.items()}
        first = self._first_steps()
        head, moved_in = self._moved_in(states, now, first)
        moved_out = self._moved_out(states, now)
        inside = [self._keeping(t, states[n], now[n]) for n, t in self.timed.items() if n in states]
        inside += [self._rewritten(s, self._in_place(now)) for s in self.group]
        later = Range(self.steps.index, self.start, self.steps.hi)
        inside = [replace(s, ranges=(later, *s.ranges[1:]), block=self.block) for s in inside]
        statements: list[Statement] = []
        at = self.program.statements.index(self.group[0])
        for n, s in enumerate(self.program.statements):
            if n == at:
                statements += [*head, *moved_in, *inside, *moved_out]
            if s.block != self.block and not self._is_unread(s):
                statements.append(self._outside(s, states, first, n > at))
        temps = [t for t in self.program.temps if t.name not in self.timed]
        made = replace(
            self.program, temps=(*temps, *self.temps), statements=tuple(statements), text=None
        )
        base = self.names.tensor("base")
        segments = Segments(
            self.block, self.length, self.count, self.start, base, self._segment(states, base),
            tuple(states.values()), frozenset(s.name for s in (*moved_in, *moved_out)),
        )  # fmt: skip
        return made, segments

    # --- what is there --------------------------------------------------------------------------

    def _keeps(self, name: str) -> bool:
        """Whether each step writes its own elements of a tensor."""
        writers = [s for s in self.group if s.target.tensor == name]
        return any(s.step in indices_of(e) for s in writers for e in s.target.indices)

    def _timed(self, t: Tensor) -> _Timed:
        writers = [s for s in self.group if s.target.tensor == t.name]
        found = set()
        for s in writers:
            axes = [n for n, e in enumerate(s.target.indices) if s.step in indices_of(e)]
            offsets = [linear_form(s.target.indices[n]) - linear_form(self.step) for n in axes]
            if len(axes) != 1 or any(indices_of(a) for o in offsets for a, _ in o.terms):
                raise self._refused(s, s.target)
            found.add((axes[0], offsets[0]))
        if len(found) != 1:
            raise self._refused(writers[0], writers[0].target)
        ((axis, offset),) = found
        depth = 0
        for s in self.group:
            for r in (r for r in s.reads if r.tensor == t.name):
                behind = steps_behind(r, self.steps.index, self.group)
                others = [e for n, e in enumerate(r.indices) if n != axis]
                if behind is None or any(self.steps.index in indices_of(e) for e in others):
                    raise self._refused(s, r)
                depth = max(depth, behind)
        return _Timed(t, axis, offset, max(depth, self._read_last(_Timed(t, axis, offset, 0))))

    def _read_last(self, t: _Timed) -> int:
        """How many of the last steps' elements are read after the block."""
        found = 0
        for s in self.program.statements:
            for r in (r for r in s.reads if r.tensor == t.tensor.name and s.block != self.block):
                begin, end = t.place(r, self.steps.lo), t.place(r, self.steps.hi)
                is_first = not begin.terms and begin.constant < 0
                if not is_first and not end.terms:
                    found = max(found, -end.constant)
        return found

    def _check_others(self) -> None:
        """What is written along the steps, and remains, is not read in the block."""
        for s in self.group:
            if s.target.tensor in self.timed:
                continue
            for other in self.group:
                if any(r.tensor == s.target.tensor for r in other.reads):
                    raise self._refused(other, s.target)

    def _refused(self, s: Statement, read: Read) -> GradientError:
        return GradientError(
            f"the states of this block cannot be computed again in segments: statement {s.name} "
            f"uses {read} in a way that is not along its steps"
        )

    # --- tensors --------------------------------------------------------------------------------

    def _tensor(self, suffix: str, like: _Timed, length: Expr | None) -> Tensor:
        t = like.tensor
        made = Tensor(self.names.tensor(f"{t.name}_{suffix}"), t.dtype, like.shape(length))
        self.temps.append(made)
        return made

    def _slots(self, t: _Timed) -> Expr | None:
        return Const(t.depth + 1) if t.depth else None

    def _state(self, t: _Timed) -> State:
        depth = Const(t.depth)
        first, last = (self._tensor(n, t, depth) for n in ("first", "last"))
        kept = Tensor(
            self.names.tensor(f"{t.tensor.name}_kept"), t.tensor.dtype,
            (self.count, *t.shape(depth)),
        )  # fmt: skip
        self.temps.append(kept)
        given, left = (
            replace(first, name=self.names.tensor(f"{t.tensor.name}_{n}")) for n in ("in", "out")
        )
        return State(first, last, kept, given, left)

    # --- statements -----------------------------------------------------------------------------

    def _rewritten(self, s: Statement, access: Callable[[Read], Read]) -> Statement:
        def visit(e: Expr) -> Expr:
            return access(e) if isinstance(e, Read) and e.tensor in self.timed else e

        target = rewrite(s.target, visit)
        assert isinstance(target, Read)
        return replace(
            s, target=target, value=rewrite(s.value, visit),
            guards=tuple(rewrite(g, visit) for g in s.guards),
        )  # fmt: skip

    def _in_place(self, now: Mapping[str, Tensor]) -> Callable[[Read], Read]:
        """Accesses to the last states."""

        def access(read: Read) -> Read:
            t = self.timed[read.tensor]
            step = sub(self.step, self.start)
            place = render(t.place(read, self.step) + linear_form(step))
            slot = mod(place, t.depth + 1) if t.depth else None
            return Read(now[read.tensor].name, t.indices(read.indices, slot))

        return access

    def _keeping(self, t: _Timed, state: State, now: Tensor) -> Statement:
        """Keep what a segment begins with."""
        indices, ranges = over_all(self.names, state.first)
        step = simplify(sub(self.step, self.start))
        slot = mod(add(indices[t.axis], step), t.depth + 1)
        source = Read(now.name, t.indices(indices, slot))
        target = Read(state.kept.name, (floordiv(step, self.length), *indices))
        guard = Op("eq", (mod(step, self.length), Const(0)))
        return statement(
            self.names, target, "=", source, (self.steps, *ranges), (guard,), self.block,
            self.steps.index,
        )  # fmt: skip

    def _first_steps(self) -> dict[str, Tensor]:
        """Tensors of the steps that come before the segments."""
        if self.rest == Const(0):
            return {}
        return {
            n: self._tensor("begun", t, simplify(add(self.rest, Const(t.depth))))
            for n, t in self.timed.items()
        }

    def _moved_in(
        self, states: Mapping[str, State], now: Mapping[str, Tensor], first: Mapping[str, Tensor]
    ) -> tuple[list[Statement], list[Statement]]:
        """The steps before the segments, and the states that these begin with."""
        head: list[Statement] = []
        if first:

            def access(read: Read) -> Read:
                t = self.timed[read.tensor]
                step = sub(self.step, self.steps.lo)
                place = render(t.place(read, self.step) + linear_form(step))
                return Read(first[read.tensor].name, t.indices(read.indices, place))

            block = 1 + max(s.block for s in self.program.statements)
            sooner = Range(self.steps.index, self.steps.lo, self.start)
            for s in self.group:
                made = replace(self._rewritten(s, access), name=self.names.statement())
                head.append(replace(made, ranges=(sooner, *s.ranges[1:]), block=block))
        moved = []
        for n, state in states.items():
            t = self.timed[n]
            if not any(s.target.tensor == n and not s.block for s in self.program.statements):
                head.insert(0, stored(self.names, first.get(n, state.first), ZERO))
            indices, ranges = over_all(self.names, state.first)
            if first:
                place = add(indices[t.axis], self.rest)
                value = Read(first[n].name, t.indices(indices, place))
                target = Read(state.first.name, indices)
                head.append(statement(self.names, target, "=", value, ranges))
            begun = Read(now[n].name, indices)
            moved.append(statement(self.names, begun, "=", Read(state.first.name, indices), ranges))
        return head, moved

    def _moved_out(self, states: Mapping[str, State], now: Mapping[str, Tensor]) -> list[Statement]:
        """What the segments leave."""
        found = []
        for n, state in states.items():
            t = self.timed[n]
            indices, ranges = over_all(self.names, state.last)
            steps = simplify(sub(self.steps.hi, self.start))
            slot = mod(simplify(add(indices[t.axis], steps)), t.depth + 1)
            value = Read(now[n].name, t.indices(indices, slot))
            found.append(statement(self.names, Read(state.last.name, indices), "=", value, ranges))
        return found

    def _is_unread(self, s: Statement) -> bool:
        """Whether a statement writes what was there before the first that any step reads."""
        if s.target.tensor not in self.timed:
            return False
        place = self.timed[s.target.tensor].place(s.target, self.steps.lo)
        return not place.terms and place.constant < 0

    def _outside(
        self, s: Statement, states: Mapping[str, State], first: Mapping[str, Tensor], later: bool
    ) -> Statement:
        """A statement outside, with what it reads or writes before or after all steps."""

        def access(read: Read) -> Read:
            t = self.timed[read.tensor]
            begin = t.place(read, self.steps.lo)
            end = t.place(read, self.steps.hi)
            if not begin.terms and 0 <= begin.constant < t.depth:
                name = first[read.tensor].name if first else states[read.tensor].first.name
                return Read(name, t.indices(read.indices, Const(begin.constant)))
            if later and not end.terms and 0 <= end.constant < t.depth:
                name = states[read.tensor].last.name
                return Read(name, t.indices(read.indices, Const(end.constant)))
            raise self._refused(s, read)

        return self._rewritten(s, access)

    # --- one segment ----------------------------------------------------------------------------

    def _segment(self, states: Mapping[str, State], base: str) -> Program:
        """The program of one segment, whose step 0 is step `base`."""
        own = {
            n: Tensor(
                self.names.tensor(f"{n}_again"), t.tensor.dtype,
                t.shape(Const(self.length + t.depth)),
            )
            for n, t in self.timed.items()
        }  # fmt: skip
        statements: list[Statement] = []
        for n, state in states.items():
            indices, ranges = over_all(self.names, state.given)
            value = Read(state.given.name, indices)
            statements.append(statement(self.names, Read(own[n].name, indices), "=", value, ranges))
        steps = Range(self.steps.index, Const(0), Const(self.length))
        shifted = {self.steps.index: add(self.step, Size(base))}
        for s in self.group:
            moved = self._shifted(s, shifted, own)
            statements.append(replace(moved, ranges=(steps, *with_ranges(s.ranges[1:], shifted))))
        for n, state in states.items():
            t = self.timed[n]
            indices, ranges = over_all(self.names, state.left)
            place = add(indices[t.axis], Const(self.length))
            value = Read(own[n].name, t.indices(indices, place))
            statements.append(
                statement(self.names, Read(state.left.name, indices), "=", value, ranges)
            )
        known = self.program.tensors
        written = {s.target.tensor for s in self.group} - self.timed.keys()
        read = {r.tensor for s in self.group for r in s.reads} - self.timed.keys() - written
        return Program(
            self.program.name, (*self.program.sizes, base),
            (*(known[n] for n in known if n in read), *(s.given for s in states.values())),
            (*(known[n] for n in known if n in written), *(s.left for s in states.values())),
            tuple(own.values()), tuple(statements), self.program.constraints,
        )  # fmt: skip

    def _shifted(
        self, s: Statement, shifted: Mapping[str, Expr], own: Mapping[str, Tensor]
    ) -> Statement:
        """A statement of the block, `base` steps later; its own tensors begin at 0."""

        def access(read: Read) -> Read:
            indices = [substitute(i, shifted) for i in read.indices]
            if read.tensor not in self.timed:
                return Read(read.tensor, tuple(indices))
            t = self.timed[read.tensor]
            indices[t.axis] = render(t.place(read, self.step) + linear_form(self.step))
            return Read(own[read.tensor].name, tuple(indices))

        def later(e: Expr) -> Expr:
            if isinstance(e, Read):
                return access(e)
            if isinstance(e, Index):
                return substitute_value(e, shifted)
            if isinstance(e, Op):
                return replace(e, args=tuple(map(later, e.args)))
            return replace(e, arg=later(e.arg)) if isinstance(e, Cast) else e

        return replace(
            s, name=self.names.statement(), target=access(s.target), value=later(s.value),
            guards=tuple(substitute(g, shifted) for g in s.guards),
        )  # fmt: skip


def _root(number: Expr) -> int:
    """About the root of a number, a divisor of it if there is one."""
    if not isinstance(number, Const):
        return USUAL
    steps = max(1, int(number.value))
    least = next(k for k in range(1, steps + 1) if k * k >= steps)
    return next((k for k in range(least, 2 * least) if steps % k == 0), least)
