"""Layouts of inputs: which one a program's schedule would like, and programs rewritten for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.analysis import find_contraction, plain_dimension
from poly.errors import ProgramError
from poly.expr import Expr, Read, rewrite
from poly.machine import Machine
from poly.program import Program, Tensor
from poly.scop import Scop


def preferred_orders(scop: Scop, machine: Machine) -> dict[str, tuple[int, ...]]:
    """For each input that a contraction reads along its vector loop, the order of dimensions
    that makes these reads contiguous; inputs that are so already are not listed.

    Only an input that is read in one way is listed: another read may want another layout.
    """
    result: dict[str, tuple[int, ...]] = {}
    reads = [r for s in scop.statements if s.role != "init" for r in s.source.reads]
    inputs = {t.name for t in scop.program.inputs} - set(scop.program.updated)
    for s in scop.statements:
        found = find_contraction(scop, s, machine)
        if found is None:
            continue
        for r in s.source.reads:
            dim = plain_dimension(r, found.v)
            alone = sum(other.tensor == r.tensor for other in reads) == 1
            if dim is None or dim == len(r.indices) - 1 or r.tensor not in inputs or not alone:
                continue
            result[r.tensor] = (*(d for d in range(len(r.indices)) if d != dim), dim)
    return result


def relayout(program: Program, tensor: str, order: Sequence[int]) -> Program:
    """The same program with an input's dimensions in another order.

    ``A[i0, i1, …]`` becomes ``A[i_order[0], i_order[1], …]``: pass
    ``numpy.transpose(a, order)`` for it.

    Raises
    ------
    ProgramError : if `tensor` is no plain input, or `order` no permutation of its dimensions.
    """
    declared = {t.name: t for t in program.inputs}.get(tensor)
    if declared is None or tensor in program.updated:
        raise ProgramError(f"{tensor} is no input of {program.name} that is only read")
    if sorted(order) != list(range(declared.rank)):
        raise ProgramError(f"{tuple(order)} is no order of the {declared.rank} dimensions")

    def visit(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor == tensor:
            return replace(e, indices=tuple(e.indices[d] for d in order))
        return e

    def permuted(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(t.shape[d] for d in order)) if t.name == tensor else t

    return replace(
        program,
        inputs=tuple(map(permuted, program.inputs)),
        statements=tuple(replace(s, value=rewrite(s.value, visit)) for s in program.statements),
        text=None,
    )
