"""Substitute loop variables, and bring indices into linear normal form."""

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


def substitute_var(node: LoopNode, var: str, value: Expr) -> LoopNode:
    """The node with a loop variable replaced by an expression, in indices and in values."""

    def fix(e: Expr) -> Expr:
        if isinstance(e, Read):
            return fix_value(e)
        return simplify(replace_var(e, var, value)) if depends_on(e, var) else e

    def fix_value(e: Expr) -> Expr:
        return substitute_value(e, {var: value}) if depends_on(e, var) else e

    return simplify_indices(map_exprs(node, fix, fix_value))
