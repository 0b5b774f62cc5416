"""Directional derivatives of programs: forward-mode differentiation, statement by statement.

For every tensor T there is a tensor dT, what T changes by when the inputs change by their own:

    T[f(x)] += v(A[g(x)], …)    is followed by    dT[f(x)] += ∂v/∂A[g(x)] * dA[g(x)] + …

After Wengert, "A simple automatic derivative evaluation program", CACM 1964.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from poly.errors import GradientError
from poly.gradients.apart import separate, without_updates
from poly.gradients.derivatives import ZERO, chosen, flows, plus, product
from poly.gradients.reductions import Passing, Reduction
from poly.gradients.request import active_tensors, check_active, check_request
from poly.gradients.statements import Names, statement
from poly.gradients.tidy import tidied
from poly.gradients.values import Values
from poly.ir.expr import Expr, Read, dtype_of_expr, rewrite
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.sets.check_bounds import check_bounds


def derivative(
    program: Program, wrt: Sequence[str], of: Sequence[str], with_values: bool = False
) -> Program:
    """The program of the change of outputs along a change of inputs.

    wrt : inputs; for each A of them, the result has an input ``dA`` of its shape, its change
    of : outputs; the result has a tensor ``dY`` for each Y of them, in this order
    with_values : whether the outputs themselves come first

    Raises
    ------
    GradientError : a tensor that has no derivative.
    """
    check_request(program, wrt, of)
    made = _Forward(program, tuple(wrt), tuple(of)).program(with_values)
    return check_bounds(verify_program(tidied(made)))


class _Forward:
    """The statements of a derivative, as they are made."""

    def __init__(self, program: Program, wrt: tuple[str, ...], of: tuple[str, ...]) -> None:
        self.names = Names(program)
        source, new = without_updates(program, self.names)
        self.source = separate(source, self.names)
        self.tensors = self.source.tensors
        self.of = tuple(new.get(n, n) for n in of)
        self.active = active_tensors(self.source, wrt, self.of)
        check_active(wrt, of, self.active, new)
        labels = {b: a for a, b in new.items()}
        self.changes = {
            n: replace(t, name=self.names.tensor(f"d{labels.get(n, n)}"))
            for n, t in self.tensors.items()
            if n in self.active
        }
        self.inputs = tuple(self.changes[n] for n in wrt)
        self.temps: list[Tensor] = []
        self.values = Values(self.source, self.names)

    def program(self, with_values: bool) -> Program:
        """The program, before it is tidied."""
        source = self.source
        for s in source.statements:
            if s.target.tensor in self.active:
                self.values.add_after(s, self._changes(s))
        results = tuple(self.changes[n] for n in self.of)
        outputs = (*(source.outputs if with_values else ()), *results)
        inputs = (*source.inputs, *self.inputs)
        given = {t.name for t in (*inputs, *outputs)}
        temps = (
            *source.temps, *self.temps, *self.values.temps, *source.outputs,
            *self.changes.values(),
        )  # fmt: skip
        return Program(
            source.name, source.sizes, inputs, outputs,
            tuple(t for t in dict.fromkeys(temps) if t.name not in given),
            self.values.statements, source.constraints,
        )  # fmt: skip

    def _changes(self, s: Statement) -> Iterator[Statement]:
        """What a statement's result changes by."""
        own = s.target.tensor
        if any((s.name, r) in self.values.lifetimes.in_place for r in s.reads):
            raise GradientError(f"statement {s.name} overwrites what it reads, in a block")
        dtype = dtype_of_expr(s.value, self.source.dtypes)
        like = self.tensors[own]
        passed = Reduction(self.names, self.values, s, like, dtype, in_block=True).passing()
        self.temps += passed.temps
        yield from passed.made
        target = Read(self.changes[own].name, s.target.indices)
        add = partial(statement, self.names, block=s.block, step=s.step)
        if passed.span is not None:
            before = replace(target, indices=passed.span.indices)
            value = passed.to_old(before)
            yield add(before, "=", value, passed.span.ranges, passed.span.guards)
        op = "=" if not s.is_update else "+=!" if s.init else "+="
        yield add(target, op, self._change(s, passed), s.ranges, s.guards)

    def _change(self, s: Statement, passed: Passing) -> Expr:
        """What a term changes by."""
        one = Read("", ())
        value: Expr = ZERO
        given = {**self.source.dtypes, "": self.source.dtypes[s.target.tensor]}
        for read, factor in flows(s.value, product(one, passed.factor), given, self.active).items():
            change = Read(self.changes[read.tensor].name, read.indices)
            value = plus(value, rewrite(factor, partial(_replaced, one, change)))
        return value if passed.where is None else chosen(passed.where, value, ZERO)


def _replaced(old: Expr, new: Expr, e: Expr) -> Expr:
    return new if e == old else e
