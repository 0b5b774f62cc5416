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
from poly.ir.accesses import block_of, loops_of_read, plain_dimension, stride_of
from poly.ir.expr import Const, Read
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
    """

    intrinsic: str
    loop: str
    group: int


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
        index, group = _shape(intrinsic)
        if intrinsic.extents[intrinsic.statement.indices.index(index)] != lanes:
            continue
        for operands in _ways(scop, s, intrinsic):
            for loop in s.source.reductions:
                if not _in_groups(s, loop, group) or not is_rectangular(s, loop):
                    continue
                extent = extents[loop] or 1 << 20
                score = _score(operands, v, index, loop, group)
                if score is not None:
                    found.append(((score, extent), DotProduct(intrinsic.name, loop, group)))
    return max(found, key=lambda x: x[0], default=(None, None))[1]


def _in_groups(s: ScopStatement, loop: str, group: int) -> bool:
    """Whether a loop is known to have a whole number of groups of iterations."""
    (r,) = (r for r in s.source.ranges if r.index == loop)
    return r.lo == Const(0) and linear_form(r.hi).is_multiple_of(group) and r.hi != Const(0)


def _shape(intrinsic: VectorIntrinsic) -> tuple[str, int]:
    """The index of the sums of an instruction, and the number of terms of each."""
    return intrinsic.statement.indices[0], intrinsic.extents[1]


def _ways(scop: Scop, s: ScopStatement, intrinsic: VectorIntrinsic) -> Iterator[dict[Read, Read]]:
    """The ways in which the value of a statement is that of an instruction."""
    own, theirs, meaning = scop.program.dtypes, intrinsic.meaning.dtypes, intrinsic.statement
    if s.role != Role.UPDATE or s.source.op != meaning.op:
        return
    if own[s.target.tensor] == theirs[meaning.target.tensor]:
        yield from ways_to_match(meaning.value, s.value, {}, own, theirs)


def _score(operands: dict[Read, Read], v: str, index: str, loop: str, group: int) -> int | None:
    """How many operands are stored as an instruction reads them; None if one cannot be."""
    score = 0
    for pattern, read in operands.items():
        moves = v in loops_of_read(read)
        if moves != (index in loops_of_read(pattern)):
            return None
        adjacent = not moves and stride_of(read, loop) == 1
        if not adjacent and plain_dimension(read, loop) is None and block_of(read, loop) is None:
            return None
        if moves and plain_dimension(read, v) is None and block_of(read, v) is None:
            return None
        block = block_of(read, loop)
        last = plain_dimension(read, loop) == len(read.indices) - 1
        score += int(last or (block is not None and block % group == 0))
    return score
