"""Sums in registers: the C compiler is told to compute several terms in each iteration.

What remains of a loop over the terms of a register tile are one multiply-add for each of its
vectors, and the counting of the loop, which takes time that these have: 3 % of it in the geometric
mean of 77 products and convolutions, with AVX-512.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.nodes import (
    Block,
    Buffer,
    CallIntrinsic,
    CompilerFence,
    For,
    LoopNode,
    VectorStore,
)
from codegen.loops.rolled import is_rolled
from codegen.loops.traverse import map_children, walk_loops
from poly.tree.kinds import Mark, Scope

#: Terms in each iteration, and the updates of vectors that they may come to.
TERMS, MOST = 4, 128


def unroll_sums(root: LoopNode) -> LoopNode:
    """Tell the C compiler to unroll, in part, the loops that only add to registers."""
    own = {n.name for n in walk_loops(root) if isinstance(n, Buffer) and n.scope == Scope.REGISTER}

    def visit(node: LoopNode) -> LoopNode:
        if not isinstance(node, For) or node.mark != Mark.SEQ:
            return map_children(node, visit)
        updates = _updates(node.body, own)
        if updates is None:
            return map_children(node, visit)
        short = node.trip is not None and node.trip <= TERMS
        fits = 0 < updates * TERMS <= MOST
        return replace(node, at_once=TERMS) if fits and not short else node

    return visit(root)


def _updates(node: LoopNode, registers: set[str]) -> int | None:
    """How many vectors in registers a node updates; None if it does anything else."""
    if isinstance(node, CompilerFence):
        return 0
    if isinstance(node, VectorStore):
        return 1 if node.store.op != "=" and node.store.target.tensor in registers else None
    if isinstance(node, CallIntrinsic):
        operands = zip(node.tensors, node.operands, strict=True)
        written = {read.tensor for tensor, read in operands if tensor in node.written}
        return 1 if written <= registers else None
    if isinstance(node, For) and is_rolled(node):
        inside = _updates(node.body, registers)
        return None if inside is None else inside * (node.trip or 0)
    if isinstance(node, Block):
        parts = [_updates(c, registers) for c in node.children]
        return None if None in parts else sum(p or 0 for p in parts)
    return None
