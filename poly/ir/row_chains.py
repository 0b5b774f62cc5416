"""Which statements of a program make rows with one contraction and sum them up with another."""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.accesses import lane_value, loops_of_read
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size, indices_of, reads_of
from poly.ir.linear_form import linear_form
from poly.ir.operators import OPS
from poly.ir.program import Program, Range, Statement

#: Shorter rows than this, or fewer, stay in the caches anyway; longer ones do not fit into them.
LEAST_LENGTH, LEAST_ROWS, MOST_LENGTH = 128, 32, 1 << 14


@dataclass(frozen=True)
class RowChain:
    """Statements that rows run through: from ``S[b,i,j] += ..`` to ``O[b,i,e] += P[b,i,j] * ..``.

    first, last : the contractions; depth : the number of indices that all statements share, up to
    that of the rows; temps : what only these statements write and read; count, length : of the
    rows, None if unknown
    """

    statements: tuple[str, ...]
    first: str
    last: str
    depth: int
    temps: tuple[str, ...]
    count: int | None
    length: int | None


def row_chain(program: Program) -> RowChain | str:
    """The chain of a program whose rows are neither few nor short nor long, or why there is none.

    How many rows there are need not be known.
    """
    found = find_row_chain(program)
    if isinstance(found, str):
        return found
    if found.length is None:
        return "the length of the rows is unknown"
    many = found.count is None or found.count >= LEAST_ROWS
    if not many or not LEAST_LENGTH <= found.length <= MOST_LENGTH:
        return f"there are {found.count} rows of {found.length} elements"
    return found


def find_row_chain(program: Program) -> RowChain | str:
    """The chain from a program's first contraction to the end of its rows, or why there is none."""
    sums = [n for n, s in enumerate(program.statements) if is_product_sum(s)]
    if len(sums) != 2 or program.has_blocks:
        return "there are not two contractions"
    start, last = sums[0], program.statements[sums[1]]
    first = program.statements[start]
    temps = {t.name for t in program.temps}
    depth = len(first.free) - 1
    rows = _rows(last, temps, depth)
    if depth < 1 or not (first.init and last.init) or rows is None:
        return "the second contraction does not sum up rows of the first"
    end = sums[1] + 1
    for n, s in enumerate(program.statements[start:], start):
        reason = _why_not(s, first, depth, temps)
        if reason and n < end:
            return f"{s.name} {reason}"
        if reason:
            break
        end = max(end, n + 1)
    chain = program.statements[start:end]
    if not any(s.reductions for s in program.statements[start + 1 : sums[1]]):
        return "nothing is computed of whole rows, and tiles of each contraction are faster"
    others = (*program.statements[:start], *program.statements[end:])
    outside = {r.tensor for s in others for r in (s.target, *s.reads)}
    own = tuple(t for t in dict.fromkeys(s.target.tensor for s in chain) if t in temps - outside)
    if not {first.target.tensor, rows.tensor} <= {*own}:
        return "its rows are used elsewhere"
    if any(program.tensors[t].dtype != FLOAT32 for t in own):
        return "its values are not float32"
    count, length = (_extent(first, index) for index in first.free[-2:])
    return RowChain(tuple(s.name for s in chain), first.name, last.name, depth, own, count, length)


def is_product_sum(s: Statement) -> bool:
    """Whether a statement sums products of operands each of which is reused."""
    reads = [r for r in reads_of(s.value) if r.indices]
    if s.op != "+=" or not s.reductions or len(reads) < 2:
        return False
    return all({*s.free} - loops_of_read(r) for r in reads)


def _rows(last: Statement, temps: set[str], depth: int) -> Read | None:
    """The temporary along whose rows a contraction sums up, if these have its first indices."""
    found = [r for r in reads_of(last.value) if r.tensor in temps]
    wanted = _plain((*last.free[:depth], *last.reductions))
    if len(found) != 1 or len(last.reductions) != 1 or found[0].indices != wanted:
        return None
    return found[0]


def _why_not(s: Statement, first: Statement, depth: int, temps: set[str]) -> str:
    """Why a statement does not run on rows, if it does not."""
    if len(s.free) < depth or any(_relates(r) for r in s.ranges):
        return "has loops of its own"
    if any(s.free[depth - 1] in indices_of(g) or reads_of(g) for g in s.guards):
        return "has loops of its own"
    if _bounds(s, depth) != _bounds(first, depth):
        return "has other rows"
    own = _plain(s.free[:depth])
    if any(r.tensor in temps and r.indices[:depth] != own for r in (s.target, *reads_of(s.value))):
        return "reads other rows than its own"
    inside = lane_value(s.value) if is_product_sum(s) else _in_lanes(s.value, s.free[depth - 1])
    return "" if inside else "cannot run in lanes"


def _in_lanes(e: Expr, row: str) -> bool:
    """Whether generated code computes an expression in vector lanes along the rows.

    It compares the number of a row with that of a column as it does values, and takes what is
    equal for all rows as a scalar.
    """
    if row not in indices_of(e):
        return True
    if isinstance(e, Op) and OPS[e.fn].rule == "compare" and all(map(_is_position, e.args)):
        return True
    if isinstance(e, Op):
        return all(_in_lanes(a, row) for a in e.args)
    return _in_lanes(e.arg, row) if isinstance(e, Cast) else lane_value(e)


def _is_position(e: Expr) -> bool:
    """Whether a value is an affine expression of loop variables."""
    return all(isinstance(a, (Index, Size)) for a, _ in linear_form(e).terms)


def _plain(names: tuple[str, ...]) -> tuple[Index, ...]:
    return tuple(map(Index, names))


def _relates(r: Range) -> bool:
    """Whether a range depends on an index."""
    return any(indices_of(e) for e in (r.lo, r.hi))


def _bounds(s: Statement, depth: int) -> list[tuple[object, object]]:
    ranges = {r.index: r for r in s.ranges}
    return [(ranges[i].lo, ranges[i].hi) for i in s.free[:depth]]


def _extent(s: Statement, index: str) -> int | None:
    (found,) = (r for r in s.ranges if r.index == index)
    if not isinstance(found.lo, Const) or not isinstance(found.hi, Const):
        return None
    return int(found.hi.value) - int(found.lo.value)
