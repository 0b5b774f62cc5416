"""Range inference for one statement: from accesses, extents and guards to bounds of indices.

An access ``X[e]`` to a dimension of extent E asks for ``0 <= e < E``.  In rounds, every index
that is the only unresolved one of some ``e`` gets the bounds that make this true *for all* values
of the indices resolved before; several bounds of one round intersect.  So ``F[r]`` gives
``r in 0:R``, and then ``X[2*p + r]`` gives ``p in 0:(H - R)//2 + 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from frontends.language.linear import (
    Bounds,
    Interval,
    interval,
    linear,
    solve_lower,
    solve_upper,
)
from poly.ir.expr import Const, Expr, Index, Op, indices_of, maximum, minimum, reads_of
from poly.ir.linear_form import Linear, constant, render
from poly.ir.program import Range
from poly.sets.prove import proves


@dataclass(frozen=True)
class Question:
    """What is known about a statement before inference.

    `explicit` are the ``i in lo:hi`` clauses, whose bounds may use other indices; `accesses` are
    pairs of an index expression and the extent of its dimension.
    """

    indices: tuple[str, ...]
    explicit: Mapping[str, tuple[Expr, Expr]]
    guards: tuple[Expr, ...]
    accesses: tuple[tuple[Expr, Expr], ...]
    sizes: tuple[str, ...]
    constraints: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Ranges of the indices that could be resolved, and the guards that remain."""

    ranges: Mapping[str, Range]
    intervals: Mapping[str, Interval]
    guards: tuple[Expr, ...]
    unresolved: tuple[str, ...]


def infer_ranges(question: Question) -> Answer:
    """Resolve as many indices as possible, by the rule of the module's docstring."""
    return _Solver(question).solve()


class _Solver:
    """The state of one inference; it lives only during `infer_ranges`."""

    def __init__(self, question: Question) -> None:
        self.q = question
        self.ranges: dict[str, Range] = {}
        self.env: dict[str, Interval] = {}
        self.clauses: list[Expr] = []
        # A guard over one inferred index is a bound of its range, if it can be solved for it.
        self.bounding = [g for g in question.guards if self._bounds_of(g) is not None]
        self.guards = [g for g in question.guards if g not in self.bounding]

    def solve(self) -> Answer:
        while self._explicit_round() or self._access_round():
            pass
        unresolved = tuple(i for i in self.q.indices if i not in self.ranges)
        left = [g for g in self.bounding if set(indices_of(g)) & set(unresolved)]
        ordered = [g for g in self.q.guards if g in self.guards or g in left]
        return Answer(self.ranges, self.env, (*self.clauses, *ordered), unresolved)

    def _explicit_round(self) -> bool:
        progress = False
        for index, (lo, hi) in self.q.explicit.items():
            if index in self.ranges:
                continue
            needs = {*indices_of(lo), *indices_of(hi)}
            if index in needs or needs - set(self.env):
                continue
            low, high = interval(lo, self.env), interval(hi, self.env)
            if low is None or high is None:
                continue
            self.env[index] = (low[0], high[1] - 1)
            self.ranges[index] = Range(
                index,
                render(low[0]) if indices_of(lo) else lo,
                render(high[1]) if indices_of(hi) else hi,
            )
            if indices_of(lo):
                self.clauses.append(Op("le", (lo, Index(index))))
            if indices_of(hi):
                self.clauses.append(Op("lt", (Index(index), hi)))
            progress = True
        return progress

    def _access_round(self) -> bool:
        found: dict[str, Bounds] = {}
        for access, extent in self.q.accesses:
            self._collect(access, extent, found)
        for guard in self.bounding:
            (index,) = indices_of(guard)
            bounds = self._bounds_of(guard)
            if index not in self.ranges and bounds is not None:
                found[index] = found.get(index, Bounds()) + bounds
        resolved = {i: b for i, b in found.items() if b.upper}
        for index, bounds in resolved.items():
            lower = self._tightest("max", (constant(0), *bounds.lower))
            upper = self._tightest("min", tuple(b + 1 for b in bounds.upper))
            self.ranges[index] = Range(index, lower, upper)
            low, high = linear(lower), linear(upper)
            assert low is not None and high is not None
            self.env[index] = (low, high - 1)
        return bool(resolved)

    def _collect(self, access: Expr, extent: Expr, found: dict[str, Bounds]) -> None:
        size = linear(extent)
        unknown = [i for i in indices_of(access) if i not in self.ranges]
        if size is None or reads_of(access) or len(unknown) != 1 or unknown[0] in self.q.explicit:
            return
        index = unknown[0]
        guarded = any(index in indices_of(g) for g in self.guards)
        sides: tuple[tuple[Callable[..., Bounds | None], Linear, Expr], ...] = (
            (solve_lower, constant(0), Op("ge", (access, Const(0)))),
            (solve_upper, size - 1, Op("lt", (access, extent))),
        )
        for solve, limit, goal in sides:
            bounds = solve(access, limit, index, self.env)
            if bounds is not None and not (guarded and self._follows(goal)):
                found[index] = found.get(index, Bounds()) + bounds

    def _follows(self, goal: Expr) -> bool:
        """Whether the guards alone keep an access in bounds, so that it limits no range."""
        known = [
            Op(fn, args)
            for r in self.ranges.values()
            for fn, args in (("ge", (Index(r.index), r.lo)), ("lt", (Index(r.index), r.hi)))
        ]
        rest = [Op("ge", (Index(i), Const(0))) for i in self.q.indices if i not in self.ranges]
        return proves(
            self.q.sizes,
            self.q.indices,
            (*self.q.constraints, *self.q.guards, *self.clauses, *known, *rest),
            goal,
        )

    def _bounds_of(self, guard: Expr) -> Bounds | None:
        """The bounds that a comparison over a single inferred index gives it; else None."""
        used = indices_of(guard)
        if len(used) != 1 or used[0] in self.q.explicit or not isinstance(guard, Op):
            return None
        if guard.fn not in ("lt", "le", "gt", "ge", "eq") or reads_of(guard):
            return None
        left, right = (linear(a) for a in guard.args)
        if left is None or right is None:
            return None
        difference = render(left - right)
        if used[0] not in indices_of(difference):
            return None
        parts: list[Bounds | None] = []
        if guard.fn in ("lt", "le", "eq"):
            limit = constant(-1 if guard.fn == "lt" else 0)
            parts.append(solve_upper(difference, limit, used[0], {}))
        if guard.fn in ("gt", "ge", "eq"):
            limit = constant(1 if guard.fn == "gt" else 0)
            parts.append(solve_lower(difference, limit, used[0], {}))
        result = Bounds()
        for part in parts:
            if part is None:
                return None
            result = result + part
        return result

    def _tightest(self, fn: str, bounds: Sequence[Linear]) -> Expr:
        return tightest(fn, [render(b) for b in bounds], self.q.sizes, self.q.constraints)


def tightest(
    fn: str, candidates: Sequence[Expr], sizes: tuple[str, ...], constraints: tuple[Expr, ...]
) -> Expr:
    """The ``min`` or ``max`` of the candidates, without redundant ones."""
    pick = minimum if fn == "min" else maximum
    kept = list(dict.fromkeys(candidates))
    for c in list(kept):
        others = [o for o in kept if o != c]
        better = "le" if fn == "min" else "ge"
        if any(proves(sizes, (), constraints, Op(better, (o, c))) for o in others):
            kept.remove(c)
    return pick(*kept)
