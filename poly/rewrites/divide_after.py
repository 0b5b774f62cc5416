"""Divide a sum, instead of every term of it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from poly.ir.accesses import count_of
from poly.ir.expr import Const, Expr, Index, Op, Read, indices_of, reads_of, substitute
from poly.ir.program import Program, Statement, Tensor, verify_program
from poly.rewrites.merge_programs import fresh_name


def divide_after(program: Program) -> Program:
    """Write ``P[i,j] = X[i,j] / Z[i]; O[i,e] +=! P[i,j] * V[j,e]`` with the division of sums.

    That is ``N[i,e] +=! X[i,j] * V[j,e]; O[i,e] = N[i,e] / Z[i]``, as for the weights of a softmax,
    with fewer divisions, which are slow, and one value less of each row.

    Exporters write ``P[i,j] = select(isnan(X[i,j] / Z[i]), 0, X[i,j] / Z[i])`` for rows of nothing
    but -inf.  If Z sums up powers X = exp(..) along the row, either all of its quotients are
    numbers, or none but 0 is left: ``O[i,e] = select(isnan(Z[i] / Z[i]), 0, N[i,e] / Z[i])``.
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
        if maker.op != "=" or maker.guards or _division(program, maker) is None:
            continue
        if not program.tensors[read.tensor].dtype.is_float:
            continue
        if maker.target.indices != tuple(map(Index, maker.free)):
            continue
        dividend, divisor = _at(program, maker, read)
        parts = {r.tensor for a in (dividend, divisor) for r in reads_of(a)}
        first, end = (program.statements.index(s) for s in (maker, last))
        later = any(s.target.tensor in parts for s in program.statements[first + 1 : end])
        if later or maker.block or last.block:
            continue
        if not {*indices_of(divisor)} & {*last.reductions} and isinstance(dividend, Read):
            return maker, read
    return None


def _division(program: Program, maker: Statement) -> Op | None:
    """The division that makes a value, or all of it that is a number."""
    value = maker.value
    if not isinstance(value, Op):
        return None
    if value.fn == "div":
        return value
    if value.fn != "select" or value.args[1] not in (Const(0), Const(0.0)):
        return None
    found = value.args[2]
    if value.args[0] != Op("isnan", (found,)) or not isinstance(found, Op) or found.fn != "div":
        return None
    return found if _sums_powers(program, *found.args) else None


def _sums_powers(program: Program, power: Expr, total: Expr) -> bool:
    """Whether one of two values sums up the other, which is a power, along whole rows."""
    if not isinstance(power, Read) or not isinstance(total, Read):
        return False
    made = {
        r.tensor: [s for s in program.statements if s.target.tensor == r.tensor]
        for r in (power, total)
    }
    if [len(found) for found in made.values()] != [1, 1]:
        return False
    (of,), (s,) = made.values()
    along = s.ranges[-1]
    return (
        isinstance(of.value, Op)
        and of.value.fn == "exp"
        and (s.op, s.init, s.guards, s.reductions) == ("+=", True, (), (along.index,))
        and s.value == Read(power.tensor, (*s.target.indices, Index(along.index)))
        and (of.op, of.guards, of.ranges[-1].lo, of.ranges[-1].hi) == ("=", (), along.lo, along.hi)
        and of.target.indices == tuple(map(Index, of.free))
        and power.indices[:-1] == total.indices
    )


def _at(program: Program, maker: Statement, read: Read) -> tuple[Expr, ...]:
    """The dividend and the divisor of the element that is read."""
    division = _division(program, maker)
    assert division is not None
    names = dict(zip(maker.free, read.indices, strict=True))
    return tuple(substitute(a, names) for a in division.args)


def _is_product(s: Statement) -> bool:
    return (
        isinstance(s.value, Op)
        and s.value.fn == "mul"
        and all(isinstance(a, Read) for a in s.value.args)
    )


def _after(program: Program, at: int, maker: Statement, read: Read) -> Program:
    last = program.statements[at]
    assert isinstance(last.value, Op)
    dividend, divisor = _at(program, maker, read)
    sums = fresh_name(f"{last.target.tensor}_sum", {*program.tensors, *program.sizes})
    value = Op("mul", tuple(dividend if a == read else a for a in last.value.args))
    total = Read(sums, last.target.indices)
    summed = replace(last, target=total, value=value)
    free = tuple(r for r in last.ranges if r.index in last.free)
    quotient = Op("div", (total, divisor))
    if isinstance(maker.value, Op) and maker.value.fn == "select":
        missing = Op("isnan", (Op("div", (divisor, divisor)),))
        quotient = Op("select", (missing, Const(0.0), quotient))
    for r in last.ranges:
        if r.index in last.reductions and not 1 <= count_of(r) < inf:
            # The sum of nothing is 0, and its quotient no number.
            quotient = Op("select", (Op("le", (r.hi, r.lo)), Const(0.0), quotient))
    divided = Statement(maker.name, last.target, "=", False, quotient, free)
    statements = [s for s in program.statements[:at] if s is not maker]
    statements += [summed, divided, *program.statements[at + 1 :]]
    made = program.tensors[last.target.tensor]
    temps = [t for t in program.temps if t.name != read.tensor]
    temps.append(Tensor(sums, made.dtype, made.shape))
    return verify_program(replace(program, statements=tuple(statements), temps=tuple(temps)))
