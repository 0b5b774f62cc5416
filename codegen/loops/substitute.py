"""Places put in for loop variables, and the linear normal form of all places."""

from __future__ import annotations

from codegen.loops.index_ranges import depends_on, replace_var
from codegen.loops.nodes import LoopNode
from codegen.loops.traverse import map_exprs
from poly.ir.expr import Expr, Read, rewrite, simplify, substitute_value
from poly.ir.linear_form import normal


def simplify_indices(root: LoopNode) -> LoopNode:
    """Bring the indices of all accesses into linear normal form."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        indices = tuple(map(normal, e.indices))
        return e if indices == e.indices else Read(e.tensor, indices)

    return map_exprs(root, lambda e: rewrite(e, visit))


def at_place(node: LoopNode, var: str, place: Expr) -> LoopNode:
    """The node with a loop variable replaced by a place, in places and in values."""

    def fix(e: Expr) -> Expr:
        return simplify(replace_var(e, var, place)) if depends_on(e, var) else e

    def fix_value(e: Expr) -> Expr:
        return substitute_value(e, {var: place}) if depends_on(e, var) else e

    return simplify_indices(map_exprs(node, fix, fix_value))
