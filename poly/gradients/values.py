"""The values of a program that its derivatives read: where they are, and copies of those that are
overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from poly.deps.lifetimes import Lifetimes, changed_between, lifetimes
from poly.errors import GradientError
from poly.gradients.statements import Names, over_all, statement
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Read,
    dtype_of_expr,
    indices_of,
    reads_of,
    rewrite,
    simplify,
    sub,
)  # fmt: skip
from poly.ir.program import Program, Range, Statement, Tensor


class Values:
    """The statements of a program, with copies of what its derivatives need later."""

    def __init__(self, program: Program, names: Names) -> None:
        self._program, self._names = program, names
        self.temps: list[Tensor] = []
        self._before: dict[str, list[Statement]] = {}
        self._after: dict[str, list[Statement]] = {}
        self._copies: dict[tuple[str, Read, bool], Read] = {}

    @cached_property
    def lifetimes(self) -> Lifetimes:
        return lifetimes(self._program)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Those of the program and the copies.

        Raises
        ------
        GradientError : a copy would be of another value.
        """
        found: list[Statement] = []
        for s in self._program.statements:
            found += [*self._before.get(s.name, ()), s, *self._after.get(s.name, ())]
        self._check(found)
        return tuple(found)

    def kept(self, s: Statement, value: Expr) -> Expr:
        """An expression over the reads of a statement that may be computed after the program.

        Where it computes what the statement stored, that is read.
        """
        stored = not s.is_update and s.name not in self.lifetimes.replaced
        own = dtype_of_expr(s.value, self._program.dtypes)
        stored = stored and own == self._program.dtypes[s.target.tensor]

        def visit(e: Expr) -> Expr:
            if stored and e == s.value and not isinstance(e, (Read, Const)):
                return s.target
            if isinstance(e, Read) and self.lifetimes.is_overwritten(s, e):
                # What a statement wrote itself is there only after it.
                return self._copy(s, e, after=s.name in self.lifetimes.recurrent)
            return e

        return rewrite(value, visit)

    def add_after(self, s: Statement, more: Iterable[Statement]) -> None:
        """Add statements after one of the program, and after the copies of what it reads."""
        self._after.setdefault(s.name, []).extend(more)

    def result(self, s: Statement) -> Read:
        """The element that a statement writes, once it has all its terms."""
        if s.name not in self.lifetimes.replaced:
            return s.target
        return self._copy(s, s.target, after=True)

    def before(self, s: Statement) -> Read:
        """The element that a statement writes, before it does."""
        return self._copy(s, s.target, after=False)

    def all_before(self, s: Statement) -> Read:
        """What is in the whole tensor before a statement writes to it."""
        like = self._program.tensors[s.target.tensor]
        indices, ranges = over_all(self._names, like)
        made = Tensor(self._names.tensor(f"{like.name}_{s.name}"), like.dtype, like.shape)
        self.temps.append(made)
        copied, value = Read(made.name, indices), Read(like.name, indices)
        copy = statement(self._names, copied, "=", value, ranges)
        self._before.setdefault(s.name, []).append(copy)
        return copied

    def _copy(self, s: Statement, read: Read, after: bool) -> Read:
        key = (s.name, read, after)
        if key not in self._copies:
            moving = dict.fromkeys(i for e in read.indices for i in indices_of(e))
            if s.block:
                moving = dict.fromkeys([s.step, *moving])
            ranges = [r for r in s.ranges if r.index in moving]
            like = self._program.tensors[read.tensor]
            shape = tuple(simplify(sub(r.hi, r.lo)) for r in ranges)
            made = Tensor(self._names.tensor(f"{like.name}_{s.name}"), like.dtype, shape)
            copied = Read(made.name, tuple(sub(Index(r.index), r.lo) for r in ranges))
            self._copies[key] = copied
            self.temps.append(made)
            place = self._after if after else self._before
            place.setdefault(s.name, []).append(self._copying(s, copied, read, ranges))
        return self._copies[key]

    def _copying(
        self, s: Statement, copied: Read, read: Read, ranges: Sequence[Range]
    ) -> Statement:
        if any(reads_of(i) for i in read.indices):
            raise GradientError(
                f"statement {s.name} reads {read}, which is overwritten, at places that depend on "
                f"data"
            )
        known = {r.index for r in ranges}
        guards = [g for g in s.guards if known.issuperset(indices_of(g))]
        return statement(self._names, copied, "=", read, ranges, guards, s.block, s.step)

    def _check(self, statements: Sequence[Statement]) -> None:
        """Check that copies are made while the values are there."""
        temps = (*self._program.temps, *self.temps)
        copies = {c.tensor for c in self._copies.values()}
        own = {s.name for s in self._program.statements}
        kept = tuple(s for s in statements if s.name in own or s.target.tensor in copies)
        program = replace(self._program, temps=temps, statements=kept, text=None)
        for name, read, after in self._copies:
            (copy,) = (
                c for c in (self._after if after else self._before)[name]
                if c.target == self._copies[name, read, after]
            )  # fmt: skip
            s = self._program.statement(name)
            if changed_between(program, s, copy, after):
                raise GradientError(
                    f"statement {s.name}: its gradient needs {read}, which the statement "
                    f"overwrites while it runs"
                )
