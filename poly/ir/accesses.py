"""How accesses move with loops: strides, blocks, dimensions, elements touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, prod

from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    children,
    indices_of,
    maximum,
    reads_of,
    walk,
)
from poly.ir.linear_form import linear_form, render
from poly.ir.program import Range, Statement

#: Operators that a register tile may compute: one or a few instructions each.
TILE_OPS = frozenset(("add", "sub", "mul", "div", "neg", "min", "max", "abs"))


def lane_value(e: Expr) -> bool:
    """Whether generated code computes an expression in vector lanes as a whole.

    It does so for all operators there; loop variables used as values, and data-dependent indices,
    are computed lane by lane.
    """
    if isinstance(e, Read):
        return not any(isinstance(x, Read) for i in e.indices for x in walk(i))
    if isinstance(e, Op):
        return all(lane_value(a) for a in e.args)
    return isinstance(e, (Const, Size)) or (isinstance(e, Cast) and lane_value(e.arg))


def tile_value(e: Expr) -> bool:
    """Whether an expression may be computed for each element of a register tile."""
    if isinstance(e, Op):
        return e.fn in TILE_OPS and all(tile_value(a) for a in e.args)
    return tile_value(e.arg) if isinstance(e, Cast) else lane_value(e)


def stride_of(read: Read, loop: str) -> int | None:
    """The stride of `read` along `loop`, in elements of its last dimension.

    0: the access does not depend on the loop; n: only the last dimension changes, by n per
    iteration; None: otherwise.
    """
    *outer, last = read.indices or (Const(0),)
    if any(loop in indices_of(i) for i in outer):
        return None
    form = linear_form(last)
    rest = form.without(Index(loop))
    if any(loop in indices_of(a) for a, _ in rest.terms):
        return None
    return form.coefficient(Index(loop))


def plain_dimension(read: Read, loop: str) -> int | None:
    """The one dimension of `read` whose index is just `loop`, if no other moves with it."""
    moving = [k for k, i in enumerate(read.indices) if loop in indices_of(i)]
    if len(moving) == 1 and read.indices[moving[0]] == Index(loop):
        return moving[0]
    return None


def loops_of_read(read: Read) -> frozenset[str]:
    """The loops that the indices of `read` depend on."""
    return frozenset(i for e in read.indices for i in indices_of(e))


def loops_as_values(e: Expr) -> set[str]:
    """The loops used in a value itself, or in data-dependent indices."""
    if isinstance(e, Index):
        return {e.name}
    parts = e.indices if isinstance(e, Read) else children(e)
    if isinstance(e, Read) and not any(reads_of(i) for i in parts):
        return set()
    return {i for part in parts for i in loops_as_values(part)}


def meets_itself(s: Statement) -> bool:
    """Whether an instance may read what another one writes in the same step."""
    return any(r.tensor == s.target.tensor and not is_other_element(s, r) for r in s.reads)


def writes_once(s: Statement) -> bool:
    """Whether no two choices of the free indices of a step write the same element, as the indices
    of the target show: those of a dimension count like the digits of a number.
    """
    ranges = {r.index: r for r in s.ranges}
    known = {i for i, r in ranges.items() if i == s.step or count_of(r) in (0, 1)}
    for _ in s.target.indices:
        for index in s.target.indices:
            terms = [(a, abs(c)) for a, c in linear_form(index).terms if indices_of(a)]
            digits = [(a.name, c) for a, c in terms if isinstance(a, Index) and a.name not in known]
            reach: float = 0
            for name, weight in sorted(digits, key=lambda digit: digit[1]):
                if weight <= reach:
                    break
                reach += weight * (count_of(ranges[name]) - 1)
            else:
                if all(isinstance(a, Index) for a, _ in terms):
                    known |= {name for name, _ in digits}
    return known >= {*s.free}


def count_of(r: Range) -> float:
    """The number of values in a range; infinite if that is open."""
    extent = linear_form(r.hi) - linear_form(r.lo)
    return inf if extent.terms else max(0, extent.constant)


def count_expr(r: Range) -> Expr:
    """The number of values in a range: 0 where it ends before it starts."""
    form = linear_form(r.hi) - linear_form(r.lo)
    never_negative = form.constant >= 0 and all(
        isinstance(atom, Size) and factor > 0 for atom, factor in form.terms
    )
    return render(form) if never_negative else maximum(Const(0), render(form))


def is_other_element(s: Statement, read: Read) -> bool:
    """Whether no instance of the same step writes an element that is read: it differs in an index
    that only the step moves, or nothing.
    """
    for a, b in zip(s.target.indices, read.indices, strict=True):
        ahead = linear_form(a) - linear_form(b)
        if not ahead.terms and ahead.constant and set(indices_of(a)) <= {s.step}:
            return True
    return False


def elements_read(reads: Iterable[Read], extents: Mapping[str, int | None]) -> int:
    """The number of elements that reads touch while loops run over the given extents.

    A loop that is not listed, or whose extent is None, does not run.  Counted as boxes, so that
    windows may come out slightly too large.
    """
    return sum(prod(_span(i, extents) + 1 for i in r.indices) for r in reads)


def _span(index: Expr, extents: Mapping[str, int | None]) -> int:
    """The difference between the greatest and the least value of an index."""
    if isinstance(index, Index):
        return (extents.get(index.name) or 1) - 1
    if isinstance(index, Op) and index.fn in ("mod", "floordiv"):
        divisor = index.args[1]
        span = _span(index.args[0], extents)
        if not isinstance(divisor, Const) or not divisor.value:
            return span
        by = int(divisor.value)
        return min(span, by - 1) if index.fn == "mod" else span // by
    form = linear_form(index)
    return sum(abs(c) * _span(a, extents) for a, c in form.terms if a != index)


def moving_dimensions(read: Read, loop: str) -> tuple[int, ...]:
    """The dimensions of `read` whose index moves with `loop`."""
    return tuple(k for k, i in enumerate(read.indices) if loop in indices_of(i))


def block_of(read: Read, loop: str) -> int | None:
    """The block size of a tensor that is stored in blocks along `loop`, as in
    ``A[c // 16, p, q, c mod 16]`` along c.

    Smaller blocks may follow: ``A[k // 32, c // 4, k mod 32, c mod 4]`` along k or c.
    """
    dims = moving_dimensions(read, loop)
    if len(dims) != 2 or _elements_of_blocks(read, dims[1] + 1) is None:
        return None
    outer, inner = (read.indices[d] for d in dims)
    if not isinstance(inner, Op) or inner.fn != "mod" or inner.args[0] != Index(loop):
        return None
    size = inner.args[1]
    same = isinstance(size, Const) and outer == Op("floordiv", (Index(loop), size))
    return int(size.value) if same and isinstance(size, Const) else None


def _elements_of_blocks(read: Read, dim: int) -> int | None:
    """The number of elements of the dimensions from `dim` on, if they are those of blocks."""
    found = 1
    for index in read.indices[dim:]:
        if not isinstance(index, Op) or index.fn != "mod" or not isinstance(index.args[1], Const):
            return None
        found *= int(index.args[1].value)
    return found


def vector_stride(read: Read, loop: str, lanes: int) -> int | None:
    """`stride_of` for a vector of `lanes` iterations that begins at a multiple of `lanes`."""
    block = block_of(read, loop)
    if block is None or block % lanes:
        return stride_of(read, loop)
    return _elements_of_blocks(read, moving_dimensions(read, loop)[1] + 1)


def element_stride(read: Read, shape: Sequence[Expr], loop: str, count: int) -> int | None:
    """The distance in memory between what a loop's iterations read of a tensor, in elements; None
    if it is not the same for all of `count` iterations from a multiple of `count` on.
    """
    block = block_of(read, loop)
    if block is not None and block % count == 0:
        return _elements(shape[moving_dimensions(read, loop)[1] + 1 :])
    total = 0
    for d, index in enumerate(read.indices):
        form = linear_form(index)
        factor = form.coefficient(Index(loop))
        if any(loop in indices_of(a) for a, _ in form.without(Index(loop)).terms):
            return None
        if factor:
            inner = _elements(shape[d + 1 :])
            if inner is None:
                return None
            total += factor * inner
    return total


def _elements(shape: Sequence[Expr]) -> int | None:
    """The number of elements of a shape, if it is known."""
    known = [int(e.value) for e in shape if isinstance(e, Const)]
    return prod(known) if len(known) == len(shape) else None


def lane_dimension(read: Read, loop: str, lanes: int) -> int | None:
    """The dimension of `read` along which the lanes of a vector of `loop` run, if just one."""
    block = block_of(read, loop)
    if block is not None and block % lanes == 0:
        return moving_dimensions(read, loop)[1]
    return plain_dimension(read, loop)
