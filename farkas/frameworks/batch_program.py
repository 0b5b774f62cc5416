"""The same program for a batch: each tensor that differs among its members has one more dimension.

Y[i] +=! A[i,j] * x[j]      for a batch of x:      Y[b,i] +=! A[i,j] * x[b,j]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from poly.ir.expr import Const, Expr, Index, Read, Size, rewrite
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name, taken_names


def batched_tensors(program: Program, inputs: Collection[str]) -> frozenset[str]:
    """The tensors that differ among the members of a batch if some inputs do.

    An updated tensor does if its result does, whether or not it is among `inputs`.
    """
    found = set(inputs)
    while True:
        more = {
            s.target.tensor
            for s in program.statements
            if {r.tensor for r in s.reads} & found and s.target.tensor not in found
        }
        if not more:
            return frozenset(found)
        found |= more


def batch_program(program: Program, tensors: Collection[str]) -> Program:
    """The program with a first dimension, whose extent is a size of its own, for some tensors.

    tensors : as `batched_tensors` gives them
    """
    size = fresh_name("Batch", taken_names(program))
    made = [
        _batched(s, tensors, size, program) if s.target.tensor in tensors else s
        for s in program.statements
    ]

    def changed(t: Tensor) -> Tensor:
        return replace(t, shape=(Size(size), *t.shape)) if t.name in tensors else t

    whole = program.with_tensors(changed, made)
    return replace(whole, name=f"{program.name}_batch", sizes=(size, *program.sizes))


def _batched(s: Statement, tensors: Collection[str], size: str, program: Program) -> Statement:
    index = fresh_name("batch", taken_names(program) | {*s.indices} | {size})

    def visit(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in tensors:
            return Read(e.tensor, (Index(index), *e.indices))
        return e

    own = Range(index, Const(0), Size(size))
    first, rest = (s.ranges[:1], s.ranges[1:]) if s.block else ((), s.ranges)
    target = rewrite(s.target, visit)
    assert isinstance(target, Read)
    return replace(
        s,
        target=target,
        value=rewrite(s.value, visit),
        guards=tuple(rewrite(g, visit) for g in s.guards),
        ranges=(*first, own, *rest),
    )
