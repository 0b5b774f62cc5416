"""Copies to and from shared memory with constant trip counts, which compilers unroll."""

from __future__ import annotations

from dataclasses import replace

from codegen.gpu.conditions import below
from codegen.loops.index_ranges import Ranges, extreme
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import Buffer, For, If, LoopNode, Store
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, reads_in, walk_loops
from poly.ir.expr import (
    Const,
    Index,
    Op,
    Read,
    add,
)
from poly.tree.kinds import Mark, Scope


def constant_trip_counts(root: LoopNode) -> LoopNode:
    """Give copies to and from shared memory constant trip counts, for compilers to unroll.

    ``for (e = row; e < min(n, 16); e += 4)``, row in 0:4, becomes ``for (e = 0; e < 16; e += 4)``
    with e replaced by e + row, below a condition: all reads can then be in flight at once.
    """

    def visit(node: LoopNode, ranges: Ranges, shared: frozenset[str]) -> LoopNode:
        if isinstance(node, Buffer) and node.scope == Scope.SHARED:
            shared |= {node.name}
        inner = ranges_inside(node, ranges)
        node = map_children(node, lambda c: visit(c, inner, shared))
        if isinstance(node, For) and node.mark == Mark.SEQ and _copies(node.body, shared):
            return _constant(node, ranges)
        return node

    return visit(root, {}, frozenset())


def _copies(node: LoopNode, shared: frozenset[str]) -> bool:
    """Whether a body only copies to or from shared memory."""
    stores = [n for n in walk_loops(node) if isinstance(n, Store)]
    plain = all(isinstance(s.value, Read) and s.op == "=" for s in stores)
    return plain and all(any(r.tensor in shared for r in reads_in(s)) for s in stores)


def _constant(node: For, ranges: Ranges) -> LoopNode:
    conditions = below(Index(node.var), node.upper)
    ends = [c for c in conditions if isinstance(c, Op) and c.args[0] == Index(node.var)]
    ends = [c for c in ends if isinstance(c.args[1], Const) and c.fn == "lt"]
    if not ends:
        return node
    end = ends[0].args[1]
    assert isinstance(end, Const)
    low, high = extreme(node.lower, ranges, min), extreme(node.lower, ranges, max)
    if low is None or high is None or low < 0 or high >= node.step or int(end.value) % node.step:
        return node
    body = node.body
    for c in reversed([c for c in conditions if c != ends[0]]):
        body = If(c, body)
    shifted = add(Index(node.var), node.lower)
    return replace(node, lower=Const(0), upper=end, body=substitute_var(body, node.var, shifted))
