"""How much a program has to do: whether a call is worth starting threads for."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from poly.expr import Op, evaluate_int, walk
from poly.program import Program, Statement

#: Elements and operators, in lanes, that are done in the time that it takes to start a thread.
WORTH_SHARING = 1 << 14
#: Of one step of a block, in which threads meet more than once.
WORTH_SHARING_STEP = 8 * WORTH_SHARING


def work_of_program(program: Program, sizes: Mapping[str, int]) -> int:
    """About how many elements a program moves, and how much it computes, at given sizes."""
    return sum(_work_of(s, sizes) for s in program.statements)


def _work_of(s: Statement, sizes: Mapping[str, int]) -> int:
    extents = (evaluate_int(r.hi, sizes) - evaluate_int(r.lo, sizes) for r in s.ranges)
    operators = sum(isinstance(e, Op) for e in walk(s.value))
    return prod(max(0, n) for n in extents) * (1 + len(s.reads) + operators)
