"""Programs whose blocks keep the result of each step of what they overwrite.

    for t in 0:T { h[j] = tanh(h[j] + X[t,j]) }

becomes ``for t in 0:T { H[t+1,j] = tanh(H[t,j] + X[t,j]) }`` between ``H[0,j] = h[j]`` and
``h[j] = H[T,j]``: a recurrence whose gradient can read every state.  What the steps only add to,
``A[j] += h[j] * h[j]``, is one sum after the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from poly.gradients.statements import Names, over_all, statement
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    indices_of,
    rewrite,
    simplify,
    sub,
)  # fmt: skip
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Statement, Tensor

_ONE = Const(1)


def with_states(program: Program, names: Names) -> Program:
    """The program with a tensor of all steps for each that a block overwrites in every step.

    What a step writes only in part remains as it is.
    """
    made: list[Statement] = []
    temps = list(program.temps)
    outputs = {t.name for t in program.outputs}
    for n, group in enumerate(program.groups):
        later = {r.tensor for g in program.groups[n + 1 :] for s in g for r in s.reads}
        wanted = outputs | later | {s.target.tensor for g in program.groups[n + 1 :] for s in g}
        found = list(group)
        before: list[Statement] = []
        after: list[Statement] = []
        for name in _overwritten(group) if group[0].block else ():
            t = program.tensors[name]
            if all(_is_whole(s, t) for s in found if s.target.tensor == name):
                kept = _Kept(names, t, found)
                found, temps = kept.statements(), [*temps, *kept.versions]
                before += kept.first()
                after += kept.last() if name in wanted else []
        sums = [s for s in found if _is_sum(s, found)]
        made += [*before, *(s for s in found if s not in sums), *map(_after, sums), *after]
    if tuple(made) == program.statements:
        return program
    return replace(program, temps=tuple(temps), statements=tuple(made), text=None)


def _overwritten(group: Sequence[Statement]) -> list[str]:
    """The tensors that each step of a block overwrites, in order."""
    found = []
    for name in dict.fromkeys(s.target.tensor for s in group):
        writers = _written(group, name)
        in_place = not any(_moves(s) for s in writers)
        only_added = all(s.is_update and not s.init for s in writers)
        if in_place and not (only_added and not _read(group, name)):
            found.append(name)
    return found


def _is_sum(s: Statement, group: Sequence[Statement]) -> bool:
    """Whether a statement of a block can be one sum after it: no other reads what it adds to, and
    what it reads is still there.
    """
    others = [o for o in group if o is not s]
    name = s.target.tensor
    if not s.block or not s.is_update or s.init or _moves(s) or s.scatters:
        return False
    if _read(group, name) or _written(others, name):
        return False
    return all(_is_kept(r.tensor, s, group) for r in s.reads)


def _is_kept(name: str, s: Statement, group: Sequence[Statement]) -> bool:
    """Whether what a statement of a block reads of a tensor is there after the block."""
    writers = _written(group, name)
    earlier = len(writers) == 1 or all(group.index(w) < group.index(s) for w in writers)
    return earlier and all(any(_is_time(e, w.step) for e in w.target.indices) for w in writers)


def _is_time(e: Expr, step: str) -> bool:
    """Whether an index is the step, plus a constant or sizes."""
    ahead = linear_form(e) - linear_form(Index(step))
    return not any(indices_of(atom) for atom, _ in ahead.terms)


def _after(s: Statement) -> Statement:
    """A sum over all steps, which was one of a block."""
    step, *ranges = s.ranges
    free = [r for r in ranges if r.index not in s.reductions]
    summed = [r for r in ranges if r.index in s.reductions]
    return replace(
        s, ranges=(*free, step, *summed), reductions=(step.index, *s.reductions), block=0
    )


def _written(statements: Sequence[Statement], name: str) -> list[Statement]:
    return [s for s in statements if s.target.tensor == name]


def _read(statements: Sequence[Statement], name: str) -> bool:
    return any(r.tensor == name for s in statements for r in s.reads)


def _moves(s: Statement) -> bool:
    """Whether each step writes other elements than the one before."""
    return s.step in {i for e in s.target.indices for i in indices_of(e)}


def _is_whole(s: Statement, t: Tensor) -> bool:
    """Whether what is in a tensor after a statement of a step is what the statement stored or
    added, and no instance reads what another one stored.
    """
    if any(r.tensor == t.name and r != s.target for r in s.reads):
        return False
    if s.is_update and not s.init:
        return not _read([s], t.name)
    extents = {r.index: (r.lo, r.hi) for r in s.ranges}
    plain = [e.name if isinstance(e, Index) else "" for e in s.target.indices]
    return (
        not s.guards
        and len(set(plain)) == len(plain)
        and all(
            n and extents[n] == (Const(0), e) for n, e in zip(plain, t.shape, strict=True)
        )
    )  # fmt: skip


class _Kept:
    """A tensor that is kept after each statement of a block that writes it."""

    def __init__(self, names: Names, t: Tensor, group: Sequence[Statement]) -> None:
        self._names, self._tensor, self._group = names, t, group
        self._range = next(iter(group)).ranges[0]
        self._count = simplify(sub(self._range.hi, self._range.lo))
        self._now = simplify(sub(Index(self._range.index), self._range.lo))
        writers = _written(group, t.name)
        first = group.index(writers[0])
        earlier = _read(group[: first + 1], t.name)
        earlier = earlier or (writers[0].is_update and not writers[0].init)
        #: Whether a step reads what the one before has left.
        self.carried = earlier
        shapes = [self._count] * len(writers)
        if earlier:
            shapes[-1] = simplify(add(self._count, _ONE))
        self.versions = [
            Tensor(names.tensor(f"{t.name}_steps"), t.dtype, (steps, *t.shape)) for steps in shapes
        ]

    def statements(self) -> list[Statement]:
        """Those of the block, which read and write what is kept."""
        made: list[Statement] = []
        seen = 0
        for s in self._group:
            value = rewrite(s.value, partial(self._known, seen))
            guards = tuple(rewrite(g, partial(self._known, seen)) for g in s.guards)
            target = s.target
            if target.tensor == self._tensor.name:
                if s.is_update and not s.init:
                    indices, ranges = over_all(self._names, self._tensor)
                    made.append(
                        statement(
                            self._names, self._at(seen + 1, indices), "=", self._at(seen, indices),
                            (self._range, *ranges), (), s.block, s.step,
                        )
                    )  # fmt: skip
                target = self._at(seen + 1, target.indices)
                seen += 1
            made.append(replace(s, target=target, value=value, guards=guards))
        return made

    def first(self) -> list[Statement]:
        """What is there before the block."""
        if not self.carried:
            return []
        indices, ranges = over_all(self._names, self._tensor)
        target = Read(self.versions[-1].name, (Const(0), *indices))
        value = Read(self._tensor.name, indices)
        return [statement(self._names, target, "=", value, ranges)]

    def last(self) -> list[Statement]:
        """What is there after the block."""
        indices, ranges = over_all(self._names, self._tensor)
        at = self._count if self.carried else simplify(sub(self._count, _ONE))
        value = Read(self.versions[-1].name, (at, *indices))
        some = () if self.carried else (Op("ge", (self._count, _ONE)),)
        target = Read(self._tensor.name, indices)
        return [statement(self._names, target, "=", value, ranges, some)]

    def _known(self, seen: int, e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor == self._tensor.name:
            return self._at(seen, e.indices)
        return e

    def _at(self, seen: int, indices: Sequence[Expr]) -> Read:
        """An element after so many of the statements that write it."""
        last = len(self.versions)
        at = self._now
        if self.carried and seen == last:
            at = simplify(add(at, _ONE))
        version = self.versions[(seen or last) - 1]
        return Read(version.name, (at, *indices))
