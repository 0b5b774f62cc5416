"""Long reductions with few results, in parts that threads, or blocks of a GPU, sum in parallel.

    Y[j] +=! X[i, j]                                  for i < N

becomes, with ``i = P*C*q + C*p + t`` for p < P and t < C,

    Y_parts[p, j] +=! X[P*C*q + C*p + t, j]           for P*C*q + C*p + t < N
    Y[j] +=! Y_parts[p, j]

P is a number, so that sizes may be open, and the same for any number of threads, so that results
are.  C elements that are adjacent in memory stay together.  The order of a sum changes, so this is
not for exact programs.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    floordiv,
    indices_of,
    mul,
    reads_of,
    sub,
    substitute,
    substitute_value,
)
from poly.ir.linear_form import linear_form
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
from poly.sets.check_bounds import if_proved

#: Elements adjacent in memory that stay in one part.
CHUNK = 256
#: Fewer terms than this are summed by one block, and a part has at least this many.
LONG, SHORTEST = 1 << 15, 1 << 12
#: Results of one block of a contraction, and of one of other sums, whose threads run along results.
_TILE, _THREADS = 64 * 64, 256
#: On a CPU: parts, their adjacent elements, the fewest terms, and the most results.
PARTS, ROW, MANY, FEW = 64, 1024, 1 << 18, 16


def split_reductions(program: Program, processors: int) -> Program:
    """Split reductions with too few results to fill all processors into partial ones."""
    made = program
    for s in () if program.has_blocks else program.statements:
        made = _split(made, s, processors)
    return program if made is program else if_proved(made, program)


def share_reductions(program: Program) -> Program:
    """Split reductions with few results into parts for the threads of a CPU.

    Where sizes are open, only one that is alone: among others, it is more likely to be short.
    """
    made, alone = program, len(program.statements) == 1
    for s in () if program.has_blocks else program.statements:
        ranges = {r.index: r for r in s.ranges}
        counted = _counts(program, s)
        if counted is None or counted[0] > FEW or counted[1] < MANY:
            continue
        if not alone and counted[1] == float("inf"):
            continue
        along = _contiguous(program, s) & set(s.reductions)
        loop = max(along, key=lambda i: _extent(ranges[i]), default=None)
        if loop is not None and _extent(ranges[loop]) >= PARTS * ROW:
            made = _Parts(made, s, ranges[loop]).of(PARTS, ROW)
    return program if made is program else if_proved(made, program)


def _counts(program: Program, s: Statement) -> tuple[int, float] | None:
    """The results and the terms of a reduction that may be split; the latter may be infinite."""
    ranges = {r.index: r for r in s.ranges}
    dtype = program.tensors[s.target.tensor].dtype
    # A partial sum may overflow a 16-bit type where the whole sum does not.
    if not s.is_reduction or not s.reductions or (dtype.is_float and dtype.bits == 16):
        return None
    free = [_extent(ranges[i]) for i in s.free]
    if float("inf") in free or 0 in free:
        return None
    return prod(int(e) for e in free), prod(_extent(ranges[i]) for i in s.reductions)


def _split(program: Program, s: Statement, processors: int) -> Program:
    counted = _counts(program, s)
    if counted is None or counted[1] < LONG:
        return program
    ranges, (results, terms) = {r.index: r for r in s.ranges}, counted
    contiguous = _contiguous(program, s)
    blocks = -(-results // _results_of_a_block(s, contiguous))
    count = 2 * processors // blocks
    if terms < float("inf"):
        count = min(count, int(terms) // SHORTEST)
    loop = max(s.reductions, key=lambda i: (_extent(ranges[i]), i not in contiguous))
    together = CHUNK if loop in contiguous else 1
    extent = _extent(ranges[loop])
    if extent < float("inf"):
        count = min(count, int(extent) // together)
    if count < 4:
        return program
    return _Parts(program, s, ranges[loop]).of(1 << count.bit_length() - 1, together)


def _extent(r: Range) -> float:
    """The number of values in a range; infinite if that is open."""
    if isinstance(r.lo, Const) and isinstance(r.hi, Const):
        return max(0, int(r.hi.value) - int(r.lo.value))
    return float("inf")


def _contiguous(program: Program, s: Statement) -> set[str]:
    """The indices along which a read has stride 1 in memory."""
    found: set[str] = set()
    for r in reads_of(s.value):
        if r.indices and not reads_of(r.indices[-1]):
            form = linear_form(r.indices[-1])
            found |= {x.name for x, c in form.terms if isinstance(x, Index) and c == 1}
    return found


def _results_of_a_block(s: Statement, contiguous: set[str]) -> int:
    """The approximate number of results of one block of the automatic schedule."""
    moving = [{i for e in r.indices for i in indices_of(e)} & set(s.free) for r in s.reads]
    if any(a - b and b - a for a in moving for b in moving):
        return _TILE
    return 1 if contiguous & set(s.reductions) else _THREADS


class _Parts:
    """One sum in parts, along one of its reductions."""

    def __init__(self, program: Program, s: Statement, along: Range) -> None:
        self.program, self.s, self.along = program, s, along
        self.taken = taken_names(program)

    def of(self, count: int, together: int) -> Program:
        """The program with `count` parts, each of `together` adjacent elements at a time."""
        s, i = self.s, self.along.index
        part, step, near = (fresh_name(f"{i}_{x}", self.taken) for x in ("part", "step", "near"))
        whole = count * together
        index: Expr = add(mul(Const(whole), Index(step)), mul(Const(together), Index(part)))
        if together > 1:
            index = add(index, Index(near))
        index = add(self.along.lo, index)
        steps = add(floordiv(sub(sub(self.along.hi, self.along.lo), Const(1)), whole), Const(1))
        own = [Range(step, Const(0), steps)]
        own += [Range(near, Const(0), Const(together))] if together > 1 else []
        parts = Range(part, Const(0), Const(count))
        free = [r for r in s.ranges if r.index in s.free]
        sums = [x for r in s.ranges if r.index in s.reductions
                for x in (own if r.index == i else [r])]  # fmt: skip
        order = [parts, *free]
        tensor = self.program.tensors[s.target.tensor]
        made = Tensor(
            fresh_name(f"{tensor.name}_parts", self.taken), tensor.dtype, tuple(r.hi for r in order)
        )
        target = Read(made.name, tuple(Index(r.index) for r in order))
        env = {i: index}
        guards = [substitute(g, indices=env) for g in s.guards]
        extent = _extent(self.along)
        if extent == float("inf") or int(extent) % (count * together):
            guards.append(Op("lt", (index, self.along.hi)))
        first = Statement(
            self._name(), target, s.op, True, substitute_value(s.value, env), (*order, *sums),
            tuple(r.index for r in sums), tuple(guards),
        )  # fmt: skip
        second = replace(
            s, value=target, ranges=(*free, parts), reductions=(part,), guards=s.free_guards
        )
        statements = [
            x for y in self.program.statements for x in ((first, second) if y is s else (y,))
        ]
        return replace(
            self.program,
            statements=tuple(statements),
            temps=(*self.program.temps, made),
            text=None,
        )

    def _name(self) -> str:
        return fresh_statement(f"{self.s.name}_parts", statement_names(self.program))
