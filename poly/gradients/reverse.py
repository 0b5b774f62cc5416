"""Gradients of programs: reverse-mode differentiation, statement by statement.

For every tensor T on the way from what is differentiated to what it is differentiated by there is
a tensor dT of the same shape, the gradient with respect to T.  A statement

    T[f(x)] += v(A[g(x)], …)         over the domain D

turns into one for each of its reads, over the same domain:

    dA[g(x)] += dT[f(x)] * ∂v/∂A[g(x)]

in reverse order: when dT[f(x)] is read, whatever read T[f(x)] has contributed to it.  Statements
that read what they wrote, and those of a block, run backwards in time; isl shows that every
element is complete when it is read, or the order is refused.

After Speelpenning, "Compiling Fast Partial Derivatives of Functions Given by Algorithms", 1980;
the gather of scattered sums is that of `poly.rewrites.scatter_to_gather`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from poly.errors import GradientError
from poly.gradients.cancelling import cancelling
from poly.gradients.derivatives import ONE, ZERO, call, chosen, flows, over, times
from poly.gradients.lifetimes import Lifetimes, is_complete_when_read, lifetimes
from poly.gradients.statements import Names, over_all, statement, with_indices
from poly.gradients.tidy import tidied
from poly.ir.expr import (
    Cast, Const, Expr, Index, Read, add, dtype_of_expr, indices_of, reads_of, rewrite, simplify,
    sub,
)  # fmt: skip
from poly.ir.program import Program, Range, Statement, Tensor, verify_program
from poly.sets.check_bounds import check_bounds


@dataclass(frozen=True)
class Contribution:
    """What one statement adds to the gradient of a tensor that it reads."""

    read: Read
    value: Expr
    ranges: tuple[Range, ...]
    guards: tuple[Expr, ...]


def gradient(
    program: Program, wrt: Sequence[str], of: Sequence[str], with_values: bool = False
) -> Program:
    """The program of the gradients of outputs with respect to inputs.

    wrt : inputs; the result has a tensor ``dA`` for each A of them, in this order
    of : outputs; for each Y of them, the result has an input ``dY`` of its shape, the gradient of
        what follows with respect to Y; a scalar's is 1 and not passed
    with_values : whether the outputs themselves come first

    Raises
    ------
    GradientError : a tensor that has no gradient, or an order that cannot be reversed.
    """
    made = _Reverse(program, tuple(wrt), tuple(of)).program(with_values)
    return check_bounds(verify_program(tidied(made)))


class _Reverse:
    """The statements of a gradient, as they are made."""

    def __init__(self, program: Program, wrt: tuple[str, ...], of: tuple[str, ...]) -> None:
        self.source, self.wrt, self.of = program, wrt, of
        self.names = Names(program)
        self.tensors = program.tensors
        self.active = active_tensors(program, wrt, of)
        _check_request(program, wrt, of, self.active)
        self.forward = list(program.statements)
        self.backward: list[Statement] = []
        self.temps: list[Tensor] = list(program.temps)
        self.seeds: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.blocks = max((s.block for s in program.statements), default=0)

    @cached_property
    def lifetimes(self) -> Lifetimes:
        return lifetimes(self.source)

    def program(self, with_values: bool) -> Program:
        """The program, before it is tidied."""
        for name in self.of:
            self._seed(self.tensors[name])
        for group in reversed(self.source.groups):
            used = [s for s in group if s.target.tensor in self.active]
            if used and (used[0].block or used[0].name in self.lifetimes.recurrent):
                self._recurrence(used)
            elif used:
                self._statement(used[0])
        results = []
        for name in self.wrt:
            results.append(self._gradient_of(self.tensors[name]))
        outputs = self.source.outputs if with_values else ()
        kept = {t.name for t in (*outputs, *results)}
        inputs = (*self.source.inputs, *self.seeds.values())
        temps = [*self.temps, *self.gradients.values(), *self.source.outputs]
        given = kept | {t.name for t in inputs}
        return Program(
            self.source.name, self.source.sizes, inputs, (*outputs, *results),
            tuple(t for t in dict.fromkeys(temps) if t.name not in given),
            (*self.forward, *self.backward), self.source.constraints,
        )  # fmt: skip

    # --- tensors ------------------------------------------------------------------------------

    def _seed(self, t: Tensor) -> None:
        """Begin with the gradient with respect to an output."""
        indices, ranges = over_all(self.names, t)
        value: Expr = ONE
        if t.shape:
            seed = Tensor(self.names.tensor(f"d{t.name}"), t.dtype, t.shape)
            self.seeds[t.name] = seed
            value = Read(seed.name, indices)
        self._contribute(Contribution(Read(t.name, indices), value, ranges, ()))

    def _gradient_of(self, t: Tensor) -> Tensor:
        """The tensor of a gradient, which is 0 until something is added."""
        if t.name not in self.gradients:
            made = Tensor(self.names.tensor(f"d{t.name}"), t.dtype, t.shape)
            self.gradients[t.name] = made
            indices, ranges = over_all(self.names, t)
            self._emit(statement(self.names, Read(made.name, indices), "=", ZERO, ranges))
        return self.gradients[t.name]

    def _read(self, element: Read) -> Read:
        """The gradient with respect to an element."""
        return Read(self._gradient_of(self.tensors[element.tensor]).name, element.indices)

    def _temporary(self, name: str, like: Tensor, shape: tuple[Expr, ...]) -> str:
        made = Tensor(self.names.tensor(name), like.dtype, shape)
        self.temps.append(made)
        return made.name

    def _emit(self, s: Statement) -> None:
        self.backward.append(s)

    def _contribute(self, c: Contribution) -> None:
        self._emit(self._adding(c))

    def _adding(self, c: Contribution, block: int = 0, step: str = "") -> Statement:
        return statement(
            self.names, self._read(c.read), "+=", c.value, c.ranges, c.guards, block, step
        )

    # --- statements ---------------------------------------------------------------------------

    def _statement(self, s: Statement) -> None:
        """Run a statement backwards whose instances may run in any order."""
        g: Expr = self._read(s.target)
        own = any(r.tensor == s.target.tensor for r in s.reads)
        if own:  # its gradient changes while it is used
            g = self._moved(s)
        for c in self._contributions(s, g):
            self._contribute(c)
        if s.name in self.lifetimes.covering and not own:
            self._clear(s)

    def _contributions(self, s: Statement, g: Expr) -> Iterator[Contribution]:
        """What a statement adds to the gradients of what it reads."""
        if s.op in ("max=", "min="):
            g, tie = self._shared(s, g)
        elif s.op == "*=":
            g, tie = self._others(s, g), None
        else:
            tie = None
        for read, value in flows(s.value, g, self.source.dtypes, self.active).items():
            self._check_affine(s, read)
            if tie is not None:
                value = chosen(tie, value, ZERO)
            yield Contribution(read, self._kept(s, value), s.ranges, s.guards)

    def _check_affine(self, s: Statement, read: Read) -> None:
        if any(reads_of(i) for i in read.indices):
            raise GradientError(
                f"statement {s.name} reads {read}: the gradient with respect to {read.tensor} would "
                f"be written at places that depend on data"
            )

    def _moved(self, s: Statement) -> Read:
        """The gradient of a statement that reads the elements it overwrites, moved to a copy."""
        free = [r for r in s.ranges if r.index in s.free]
        copy = self._temporary(
            f"d{s.target.tensor}_{s.name}", self.tensors[s.target.tensor],
            tuple(r.hi for r in free),
        )  # fmt: skip
        copied = Read(copy, tuple(Index(r.index) for r in free))
        self._emit(statement(self.names, copied, "=", self._read(s.target), free, s.free_guards))
        self._clear(s)
        return copied

    def _clear(self, s: Statement) -> None:
        """What was there before a statement overwrote it has no gradient from what follows."""
        free = [r for r in s.ranges if r.index in s.free]
        if not s.is_update or s.init:
            self._emit(
                statement(self.names, self._read(s.target), "=", ZERO, free, s.free_guards)
            )

    # --- values -------------------------------------------------------------------------------

    def _kept(self, s: Statement, value: Expr) -> Expr:
        """A value with what is known replaced by reads, and what is overwritten by copies."""
        result = s.target
        known = not s.is_update and s.name not in self.lifetimes.replaced
        same = known and dtype_of_expr(s.value, self.source.dtypes) == self._dtype(s.target)

        def visit(e: Expr) -> Expr:
            if same and e == s.value and not isinstance(e, (Read, Const)):
                return result
            if isinstance(e, Read) and self.lifetimes.is_overwritten(s, e):
                return self._copy(s, e)
            return e

        return rewrite(value, visit)

    def _dtype(self, read: Read) -> object:
        return self.tensors[read.tensor].dtype

    def _copy(self, s: Statement, read: Read) -> Read:
        """A copy of an element, made just before a statement that reads it."""
        raise GradientError(
            f"statement {s.name} reads {read}, which is overwritten before its gradient needs it"
        )

    def _result(self, s: Statement) -> Read:
        """What a reduction came to."""
        if not s.init or s.name in self.lifetimes.replaced:
            raise GradientError(
                f"statement {s.name}: {s.op} of a tensor that has values before or after it"
            )
        return s.target

    def _shared(self, s: Statement, g: Expr) -> tuple[Expr, Expr]:
        """A maximum's or minimum's gradient over the number of its ties, and what is one of them."""
        result = self._result(s)
        value: Expr = s.value
        if dtype_of_expr(value, self.source.dtypes) != self._dtype(result):
            value = Cast(self.tensors[result.tensor].dtype, value)
        both = call("and", call("isnan", value), call("isnan", result))
        tie = call("or", call("eq", value, result), both)
        like = self.tensors[result.tensor]
        count = Read(self._temporary(f"{like.name}_ties", like, like.shape), result.indices)
        self._emit(
            statement(self.names, count, "+=!", chosen(tie, ONE, ZERO), s.ranges, s.guards)
        )
        return over(g, count), tie

    def _others(self, s: Statement, g: Expr) -> Expr:
        """A product's gradient times all other factors; one factor that is 0 leaves the others."""
        result = self._result(s)
        like = self.tensors[result.tensor]
        zero = call("eq", s.value, ZERO)
        zeros = Read(self._temporary(f"{like.name}_zeros", like, like.shape), result.indices)
        rest = Read(self._temporary(f"{like.name}_others", like, like.shape), result.indices)
        self._emit(
            statement(self.names, zeros, "+=!", chosen(zero, ONE, ZERO), s.ranges, s.guards)
        )
        self._emit(
            statement(self.names, rest, "*=!", chosen(zero, ONE, s.value), s.ranges, s.guards)
        )
        alone = chosen(call("eq", zeros, ONE), rest, ZERO)
        none = chosen(call("eq", zeros, ZERO), over(rest, s.value), ZERO)
        return times(g, chosen(zero, alone, none))

    # --- recurrences --------------------------------------------------------------------------

    def _recurrence(self, group: Sequence[Statement]) -> None:
        """Run statements backwards that read each other's results of earlier steps."""
        own = {s.target.tensor for s in group}
        for name in sorted(own):
            self._gradient_of(self.tensors[name])
        for s in group:
            if s.name in self.lifetimes.covering and s.name in self.lifetimes.replaced:
                raise GradientError(f"statement {s.name} overwrites its own results")
        parts = [
            (s, c) for s in reversed(group) for c in self._contributions(s, self._read(s.target))
        ]
        written = {n for s in group for n in s.indices}
        inside = [(s, c) for s, c in parts if c.read.tensor in own]
        outside = [(s, c) for s, c in parts if c.read.tensor not in own]
        if inside:
            self.backward += self._backwards(group, inside, written)
        for _, c in outside:
            self._contribute(c)
        for s in reversed(group):
            if s.name in self.lifetimes.covering:
                self._clear(s)

    def _backwards(
        self,
        group: Sequence[Statement],
        inside: Sequence[tuple[Statement, Contribution]],
        indices: set[str],
    ) -> list[Statement]:
        """The first order of what is added to its own gradients in which all are complete in time."""
        for made in self._orders(group, [c for _, c in inside], indices):
            if self._is_in_time(made):
                return made
        names = ", ".join(s.name for s in group)
        raise GradientError(f"no order was found that runs statement {names} backwards")

    def _orders(
        self, group: Sequence[Statement], parts: Sequence[Contribution], indices: set[str]
    ) -> Iterator[list[Statement]]:
        """Orders to try: step by step, or one statement along some of its loops."""
        if group[0].block:
            yield self._in_steps(parts, group[0].step, {group[0].step})
            return
        loops = group[0].indices
        if len(parts) == 1:
            for loop in loops:
                yield [self._turned(self._adding(parts[0]), {loop})]
            yield [self._turned(self._adding(parts[0]), set(loops))]
        for step in loops:
            yield self._in_steps(parts, step, {step})
            yield self._in_steps(parts, step, set(loops))

    def _in_steps(
        self, parts: Sequence[Contribution], step: str, turned: set[str]
    ) -> list[Statement]:
        if any(step not in {i for e in c.read.indices for i in indices_of(e)} for c in parts):
            return []
        self.blocks += 1
        made = (self._adding(c, self.blocks, step) for c in parts)
        return [self._turned(s, turned) for s in made]

    def _turned(self, s: Statement, loops: set[str]) -> Statement:
        """A statement with some loops run from the last iteration to the first."""
        new: dict[str, Expr] = {
            r.index: simplify(sub(add(r.lo, sub(r.hi, Const(1))), Index(r.index)))
            for r in s.ranges
            if r.index in loops
        }
        return with_indices(s, new)

    def _is_in_time(self, made: Sequence[Statement]) -> bool:
        """Whether every gradient is complete when it is read."""
        if not made:
            return False
        named = {
            **self.tensors, **{t.name: t for t in self.gradients.values()},
            **{t.name: t for t in self.temps}, **{t.name: t for t in self.seeds.values()},
        }  # fmt: skip
        used = {r.tensor for s in made for r in s.reads} | {s.target.tensor for s in made}
        written = {s.target.tensor for s in made}
        alone = Program(
            "f", self.source.sizes, tuple(named[n] for n in sorted(used)),
            tuple(named[n] for n in sorted(written)), (), tuple(made), self.source.constraints,
        )  # fmt: skip
        return is_complete_when_read(alone)


def active_tensors(program: Program, wrt: Iterable[str], of: Iterable[str]) -> frozenset[str]:
    """The float tensors that depend on `wrt` and on which `of` depend."""
    dtypes = program.dtypes

    def grown(start: Iterable[str], step: dict[str, set[str]]) -> set[str]:
        found, left = set(start), list(start)
        while left:
            for n in step.get(left.pop(), set()) - found:
                found.add(n)
                left.append(n)
        return found

    uses: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for s in program.statements:
        t = s.target.tensor
        if not dtypes[t].is_float:
            continue
        flowing = flows(s.value, ONE, dtypes, frozenset(n for n, d in dtypes.items() if d.is_float))
        for r in flowing:
            uses.setdefault(r.tensor, set()).add(t)
            sources.setdefault(t, set()).add(r.tensor)
    found = grown([n for n in wrt if dtypes[n].is_float], uses) & grown(of, sources)
    return frozenset(found) - cancelling(program, of)


def _check_request(
    program: Program, wrt: Sequence[str], of: Sequence[str], active: frozenset[str]
) -> None:
    inputs = {t.name: t for t in program.inputs}
    outputs = {t.name: t for t in program.outputs}
    for kind, names, known in (("input", wrt, inputs), ("output", of, outputs)):
        if not names:
            raise GradientError(f"a gradient needs an {kind}: there are {', '.join(known)}")
        for n in names:
            if n not in known:
                raise GradientError(f"there is no {kind} {n!r}; there are {', '.join(known)}")
            if not known[n].dtype.is_float:
                raise GradientError(f"{kind} {n} is {known[n].dtype}: only floats have gradients")
            if names.count(n) > 1:
                raise GradientError(f"{kind} {n} is named twice")
    for n in wrt:
        if n not in active:
            raise GradientError(f"{', '.join(of)} does not depend on {n}")
    for n in of:
        if n not in active:
            raise GradientError(f"{n} does not depend on {', '.join(wrt)}")
