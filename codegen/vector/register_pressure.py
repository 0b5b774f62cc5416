"""Rounds: what an unrolled register tile does between two updates of one register.

The filter taps of a convolution read many elements of the image repeatedly.  A compiler that sees
this keeps each such element in a vector register until there are none left for the accumulators,
and spills those inside the innermost loop.  Reading an element again is cheap compared with the
multiply-adds.  So nothing is kept from one round to the next if there are too few registers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from codegen.loops.nodes import Block, Buffer, CompilerFence, If, LoopNode, VectorStore, block
from codegen.loops.traverse import map_children, reads_in, walk_loops
from codegen.vector.vectorise import lane_stride
from poly.ir.expr import Read
from poly.ir.linear_form import linear_form
from poly.tree.kinds import Scope

#: Bytes of the widest vectors and the number of their registers; shorter vectors have half as many.
WIDE, REGISTERS = 64, 32


def limit_register_pressure(root: LoopNode) -> LoopNode:
    """Put a fence between unrolled rounds that would keep too many values in registers."""
    buffers = {n.name: n.scope for n in walk_loops(root) if isinstance(n, Buffer)}

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        return _fenced(node, buffers) if isinstance(node, Block) else node

    return visit(root)


def _fenced(node: Block, buffers: dict[str, Scope]) -> LoopNode:
    result: list[LoopNode] = []
    run: list[tuple[LoopNode, list[VectorStore]]] = []
    for child in (*node.children, CompilerFence()):
        updates = _updates(child, buffers)
        if updates:
            run.append((child, updates))
            continue
        result += [*_apart(run, buffers), child]
        run = []
    return block(result[:-1])


def _updates(node: LoopNode, buffers: dict[str, Scope]) -> list[VectorStore]:
    """The register updates that a node makes; none if it does anything else."""
    if isinstance(node, VectorStore):
        own = node.store.op != "=" and buffers.get(node.store.target.tensor) == Scope.REGISTER
        return [node] if own else []
    if isinstance(node, If) and node.other is None:
        return _updates(node.then, buffers)
    if isinstance(node, Block):
        parts = [_updates(c, buffers) for c in node.children]
        return [u for p in parts for u in p] if all(parts) else []
    return []


def _apart(
    run: Sequence[tuple[LoopNode, list[VectorStore]]], buffers: dict[str, Scope]
) -> list[LoopNode]:
    """Consecutive updates, with fences between their rounds where these pay off."""
    rounds: list[list[LoopNode]] = []
    reads: list[set[Hashable]] = []
    written: set[Hashable] = set()
    registers: set[Hashable] = set()
    for node, updates in run:
        targets = {_element(u.store.target) for u in updates}
        if not rounds or targets & written:
            rounds.append([])
            reads.append(set())
            written = set()
        written |= targets
        registers |= targets
        rounds[-1].append(node)
        for u in updates:
            reads[-1] |= {
                _element(r)
                for r in reads_in(u.store)
                if r.tensor not in buffers and lane_stride(r, u.var) == 0
            }
    kept = {r for n, one in enumerate(reads) for r in one if any(r in o for o in reads[n + 1 :])}
    nodes = [node for node, _ in run]
    if not kept or len(registers) + len(kept) <= _available(run):
        return nodes
    return [n for k, one in enumerate(rounds) for n in ([CompilerFence()] if k else []) + one]


def _available(run: Sequence[tuple[LoopNode, list[VectorStore]]]) -> int:
    widest = max(u.lanes * u.store.dtype.bytes for _, updates in run for u in updates)
    return REGISTERS if widest >= WIDE else REGISTERS // 2


def _element(read: Read) -> tuple[Any, ...]:
    """A key for the element of a read, however its indices are written."""
    forms = map(linear_form, read.indices)
    return (read.tensor, *((frozenset(f.terms), f.constant) for f in forms))
