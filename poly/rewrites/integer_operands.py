"""Operands of sums of products of 8-bit integers: their zero points, and copies of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from poly.ir.accesses import loops_of_read
from poly.ir.dtypes import INT8, INT16, INT32, UINT8, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    indices_of,
    minimum,
    mul,
    reads_of,
    rewrite,
    sub,
    substitute,
)
from poly.ir.linear_form import Linear, linear_form, normal, render
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name

#: The difference between a number without a sign and the same bits with one, in 8 bits.
OFFSET = 128
#: Sums in the longest vector.
LANES = 16
#: With fewer filters for each image, lanes run along its rows.
FEW = 8
ZERO = Const(0)


@dataclass(frozen=True)
class Factor:
    """A factor ``int32(read) - zero`` of a product.

    dtype : of the element; zero : an int32 that does not move with the sum
    fits : whether the factor is known to fit into 16 bits
    """

    read: Read
    dtype: DType
    zero: Expr = ZERO
    fits: bool = True

    @property
    def value(self) -> Expr:
        """The element without its zero point, as an int32."""
        return Cast(INT32, self.read)

    def shifted(self, dtype: DType) -> Expr:
        """x, if the factor is ``a + x`` with a the element in this type; 16 bits hold it whole."""
        if dtype == INT16:
            return ZERO
        offset = {(INT8, UINT8): -OFFSET, (UINT8, INT8): OFFSET}.get((self.dtype, dtype), 0)
        if isinstance(self.zero, Const):
            return Const(offset - int(self.zero.value))
        return Op("sub", (Const(offset), self.zero)) if offset else Op("neg", (self.zero,))

    @property
    def is_image(self) -> bool:
        """Whether it is read in windows: an index is not just that of a loop."""
        return any(len(indices_of(i)) > 1 or _is_strided(i) for i in self.read.indices)

    def size(self, program: Program) -> int:
        """The elements of its tensor, with a large number for each unknown extent."""
        return _product_of(program.tensors[self.read.tensor].shape, 1 << 20)

    def uses(self, s: Statement, least: int) -> int:
        """With how many elements of the other factor each one is multiplied for other results; an
        unknown extent counts as `least`.
        """
        moved = loops_of_read(self.read)
        free = [r.hi for r in s.ranges if r.index in s.free and r.index not in moved]
        return _product_of(free, least)

    def is_apart(self, program: Program, loop: str) -> bool:
        """Whether elements along a loop, which moves one dimension, are not next to each other."""
        if Index(loop) not in self.read.indices:
            return False
        inner = program.tensors[self.read.tensor].shape[self.read.indices.index(Index(loop)) + 1 :]
        return any(e != Const(1) for e in inner)

    def moves_with(self, loop: str) -> bool:
        return any(loop in indices_of(i) for i in self.read.indices)

    def dimension(self, loop: str) -> int | None:
        """The dimension that moves by one with a loop, if no other one moves."""
        moving = [d for d, i in enumerate(self.read.indices) if loop in indices_of(i)]
        if len(moving) != 1:
            return None
        form = linear_form(self.read.indices[moving[0]])
        nested = any(loop in indices_of(a) for a, _ in form.without(Index(loop)).terms)
        return None if nested or form.coefficient(Index(loop)) != 1 else moving[0]


def _product_of(extents: Collection[Expr], unknown: int) -> int:
    return prod(int(e.value) if isinstance(e, Const) else unknown for e in extents)


def _is_strided(index: Expr) -> bool:
    return any(abs(c) > 1 for _, c in linear_form(index).terms)


def factors_of(
    program: Program,
    s: Statement,
    types: Collection[DType] = (INT8, UINT8),
    total: DType = INT32,
) -> tuple[Factor, Factor] | None:
    """The factors of a sum of products of numbers of `types`; None if it is not one."""
    value = s.value
    if s.op != "+=" or not s.reductions or program.dtypes[s.target.tensor] != total:
        return None
    if not isinstance(value, Op) or value.fn != "mul":
        return None
    first, second = (_factor(program, s, e, types, total) for e in value.args)
    if first is None or second is None or s.target.tensor in {r.tensor for r in s.reads}:
        return None
    plain = all(r.lo == ZERO for r in s.ranges)
    targets = [i for i in s.target.indices if not isinstance(i, Index)]
    return (first, second) if plain and not any(reads_of(i) for i in targets) else None


def _factor(
    program: Program, s: Statement, e: Expr, types: Collection[DType], total: DType
) -> Factor | None:
    zero: Expr = ZERO
    fits = True
    if isinstance(e, Op) and e.fn == "sub":
        if not total.is_integer:
            return None
        e, zero = e.args
        whole = isinstance(zero, Const) and isinstance(zero.value, int)
        if not whole and not (isinstance(zero, Cast) and zero.dtype == INT32):
            return None
        fits = _is_of_8_bits(program, zero)
        if {*indices_of(zero)} & {*s.reductions}:
            return None
    converted = isinstance(e, Cast) and e.dtype == total
    read = e.arg if isinstance(e, Cast) and converted else e
    if not isinstance(read, Read):
        return None
    dtype = program.dtypes[read.tensor]
    if not converted and dtype.compute != total:
        return None
    if dtype not in types or any(reads_of(i) for i in read.indices):
        return None
    return Factor(read, dtype, zero, fits)


def _is_of_8_bits(program: Program, e: Expr) -> bool:
    if isinstance(e, Const):
        return -OFFSET <= int(e.value) < 2 * OFFSET
    read = e.arg if isinstance(e, Cast) else None
    return isinstance(read, Read) and program.dtypes[read.tensor] in (INT8, UINT8)


def has_few_filters(s: Statement, factors: tuple[Factor, Factor]) -> bool:
    """Whether a factor is an image of which each element is used with a few filters, so that lanes
    along these would be fewer than those along its rows.
    """
    return any(f.is_image and f.uses(s, FEW) < FEW for f in factors)


# --- copies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copied:
    """A copy of an operand: the tensor, the statements that fill it, and the read of it."""

    tensor: Tensor
    statements: tuple[Statement, ...]
    read: Read


def _converted(f: Factor, element: Read, want: DType, dimensions: Mapping[Expr, str]) -> Expr:
    """An element of a copy of a factor: in another type of 8 bits, moved by the difference between
    them, or in one of 16, less its zero point.

    dimensions : the indices by which the factor is read, each with that of the copy
    """
    if f.dtype == want:
        return element
    whole: Expr = Cast(INT32, element)
    if want == INT16:
        return Cast(
            want, whole if f.zero == ZERO else Op("sub", (whole, _moved(f.zero, dimensions)))
        )
    by = OFFSET if want == UINT8 else -OFFSET
    return Cast(want, Op("add", (whole, Const(by))))


def _moved(e: Expr, dimensions: Mapping[Expr, str]) -> Expr:
    """A zero point, by the indices of a copy."""
    return rewrite(e, lambda x: Index(dimensions[x]) if isinstance(x, Index) else x)


def _moves_with(e: Expr, dimensions: Mapping[Expr, str]) -> bool:
    """Whether a zero point only uses indices that a copy has."""
    return all(Index(i) in dimensions for i in indices_of(e))


def copied(
    program: Program,
    f: Factor,
    dtype: DType,
    loop: str,
    longer: Expr | None,
    extent: Expr,
    taken: set[str],
    within: Statement | None = None,
) -> Copied:
    """A copy in another type, and with zeros along a loop that runs further than its `extent`.

    longer : how far the loop runs, None: no further
    within : a statement of a block, in each step of which what that reads is copied

    The zero point of a factor that is widened must move only with indices that it has.
    """
    source = program.tensors[f.read.tensor]
    dim = None if longer is None else f.dimension(loop)
    shape = tuple(
        source.shape[d] if d != dim or longer is None else longer for d in range(source.rank)
    )
    tensor = Tensor(fresh_name(f"{source.name}_p", taken), dtype, shape)
    names = [fresh_name(f"i{d}", taken) for d in range(source.rank)]
    if within is not None:
        names[f.read.indices.index(Index(within.step))] = within.step
    inside = [
        minimum(Index(n), sub(extent, Const(1))) if d == dim else Index(n)
        for d, n in enumerate(names)
    ]
    own: dict[Expr, str] = dict(zip(f.read.indices, names, strict=True))
    value = _converted(f, Read(source.name, tuple(inside)), dtype, own)
    if dim is not None:
        value = Op("select", (Op("lt", (Index(names[dim]), extent)), value, Const(0, dtype)))
    ranges = tuple(Range(n, ZERO, e) for n, e in zip(names, shape, strict=True))
    target = Read(tensor.name, tuple(map(Index, names)))
    statement = Statement(tensor.name, target, "=", False, value, ranges)
    if within is not None:
        statement = in_step(statement, within)
    return Copied(tensor, (statement,), Read(tensor.name, f.read.indices))


def in_step(s: Statement, within: Statement) -> Statement:
    """A statement as one of the block of another one."""
    step = within.ranges[0]
    others = tuple(r for r in s.ranges if r.index != step.index)
    return replace(s, ranges=(step, *others), block=within.block)


def without_gaps(made: Copied, s: Statement) -> Copied:
    """A copy of only the elements that a statement reads, where these are some apart along a
    dimension: ``X[i,2*p]`` becomes ``A[i,p]``.
    """
    (copy,) = made.statements
    ranges = {r.index: r for r in s.ranges}
    indices, shape, statement = [*made.read.indices], [*made.tensor.shape], copy
    for d, (index, own) in enumerate(zip(made.read.indices, copy.target.indices, strict=True)):
        form = linear_form(index)
        if len(form.terms) != 1 or form.constant:
            continue
        ((loop, step),) = form.terms
        r = ranges.get(loop.name) if isinstance(loop, Index) and step > 1 else None
        if r is None or r.lo != ZERO:
            continue
        indices[d], shape[d] = Index(r.index), r.hi
        assert isinstance(own, Index)
        value = substitute(statement.value, indices={own.name: mul(Const(step), own)})
        whole = tuple(replace(x, hi=r.hi) if x.index == own.name else x for x in statement.ranges)
        statement = replace(statement, value=value, ranges=whole)
    tensor = replace(made.tensor, shape=tuple(shape))
    return Copied(tensor, (statement,), replace(made.read, indices=tuple(indices)))


def in_groups(made: Copied, loop: str, group: int, taken: set[str]) -> Copied:
    """A copy that has the groups of elements along a loop next to each other, as instructions read
    them: ``A[.., k // 4, .., k mod 4]``.
    """
    (dim,) = (d for d, i in enumerate(made.read.indices) if i == Index(loop))
    number, shape = Const(group), made.tensor.shape

    def blocked(read: Read) -> Read:
        e = read.indices[dim]
        outer, inner = Op("floordiv", (e, number)), Op("mod", (e, number))
        return replace(read, indices=(*read.indices[:dim], outer, *read.indices[dim + 1 :], inner))

    def filled(s: Statement) -> Statement:
        index = s.target.indices[dim]
        (r,) = (r for r in s.ranges if Index(r.index) == index)
        if not linear_form(r.hi).is_multiple_of(group):
            return replace(s, target=blocked(s.target))
        # With loops of their own, groups are filled a vector of each element at a time.
        outer, inner = (fresh_name(f"{r.index}{end}", taken) for end in "og")
        whole = add(mul(number, Index(outer)), Index(inner))
        own = (*s.target.indices[:dim], Index(outer), *s.target.indices[dim + 1 :], Index(inner))
        count = render(linear_form(r.hi).ceildiv(group))
        ranges = [Range(outer, ZERO, count) if x is r else x for x in s.ranges]
        value = rewrite(s.value, lambda e: whole if e == index else e)
        target = replace(s.target, indices=own)
        return replace(s, target=target, value=value, ranges=(*ranges, Range(inner, ZERO, number)))

    outer = render(linear_form(shape[dim]).ceildiv(group))
    tensor = replace(made.tensor, shape=(*shape[:dim], outer, *shape[dim + 1 :], number))
    return Copied(tensor, tuple(map(filled, made.statements)), blocked(made.read))


def is_bordered(f: Factor, s: Statement, guards: Sequence[Expr]) -> bool:
    """Whether conditions say just that a factor is inside of its tensor, in some dimensions."""
    return bool(guards) and all(_bounded(f, g) is not None for g in guards)


def _bounded(f: Factor, guard: Expr) -> tuple[int, Expr | None] | None:
    """The dimension of an operand that a condition bounds by 0 from below, and None; or from above,
    and the first index beyond.
    """
    if not isinstance(guard, Op) or guard.fn not in ("lt", "le", "gt", "ge"):
        return None
    left, right = guard.args if guard.fn in ("lt", "le") else guard.args[::-1]
    # left + strict <= right
    slack = linear_form(sub(right, left)) + (-1 if guard.fn in ("lt", "gt") else 0)
    for d, index in enumerate(f.read.indices):
        form = linear_form(index)
        if len(form.terms) and (slack - form).terms == () and (slack - form).constant == 0:
            return d, None
        beyond = render(slack + form + 1)
        if indices_of(index) and not indices_of(beyond):
            return d, beyond
    return None


def bordered(
    program: Program,
    f: Factor,
    dtype: DType,
    guards: Sequence[Expr],
    ranges: Sequence[Range],
    taken: set[str],
    loop: str = "",
) -> Copied | None:
    """A copy with a border of zeros, wide enough for all values of the loops; None if that is not
    known.

    loop : the reduction along which an instruction adds terms: where windows move along it, there
        is room for the last vector of them
    """
    source = program.tensors[f.read.tensor]
    bounds = [b for g in guards if (b := _bounded(f, g)) is not None]
    dims = {d for d, _ in bounds}
    extents = {Index(r.index): r.hi for r in ranges}
    shape, lows, indices, inner = [], [], [], []
    for d, index in enumerate(f.read.indices):
        if d not in dims:
            shape.append(source.shape[d])
            lows.append(0)
            indices.append(index)
            inner.append(source.shape[d])
            continue
        form = linear_form(index)
        low = _least(form, extents)
        within = _in_whole_vectors(extents, loop) if loop in indices_of(index) else extents
        most = _greatest(form, within)
        if low is None or most is None or low > 0:
            return None
        shape.append(normal(sub(add(most, Const(1)), Const(low))))
        lows.append(low)
        indices.append(normal(sub(index, Const(low))))
        inside = [e for at, e in bounds if at == d and e is not None]
        inner.append(minimum(source.shape[d], normal(add(most, Const(1))), *inside))
    tensor = Tensor(fresh_name(f"{source.name}_p", taken), dtype, tuple(shape))
    names = [fresh_name(f"i{d}", taken) for d in range(source.rank)]
    kept = [(d, i) for d, i in enumerate(f.read.indices) if d not in dims]
    border = _border(f, dtype, {i: names[d] for d, i in kept})
    if border is None:
        return None
    every = Statement(
        f"{tensor.name}_border", Read(tensor.name, tuple(map(Index, names))), "=", False, border,
        tuple(Range(n, ZERO, e) for n, e in zip(names, shape, strict=True)),
    )  # fmt: skip
    others = [fresh_name(f"i{d}", taken) for d in range(source.rank)]
    moved = tuple(add(Index(n), Const(-low)) for n, low in zip(others, lows, strict=True))
    image = Statement(
        tensor.name, Read(tensor.name, moved), "=", False,
        _converted(
            f, Read(source.name, tuple(map(Index, others))), dtype, {i: others[d] for d, i in kept}
        ),
        tuple(Range(n, ZERO, e) for n, e in zip(others, inner, strict=True)),
    )  # fmt: skip
    return Copied(tensor, (every, image), Read(tensor.name, tuple(indices)))


def _border(f: Factor, dtype: DType, dimensions: Mapping[Expr, str]) -> Expr | None:
    """The element that stands for 0, in a copy of a factor; None if there is none.

    dimensions : the indices by which the factor is read, each with that of the copy
    """
    shift = f.shifted(dtype)
    if not _moves_with(f.zero, dimensions):
        return None
    if isinstance(shift, Const):
        value = -int(shift.value)
        return Const(value, dtype) if dtype.limits[0] <= value <= dtype.limits[1] else None
    return Cast(dtype, _moved(Op("neg", (shift,)), dimensions)) if f.fits else None


def _in_whole_vectors(extents: Mapping[Index, Expr], loop: str) -> dict[Index, Expr]:
    """The extents of loops, all but one in whole vectors of sums, where they are known."""

    def whole(e: Expr) -> Expr:
        return Const(-(-int(e.value) // LANES) * LANES) if isinstance(e, Const) else e

    return {i: e if i == Index(loop) else whole(e) for i, e in extents.items()}


def _least(form: Linear, extents: dict[Index, Expr]) -> int | None:
    """The least value of an index, if it is a number."""
    total = form.constant
    for a, c in form.terms:
        if not isinstance(a, Index) or a not in extents:
            return None
        if c < 0:
            last = extents[a]
            if not isinstance(last, Const):
                return None
            total += c * (int(last.value) - 1)
    return total


def _greatest(form: Linear, extents: dict[Index, Expr]) -> Expr | None:
    """The greatest value of an index."""
    total: Expr = Const(form.constant)
    for a, c in form.terms:
        if not isinstance(a, Index) or a not in extents:
            return None
        if c > 0:
            total = add(total, mul(Const(c), sub(extents[a], Const(1))))
    return normal(total)
