"""Programs whose blocks keep the result of each step of what they overwrite.

    for t in 0:T { h[j] = tanh(h[j] + X[t,j]) }

becomes ``for t in 0:T { H[t+1,j] = tanh(H[t,j] + X[t,j]) }`` between ``H[0,j] = h[j]`` and
``h[j] = H[T,j]``: a recurrence whose gradient can read every state.  What the steps only add to,
``A[j] += h[j] * h[j]``, is one sum after the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

from poly.deps.lifetimes import fills
from poly.gradients.derivatives import ZERO
from poly.gradients.statements import (
    Names,
    alone,
    is_read,
    over_all,
    statement,
    stored,
    writers_of,
)
from poly.ir.accesses import is_other_element
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    indices_of,
    reads_of,
    rewrite,
    simplify,
    sub,
    substitute,
)  # fmt: skip
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Statement, Tensor
from poly.sets.to_isl import is_affine

_ONE = Const(1)
_OPPOSITES = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


def with_states(program: Program, names: Names) -> Program:
    """The program with a tensor of all steps for each that a block overwrites in every step.

    What a step does not write is copied from the step before.
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
            earlier = writers_of([s for g in program.groups[:n] for s in g], name)
            kept = _kept(program, names, t, found, earlier)
            if kept is not None:
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
        writers = writers_of(group, name)
        in_place = not any(_moves(s) for s in writers)
        only_added = all(s.is_update and not s.init for s in writers)
        if in_place and not (only_added and not is_read(group, name)):
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
    if is_read(group, name) or writers_of(others, name):
        return False
    return all(_is_kept(r.tensor, s, group) for r in s.reads)


def _is_kept(name: str, s: Statement, group: Sequence[Statement]) -> bool:
    """Whether what a statement of a block reads of a tensor is there after the block."""
    writers = writers_of(group, name)
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


def _moves(s: Statement) -> bool:
    """Whether each step writes other elements than the one before."""
    return s.step in {i for e in s.target.indices for i in indices_of(e)}


def _left(s: Statement, t: Tensor, indices: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """When a statement of a step leaves an element as it was: any of these conditions; None if that
    is not known, or an instance reads what another one stored.

    What is only added to is copied before.
    """
    own = (r for r in s.reads if r.tensor == t.name and r != s.target)
    if not all(is_other_element(s, r) for r in own):
        return None
    if s.is_update and not s.init:
        return None if is_read([s], t.name) else ()
    ranges = {r.index: r for r in s.ranges}
    new: dict[str, Expr] = {}
    found: list[Expr] = []
    for e, i, extent in zip(s.target.indices, indices, t.shape, strict=True):
        if not indices_of(e) and not reads_of(e):
            found.append(Op("ne", (i, e)))
            continue
        if not isinstance(e, Index) or e.name in new or e.name == s.step:
            return None
        new[e.name] = i
        r = ranges[e.name]
        found += [Op("lt", (i, r.lo))] * (r.lo != Const(0))
        found += [Op("ge", (i, r.hi))] * (r.hi != extent)
    if any(reads_of(g) for g in s.free_guards):
        return None
    return (*found, *(_not(substitute(g, new)) for g in s.free_guards))


def _not(condition: Expr) -> Expr:
    if isinstance(condition, Op) and condition.fn in _OPPOSITES:
        return replace(condition, fn=_OPPOSITES[condition.fn])
    return Op("not", (condition,))


def _kept(
    program: Program, names: Names, t: Tensor, group: Sequence[Statement],
    earlier: Sequence[Statement],
) -> _Kept | None:  # fmt: skip
    """How a tensor is kept after each step; None if that is not known.

    What a step leaves is copied, if there is something: if not, only what the step writes counts.

    earlier : the statements before the block that write the tensor
    """
    indices, _ = over_all(names, t)
    left = [_left(s, t, indices) for s in writers_of(group, t.name)]
    if None in left:
        return None
    some = [e for conditions in left for e in conditions or ()]
    if not some or _is_filled(program, names, t, earlier):
        return _Kept(names, t, group, [conditions or () for conditions in left])
    moves = any(group[0].step in indices_of(e) for e in some)
    kept = _Kept(names, t, group, [()] * len(left))
    return None if moves or kept.carried or len(left) > 1 else kept


def _is_filled(program: Program, names: Names, t: Tensor, earlier: Sequence[Statement]) -> bool:
    """Whether every element of a tensor is written before a block."""
    whole = stored(names, t, ZERO)
    known = all(is_affine(s.target) for s in earlier)
    return known and fills(alone(program, program.tensors, [whole, *earlier]), whole)


def _either(a: Expr, b: Expr) -> Expr:
    return Op("or", (a, b))


class _Kept:
    """A tensor that is kept after each statement of a block that writes it.

    left : for each statement that writes it, when an element is copied that it leaves as it was
    """

    def __init__(
        self, names: Names, t: Tensor, group: Sequence[Statement],
        left: Sequence[tuple[Expr, ...]],
    ) -> None:  # fmt: skip
        self._names, self._tensor, self._group, self._left = names, t, group, left
        self._range = next(iter(group)).ranges[0]
        self._count = simplify(sub(self._range.hi, self._range.lo))
        self._now = simplify(sub(Index(self._range.index), self._range.lo))
        writers = writers_of(group, t.name)
        first = group.index(writers[0])
        earlier = is_read(group[: first + 1], t.name)
        earlier = earlier or (writers[0].is_update and not writers[0].init)
        earlier = earlier or any(left)
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
                made += self._copied(seen, s)
                target = self._at(seen + 1, target.indices)
                seen += 1
            made.append(replace(s, target=target, value=value, guards=guards))
        return made

    def _copied(self, seen: int, s: Statement) -> list[Statement]:
        """What a statement leaves as it was, or adds to."""
        indices, ranges = over_all(self._names, self._tensor)
        left = self._left[seen]
        adds = s.is_update and not s.init
        if not left and not adds:
            return []
        copy = statement(
            self._names, self._at(seen + 1, indices), "=", self._at(seen, indices),
            (self._range, *ranges), [reduce(_either, left)] if left else [], s.block, s.step,
        )  # fmt: skip
        return [copy]

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
