"""Hoist loop-invariant conditions out of innermost loops.

    for k: { if (a) X; if (b) Y }   is   if (a) { if (b) for k: {X; Y} else for k: X } else ...

The loop is copied for each case; more than a few copies are not worth it.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.conditions import all_of, implies, parts_of, strongest
from codegen.loops.nodes import (
    LANE_0,
    Block,
    CallIntrinsic,
    For,
    If,
    LoopNode,
    Store,
    VectorStore,
    block,
)
from codegen.loops.rolled import is_rolled
from codegen.loops.tidy import tidied
from codegen.loops.traverse import children_of, map_children, own_variables, walk_loops
from poly.ir.expr import Const, Expr, Op, indices_of, reads_of
from poly.tree.kinds import Mark

#: The most stores that all copies of a loop may have together.
MOST = 48


def unswitch(root: LoopNode) -> LoopNode:
    """Hoist conditions out of the innermost loops that they do not depend on."""

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, For) and node.mark == Mark.SEQ and _is_plain(node.body):
            whole = _with_all_lanes(node)
            rest = _cases(node, max(MOST, _size(node))) or node
            return rest if whole is None else If(whole[0], whole[1], rest)
        return map_children(node, visit)

    return visit(root)


def _is_plain(body: LoopNode) -> bool:
    """Whether a body has only stores and instructions, some under conditions."""
    nodes = list(walk_loops(body))
    kinds = (Block, If, Store, VectorStore, CallIntrinsic)
    stores = all(isinstance(n, kinds) or is_rolled(n) for n in nodes)
    packs = any(isinstance(n, VectorStore) and n.alone for n in nodes)
    return stores and (packs or any(isinstance(n, If) for n in nodes))


def _with_all_lanes(loop: For) -> tuple[Expr, LoopNode] | None:
    """A loop that packs an operand in whole vectors, and the condition for that, if its vectors are
    in part otherwise.
    """
    own = own_variables(loop)
    parts = [n for n in walk_loops(loop.body) if isinstance(n, VectorStore) and n.last is not None]
    ends = [n.last for n in parts if n.alone and n.store.op == "=" and n.last is not None]
    if not parts or len(ends) < len(parts) or any(own & {*indices_of(e)} for e in ends):
        return None
    conditions = {c: None for n in parts for c in parts_of(tidied(_is_full(n)))}
    body = loop.body
    for c in conditions:
        body = _given(body, c, True)

    def whole(node: LoopNode) -> LoopNode:
        if isinstance(node, VectorStore):
            return replace(node, first=LANE_0, last=None)
        return map_children(node, whole)

    left = strongest(conditions)
    return None if Const(False) in left else (all_of(left), replace(loop, body=whole(body)))


def _is_full(node: VectorStore) -> Expr:
    assert node.last is not None
    return Op("le", (Const(node.lanes), node.last))


def _size(node: LoopNode) -> int:
    """The number of stores, in rolled loops in all iterations."""
    below = sum(map(_size, children_of(node)))
    if isinstance(node, For) and is_rolled(node):
        return below * (node.trip or 1)
    return below + isinstance(node, (Store, CallIntrinsic))


def _cases(loop: For, most: int) -> LoopNode | None:
    """The loop below its invariant conditions, if it has any; None if that takes more than `most`
    stores.
    """
    own = own_variables(loop)
    found = [
        c
        for n in walk_loops(loop.body)
        if isinstance(n, If) and not n.masked
        for c in parts_of(n.cond)
        if own.isdisjoint(indices_of(c)) and not reads_of(c)
    ]
    if not found:
        size = _size(loop)
        return None if size > most else loop if size else Block(())
    # First test the condition implied by most others: if it fails, they fail as well.
    cond = max(found, key=lambda c: sum(implies(other, c) for other in found))
    then = _cases(replace(loop, body=_given(loop.body, cond, True)), most)
    if then is None:
        return None
    other = _cases(replace(loop, body=_given(loop.body, cond, False)), most - _size(then))
    return None if other is None else If(cond, then, None if other == Block(()) else other)


def _given(node: LoopNode, known: Expr, holds: bool) -> LoopNode:
    """The rest of a body, given whether a condition holds."""
    if isinstance(node, Block):
        return block([_given(c, known, holds) for c in node.children])
    if isinstance(node, For):
        body = _given(node.body, known, holds)
        return replace(node, body=body) if body != Block(()) else body
    if not isinstance(node, If):
        return node
    left: list[Expr] = []
    then, other = _given(node.then, known, holds), node.other
    other = None if other is None else _given(other, known, holds)
    for c in parts_of(node.cond):
        if holds and implies(known, c):
            continue
        if not holds and implies(c, known):
            return other or Block(())
        left.append(c)
    return replace(node, cond=all_of(left), then=then, other=other) if left else then
