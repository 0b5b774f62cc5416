"""The gradients of statements, one by one: what each adds to the gradients of what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from poly.errors import GradientError
from poly.gradients.backwards import Backwards, Contribution
from poly.gradients.derivatives import ZERO, chosen, flows, product
from poly.gradients.reductions import Passing, Reduction, Span
from poly.gradients.statements import Names, statement, stored
from poly.gradients.values import Values
from poly.ir.expr import Expr, Read, dtype_of_expr
from poly.ir.program import Program, Statement, Tensor


class Adjoints:
    """The statements of a gradient, as they are made.

    program : what is differentiated, of which every statement keeps what it reads and writes
    active : the tensors that have a gradient
    gradients : those that are there already, by the tensors they belong to

    `values` has the statements of the program, with copies of what gradients need, `backward` those
    of the gradients, and `temps` the tensors of these that are no gradients.
    """

    def __init__(
        self, program: Program, names: Names, active: frozenset[str],
        gradients: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.source, self.names, self.active = program, names, active
        self.tensors = program.tensors
        self.values = Values(program, names)
        self.backward: list[Statement] = []
        self.temps: list[Tensor] = []
        #: The gradients with respect to outputs, which are passed.
        self.seeds: list[Tensor] = []
        self.gradients = dict(gradients or {})
        self.blocks = max((s.block for s in program.statements), default=0)

    def run(self) -> None:
        """All statements, from the last to the first."""
        for group in reversed(self.source.groups):
            used = [s for s in group if s.target.tensor in self.active]
            if used:
                self.group(used)

    def group(self, used: Sequence[Statement]) -> None:
        """The statements of a block, or one that is alone, of which all count."""
        if used[0].block or used[0].name in self.values.lifetimes.recurrent:
            self._recurrence(used)
        else:
            self._statement(used[0])

    # --- tensors ------------------------------------------------------------------------------

    def gradient_of(self, t: Tensor) -> Tensor:
        """The tensor of a gradient, which is 0 until something is added."""
        if t.name not in self.gradients:
            made = Tensor(self.names.tensor(f"d{t.name}"), t.dtype, t.shape)
            self.gradients[t.name] = made
            self.emit(stored(self.names, made, ZERO))
        return self.gradients[t.name]

    def _read(self, element: Read) -> Read:
        """The gradient with respect to an element."""
        return Read(self.gradient_of(self.tensors[element.tensor]).name, element.indices)

    def emit(self, s: Statement) -> None:
        self.backward.append(s)

    def contribute(self, c: Contribution) -> None:
        self.emit(self._adding(c))

    def _adding(self, c: Contribution, block: int = 0, step: str = "") -> Statement:
        return statement(
            self.names, self._read(c.read), "+=", c.value, c.ranges, c.guards, block, step
        )

    # --- statements ---------------------------------------------------------------------------

    def _statement(self, s: Statement) -> None:
        """Run a statement backwards whose instances may run in any order."""
        g, passed = self._read(s.target), self._passed(s)
        for c in self._contributions(s, g, passed):
            self.contribute(c)
        if passed.span is not None:
            self._pass_to_old(s, passed, passed.span)
        elif s.name in self.values.lifetimes.covering:
            self._clear(s)

    def _pass_to_old(self, s: Statement, passed: Passing, span: Span) -> None:
        """What a maximum or a product passes on to what was there before it."""
        g = self._read(Read(s.target.tensor, span.indices))
        self.emit(statement(self.names, g, "=", passed.to_old(g), span.ranges, span.guards))

    def _contributions(self, s: Statement, g: Expr, passed: Passing) -> Iterator[Contribution]:
        """What a statement adds to the gradients of what it reads."""
        found = flows(s.value, product(g, passed.factor), self.source.dtypes, self.active)
        for read, value in found.items():
            if passed.where is not None:
                value = chosen(passed.where, value, ZERO)
            yield Contribution(read, self.values.kept(s, value), s.ranges, s.guards)

    def _passed(self, s: Statement) -> Passing:
        """What a statement passes on to its terms, with the statements that compute it."""
        like, dtype = self.tensors[s.target.tensor], dtype_of_expr(s.value, self.source.dtypes)
        found = Reduction(self.names, self.values, s, like, dtype, in_block=False).passing()
        self.temps += found.temps
        for made in found.made:
            self.emit(replace(made, value=self.values.kept(s, made.value)))
        return found

    def _clear(self, s: Statement) -> None:
        """What was there before a statement overwrote it has no gradient from what follows."""
        free = [r for r in s.ranges if r.index in s.free]
        if not s.is_update or s.init:
            self.emit(statement(self.names, self._read(s.target), "=", ZERO, free, s.free_guards))

    # --- recurrences --------------------------------------------------------------------------

    def _recurrence(self, group: Sequence[Statement]) -> None:
        """Run statements backwards that read each other's results of earlier steps."""
        own = {s.target.tensor for s in group}
        for name in sorted(own):
            self.gradient_of(self.tensors[name])
        self._check_kept(group)
        parts = []
        for s in reversed(group):
            passed = self._passed(s)
            if passed.span is not None:
                raise GradientError(f"statement {s.name}: {s.op} without {s.op}! in a recurrence")
            parts += [(s, c) for c in self._contributions(s, self._read(s.target), passed)]
        inside = [(s, c) for s, c in parts if c.read.tensor in own]
        outside = [(s, c) for s, c in parts if c.read.tensor not in own]
        if inside:
            self.blocks += 1
            own_tensors = (*self.temps, *self.values.temps, *self.gradients.values())
            named = self.tensors | {t.name: t for t in (*own_tensors, *self.seeds)}
            found = Backwards(self.source, group, self._adding, named, self.blocks)
            self.backward += found.statements(inside)
        for _, c in outside:
            self.contribute(c)
        for s in reversed(group):
            if s.name in self.values.lifetimes.covering:
                self._clear(s)

    def _check_kept(self, group: Sequence[Statement]) -> None:
        """Check that statements that run together do not overwrite each other's results."""
        found = self.values.lifetimes
        for s in group:
            own = [o for o in group if o.target.tensor == s.target.tensor]
            if s.name in found.covering and any(o.name in found.replaced for o in own):
                raise GradientError(
                    f"statement {s.name} overwrites results of the recurrence that it belongs to"
                )
