"""Strided sums, where each element uses every s-th filter tap, as a dense sum per remainder of s.

A transposed convolution of stride 2 adds up

    Y[n, x] +=! X[n, (x + 1 - r)//2] * W[r]    where (x + 1 - r) mod 2 = 0

An even element uses the odd taps, an odd one the even ones.  With x = 2*q + f for the two phases
f (the polyphase form of signal processing; Vaidyanathan 1993, chapter 4) the condition vanishes:

    Y0[n, q] +=! X[n, q - r] * W0[r],  W0[r] = W[2*r + 1]
    Y1[n, q] +=! X[n, q - r + 1] * W1[r],  W1[r] = W[2*r]

Each phase is a convolution of its own.  Every element sums the same terms in the same order, so no
bit of a result changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, inf, prod

from poly.ir.accesses import writes_once
from poly.ir.dtypes import identity
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    floordiv,
    mul,
    reads_of,
    rewrite,
    simplify,
    sub,
    substitute,
    substitute_value,
)
from poly.ir.linear_form import linear_form, normal
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    fresh_name,
    fresh_statement,
    statement_names,
    taken_names,
)
from poly.rewrites.scatter_to_gather import gather_sums
from poly.sets.check_bounds import if_proved
from poly.sets.prove import proves

#: More phases than this are not unrolled.
MOST = 16
#: What taps step through is copied if each element is used so often.
WORTH_COPYING = 64


@lru_cache(maxsize=4096)
def split_phases(program: Program) -> Program:
    """Split strided sums into one dense sum for each phase.

    A statement that reads such a sum element by element, right after it, is split as well, so that
    it can share the loops of its phase.  Statements without such conditions are left alone.
    """
    # Statements of a block run step by step, an order that several phases would have to keep.
    if program.has_blocks or not any(s.is_reduction for s in program.statements):
        return program
    result = gather_sums(program)
    for s in result.statements:
        axes = _axes(s)
        if axes and prod(a.stride for a in axes) <= MOST:
            result = _Phases(result, s, axes).split()
    if result is program:
        return program
    return if_proved(result, program)


@dataclass(frozen=True)
class _Axis:
    """The condition ``(a*loop + b*tap + c) mod stride = 0`` between an element and a filter tap.

    dim : the dimension of the target whose index is `loop`
    """

    loop: str
    tap: str
    stride: int
    a: int
    b: int
    c: int
    guard: Expr
    dim: int

    @property
    def step(self) -> int:
        """The distance between the taps that contribute to one element."""
        return self.stride // gcd(self.b, self.stride)

    def first_tap(self, phase: int) -> int | None:
        """The first tap that contributes to elements of a phase; None if there is none."""
        for tap in range(self.step):
            if (self.a * phase + self.b * tap + self.c) % self.stride == 0:
                return tap
        return None


def _axes(s: Statement) -> tuple[_Axis, ...]:
    """The strided conditions of a sum; none if not all of them can be separated."""
    found: list[_Axis] = []
    if not s.is_reduction or not (s.init or writes_once(s)):
        return ()  # what a phase sums up is added to an element once
    for g in s.guards:
        if not (isinstance(g, Op) and g.fn == "eq"):
            continue
        left, right = g.args
        if isinstance(left, Const):
            left, right = right, left
        if not (isinstance(left, Op) and left.fn == "mod" and isinstance(right, Const)):
            continue
        modulus = left.args[1]
        form = linear_form(left.args[0])
        if not isinstance(modulus, Const) or not all(isinstance(x, Index) for x, _ in form.terms):
            return ()
        if not 0 <= int(right.value) < int(modulus.value):
            return ()  # it never holds
        terms = {x.name: c for x, c in form.terms if isinstance(x, Index)}
        loops = [i for i in terms if i in s.free]
        taps = [i for i in terms if i in s.reductions]
        dims = [d for d, e in enumerate(s.target.indices) if loops and e == Index(loops[0])]
        if len(loops) != 1 or len(taps) != 1 or len(dims) != 1:
            return ()
        (loop,), (tap,), (dim,) = loops, taps, dims
        stride, shift = int(modulus.value), form.constant - int(right.value)
        found.append(_Axis(loop, tap, stride, terms[loop], terms[tap], shift, g, dim))
    used = [x for a in found for x in (a.loop, a.tap)]
    return tuple(found) if len(set(used)) == len(used) else ()


class _Phases:
    """The phases of one sum."""

    def __init__(self, program: Program, s: Statement, axes: tuple[_Axis, ...]) -> None:
        self.program, self.s, self.axes = program, s, axes
        self.ranges = {r.index: r for r in s.ranges}
        self.taken = taken_names(program)
        self.labels = statement_names(program)
        self.temps: list[Tensor] = []

    def split(self) -> Program:
        """The program with the statement, and those that go with it, in phases."""
        statements = self.program.statements
        at = statements.index(self.s)
        followers = self.followers(statements[at + 1 :])
        target = self.program.tensors[self.s.target.tensor]
        users = [
            x for x in statements
            if any(r.tensor == target.name for r in (x.target, *x.reads))
        ]  # fmt: skip
        own = target in self.program.temps and self.s.init and len(users) == len(followers) + 1
        before: list[Statement] = []
        made: list[Statement] = []
        for phase in itertools.product(*(range(a.stride) for a in self.axes)):
            copies, parts = self.phase(phase, followers, own)
            before += copies
            made += parts
        rest = statements[at + 1 + len(followers) :]
        temps = (t for t in self.program.temps if not (own and t == target))
        return replace(
            self.program,
            statements=(*statements[:at], *before, *made, *rest),
            temps=(*temps, *self.temps),
            text=None,
        )

    def followers(self, rest: Sequence[Statement]) -> list[tuple[Statement, tuple[str, ...]]]:
        """The statements right after the sum that can be split into phases, with their loops.

        No two instances in different phases may touch an element that one of them writes.
        """
        members = [(self.s, tuple(a.loop for a in self.axes))]
        for x in rest:
            loops = self.loops_of(x)
            if loops is None or not all(_apart(x, loops, *m) for m in (*members, (x, loops))):
                break
            members.append((x, loops))
        return members[1:]

    def loops_of(self, x: Statement) -> tuple[str, ...] | None:
        """The loops of a statement that correspond to those of the sum, if it has such."""
        reads = [r for r in x.reads if r.tensor == self.s.target.tensor]
        loops: list[str] = []
        for a in self.axes:
            (index,) = {r.indices[a.dim] for r in reads} if len(reads) == 1 else (None,)
            wanted = self.ranges[a.loop]
            if not isinstance(index, Index) or index.name not in x.free:
                return None
            own = next(r for r in x.ranges if r.index == index.name)
            if (own.lo, own.hi) != (wanted.lo, wanted.hi):
                return None
            loops.append(index.name)
        return tuple(loops) if len(set(loops)) == len(loops) else None

    def phase(
        self,
        phase: tuple[int, ...],
        followers: Sequence[tuple[Statement, tuple[str, ...]]],
        own: bool,
    ) -> tuple[list[Statement], list[Statement]]:
        """The statements of one phase: copies of the inputs of its taps, and the computation."""
        label = "".join(f"_{f}" for f in phase)
        s, dtypes = self.s, self.program.tensors
        strides = {a.loop: (a.stride, f) for a, f in zip(self.axes, phase, strict=True)}
        taps = [a.first_tap(f) for a, f in zip(self.axes, phase, strict=True)]
        for a, tap in zip(self.axes, taps, strict=True):
            strides[a.tap] = (a.step, tap or 0)
        part = self.part(s, strides, s.name + label, [a.guard for a in self.axes])
        # A dense target of its own.
        whole = dtypes[s.target.tensor]
        shape = list(whole.shape)
        for a, f in zip(self.axes, phase, strict=True):
            shape[a.dim] = _count(shape[a.dim], a.stride, f)
        dense = Tensor(self.fresh(whole.name + label), whole.dtype, tuple(shape))
        self.temps.append(dense)
        indices = list(s.target.indices)
        for a in self.axes:
            indices[a.dim] = Index(a.loop)
        target = Read(dense.name, tuple(indices))
        spread = part.target
        copies: list[Statement] = []
        free = tuple(r for r in part.ranges if r.index not in part.reductions)
        empty = any(r.lo == r.hi for r in part.ranges if r.index in s.reductions)
        if None in taps or empty:
            # No tap contributes to these elements: an empty sum.
            nothing = Const(identity(s.op, whole.dtype))
            part = Statement(part.name, target, "=", False, nothing, free, (), part.free_guards)
        else:
            part = replace(part, target=target, init=True)
            copies, part = self.with_copies(part, strides, label)
        made = [part]
        if not own:
            made.append(
                Statement(
                    self.named(f"{s.name}{label}_out"), spread, "=" if s.init else s.op, False,
                    target, free, (), part.free_guards,
                )
            )  # fmt: skip
        for x, loops in followers:
            mine = {v: (a.stride, f) for v, a, f in zip(loops, self.axes, phase, strict=True)}
            moved = self.part(x, mine, x.name + label, [])
            if own:
                by = {a.dim: Index(v) for a, v in zip(self.axes, loops, strict=True)}
                moved = _redirected(moved, whole.name, dense.name, by)
            made.append(moved)
        return copies, made

    def part(
        self, x: Statement, strides: Mapping[str, tuple[int, int]], name: str, gone: list[Expr]
    ) -> Statement:
        """The instances of a statement with ``loop = stride*loop' + offset``, in terms of loop'."""
        env = {i: add(mul(Const(m), Index(i)), Const(f)) for i, (m, f) in strides.items()}

        def to_dense(e: Expr) -> Expr:
            if not isinstance(e, Read) or any(reads_of(i) for i in e.indices):
                return e
            return replace(e, indices=tuple(map(normal, e.indices)))

        ranges = tuple(
            replace(r, lo=_count(r.lo, *strides[r.index]), hi=_count(r.hi, *strides[r.index]))
            if r.index in strides
            else r
            for r in x.ranges
        )
        guards = [_normal_guard(substitute(g, env)) for g in x.guards if g not in gone]
        moved = replace(
            x,
            name=self.named(name),
            target=_as_read(to_dense(substitute(x.target, env))),
            value=rewrite(substitute_value(x.value, env), to_dense),
            ranges=ranges,
            guards=(),
        )
        inside = [Op("le", (r.lo, Index(r.index))) for r in ranges]
        inside += [Op("lt", (Index(r.index), r.hi)) for r in ranges]
        sizes = self.program.sizes
        kept = (g for g in guards if not proves(sizes, moved.indices, inside, g))
        return replace(moved, guards=tuple(kept))

    def with_copies(
        self, part: Statement, strides: Mapping[str, tuple[int, int]], label: str
    ) -> tuple[list[Statement], Statement]:
        """Copies of the tensors that taps step through, and the statement that reads them.

        They are small compared with the sum, as each of their elements is used for every element of
        the phase; a constant is copied before the program runs.  For few elements, tensors are read
        as they are.
        """
        steps = {a.tap: strides[a.tap] for a in self.axes if a.step > 1}
        loops = {a.loop for a in self.axes}
        copies: list[Statement] = []
        new: dict[Read, Read] = {}
        for old in reads_of(part.value):
            taps = [self.stepped(e, steps) for e in old.indices]
            moving = {i for e in old.indices for i in _names(e)}
            if not any(taps) or moving & loops or old.tensor == part.target.tensor:
                continue
            if _elements(part, moving) < WORTH_COPYING:
                continue
            tensor = self.program.tensors[old.tensor]
            taken = {*self.program.tensors, *self.program.sizes}
            indices = tuple(fresh_name(f"i{d}", taken) for d in range(tensor.rank))
            sources, ranges, extents = [], [], []
            for i, tap, e in zip(indices, taps, tensor.shape, strict=True):
                m, f = steps[tap] if tap else (1, 0)
                sources.append(simplify(add(mul(Const(m), Index(i)), Const(f))))
                extents.append(_count(e, m, f))
                ranges.append(Range(i, Const(0), extents[-1]))
            name = self.fresh(old.tensor + label)
            self.temps.append(Tensor(name, tensor.dtype, tuple(extents)))
            target = Read(name, tuple(map(Index, indices)))
            source = Read(old.tensor, tuple(sources))
            copies.append(
                Statement(self.named(f"{name}_copy"), target, "=", False, source, tuple(ranges))
            )
            dense = (Index(t) if t else e for t, e in zip(taps, old.indices, strict=True))
            new[old] = Read(name, tuple(dense))
        value = rewrite(part.value, lambda e: new.get(e, e) if isinstance(e, Read) else e)
        return copies, replace(part, value=value)

    @staticmethod
    def stepped(e: Expr, steps: Mapping[str, tuple[int, int]]) -> str:
        """The tap in an index ``step*tap + offset``; "" if the index is not of this form."""
        form = linear_form(e)
        if len(form.terms) != 1 or not isinstance(form.terms[0][0], Index):
            return ""
        tap, step = form.terms[0][0].name, form.terms[0][1]
        return tap if steps.get(tap) == (step, form.constant) else ""

    def fresh(self, name: str) -> str:
        return fresh_name(name, self.taken)

    def named(self, name: str) -> str:
        return fresh_statement(name, self.labels)


def _count(end: Expr, stride: int, offset: int) -> Expr:
    """The number of values ``stride*q + offset`` with q >= 0 below `end`, rounded up."""
    return normal(floordiv(add(end, Const(stride - 1 - offset)), stride))


def _elements(part: Statement, moving: set[str]) -> float:
    """How often each element of a read is used, whose indices have the loops `moving`."""
    extents = (sub(r.hi, r.lo) for r in part.ranges if r.index not in moving)
    known = [int(e.value) if isinstance(e, Const) else None for e in map(normal, extents)]
    return inf if None in known else prod(n for n in known if n is not None)


def _names(e: Expr) -> set[str]:
    return {x.name for x, _ in linear_form(e).terms if isinstance(x, Index)}


def _as_read(e: Expr) -> Read:
    assert isinstance(e, Read)
    return e


def _normal_guard(g: Expr) -> Expr:
    """A condition with its two sides in normal form."""
    if isinstance(g, Op) and g.fn in ("and", "or", "not"):
        return replace(g, args=tuple(map(_normal_guard, g.args)))
    return replace(g, args=tuple(map(normal, g.args))) if isinstance(g, Op) else g


def _apart(a: Statement, loops: tuple[str, ...], b: Statement, others: tuple[str, ...]) -> bool:
    """Whether two statements are independent where these loops differ.

    Then no instance touches an element that the other one writes.
    """
    for x, own, y, theirs in ((a, loops, b, others), (b, others, a, loops)):
        for r in (y.target, *y.reads):
            if r.tensor == x.target.tensor:
                both = set(zip(x.target.indices, r.indices, strict=True))
                if not {(Index(i), Index(j)) for i, j in zip(own, theirs, strict=True)} <= both:
                    return False
    return True


def _redirected(s: Statement, tensor: str, dense: str, by: Mapping[int, Expr]) -> Statement:
    """The statement with the elements of `tensor` taken from `dense`, at other indices `by`."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor != tensor:
            return e
        return Read(dense, tuple(by.get(d, i) for d, i in enumerate(e.indices)))

    return replace(s, target=_as_read(visit(s.target)), value=rewrite(s.value, visit))
