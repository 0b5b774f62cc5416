"""Divide a sum, instead of every term of it."""

from __future__ import annotations

from dataclasses import replace

from poly.ir.expr import Expr, Index, Op, Read, indices_of, reads_of, substitute
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.rewrites.merge_programs import fresh_name


def divide_after(program: Program) -> Program:
    """Write ``P[i,j] = X[i,j] / Z[i]; O[i,e] +=! P[i,j] * V[j,e]`` with the division of sums.

    That is ``N[i,e] +=! X[i,j] * V[j,e]; O[i,e] = N[i,e] / Z[i]``, as for the weights of a softmax,
    with fewer divisions, which are slow, and one value less of each row.
    """
    for at, last in enumerate(program.statements):
        found = _quotient(program, last)
        if found is not None:
            return _after(program, at, *found)
    return program


def _quotient(program: Program, last: Statement) -> tuple[Statement, Read] | None:
    """The statement that divides a factor of a sum, and the factor's read there."""
    if last.op != "+=" or not last.init or last.guards or not _is_product(last):
        return None
    temps = {t.name for t in program.temps}
    for read in reads_of(last.value):
        makers = [s for s in program.statements if s.target.tensor == read.tensor]
        users = [
            s for s in program.statements for r in reads_of(s.value) if r.tensor == read.tensor
        ]
        if read.tensor not in temps or len(makers) != 1 or users != [last]:
            continue
        (maker,) = makers
        if maker.op != "=" or maker.guards or not isinstance(maker.value, Op):
            continue
        if maker.value.fn != "div" or not program.tensors[read.tensor].dtype.is_float:
            continue
        if maker.target.indices != tuple(map(Index, maker.free)):
            continue
        dividend, divisor = _at(maker, read)
        if not {*indices_of(divisor)} & {*last.reductions} and isinstance(dividend, Read):
            return maker, read
    return None


def _at(maker: Statement, read: Read) -> tuple[Expr, ...]:
    """The dividend and the divisor of the element that is read."""
    assert isinstance(maker.value, Op)
    names = dict(zip(maker.free, read.indices, strict=True))
    return tuple(substitute(a, names) for a in maker.value.args)


def _is_product(s: Statement) -> bool:
    return (
        isinstance(s.value, Op)
        and s.value.fn == "mul"
        and all(isinstance(a, Read) for a in s.value.args)
    )


def _after(program: Program, at: int, maker: Statement, read: Read) -> Program:
    last = program.statements[at]
    assert isinstance(last.value, Op)
    dividend, divisor = _at(maker, read)
    sums = fresh_name(f"{last.target.tensor}_sum", {*program.tensors, *program.sizes})
    value = Op("mul", tuple(dividend if a == read else a for a in last.value.args))
    total = Read(sums, last.target.indices)
    summed = replace(last, target=total, value=value)
    free = tuple(r for r in last.ranges if r.index in last.free)
    divided = Statement(maker.name, last.target, "=", False, Op("div", (total, divisor)), free)
    statements = [s for s in program.statements[:at] if s is not maker]
    statements += [summed, divided, *program.statements[at + 1 :]]
    made = program.tensors[last.target.tensor]
    temps = [t for t in program.temps if t.name != read.tensor]
    temps.append(Tensor(sums, made.dtype, made.shape))
    return verify_program(replace(program, statements=tuple(statements), temps=tuple(temps)))
