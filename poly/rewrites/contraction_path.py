"""Products of many tensors, contracted two at a time.

``Y[i,r] +=! X[i,j,k] * B[j,r] * C[k,r]`` multiplies twice for every (i, j, k, r).  Written as

    X_C[i,j,r] +=! X[i,j,k] * C[k,r]
    Y[i,r]     +=! X_C[i,j,r] * B[j,r]

it multiplies about once, and most of that is a matrix product.  The cheapest pairs are found by
opt_einsum (Smith and Gray, JOSS 2018), from sizes; an unknown size counts as `ASSUMED`.  Sums of
products are added in another order, so this is for default numerics only.

What depends on no loop is multiplied once, too: a contraction of ``A[i,k] * B[k,j] * 0.5`` takes up
to twice as long as one of ``A_scaled[i,k] * B[k,j]``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from opt_einsum.paths import DynamicProgramming, greedy

from poly.ir.accesses import count_expr, writes_once
from poly.ir.dtypes import DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    dtype_of_expr,
    evaluate_int,
    indices_of,
    is_weak,
    reads_of,
    simplify,
    sizes_of,
    sub,
    walk,
)
from poly.ir.program import INIT, Program, Range, Statement, Tensor, statement_names, taken_names
from poly.sets.check_bounds import if_proved

_T = TypeVar("_T")

#: The assumed value of an unknown size.
ASSUMED = 256
#: The cost of writing and reading back an element of an intermediate, in multiplications.
MEMORY = 16
#: A product is split if that saves this factor.
GAIN = 1.5
#: Up to this many factors, the best of all paths is found.
FACTORS = 10
#: The longest name made of the factors' names, and how far a range may begin above 0 for the
#: elements below it simply to stay unused.
NAME_LIMIT, START_LIMIT = 32, 64


@lru_cache(maxsize=4096)
def split_products(program: Program) -> Program:
    """Contract products of many tensors pairwise, where that clearly saves multiplications.

    The last statement of each product keeps its name, target and operator; the ones before it
    compute temporaries that are named after their factors.  Statements are left alone if their
    domain is not a box, if they mix element types, or if they are not sums of products of floats.
    """
    if program.has_blocks:
        return program
    statements: list[Statement] = []
    temps = list(program.temps)
    taken = taken_names(program)
    labels = statement_names(program)
    for s in program.statements:
        made = _Split(program, s, taken, labels).made()
        statements += made[0]
        temps += made[1]
    if len(temps) == len(program.temps):
        return program
    result = replace(program, temps=tuple(temps), statements=tuple(statements))
    return if_proved(result, program)


@dataclass(frozen=True)
class _Factor:
    """A factor: the loops it moves with, in the order of its dimensions, and its name."""

    value: Expr
    loops: tuple[str, ...]
    name: str


class _Split:
    """The pairwise contractions of one statement."""

    def __init__(self, program: Program, s: Statement, taken: set[str], labels: set[str]) -> None:
        self.program, self.s, self.taken, self.labels = program, s, taken, labels
        self.ranges = {r.index: r for r in s.ranges}
        self.sizes = {i: _assumed(r) for i, r in self.ranges.items()}
        self.statements: list[Statement] = []
        self.temps: list[Tensor] = []

    def made(self) -> tuple[list[Statement], list[Tensor]]:
        """The statements that replace this one, and new temporaries."""
        alone: tuple[list[Statement], list[Tensor]] = [self.s], []
        found = self.factors()
        if found is None:
            return alone
        factors, scalars = found
        path = self.path(factors)
        if len(path) < 2 or self.cost(factors, path) * GAIN > self.direct(factors):
            path = []
        small = self.to_scale(factors) if scalars else None
        if small is None and not path:
            return alone
        if small is not None:
            f = factors[small]
            free = [i for i in self.order(factors) if i in f.loops]
            factors[small] = self.multiply([f.value, *scalars], free, [], f"{f.name}_scaled")
            scalars = []
        return self.follow(factors, scalars, path)

    def factors(self) -> tuple[list[_Factor], list[Expr]] | None:
        """The factors that move with loops, and those that do not; None if `s` is not a product."""
        s, dtypes = self.s, self.program.dtypes
        dtype = dtypes[s.target.tensor]
        if s.op != "+=" or not s.is_reduction or not s.reductions or s.guards:
            return None
        if dtype.name not in ("float32", "float64"):
            return None
        moving: list[_Factor] = []
        scalars: list[Expr] = []
        for e in _flat(s.value):
            if not _is_plain(e, dtype, dtypes):
                return None
            loops = indices_of(e)
            if loops:
                if isinstance(e, Read) and dtypes[e.tensor] != dtype:
                    e = Cast(dtype, e)  # as it is, a product would be one of 16-bit floats
                moving.append(_Factor(e, loops, "_".join(r.tensor for r in reads_of(e))))
            else:
                scalars.append(e)
        return (moving, scalars) if len(moving) > 1 else None

    # --- choosing ----------------------------------------------------------------------------

    def to_scale(self, factors: Sequence[_Factor]) -> int | None:
        """The position of the factor to scale, the smallest; None if that costs more than scaling
        each product, or stores more of each element than it has.
        """
        size, small = min((self.instances(f.loops), n) for n, f in enumerate(factors))
        widened = any(isinstance(e, Cast) for e in walk(factors[small].value))
        saves = size * (1 + MEMORY) * GAIN <= self.instances(self.ranges)
        return small if saves and not widened else None

    def path(self, factors: Sequence[_Factor]) -> list[tuple[int, ...]]:
        """The contractions, as positions among the remaining factors; results are appended."""
        # Of equally good paths, prefer summing first over adjacent elements of the largest factor.
        largest = max(factors, key=lambda f: self.instances(f.loops))
        sizes = {i: n + (i == largest.loops[-1]) / 16 for i, n in self.sizes.items()}
        inputs = [frozenset(f.loops) for f in factors]
        output = frozenset(self.s.free) & frozenset().union(*inputs)
        if len(factors) > FACTORS:
            return [tuple(step) for step in greedy(inputs, output, sizes)]
        found = []
        for outer in (False, True):
            search = DynamicProgramming(f"combo-{MEMORY}", search_outer=outer)
            path = [tuple(step) for step in search(inputs, output, sizes)]
            found.append((self.cost(factors, path), path))
        (cost, path), (best, other) = found
        # A product without a sum makes a matrix product of longer sums later: seldom a gain.
        return other if best * GAIN < cost else path

    def direct(self, factors: Sequence[_Factor]) -> float:
        """The multiplications of the statement as written."""
        return float((len(factors) - 1) * self.instances(self.ranges))

    def cost(self, factors: Sequence[_Factor], path: Sequence[tuple[int, ...]]) -> float:
        """The multiplications along a path, including the cost of storing the intermediates."""
        left = [frozenset(f.loops) for f in factors]
        total = 0.0
        for step in path[:-1]:
            used, left = _taken(left, step)
            loops = frozenset().union(*used)
            result = self.kept(loops, left)
            total += max(1, len(used) - 1) * self.instances(loops)
            total += MEMORY * self.instances(result)
            left.append(result)
        unseen = frozenset(self.ranges) - frozenset().union(*(f.loops for f in factors))
        return total + max(1, len(left) - 1) * self.instances(frozenset().union(*left) | unseen)

    def kept(self, loops: Iterable[str], left: Iterable[Collection[str]]) -> frozenset[str]:
        """The loops of a product that a later one needs."""
        wanted = {*self.s.free, *(i for f in left for i in f)}
        return frozenset(i for i in loops if i in wanted)

    def instances(self, loops: Iterable[str]) -> int:
        return math.prod(self.sizes[i] for i in loops)

    # --- writing -----------------------------------------------------------------------------

    def follow(
        self, factors: Sequence[_Factor], scalars: Sequence[Expr], path: Sequence[tuple[int, ...]]
    ) -> tuple[list[Statement], list[Tensor]]:
        """The statements so far and of a path, and their temporaries."""
        s = self.s
        order = self.order(factors)
        left = list(factors)
        for step in path[:-1]:
            used, left = _taken(left, step)
            loops = frozenset(i for f in used for i in f.loops)
            kept = self.kept(loops, (f.loops for f in left))
            free = [i for i in order if i in kept]
            summed = [i for i in s.indices if i in loops - kept]
            joined = "_".join(f.name for f in used)
            name = joined if len(used) > 1 else f"{joined}_sum"
            left.append(self.multiply([f.value for f in used], free, summed, name))
        gone = {i for t in self.statements for i in t.reductions}
        reductions = tuple(i for i in s.reductions if i not in gone)
        plain = s.init and not reductions and writes_once(s)
        last = replace(
            s,
            op="=" if plain else s.op,
            init=s.init and not plain,
            value=_product([*scalars, *(f.value for f in left)]),
            ranges=tuple(r for r in s.ranges if r.index not in gone),
            reductions=reductions,
        )
        return [*self.statements, last], self.temps

    def multiply(
        self, values: Sequence[Expr], free: Sequence[str], summed: Sequence[str], name: str
    ) -> _Factor:
        """A product that a new temporary holds, summed over some loops."""
        name = self.fresh(name)
        target = Read(name, tuple(self.index(i) for i in free))
        shape = tuple(self.extent(i) for i in free)
        self.temps.append(Tensor(name, self.program.dtypes[self.s.target.tensor], shape))
        self.statements.append(
            replace(
                self.s,
                name=self.label(),
                target=target,
                op="+=" if summed else "=",
                init=bool(summed),
                value=_product(values),
                ranges=tuple(self.ranges[i] for i in (*free, *summed)),
                reductions=tuple(summed),
            )
        )
        return _Factor(target, tuple(free), name)

    def order(self, factors: Sequence[_Factor]) -> list[str]:
        """All loops, those that come first in the dimensions of tensors first, weighted by size."""
        seen: dict[str, tuple[float, float]] = {}
        target = _Factor(self.s.target, indices_of(self.s.target), "")
        for f in (*factors, target):
            weight = self.instances(f.loops)
            for n, i in enumerate(f.loops):
                total, at = seen.get(i, (0.0, 0.0))
                fraction = (n + 1) / len(f.loops)
                seen[i] = (total + weight, at + weight * fraction)
        return sorted(seen, key=lambda i: seen[i][1] / seen[i][0])

    def index(self, loop: str) -> Expr:
        """The index of a loop in a temporary."""
        lo = self.ranges[loop].lo
        return Index(loop) if _near_zero(lo) else sub(Index(loop), lo)

    def extent(self, loop: str) -> Expr:
        """The extent of a temporary along a loop."""
        r = self.ranges[loop]
        return count_expr(replace(r, lo=Const(0)) if _near_zero(r.lo) else r)

    def label(self) -> str:
        return _fresh(f"{self.s.name}_1", self.labels, INIT)

    def fresh(self, name: str) -> str:
        return _fresh(name if len(name) <= NAME_LIMIT else "product", self.taken)


def _fresh(name: str, taken: set[str], end: str = "") -> str:
    """`name`, with the first number that makes it new, both with and without `end`; added to
    `taken`.
    """
    stem, number = name.rstrip("0123456789"), 1
    while {name, f"{name}{end}"} & taken:
        number += 1
        name = f"{stem}{number}"
    taken |= {name, f"{name}{end}"}
    return name


def _assumed(r: Range) -> int:
    """The extent of a range where unknown sizes are `ASSUMED`."""
    extent = simplify(sub(r.hi, r.lo))
    return max(1, evaluate_int(extent, dict.fromkeys(sizes_of(extent), ASSUMED)))


def _near_zero(lo: Expr) -> bool:
    return isinstance(lo, Const) and 0 <= lo.value <= START_LIMIT


def _flat(e: Expr) -> list[Expr]:
    """The factors of a product, from left to right."""
    if isinstance(e, Op) and e.fn == "mul":
        return [f for a in e.args for f in _flat(a)]
    return [e]


def _product(factors: Sequence[Expr]) -> Expr:
    value = factors[0]
    for f in factors[1:]:
        value = Op("mul", (value, f))
    return value


def _is_plain(e: Expr, dtype: DType, dtypes: Mapping[str, DType]) -> bool:
    """Whether a factor is a number, or made of elements of one type at indices without data.

    A loop variable used as a value has a type of its own.
    """
    if is_weak(e):
        return dtype_of_expr(e, dtypes).kind != "b"
    if isinstance(e, Const):
        return e.dtype == dtype
    if isinstance(e, Cast) and isinstance(e.arg, Read) and e.dtype == dtype:
        return dtypes[e.arg.tensor].is_widened and _is_plain(e.arg, dtype, dtypes)
    if isinstance(e, Read):
        stored = dtypes[e.tensor]
        own = stored == dtype or (stored.is_widened and stored.compute == dtype)
        return own and not any(reads_of(i) for i in e.indices)
    if isinstance(e, Op):
        inner = all(_is_plain(a, dtype, dtypes) for a in e.args)
        return inner and bool(reads_of(e)) and dtype_of_expr(e, dtypes) == dtype
    return False


def _taken(left: Sequence[_T], step: tuple[int, ...]) -> tuple[list[_T], list[_T]]:
    """The operands of a step, in order, and the rest."""
    used = [left[n] for n in sorted(step)]
    return used, [x for n, x in enumerate(left) if n not in step]
