"""Programs that round floats to integers."""

from __future__ import annotations

from poly.ir.expr import Cast, Op, dtype_of_expr, walk
from poly.ir.operators import INEXACT
from poly.ir.program import Program, Statement


def rounds_to_integers(program: Program) -> bool:
    """Whether a program casts floats to integers, which all machines can agree about.

    A fused multiply-add, which not all machines have, may decide where a float is rounded to.
    Machines differ in any case where it is a sum of products of floats, which lanes share, or a
    function that libraries round differently: such programs do not count.
    """
    return any(_rounds(s, program) for s in program.statements) and not any(
        _differs(s, program) for s in program.statements
    )


def _rounds(s: Statement, program: Program) -> bool:
    return any(
        isinstance(e, Cast) and e.dtype.is_integer and dtype_of_expr(e.arg, program.dtypes).is_float
        for root in (s.value, *s.target.indices)
        for e in walk(root)
    )


def _differs(s: Statement, program: Program) -> bool:
    ops: list[Op] = [e for e in walk(s.value) if isinstance(e, Op)]
    is_float = program.dtypes[s.target.tensor].is_float
    sums = s.is_update and is_float and any(e.fn == "mul" for e in ops)
    return sums or any(e.fn in INEXACT for e in ops)
