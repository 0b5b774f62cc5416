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

from collections.abc import Iterator, Sequence
from dataclasses import replace

from poly.errors import GradientError
from poly.gradients.apart import separate, without_updates
from poly.gradients.backwards import Backwards, Contribution
from poly.gradients.derivatives import ONE, ZERO, chosen, flows, product
from poly.gradients.reductions import Passing, Reduction, Span
from poly.gradients.request import active_tensors, check_active, check_request
from poly.gradients.statements import Names, over_all, statement
from poly.gradients.tidy import tidied
from poly.gradients.values import Values
from poly.ir.expr import Expr, Read, dtype_of_expr
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.sets.check_bounds import check_bounds


def gradient(
    program: Program, wrt: Sequence[str], of: Sequence[str], with_values: bool = False,
    unit: bool = True,
) -> Program:  # fmt: skip
    """The program of the gradients of outputs with respect to inputs.

    wrt : inputs; the result has a tensor ``dA`` for each A of them, in this order
    of : outputs; for each Y of them, the result has an input ``dY`` of its shape, the gradient of
        what follows with respect to Y
    with_values : whether the outputs themselves come first
    unit : whether a scalar's gradient is 1, and not passed

    Raises
    ------
    GradientError : a tensor that has no gradient, or an order that cannot be reversed.
    """
    made = _Reverse(program, tuple(wrt), tuple(of), unit).program(with_values)
    return check_bounds(verify_program(tidied(made)))


def gradient_and_values(
    program: Program, wrt: Sequence[str], of: Sequence[str], unit: bool = True
) -> tuple[Program, frozenset[str]]:
    """`gradient` with values, and which of its tensors hold values, not gradients."""
    reverse = _Reverse(program, tuple(wrt), tuple(of), unit)
    made = check_bounds(verify_program(tidied(reverse.program(with_values=True))))
    own = {*reverse.source.tensors, *(t.name for t in reverse.values.temps)}
    return made, frozenset(own & made.tensors.keys())


class _Reverse:
    """The statements of a gradient, as they are made."""

    def __init__(
        self, program: Program, wrt: tuple[str, ...], of: tuple[str, ...], unit: bool
    ) -> None:
        self.unit = unit
        check_request(program, wrt, of)
        self.names = Names(program)
        source, new = without_updates(program, self.names)
        self.source = program = separate(source, self.names)
        self.wrt, self.of = wrt, tuple(new.get(n, n) for n in of)
        #: Outputs by the names that the user gave them.
        self.labels = {b: a for a, b in new.items()}
        self.tensors = program.tensors
        self.active = active_tensors(program, wrt, self.of)
        check_active(wrt, of, self.active, new)
        self.values = Values(program, self.names)
        self.backward: list[Statement] = []
        self.temps: list[Tensor] = list(program.temps)
        self.seeds: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.blocks = max((s.block for s in program.statements), default=0)

    def program(self, with_values: bool) -> Program:
        """The program, before it is tidied."""
        for name in self.of:
            self._seed(self.tensors[name])
        for group in reversed(self.source.groups):
            used = [s for s in group if s.target.tensor in self.active]
            if used and (used[0].block or used[0].name in self.values.lifetimes.recurrent):
                self._recurrence(used)
            elif used:
                self._statement(used[0])
        results = []
        for name in self.wrt:
            results.append(self._gradient_of(self.tensors[name]))
        outputs = self.source.outputs if with_values else ()
        kept = {t.name for t in (*outputs, *results)}
        inputs = (*self.source.inputs, *self.seeds.values())
        temps = [*self.temps, *self.values.temps, *self.gradients.values(), *self.source.outputs]
        given = kept | {t.name for t in inputs}
        return Program(
            self.source.name, self.source.sizes, inputs, (*outputs, *results),
            tuple(t for t in dict.fromkeys(temps) if t.name not in given),
            (*self.values.statements, *self.backward), self.source.constraints,
        )  # fmt: skip

    # --- tensors ------------------------------------------------------------------------------

    def _seed(self, t: Tensor) -> None:
        """Begin with the gradient with respect to an output."""
        indices, ranges = over_all(self.names, t)
        value: Expr = ONE
        if t.shape or not self.unit:
            name = self.labels.get(t.name, t.name)
            seed = Tensor(self.names.tensor(f"d{name}"), t.dtype, t.shape)
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
        g, passed = self._read(s.target), self._passed(s)
        for c in self._contributions(s, g, passed):
            self._contribute(c)
        if passed.span is not None:
            self._pass_to_old(s, passed, passed.span)
        elif s.name in self.values.lifetimes.covering:
            self._clear(s)

    def _pass_to_old(self, s: Statement, passed: Passing, span: Span) -> None:
        """What a maximum or a product passes on to what was there before it."""
        g = self._read(Read(s.target.tensor, span.indices))
        self._emit(statement(self.names, g, "=", passed.to_old(g), span.ranges, span.guards))

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
            self._emit(replace(made, value=self.values.kept(s, made.value)))
        return found

    def _clear(self, s: Statement) -> None:
        """What was there before a statement overwrote it has no gradient from what follows."""
        free = [r for r in s.ranges if r.index in s.free]
        if not s.is_update or s.init:
            self._emit(statement(self.names, self._read(s.target), "=", ZERO, free, s.free_guards))

    # --- recurrences --------------------------------------------------------------------------

    def _recurrence(self, group: Sequence[Statement]) -> None:
        """Run statements backwards that read each other's results of earlier steps."""
        own = {s.target.tensor for s in group}
        for name in sorted(own):
            self._gradient_of(self.tensors[name])
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
            named = self.tensors | {t.name: t for t in (*own_tensors, *self.seeds.values())}
            found = Backwards(self.source, group, self._adding, named, self.blocks)
            self.backward += found.statements(inside)
        for _, c in outside:
            self._contribute(c)
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
