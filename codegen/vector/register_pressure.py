"""Rounds: what an unrolled register tile does between two updates of one register.

The filter taps of a convolution read many elements of the image repeatedly.  A compiler that sees
this keeps each such element in a vector register until there are none left for the accumulators,
and spills those inside the innermost loop.  Reading an element again is cheap compared with the
multiply-adds.  So nothing is kept from one round to the next if there are too few registers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

from codegen.loops.nodes import (
    Block,
    Buffer,
    CompilerFence,
    For,
    If,
    LoopNode,
    VectorStore,
    block,
)
from codegen.loops.rolled import Copies, is_rolled, values_of
from codegen.loops.traverse import map_children, reads_in, walk_loops
from codegen.vector.vectorise import lane_stride
from poly.tree.kinds import Scope

#: Bytes of the widest vectors and the number of their registers; shorter vectors have half as many.
WIDE, REGISTERS = 64, 32
_NONE: Mapping[str, range] = MappingProxyType({})


def limit_register_pressure(root: LoopNode) -> LoopNode:
    """Put a fence between unrolled rounds that would keep too many values in registers."""
    buffers = {n.name: n.scope for n in walk_loops(root) if isinstance(n, Buffer)}

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        return _fenced(node, buffers) if isinstance(node, Block) else node

    return visit(root)


def _fenced(node: Block, buffers: dict[str, Scope]) -> LoopNode:
    result: list[LoopNode] = []
    run: list[tuple[LoopNode, list[Copies]]] = []
    for child in (*node.children, CompilerFence()):
        updates = _updates(child, buffers)
        if updates:
            run.append((child, updates))
            continue
        result += [*_apart(run, buffers), child]
        run = []
    return block(result[:-1])


def _updates(
    node: LoopNode, buffers: dict[str, Scope], ranges: Mapping[str, range] = _NONE
) -> list[Copies]:
    """The register updates that a node makes; none if it does anything else."""
    if isinstance(node, VectorStore):
        own = node.store.op != "=" and buffers.get(node.store.target.tensor) == Scope.REGISTER
        return [Copies(node, ranges)] if own else []
    if isinstance(node, If) and node.other is None:
        return _updates(node.then, buffers, ranges)
    if isinstance(node, For) and is_rolled(node):
        return _updates(node.body, buffers, {**ranges, node.var: values_of(node)})
    if isinstance(node, Block):
        parts = [_updates(c, buffers, ranges) for c in node.children]
        return [u for p in parts for u in p] if all(parts) else []
    return []


def _apart(
    run: Sequence[tuple[LoopNode, list[Copies]]], buffers: dict[str, Scope]
) -> list[LoopNode]:
    """Consecutive updates, with fences between their rounds where these pay off."""
    if len(run) < 2:
        return [node for node, _ in run]
    rounds: list[list[LoopNode]] = []
    reads: list[set[Hashable]] = []
    written: set[Hashable] = set()
    registers: set[Hashable] = set()
    for node, updates in run:
        targets = {e for u in updates for e in u.elements(u.node.store.target)}
        if not rounds or targets & written:
            rounds.append([])
            reads.append(set())
            written = set()
        written |= targets
        registers |= targets
        rounds[-1].append(node)
        for u in updates:
            reads[-1] |= {
                e
                for r in reads_in(u.node.store)
                if r.tensor not in buffers and lane_stride(r, u.node.var) == 0
                for e in u.elements(r)
            }
    kept = {r for n, one in enumerate(reads) for r in one if any(r in o for o in reads[n + 1 :])}
    nodes = [node for node, _ in run]
    if not kept or len(registers) + len(kept) <= _available(run):
        return nodes
    return [n for k, one in enumerate(rounds) for n in ([CompilerFence()] if k else []) + one]


def _available(run: Sequence[tuple[LoopNode, list[Copies]]]) -> int:
    widest = max(
        u.node.lanes * u.node.store.dtype.compute.bytes for _, updates in run for u in updates
    )
    return REGISTERS if widest >= WIDE else REGISTERS // 2
