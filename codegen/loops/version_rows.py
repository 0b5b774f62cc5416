"""Version the loops of a register tile by whether all of its rows take part.

The taps of a filter that fall on the padding leave out rows of a tile, and which rows depends on
the tap.  For most taps of most tiles none is left out, and the loop inside needs no mask then.

    for s: for c: for i in max(1 - s - 8*o, 0):8: X   is
    for s: if (1 - s - 8*o <= 0) for c: for i in 0:8: X else for c: for i in max(...):8: X
"""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.conditions import all_of, implies, parts_of
from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Buffer, For, If, LoopNode
from codegen.loops.tidy import tidied
from codegen.loops.traverse import map_children, own_variables, walk_loops
from poly.ir.expr import Const, Expr, Op, indices_of
from poly.tree.kinds import Mark, Scope


def version_rows(root: LoopNode) -> LoopNode:
    """Version innermost loops of register tiles by whether all rows take part, where that depends
    on a loop around them in the tile.
    """

    def visit(node: LoopNode, around: frozenset[str] | None) -> LoopNode:
        if isinstance(node, Buffer) and node.scope == Scope.REGISTER:
            around = around or frozenset()
        if around is None or not isinstance(node, For):
            return map_children(node, lambda c: visit(c, around))
        if node.mark == Mark.SEQ and _is_innermost(node):
            return _versioned(node, around)
        inside = around | {node.var}
        return map_children(node, lambda c: visit(c, inside))

    return visit(root, None)


def _is_innermost(node: For) -> bool:
    """Whether all loops inside are unrolled."""
    below = [n for n in walk_loops(node.body) if isinstance(n, For)]
    return bool(below) and all(n.mark == Mark.UNROLL for n in below)


def _versioned(loop: For, around: frozenset[str]) -> LoopNode:
    own = own_variables(loop)
    rows = [
        n
        for n in walk_loops(loop.body)
        if isinstance(n, For)
        and n.limits is not None
        and n.trip is None
        and any(depends_on(e, var) for e in (n.lower, n.upper) for var in around)
    ]
    bounds = {e for n in rows for e in (n.lower, n.upper)}
    if not rows or any(own & {*indices_of(e)} for e in bounds):
        return loop
    found = dict.fromkeys(p for n in rows for p in parts_of(tidied(_takes_all(n))))
    left = [c for c in found if not any(implies(o, c) for o in found if o != c)]
    left = [c for c in left if c != Const(True)]
    if not left or Const(False) in left:
        return loop
    chosen = {(n.var, n.lower, n.upper) for n in rows}

    def whole(node: LoopNode) -> LoopNode:
        node = map_children(node, whole)
        if isinstance(node, For) and (node.var, node.lower, node.upper) in chosen:
            assert node.limits is not None
            low, high = node.limits
            return replace(node, lower=Const(low), upper=Const(high + 1))
        return node

    return If(all_of(left), whole(loop), loop)


def _takes_all(node: For) -> Expr:
    assert node.limits is not None
    low, high = node.limits
    return Op("and", (Op("le", (node.lower, Const(low))), Op("lt", (Const(high), node.upper))))
