"""Rows of a register tile that may not be there, computed all the same.

What is left of a tile has some rows of it, and lanes in some of its vectors.  With a condition on
each, the innermost loop would be a heap of branches.  But a register that stands for no element may
hold anything: its update needs no condition, if only what it reads is there.  So rows that are not
there read what the last row does that is, and vectors without lanes read nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.loops.index_ranges import depends_on, replace_var
from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Store, VectorStore
from codegen.loops.traverse import children_of, map_children
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    indices_of,
    reads_of,
    rewrite,
    simplify,
    sub,
)
from poly.machine.cpu import VECTOR_BYTES

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
    if not _is_row(body, var, bounds, rows):
        return None
    last = simplify(sub(bounds[1], Const(1)))
    return _reading(body, var, Op("min", (Index(var), last)), rows)


def inside(body: LoopNode, var: str, bounds: tuple[Expr, Expr], rows: Rows) -> LoopNode | None:
    """The body of a loop over rows that reads, for a row that is not there, what another one
    reads: if there is some row, nothing is read that is not there.  None if it does more than to
    update registers of its row, or if lanes have no instructions that leave some out.
    """
    if not _is_row(body, var, None, rows):
        return None
    lower, upper = bounds
    last = simplify(sub(upper, Const(1)))
    return _reading(body, var, Op("max", (Op("min", (Index(var), last)), lower)), rows)


def _reading(body: LoopNode, var: str, row: Expr, rows: Rows) -> LoopNode:
    """The body with another row read in place of that of `var`; registers stay what they are."""
    registers = {name for name, _ in rows}

    def place(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor in registers:
            return e
        return replace(e, indices=tuple(replace_var(i, var, row) for i in e.indices))

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, VectorStore):
            return replace(node, store=replace(node.store, value=rewrite(node.store.value, place)))
        return map_children(node, visit)

    return visit(body)


def _is_row(node: LoopNode, var: str, bounds: tuple[Expr, Expr] | None, rows: Rows) -> bool:
    """Whether all that a node does is to update registers that move with `var`, and no condition,
    loop or mask in it moves with `var`.

    bounds : of all loops along these registers; None: they may differ, and see `_has_scalars`
    """
    if isinstance(node, VectorStore):
        target = node.store.target
        moved = [d for d, i in enumerate(target.indices) if depends_on(i, var)]
        masks = [e for e in (node.first, node.last) if e is not None]
        return (
            is_free(node, {name for name, _ in rows})
            and not any(depends_on(e, var) for e in masks)
            and bool(moved)
            and (
                _has_scalars(node, var)
                if bounds is None
                else all(rows[target.tensor, d] == {bounds} for d in moved)
            )
        )
    if isinstance(node, If):
        fixed = not depends_on(node.cond, var)
    elif isinstance(node, For):
        fixed = not (depends_on(node.lower, var) or depends_on(node.upper, var))
    else:
        fixed = isinstance(node, Block)
    return fixed and all(_is_row(c, var, bounds, rows) for c in children_of(node))


def _has_scalars(node: VectorStore, var: str) -> bool:
    """Whether what a store reads for a row is the same in all lanes, of which it can leave out
    some: what moves with lanes has masks of its own (`codegen.loops.loop_versioning`).
    """
    rows = [r for r in reads_of(node.store.value) if depends_on(r, var)]
    masked = node.lanes * node.store.dtype.bytes == VECTOR_BYTES
    return masked and node.store.op != "=" and not any(depends_on(r, node.var) for r in rows)


def is_free(node: VectorStore, registers: Collection[str]) -> bool:
    """Whether a store only updates a register, or sets it to a number."""
    store = node.store
    kind = store.op != "=" or isinstance(store.value, Const)
    return kind and store.target.tensor in registers and is_untrapped(store)


#: Types that have masked instructions, and whose arithmetic cannot trap on lanes left out.
MASKABLE = ("float32", "float64")


def is_untrapped(s: Store) -> bool:
    """Whether what a store computes may be computed for elements that are not there."""
    parts = _walk_value(s.value)
    return s.dtype.name in MASKABLE and not any(isinstance(e, (Cast, Index)) for e in parts)


def _walk_value(e: Expr) -> list[Expr]:
    """A value's parts, without those of the places that it reads."""
    if isinstance(e, Op):
        return [e, *(x for a in e.args for x in _walk_value(a))]
    return [e]
