"""Sums of products of 8-bit integers, in the form that instructions for them take.

    Y[i,j] +=! (int32(A[i,k]) - za) * (int32(B[k,j]) - zb)

An instruction multiplies numbers without a sign by numbers with one, several terms at a time, and
knows no zero points.  With a' and b' the elements in the types that it takes, such as a' = A + 128
of an int8 A, and A - za = a' + x, B - zb = b' + y,

    sum (a' + x) (b' + y)  =  sum a' b'  +  x sum b'  +  y sum a'  +  n x y

where n is the number of terms: the sum of the rows of one operand is computed only if the other
one has a zero point.  Of constants, sums are constants.

Where a range does not have a whole number of groups of terms, operands are copied with zeros after
the last; and where terms are left out at the border of an image, which would make n vary, the image
is copied with a border of zeros, which here is the number a' = -x.

A machine may only have instructions for numbers of 16 bits.  These hold A - za as it is, so
operands are copied, and there is nothing to add.

In a block, what a step computes is copied and summed up in that step, all else before the block;
what is the same in all steps is copied such that groups of terms are next to each other, so that it
is not packed in each.

Integers wrap around, so no bit of a result changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod

from poly.ir.accesses import count_expr, count_of, writes_once
from poly.ir.dtypes import INT8, INT16, INT32, UINT8, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    indices_of,
    mul,
    reads_of,
    rewrite,
    simplify,
)
from poly.ir.instruction_tables import dot_products
from poly.ir.linear_form import linear_form, render
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    default_name,
    fresh_name,
)
from poly.rewrites.integer_operands import (
    Factor,
    bordered,
    copied,
    factors_of,
    has_few_filters,
    in_groups,
    in_step,
    is_bordered,
)
from poly.rewrites.merge_programs import simplified
from poly.sets.check_bounds import if_proved


@dataclass(frozen=True)
class Multiplied:
    """Two types that an instruction multiplies.

    group : how many products it adds; windows : whether to each element of a row of windows
    """

    types: tuple[DType, DType]
    group: int
    windows: bool


#: A sum of fewer terms than this fraction of those that an instruction adds stays as it is.
LEAST_USED = 0.5
#: Elements that are used less often than this are not widened.
REUSE = 8


def integer_products(program: Program, extensions: tuple[str, ...] = ()) -> Program:
    """Write sums of products of 8-bit integers as sums that an instruction computes."""
    return _for_instructions(program, multiplied_types(extensions))


@lru_cache(maxsize=4096)
def _for_instructions(program: Program, types: tuple[Multiplied, ...]) -> Program:
    if not types:
        return program
    result = program
    for s in program.statements:
        result = _rewritten(result, s, types)
    if result is program:
        return program
    statements = tuple(replace(s, name=default_name(n)) for n, s in enumerate(result.statements))
    made = replace(result, statements=statements, text=None)
    # Copies are for the instruction; all else may be computed where it is read.
    copies = {t.name for t in made.temps if t.dtype != INT32} - {t.name for t in program.temps}
    return if_proved(simplified(made, frozenset(copies)), program)


def multiplied_types(extensions: Collection[str]) -> tuple[Multiplied, ...]:
    """The 8-bit types that instructions multiply, in either order; otherwise those of 16 bits."""
    found: dict[tuple[DType, DType], Multiplied] = {}
    for i in dot_products(extensions):
        a, b, total = i.multiplied
        if {a, b} <= {UINT8, INT8, INT16} and total == INT32:
            for types in ((a, b), (b, a)):
                known = found.get(types) or Multiplied(types, i.extents[1], False)
                found[types] = replace(known, windows=known.windows or i.has_windows)
    narrow = tuple(m for m in found.values() if INT16 not in m.types)
    return narrow or tuple(found.values())


@dataclass(frozen=True)
class _Plan:
    """How a sum is rewritten.

    loop : the reduction whose terms are added in groups; extent : of it, in whole groups
    group : how many terms that are
    types : for each factor, the type in which it is multiplied
    border : whether the factor with the image is copied with a border
    changing : of a statement of a block, the tensors that the block computes
    """

    loop: str
    extent: Expr
    group: int
    types: tuple[DType, DType]
    border: bool
    changing: frozenset[str] | None

    def groups(self, f: Factor, program: Program) -> bool:
        """Whether a factor is copied such that groups of terms are next to each other."""
        repeated = self.changing is not None and not self.within(f)
        return repeated and f.is_apart(program, self.loop)

    def is_changing(self, read: Read) -> bool:
        """Whether the block computes what is read."""
        return self.changing is not None and read.tensor in self.changing

    def within(self, f: Factor) -> bool:
        """Whether the block computes a factor, so that it is copied in each step."""
        return self.is_changing(f.read)


def _rewritten(program: Program, s: Statement, known: tuple[Multiplied, ...]) -> Program:
    factors = factors_of(program, s)
    if factors is None or any(count_of(r) == 0 for r in s.ranges):
        return program
    multiplied = _types(program, factors, known)
    types, group = multiplied.types, multiplied.group
    few = has_few_filters(s, factors)
    if few and not multiplied.windows:
        return program
    if INT16 in types and not all(_can_be_widened(s, f) for f in factors):
        return program
    shifts = [f.shifted(t) for f, t in zip(factors, types, strict=True)]
    inner = [g for g in s.guards if set(indices_of(g)) & set(s.reductions)]
    border = bool(inner) and any(x != Const(0) for x in shifts)
    can_have_border = any(is_bordered(f, s, inner) for f in factors)
    if border and not can_have_border:
        return program
    found = _loop(s, factors, group, border, inner)
    if can_have_border and not border:
        other = _loop(s, factors, group, True, inner, few)
        if other is not None and (few or found is None or _is_shorter(s, other, found)):
            border, found = True, other
    if found is None:
        return program
    changing = _changing(program, s)
    plan = _Plan(*found, group, types, border, changing)
    if changing is not None and not all(_can_be_copied(f, s, plan) for f in factors):
        return program
    whole = next(r.hi for r in s.ranges if r.index == plan.loop)
    plain = types == tuple(f.dtype for f in factors) and all(x == Const(0) for x in shifts)
    if plain and plan.extent == whole and not any(plan.groups(f, program) for f in factors):
        return program
    for f, t in zip(factors, types, strict=True):
        image = border and is_bordered(f, s, inner)
        if image and bordered(program, f, t, inner, s.ranges, {*program.tensors}) is None:
            return program
    return _Rewriting(program, s, factors, plan, inner).program()


def _is_shorter(s: Statement, one: tuple[str, Expr], other: tuple[str, Expr]) -> bool:
    """Whether groups along one loop leave no more terms than those along another one, of which some
    are padding; both with their extents in whole groups.
    """

    def terms(found: tuple[str, Expr]) -> float:
        extents = [found[1] if r.index == found[0] else r.hi for r in s.ranges
                   if r.index in s.reductions]  # fmt: skip
        return prod(float(e.value) if isinstance(e, Const) else inf for e in extents)

    whole = next(r.hi for r in s.ranges if r.index == other[0])
    return other[1] != whole and terms(one) <= terms(other) < inf


def _changing(program: Program, s: Statement) -> frozenset[str] | None:
    """The tensors that the block of a statement computes; None of a statement without one."""
    if not s.block:
        return None
    return frozenset(t.target.tensor for t in program.statements if t.block == s.block)


def _can_be_copied(f: Factor, s: Statement, plan: _Plan) -> bool:
    """Whether copies of a factor of a block can be made, before the block or in each step."""
    if plan.border:
        return False
    if plan.within(f):
        return f.read.indices.count(Index(s.step)) == 1
    return INT16 not in plan.types or not any(plan.is_changing(r) for r in reads_of(f.zero))


def _can_be_widened(s: Statement, f: Factor) -> bool:
    """Whether a factor fits into 16 bits, and is used often enough; open extents count as large."""
    plain = all(Index(i) in f.read.indices for i in indices_of(f.zero))
    return f.fits and plain and f.uses(s, REUSE) >= REUSE


def _types(
    program: Program, factors: tuple[Factor, Factor], known: tuple[Multiplied, ...]
) -> Multiplied:
    """The types in which the factors are multiplied."""

    def cost(choice: Multiplied) -> tuple[int, int, float]:
        types = choice.types
        changed = [f for f, t in zip(factors, types, strict=True) if f.dtype != t]
        shifts = [f.shifted(t) for f, t in zip(factors, types, strict=True)]
        sizes = sum(f.size(program) for f in changed)
        return (min(1, len(changed)), sum(x != Const(0) for x in shifts), sizes)

    return min(known, key=cost)


def _loop(
    s: Statement,
    factors: tuple[Factor, Factor],
    group: int,
    border: bool,
    inner: list[Expr],
    few: bool = False,
) -> tuple[str, Expr] | None:
    """The reduction to add in groups, and its extent in whole groups; None if none is suited.

    few : as of `has_few_filters`: it is one along the rows of the image
    """
    guarded = {i for g in inner for i in indices_of(g)}
    found: list[tuple[tuple[float, int, int], str, Expr]] = []
    for r in s.ranges:
        if r.index not in s.reductions or r.lo != Const(0):
            continue
        if r.index in guarded and not border:
            continue
        dims = [f.dimension(r.index) for f in factors]
        if any(d is None for d in dims):
            continue
        plain = sum(
            f.read.indices[d or 0] == Index(r.index) for f, d in zip(factors, dims, strict=True)
        )
        form = linear_form(r.hi)
        extent = (
            r.hi if form.is_multiple_of(group) else mul(Const(group), render(form.ceildiv(group)))
        )
        if not plain or (plain < len(factors) and not border and extent != r.hi):
            continue
        waste, size = 1.0, 1 << 20
        if isinstance(r.hi, Const):
            size = int(r.hi.value)
            waste = size / (-(-size // group) * group)
        if waste < LEAST_USED:
            continue
        last = sum(d == len(f.read.indices) - 1 for f, d in zip(factors, dims, strict=True))
        if few and last < len(factors):
            continue
        found.append(((waste, last, size), r.index, extent))
    if not found:
        return None
    _, loop, extent = max(found, key=lambda x: x[0])
    return loop, extent


class _Rewriting:
    """One sum, with the statements that go before and after it."""

    def __init__(
        self,
        program: Program,
        s: Statement,
        factors: tuple[Factor, Factor],
        plan: _Plan,
        inner: list[Expr],
    ) -> None:
        self._program, self.s, self.factors, self.plan, self.inner = (
            program,
            s,
            factors,
            plan,
            inner,
        )
        self.taken = {*program.tensors, *program.sizes}
        self.taken |= {i for t in program.statements for i in t.indices}
        self.temps: list[Tensor] = []
        self.before: list[Statement] = []
        self.in_step: list[Statement] = []
        self.changing = {*(plan.changing or ())}

    def program(self) -> Program:
        s, plan = self.s, self.plan
        ranges = tuple(replace(r, hi=plan.extent) if r.index == plan.loop else r for r in s.ranges)
        guards = s.free_guards if plan.border else s.guards
        products: list[Factor] = []
        for f, t in zip(self.factors, plan.types, strict=True):
            products.append(self._operand(f, t, ranges))
        shifts = [f.shifted(t) for f, t in zip(self.factors, plan.types, strict=True)]
        value: Expr = Op("mul", (products[0].value, products[1].value))
        made = replace(s, value=value, ranges=ranges, guards=guards)
        after: list[Statement] = []
        if any(x != Const(0) for x in shifts):
            total = Tensor(fresh_name(f"{s.target.tensor}_raw", self.taken), INT32, self._shape())
            self.temps.append(total)
            free = tuple(r for r in ranges if r.index in s.free)
            raw = Read(total.name, tuple(Index(r.index) for r in free))
            result: Expr = raw
            for term in self._corrections(products, shifts):
                result = Op("add", (result, term))
            plain = s.init and writes_once(s)
            op, init = "=" if plain else s.op, s.init and not plain
            final = replace(s, op=op, init=init, value=result, ranges=free, guards=s.free_guards)
            after.append(replace(final, reductions=()))
            made = replace(made, target=raw, init=True)
        old = self._program.statements
        at = next(n for n, t in enumerate(old) if t.name == s.name)
        first = next(n for n, t in enumerate(old) if n == at or (s.block and t.block == s.block))
        statements = (
            *old[:first], *self.before, *old[first:at], *self.in_step, made, *after, *old[at + 1 :]
        )  # fmt: skip
        temps = (*self._program.temps, *self.temps)
        return replace(self._program, temps=temps, statements=statements, text=None)

    def _shape(self) -> tuple[Expr, ...]:
        return tuple(r.hi for r in self.s.ranges if r.index in self.s.free)

    def _operand(self, f: Factor, dtype: DType, ranges: tuple[Range, ...]) -> Factor:
        """A factor in the type of the instruction, without zero point, copied where needed."""
        plan = self.plan
        within = self.s if plan.within(f) else None
        image = plan.border and is_bordered(f, self.s, self.inner)
        whole = next(r.hi for r in self.s.ranges if r.index == plan.loop)
        longer = plan.extent if plan.extent != whole and f.moves_with(plan.loop) else None
        if image:
            made = bordered(self._program, f, dtype, self.inner, ranges, self.taken, plan.loop)
        elif dtype != f.dtype or longer is not None or plan.groups(f, self._program):
            made = copied(self._program, f, dtype, plan.loop, longer, whole, self.taken, within)
        else:
            return Factor(f.read, dtype)
        assert made is not None, "`_rewritten` has tried it"
        if plan.groups(f, self._program):
            made = in_groups(made, plan.loop, plan.group, self.taken)
        self.temps.append(made.tensor)
        if within:
            self.changing.add(made.tensor.name)
        (self.before if within is None else self.in_step).extend(made.statements)
        return Factor(made.read, made.tensor.dtype)

    def _corrections(self, products: list[Factor], shifts: list[Expr]) -> list[Expr]:
        """``x sum b'``, ``y sum a'`` and ``n x y``, those that are not 0."""
        terms: list[Expr] = []
        number: Expr = Const(0)
        if all(x != Const(0) for x in shifts):
            count: Expr = Const(1)
            for r in self.s.ranges:
                if r.index in self.s.reductions:
                    count = mul(count, count_expr(r))
            number = count if isinstance(count, Const) else Cast(INT32, count)
            number = _times(_times(number, shifts[0]), shifts[1])
        for own, other in ((0, 1), (1, 0)):
            if shifts[own] != Const(0):
                terms.append(self._shift(self._sum(products[other]), shifts[own], number))
                number = Const(0)
        return terms

    def _shift(self, total: Expr, shift: Expr, number: Expr) -> Expr:
        """``sum * shift + number`` for each sum, by a statement of its own: if all are constants,
        it is one.
        """
        moved = [i for i in self.s.free if i in indices_of(total)]
        value = _times(total, shift)
        if number != Const(0):
            value = Op("add", (value, number))
        if {*indices_of(value)} - {*moved} or self._is_of_step(value):
            return value
        renamed = {i: fresh_name(i, self.taken) for i in moved}
        name = fresh_name(f"{self.s.target.tensor}_shift", self.taken)
        ranges = [r for i in moved for r in self.s.ranges if r.index == i]
        self.temps.append(Tensor(name, INT32, tuple(r.hi for r in ranges)))
        target = Read(name, tuple(Index(renamed[i]) for i in moved))
        own = tuple(Range(renamed[r.index], r.lo, r.hi) for r in ranges)
        self.before.append(Statement(name, target, "=", False, _renamed(value, renamed), own))
        return Read(name, tuple(map(Index, moved)))

    def _is_of_step(self, e: Expr) -> bool:
        """Whether a value is computed by the block."""
        return any(r.tensor in self.changing for r in reads_of(e))

    def _sum(self, f: Factor) -> Expr:
        """The sum of a factor over all terms, for each result; its statement goes before."""
        ranges = self.s.ranges
        moved = {i for e in f.read.indices for i in indices_of(e)}
        free = [r for r in ranges if r.index in self.s.free and r.index in moved]
        summed = [r for r in ranges if r.index in self.s.reductions and r.index in moved]
        name = fresh_name(f"{f.read.tensor}_sum", self.taken)
        self.temps.append(Tensor(name, INT32, tuple(r.hi for r in free)))
        target = Read(name, tuple(Index(r.index) for r in free))
        renamed = {r.index: fresh_name(r.index, self.taken) for r in (*free, *summed)}
        within = self._is_of_step(f.read)
        if within:
            renamed[self.s.step] = self.s.step

        def own(e: Expr) -> Expr:
            return simplify(_renamed(e, renamed))

        made = Statement(
            name,
            Read(name, tuple(map(own, target.indices))),
            "+=",
            True,
            Cast(INT32, Read(f.read.tensor, tuple(map(own, f.read.indices)))),
            tuple(Range(renamed[r.index], r.lo, r.hi) for r in (*free, *summed)),
            tuple(renamed[r.index] for r in summed),
        )
        if within:
            self.changing.add(name)
        (self.in_step if within else self.before).append(in_step(made, self.s) if within else made)
        others = [r for r in self.s.ranges if r.index in self.s.reductions and r.index not in moved]
        result: Expr = target
        for extent in map(count_expr, others):
            number = extent if isinstance(extent, Const) else Cast(INT32, extent)
            result = _times(result, number)
        return result


def _times(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(a.value) * int(b.value))
    for one, other in ((a, b), (b, a)):
        if one == Const(1):
            return other
    return Op("mul", (a, b))


def _renamed(e: Expr, names: dict[str, str]) -> Expr:
    return rewrite(e, lambda x: Index(names.get(x.name, x.name)) if isinstance(x, Index) else x)
