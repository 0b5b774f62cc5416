"""Sums that need no zeros before them, since every element is written once, before it is read.

A recurrence backwards in time adds to each element of the gradient of its states in one step, so

    dU[t,i] = 0;   dU[T,i] += a[i];   for t: dU[T-1-t,i] += b(dU[T-t,i])

is the same with ``=`` in place of ``+=``, and without the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.deps.lifetimes import is_complete_when_read, writes_each_once
from poly.gradients.derivatives import ZERO
from poly.gradients.statements import alone, is_made, is_read, writers_of
from poly.ir.accesses import meets_itself
from poly.ir.program import Program, Statement


def begun_in_blocks(program: Program) -> Program:
    """Zeros before what blocks add are left out where each element is written once."""
    left = list(program.statements)
    at = 0
    while at < len(left):
        rest = left[at + 1 :]
        begun = _begun(program, left[at], rest) if left[at].value == ZERO else None
        if begun is None:
            at += 1
        else:
            left[at:] = begun
    return replace(program, statements=tuple(left))


def _begun(program: Program, zeros: Statement, rest: Sequence[Statement]) -> list[Statement] | None:
    """What follows zeros, without them; None if it needs them."""
    name = zeros.target.tensor
    added = writers_of(rest, name)
    if not is_made(zeros) or zeros.is_update or not any(s.block for s in added):
        return None
    if any(meets_itself(s) for s in added):
        return None
    if any(s.op != "+=" or s.init or s.scatters or (s.reductions and s.guards) for s in added):
        return None
    written = {s.name: replace(s, init=True) if s.reductions else replace(s, op="=") for s in added}
    used = [s for s in rest if s.name in written or is_read([s], name)]
    made = [written.get(s.name, s) for s in used]
    tensors = program.tensors
    if not writes_each_once(alone(program, tensors, [zeros, *made]), zeros):
        return None
    if not is_complete_when_read(alone(program, tensors, made), name):
        return None
    return [written.get(s.name, s) for s in rest]
