"""Sums of products of narrow integers, two products at a time.

    Y[i,j] +=! int32(A[i,k]) * int32(B[k,j])

multiplies numbers of 8 bits (or their differences from a zero point) in lanes of 32.  Two such
numbers fit into one lane, and processors have an instruction for the resulting operation, `dot2`:
the product of the lower halves plus that of the upper ones.

    P[i,h] = A[i,2*h] & 65535 | A[i,2*h + 1] << 16        Q[h,j] = B[2*h,j] & 65535 | ...
    Y[i,j] +=! dot2(P[i,h], Q[h,j])

Sums of integers wrap around, so their order does not matter: no bit of a result changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from poly.ir.dtypes import INT32
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
)
from poly.ir.instruction_tables import dot_products
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.match_values import ways_to_match
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    default_name,
    fresh_name,
)
from poly.sets.check_bounds import if_proved

#: The types of 8 bits; a difference of two such numbers fits into 16.
_NARROW = frozenset(("int8", "uint8"))
#: Each element of an operand must be used this often for packing its pairs to pay.
REUSE = 8


def pair_products(program: Program, extensions: tuple[str, ...] = ()) -> Program:
    """Sum products of narrow integers two at a time, where that pays."""
    return _in_pairs(program, tuple(dot_products(extensions)))


@lru_cache(maxsize=4096)
def _in_pairs(program: Program, instructions: tuple[VectorIntrinsic, ...]) -> Program:
    """Sums for which there is none of these instructions, two at a time."""
    result = program
    for s in () if program.has_blocks else program.statements:
        loop = None if _is_instruction(program, s, instructions) else _paired_loop(program, s)
        if loop is not None:
            result = _paired(result, s, loop)
    if result is program:
        return program
    statements = tuple(replace(s, name=default_name(n)) for n, s in enumerate(result.statements))
    return if_proved(replace(result, statements=statements, text=None), program)


def _is_instruction(
    program: Program, s: Statement, instructions: tuple[VectorIntrinsic, ...]
) -> bool:
    """Whether one of some instructions is for a statement as it is."""
    return any(
        True
        for i in instructions
        for _ in ways_to_match(i.statement.value, s.value, {}, program.dtypes, i.meaning.dtypes)
    )


def _paired_loop(program: Program, s: Statement) -> str | None:
    """The reduction along which products of a statement can be taken in pairs."""
    value = s.value
    if s.op != "+=" or program.dtypes[s.target.tensor] != INT32 or s.block:
        return None
    if not (isinstance(value, Op) and value.fn == "mul"):
        return None
    if not all(_is_narrow(a, program) for a in value.args):
        return None
    guarded = {i for g in s.guards for i in indices_of(g)}
    for r in s.ranges:
        known = r.lo == Const(0) and isinstance(r.hi, Const) and int(r.hi.value) >= 2
        if r.index not in s.reductions or not known or r.index in guarded:
            continue
        if all(_main_read(a, r.index) and _is_reused(s, a) for a in value.args):
            return r.index
    return None


def _is_narrow(e: Expr, program: Program) -> bool:
    """Whether a value is one of 8 bits in a type of 32, or a difference of two."""
    if isinstance(e, Op) and e.fn == "sub":
        return all(_is_narrow(a, program) and not isinstance(a, Op) for a in e.args)
    if not (isinstance(e, Cast) and e.dtype == INT32 and isinstance(e.arg, Read)):
        return False
    return program.dtypes[e.arg.tensor].name in _NARROW


def _main_read(e: Expr, loop: str) -> tuple[Read, int] | None:
    """The read of an operand that moves with a loop, and in which dimension; None if others do.

    Other reads must use indices of this one.
    """
    moving = [r for r in reads_of(e) if loop in indices_of(r)]
    if len(moving) != 1:
        return None
    (read,) = moving
    dims = [d for d, i in enumerate(read.indices) if loop in indices_of(i)]
    if len(dims) != 1 or read.indices[dims[0]] != Index(loop):
        return None
    others = (i for r in reads_of(e) if r != read for i in r.indices)
    return (read, dims[0]) if all(i in read.indices or i == Const(0) for i in others) else None


def _is_reused(s: Statement, operand: Expr) -> bool:
    """Whether each element of an operand is used in many products; open extents count as large."""
    moved = indices_of(operand)
    extents = [r.hi for r in s.ranges if r.index in s.free and r.index not in moved]
    return prod(int(e.value) if isinstance(e, Const) else REUSE for e in extents) >= REUSE


def _paired(program: Program, s: Statement, loop: str) -> Program:
    """The program with one statement along half a loop, after its operands are packed in pairs."""
    assert isinstance(s.value, Op)
    count = next(int(r.hi.value) for r in s.ranges if r.index == loop and isinstance(r.hi, Const))
    taken = {*program.tensors, *program.sizes, *(i for t in program.statements for i in t.indices)}
    before: list[Statement] = []
    halves: list[Expr] = []
    temps = list(program.temps)
    for operand in s.value.args:
        tensor, statement, read = _together(program, operand, loop, count, taken)
        temps.append(tensor)
        before.append(statement)
        halves.append(read)
    ranges = tuple(
        Range(loop, r.lo, Const((count + 1) // 2)) if r.index == loop else r for r in s.ranges
    )
    made = replace(s, value=Op("dot2", tuple(halves)), ranges=ranges)
    position = next(n for n, t in enumerate(program.statements) if t.name == s.name)
    statements = (
        *program.statements[:position],
        *before,
        made,
        *program.statements[position + 1 :],
    )
    return replace(program, temps=tuple(temps), statements=statements, text=None)


def _together(
    program: Program, operand: Expr, loop: str, count: int, taken: set[str]
) -> tuple[Tensor, Statement, Read]:
    """An operand's pairs: the tensor, the statement that fills it, and the read that replaces it.

    It has the shape of the tensor that the operand reads, with half the extent along the loop.
    """
    found = _main_read(operand, loop)
    assert found is not None
    read, dim = found
    source = program.tensors[read.tensor]
    name = fresh_name(f"{read.tensor}_pairs", taken)
    taken.add(name)
    shape = list(source.shape)
    shape[dim] = Const((count + 1) // 2)
    indices = [fresh_name(f"i{d}", taken) for d in range(source.rank)]

    def at(index: Expr) -> Expr:
        """The operand with indices of its own, at an index along the loop."""
        moved_indices = [Index(i) if d != dim else index for d, i in enumerate(indices)]

        def moved(e: Expr) -> Expr:
            if not isinstance(e, Read):
                return e
            own = [i if i == Const(0) else moved_indices[read.indices.index(i)] for i in e.indices]
            return replace(e, indices=tuple(own))

        return rewrite(operand, moved)

    here = Index(indices[dim])
    lower, upper = mul(Const(2), here), add(mul(Const(2), here), Const(1))
    high: Expr = Op("shl", (at(upper), Const(16)))
    if count % 2:  # pad the last pair with 0
        last = Op("lt", (upper, Const(count)))
        high = Op("select", (last, Op("shl", (at(minimum(upper, Const(count - 1))), Const(16))),
                             Const(0)))  # fmt: skip
    value = Op("bitor", (Op("bitand", (at(lower), Const(65535))), high))
    ranges = tuple(Range(i, Const(0), e) for i, e in zip(indices, shape, strict=True))
    target = Read(name, tuple(map(Index, indices)))
    statement = Statement(name, target, "=", False, value, ranges)
    return Tensor(name, INT32, tuple(shape)), statement, replace(read, tensor=name)
