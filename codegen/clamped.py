"""Rows of a register tile that may not be there, computed all the same.

What is left of a tile has some rows of it, and lanes in some of its vectors.  With a condition on
each, the innermost loop would be a heap of branches.  But a register that stands for no element may
hold anything: its update needs no condition, if only what it reads is there.  So rows that are not
there read what the last row does that is, and vectors without lanes read nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.linear import Ranges, depends_on, extreme, replace_var
from codegen.loopir import (
    Block,
    Buffer,
    For,
    If,
    LoopNode,
    Store,
    VectorStore,
    children_of,
    map_children,
)
from codegen.masks import is_untrapped
from poly.expr import Const, Expr, Index, Op, Read, indices_of, reads_of, rewrite, simplify, sub
from poly.linear import Linear, linear_form, render

#: For each dimension of registers, the bounds of all loops that move along it.
Rows = dict[tuple[str, int], set[tuple[Expr, Expr]]]


def rows_of(node: Buffer) -> Rows:
    """The loops that move along a register buffer.  If they all have the same bounds, what is
    behind is an element of none of them.
    """
    rows: Rows = {}

    def visit(n: LoopNode, loops: dict[str, tuple[Expr, Expr]]) -> None:
        if isinstance(n, For):
            loops = {**loops, n.var: (n.lower, n.upper)}
        if isinstance(n, Store):
            for read in (n.target, *reads_of(n.value)):
                if read.tensor == node.name:
                    for d, index in enumerate(read.indices):
                        for var in indices_of(index):
                            rows.setdefault((node.name, d), set()).add(loops.get(var, _UNKNOWN))
        for c in children_of(n):
            visit(c, loops)

    visit(node.body, {})
    return rows


_UNKNOWN = (Const(0), Const(-1))


def clamped(body: LoopNode, var: str, bounds: tuple[Expr, Expr], rows: Rows) -> LoopNode | None:
    """The body of a loop over rows that may be run for any row of the tile, also behind the last
    one; None if it does more than to update registers of its row.

    bounds : of the loop, the second one behind the last row
    """
    registers, upper = {name for name, _ in rows}, bounds[1]
    if not _is_row(body, var, bounds, rows):
        return None
    last = simplify(sub(upper, Const(1)))
    row = Op("min", (Index(var), last))

    def place(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor in registers:
            return e
        return replace(e, indices=tuple(replace_var(i, var, row) for i in e.indices))

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, VectorStore):
            return replace(node, store=replace(node.store, value=rewrite(node.store.value, place)))
        return map_children(node, visit)

    return visit(body)


def _is_row(node: LoopNode, var: str, bounds: tuple[Expr, Expr], rows: Rows) -> bool:
    """Whether all that a node does is to update registers that move with `var` between these
    bounds, and no condition, loop or mask in it moves with `var`.
    """
    if isinstance(node, VectorStore):
        target = node.store.target
        moved = [d for d, i in enumerate(target.indices) if depends_on(i, var)]
        masks = [e for e in (node.first, node.last) if e is not None]
        return (
            is_free(node, {name for name, _ in rows})
            and not any(depends_on(e, var) for e in masks)
            and bool(moved)
            and all(rows[target.tensor, d] == {bounds} for d in moved)
        )
    if isinstance(node, If):
        fixed = not depends_on(node.cond, var)
    elif isinstance(node, For):
        fixed = not (depends_on(node.lower, var) or depends_on(node.upper, var))
    else:
        fixed = isinstance(node, Block)
    return fixed and all(_is_row(c, var, bounds, rows) for c in children_of(node))


def is_free(node: VectorStore, registers: Collection[str]) -> bool:
    """Whether a store only updates a register, or sets it to a number."""
    store = node.store
    kind = store.op != "=" or isinstance(store.value, Const)
    return kind and store.target.tensor in registers and is_untrapped(store)


def parts_of(cond: Expr) -> list[Expr]:
    """The conditions that a condition is made of, all of which must hold."""
    if isinstance(cond, Op) and cond.fn == "and":
        return [p for a in cond.args for p in parts_of(a)]
    return [cond]


def implies(cond: Expr, other: Expr) -> bool:
    """Whether ``a < b`` surely holds where ``c < d`` does: b - a >= d - c."""
    if cond == other:
        return True
    if not (isinstance(cond, Op) and isinstance(other, Op) and cond.fn == other.fn == "lt"):
        return False
    (c, d), (a, b) = cond.args, other.args
    ranges: dict[str, tuple[int, int]] = {}

    def visit(e: Expr) -> Expr:
        """Remainders as numbers of their own, of which few are possible."""
        if isinstance(e, Op) and e.fn in ("mod", "fmod") and isinstance(e.args[1], Const):
            name = f"({e})"
            ranges[name] = (0, int(e.args[1].value) - 1)
            return Index(name)
        return e

    gap = _least(linear_form(rewrite(sub(sub(b, a), sub(d, c)), visit)), ranges)
    return gap is not None and gap >= 0


def _least(form: Linear, ranges: Ranges) -> int | None:
    """A number below all values; of ``min(x, y) - min(u, v)`` the least of x - u and y - v."""
    extrema = [(a, c) for a, c in form.terms if isinstance(a, Op) and a.fn == "min"]
    if len(extrema) == 2 and sorted(c for _, c in extrema) == [-1, 1]:
        (second, _), (first, _) = sorted(extrema, key=lambda x: x[1])
        assert isinstance(first, Op) and isinstance(second, Op)
        gaps = [
            _least(linear_form(sub(x, u)), ranges)
            for x, u in zip(first.args, second.args, strict=True)
        ]
        rest = _least(form.without(first).without(second), ranges)
        known = [g for g in gaps if g is not None]
        if len(known) == 2 and rest is not None:
            return min(known) + rest
    return extreme(render(form), ranges, min)
