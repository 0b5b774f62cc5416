"""Work and code size of programs, which schedules are weighed by."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from poly.ir.expr import Op, computed, evaluate_int, walk
from poly.ir.program import Program, Range, Statement, Tensor

#: Elements and operators, in lanes, that are processed in the time that starting a thread takes.
WORTH_SHARING = 1 << 14
#: The same for one step of a block, in which threads synchronise more than once.
WORTH_SHARING_STEP = 8 * WORTH_SHARING
#: The most updates of a tile over all row counts together, for one vector width: a remainder of a
#: tile has a version of its loops for each row count, and the schedule limits how many there are.
CASES_LIMIT = 400


def work_of_program(program: Program, sizes: Mapping[str, int]) -> int:
    """The approximate number of elements moved and operations computed, at given sizes."""
    return sum(_work_of(s, sizes) for s in program.statements)


def operations_of_program(program: Program, sizes: Mapping[str, int]) -> int:
    """Arithmetic operations of a program at given sizes; an update counts as one.

    Conditions on indices are ignored: it is an upper bound.
    """
    return sum(
        instances_of(s, sizes) * (s.is_update + sum(isinstance(e, Op) for e in computed(s.value)))
        for s in program.statements
    )


def bytes_of_program(program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs and outputs: the traffic if caches hold everything else."""
    tensors = {t.name: t for t in (*program.inputs, *program.outputs)}
    return sum(bytes_of(t, sizes) for t in tensors.values())


def bytes_of(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """The bytes of a tensor at given sizes."""
    return prod(max(0, evaluate_int(e, sizes)) for e in tensor.shape) * tensor.dtype.bytes


def extent_of(r: Range, sizes: Mapping[str, int]) -> int:
    """The values of an index at given sizes."""
    return max(0, evaluate_int(r.hi, sizes) - evaluate_int(r.lo, sizes))


def instances_of(s: Statement, sizes: Mapping[str, int]) -> int:
    """The instances of a statement at given sizes, whatever its guards leave out."""
    return prod(extent_of(r, sizes) for r in s.ranges)


def _work_of(s: Statement, sizes: Mapping[str, int]) -> int:
    operators = sum(isinstance(e, Op) for e in walk(s.value))
    return instances_of(s, sizes) * (1 + len(s.reads) + operators)
