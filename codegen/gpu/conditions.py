"""Conditions that are cheap for threads: plain comparisons, without minima and divisions.

Every thread evaluates them, so a condition costs time on all threads, and a division more than most
computations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from codegen.loops.eliminate_dead import without
from codegen.loops.nodes import Buffer, Combine, For, If, LoopNode, Store, block
from codegen.loops.traverse import map_children, walk_loops
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    add,
    mul,
    sub,
)
from poly.ir.linear_form import Linear, linear_form, render
from poly.tree.kinds import Mark


def below(value: Expr, bound: Expr) -> list[Expr]:
    """``value < bound`` as conditions that all hold, without minima and divisions of the bound.

    v < min(a, b) + c becomes v < a + c and v < b + c; v < floor(x / k) + c becomes
    k (v - c + 1) <= x, since v - c + 1 is an integer.
    """
    form = linear_form(bound)
    for atom, factor in form.terms:
        if factor != 1 or not isinstance(atom, Op):
            continue
        rest = render(form.without(atom))
        if atom.fn == "min":
            return [c for arg in atom.args for c in below(value, add(arg, rest))]
        if atom.fn == "floordiv" and isinstance(atom.args[1], Const):
            least = mul(atom.args[1], add(sub(value, rest), Const(1)))
            return [_at_least(sub(atom.args[0], least))]
    return [_at_least(sub(sub(bound, value), Const(1)))]


def _at_least(difference: Expr) -> Expr:
    """``difference >= 0``, with the terms on the side where they are positive."""
    form = linear_form(difference)
    left = Linear(tuple((a, -c) for a, c in form.terms if c < 0), 0)
    right = Linear(tuple((a, c) for a, c in form.terms if c > 0), 0)
    more = form.constant + 1
    if more > 0:
        return Op("lt", (render(left), add(render(right), Const(more))))
    return Op("lt", (add(render(left), Const(-more)), render(right)))


def split_conditions(root: LoopNode) -> LoopNode:
    """Split conditions into nested comparisons without minima or divisions."""

    def visit(node: LoopNode, known: frozenset[Expr]) -> LoopNode:
        if isinstance(node, For) and node.mark == Mark.BLOCK:
            known |= {*below(Index(node.var), node.upper)}
        node = map_children(node, lambda c: visit(c, known))
        if not isinstance(node, If):
            return node
        parts = [c for c in plain_parts(node.cond) if c not in known]
        if node.other is not None and parts:
            return replace(node, cond=reduce(lambda a, b: Op("and", (a, b)), parts))
        body = node.then
        for c in reversed(parts):
            body = If(c, body)
        return body

    return visit(root, frozenset())


def plain_parts(cond: Expr) -> list[Expr]:
    """The parts of a condition, without minima or divisions, in an order in which they may be
    evaluated; parts that always hold are dropped.
    """
    if isinstance(cond, Op) and cond.fn == "and":
        return [c for arg in cond.args for c in plain_parts(arg)]
    if isinstance(cond, Op) and cond.fn in ("lt", "le", "gt", "ge"):
        a, b = cond.args
        if cond.fn in ("gt", "ge"):
            a, b = b, a
        strict = cond.fn in ("lt", "gt")
        found = below(a, b if strict else add(b, Const(1)))
        return [c for c in found if not _holds(c)]
    return [cond]


def _holds(cond: Expr) -> bool:
    """Whether a comparison of constants is true."""
    if not isinstance(cond, Op) or not all(isinstance(a, Const) for a in cond.args):
        return False
    a, b = (arg.value for arg in cond.args if isinstance(arg, Const))
    return a < b if cond.fn == "lt" else a <= b if cond.fn == "le" else False


def initialise_on_all_threads(root: LoopNode) -> LoopNode:
    """Initialise the values that threads combine on all threads, even those without work.

    Threads beyond the last row combine their values too.
    """

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer):
            return node
        inside = list(walk_loops(node.body))
        if not any(isinstance(n, Combine) and n.target.tensor == node.name for n in inside):
            return node
        begun = [
            n for n in inside
            if isinstance(n, Store) and n.target.tensor == node.name and n.op == "="
        ]  # fmt: skip
        rest = without(node.body, {id(n) for n in begun})
        return replace(node, body=block([*begun[:1], rest]))

    return visit(root)
