"""Instructions that sum several products at once, for the terms of a contraction.

    Y[i,j] += A[i,k] * B[k,j]

has one for `group` terms k and a vector of j, if the types are those of the instruction: it takes
one operand from `group` adjacent elements, and the other from a vector of such groups.  Operands
that are not stored so are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poly.deps.scop import Role, Scop, ScopStatement
from poly.ir.accesses import block_of, element_stride, lane_dimension, loops_of_read
from poly.ir.expr import Const, Index, Read, indices_of
from poly.ir.instruction_tables import dot_products
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.linear_form import linear_form
from poly.ir.match_values import ways_to_match
from poly.machine.cpu import Machine
from poly.strategy.common.queries import is_rectangular, static_extents


@dataclass(frozen=True)
class DotProduct:
    """An instruction for the terms of a reduction.

    intrinsic : its name; loop : the reduction, of which it sums `group` terms
    in_place : the operands that are stored as it reads them; others are packed
    windows : whether an operand is read in windows of a row, which has room for whole vectors
    """

    intrinsic: str
    loop: str
    group: int
    in_place: frozenset[Read]
    windows: bool = False


def has_dot_product(scop: Scop, s: ScopStatement, machine: Machine) -> bool:
    """Whether there is an instruction for the types of a statement."""
    return any(True for i in dot_products(machine.extensions) for _ in _ways(scop, s, i))


def find_dot_product(
    scop: Scop, s: ScopStatement, v: str, lanes: int, machine: Machine
) -> DotProduct | None:
    """The instruction for a vector along v of a statement; None if there is none."""
    extents = static_extents(s)
    found: list[tuple[tuple[int, int], DotProduct]] = []
    for intrinsic in dot_products(machine.extensions):
        width, group = intrinsic.extents
        if width != lanes:
            continue
        for operands in _ways(scop, s, intrinsic):
            for loop in s.source.reductions:
                if not _in_groups(s, loop, group) or not is_rectangular(s, loop):
                    continue
                # A vector of an open number of elements may be partial.
                partial = (extents[v] or 1) % lanes != 0
                stored = _in_place(scop, operands, intrinsic, v, loop, partial)
                if stored is not None:
                    dot = DotProduct(intrinsic.name, loop, group, stored, intrinsic.has_windows)
                    found.append(((len(stored), extents[loop] or 1 << 20), dot))
    return max(found, key=lambda x: x[0], default=(None, None))[1]


def _in_groups(s: ScopStatement, loop: str, group: int) -> bool:
    """Whether a loop is known to have a whole number of groups of iterations."""
    (r,) = (r for r in s.source.ranges if r.index == loop)
    return r.lo == Const(0) and linear_form(r.hi).is_multiple_of(group) and r.hi != Const(0)


def _ways(scop: Scop, s: ScopStatement, intrinsic: VectorIntrinsic) -> Iterator[dict[Read, Read]]:
    """The ways in which the value of a statement is that of an instruction."""
    own, theirs, meaning = scop.program.dtypes, intrinsic.meaning.dtypes, intrinsic.statement
    if s.role != Role.UPDATE or s.source.op != meaning.op:
        return
    if own[s.target.tensor] == theirs[meaning.target.tensor]:
        yield from ways_to_match(meaning.value, s.value, {}, own, theirs)


def _in_place(
    scop: Scop,
    operands: dict[Read, Read],
    intrinsic: VectorIntrinsic,
    v: str,
    loop: str,
    partial: bool,
) -> frozenset[Read] | None:
    """The operands that are stored as an instruction reads them; None if another cannot be packed
    so.

    partial : whether the last vector needs room beyond the end, which blocks and windows have
    """
    found: set[Read] = set()
    loops = dict(zip(intrinsic.statement.indices, (v, loop), strict=True))
    for pattern, read in operands.items():
        moving = loops_of_read(pattern)
        if any((own in loops_of_read(read)) != (x in moving) for x, own in loops.items()):
            return None
        strides = intrinsic.strides(pattern.tensor)
        shape = scop.program.tensors[read.tensor].shape
        stored = all(
            element_stride(read, shape, loops[x], extent) == _step(pattern, strides, x)
            for x, extent in zip(intrinsic.statement.indices, intrinsic.extents, strict=True)
        )
        has_room = not partial or intrinsic.has_windows or block_of(read, v) is not None
        if stored and (has_room or v not in loops_of_read(read)):
            found.add(read)
        elif not _can_be_packed(pattern, read, loops, intrinsic):
            return None
    return frozenset(found)


def _step(pattern: Read, strides: tuple[int, ...], index: str) -> int:
    """The distance between the elements of consecutive values of an index."""
    forms = map(linear_form, pattern.indices)
    return sum(f.coefficient(Index(index)) * n for f, n in zip(forms, strides, strict=True))


def _can_be_packed(
    pattern: Read, read: Read, loops: dict[str, str], intrinsic: VectorIntrinsic
) -> bool:
    """Whether a layout puts the elements of an operand where an instruction reads them: each loop
    moves a dimension of its own, in the order of the loops.

    An image with lanes along its channels would be transposed for every vector of them.
    """
    is_image = any(len(indices_of(i)) > 1 for i in read.indices)
    if is_image and loops[intrinsic.statement.indices[0]] in loops_of_read(read):
        return False
    names = [i.name for i in pattern.indices if isinstance(i, Index)]
    order = [x for x in intrinsic.statement.indices if x in names]
    if len(names) != len(pattern.indices) or names != order:
        return False
    extents = dict(zip(intrinsic.statement.indices, intrinsic.extents, strict=True))
    dims = [lane_dimension(read, loops[x], extents[x]) for x in names]
    return None not in dims and len({*dims}) == len(dims)
