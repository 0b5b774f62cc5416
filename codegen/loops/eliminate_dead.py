"""Remove buffers that are never read, and the stores to them."""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.nodes import (
    Block,
    Buffer,
    CallIntrinsic,
    Combine,
    For,
    If,
    IfAligned,
    LoopNode,
    MoveSums,
    MultiplyMatrices,
    Store,
    VectorStore,
)
from codegen.loops.traverse import map_children, reads_in, walk_loops
from poly.ir.expr import Op, Read, walk


def eliminate_dead_buffers(root: LoopNode) -> LoopNode:
    """Remove buffers that are only written, and the stores to them.

    Promoting a temporary that nobody reads leaves such a buffer.
    """

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer):
            return node
        own = [n for n in walk_loops(node) if isinstance(n, Store) and n.target.tensor == node.name]
        inside = {id(n) for n in own}
        for n in walk_loops(node):
            if isinstance(n, MultiplyMatrices) and node.name in {r.tensor for r in n.reads}:
                return node
            known = isinstance(n, (MoveSums, Combine, CallIntrinsic))
            if known and node.name in {r.tensor for r in reads_in(n)}:
                return node
            if isinstance(n, Store):
                read = [n.value] if id(n) in inside else [n.value, n.target]
                if any(
                    isinstance(x, Read) and x.tensor == node.name for e in read for x in walk(e)
                ):
                    return node
        return visit(without(node.body, inside))  # buffers read by these stores may now be dead

    return without(visit(root), set())


def without(root: LoopNode, stores: set[int]) -> LoopNode:
    """The tree without some stores (by id), and without the loops that become empty."""
    if isinstance(root, (Store, VectorStore)):
        store = root.store if isinstance(root, VectorStore) else root
        return Block(()) if id(store) in stores else root
    node = map_children(root, lambda c: without(c, stores))
    empty = Block(())
    if isinstance(node, IfAligned) and node.then == node.other == empty:
        return empty
    if isinstance(node, If):
        other = None if node.other == empty else node.other
        if node.then == empty and other is not None:
            return If(Op("not", (node.cond,)), other)
        return empty if node.then == empty else replace(node, other=other)
    return empty if isinstance(node, (For, Buffer)) and node.body == empty else node
