"""Programs whose blocks combine states by functions, not by updates.

    for t in 0:T { m[j] max= X[t,j,k];  h[j] = h[j] - m[j] }

becomes

    for t in 0:T { v[t,j] max=! X[t,j,k];  m[j] = max(m[j], v[t,j]);  h[j] = h[j] - m[j] }

since each step reads what the ones before have combined: a recurrence of m.  What nothing in the
block reads is one maximum after it, see `poly.gradients.states`.
"""

from __future__ import annotations

from dataclasses import replace

from poly.gradients.statements import Names, is_read, writers_of
from poly.ir.expr import Cast, Expr, Index, Op, Read, dtype_of_expr, simplify, sub
from poly.ir.program import Program, Range, Statement, Tensor

_FUNCTIONS = {"max=": "max", "min=": "min", "*=": "mul"}


def combined_in_steps(program: Program, names: Names) -> Program:
    """The program in which maxima, minima and products with states that a block reads are
    functions of these.
    """
    made: list[Statement] = []
    temps = list(program.temps)
    for group in program.groups:
        for s in group:
            if not _is_read_back(program, s, group):
                made.append(s)
                continue
            value: Expr = s.value
            if s.reductions:
                terms, value = _of_step(program, s, names)
                temps.append(terms)
                made.append(replace(s, name=names.statement(), target=value, init=True))
            made.append(_combined(program, s, value))
    if tuple(made) == program.statements:
        return program
    return replace(program, temps=tuple(temps), statements=tuple(made), text=None)


def _is_read_back(program: Program, s: Statement, group: tuple[Statement, ...]) -> bool:
    """Whether a statement of a block combines with what this or another statement of it reads or
    writes.
    """
    name = s.target.tensor
    if not s.block or s.init or s.scatters or s.op not in _FUNCTIONS:
        return False
    shared = is_read(group, name) or len(writers_of(group, name)) > 1
    return program.dtypes[name].is_float and not is_read([s], name) and shared


def _of_step(program: Program, s: Statement, names: Names) -> tuple[Tensor, Read]:
    """A tensor for what the steps combine, and its element for an instance."""
    free: list[Range] = [r for r in s.ranges if r.index not in s.reductions]
    shape = tuple(simplify(sub(r.hi, r.lo)) for r in free)
    found = Tensor(names.tensor(f"{s.target.tensor}_step"), program.dtypes[s.target.tensor], shape)
    indices = tuple(simplify(sub(Index(r.index), r.lo)) for r in free)
    return found, Read(found.name, indices)


def _combined(program: Program, s: Statement, value: Expr) -> Statement:
    """The statement that stores a function of what is there and of a value."""
    dtype = program.dtypes[s.target.tensor]
    if not s.reductions and dtype_of_expr(value, program.dtypes) != dtype:
        value = Cast(dtype, value)
    ranges = tuple(r for r in s.ranges if r.index not in s.reductions)
    return replace(
        s, op="=", value=Op(_FUNCTIONS[s.op], (s.target, value)), ranges=ranges, reductions=(),
        guards=s.free_guards,
    )  # fmt: skip
