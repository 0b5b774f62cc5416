"""Share the work of a function among the threads that run it."""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.nodes import Block, For, LoopNode, Single, block
from codegen.loops.traverse import has_mark, map_children
from poly.tree.kinds import Mark


def workshare(root: LoopNode) -> LoopNode:
    """Run the tree on every thread, and code outside of parallel loops on a single one.

    Loops that contain a parallel loop run on all threads, in step: a parallel loop and a
    `Single` both end in a barrier.  A late thread evaluates enclosing bounds and conditions later
    than the others, so these must not depend on what the others write: no guard reads data.
    """
    if not has_mark(root, Mark.PARALLEL):
        return root

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, For) and node.mark == Mark.PARALLEL:
            return node
        if not has_mark(node, Mark.PARALLEL):
            return Single(node)
        if isinstance(node, Block):
            return block(_join([visit(c) for c in node.children]))
        return map_children(node, visit)

    return visit(root)


def sequential(node: LoopNode) -> LoopNode:
    """What is inside of a parallel loop: one thread runs the parallel loops there."""
    if isinstance(node, For) and node.mark == Mark.PARALLEL:
        node = replace(node, mark=Mark.SEQ)
    return map_children(node, sequential)


def _join(nodes: list[LoopNode]) -> list[LoopNode]:
    """Merge adjacent singles, so that they share one barrier."""
    result: list[LoopNode] = []
    for node in nodes:
        last = result[-1] if result else None
        if isinstance(node, Single) and isinstance(last, Single):
            result[-1] = Single(block([last.body, node.body]))
        else:
            result.append(node)
    return result
