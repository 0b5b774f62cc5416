"""Version the loops of a register tile by whether all of its rows take part.

The taps of a filter that fall on the padding leave out rows of a tile, and which rows depends on
the tap.  For most taps of most tiles none is left out, and the loop inside needs no mask then.

    for s: for c: for i in max(1 - s - 8*o, 0):8: X   is
    for s: if (1 - s - 8*o <= 0) for c: for i in 0:8: X else for c: for i in max(...):8: X
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.loops.clamp_rows import Rows, is_within, rows_of
from codegen.loops.conditions import all_of, parts_of, parts_of_extremum, strongest
from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Buffer, For, If, LoopNode, Store
from codegen.loops.tidy import tidied
from codegen.loops.traverse import map_children, own_variables, walk_loops
from poly.ir.expr import Const, Expr, Op, indices_of
from poly.tree.kinds import Mark, Scope


def version_rows(root: LoopNode) -> LoopNode:
    """Version innermost loops of register tiles by whether all rows take part, where that depends
    on a loop around them in the tile.
    """

    def visit(node: LoopNode, around: frozenset[str] | None, rows: Rows) -> LoopNode:
        if isinstance(node, Buffer) and node.scope == Scope.REGISTER:
            around, rows = around or frozenset(), {**rows, **rows_of(node)}
        if around is None or not isinstance(node, For):
            return map_children(node, lambda c: visit(c, around, rows))
        if node.mark == Mark.SEQ and _is_innermost(node):
            return _versioned(node, around, rows)
        inside = around | {node.var}
        return map_children(node, lambda c: visit(c, inside, rows))

    return visit(root, None, {})


def _is_innermost(node: For) -> bool:
    """Whether all loops inside are unrolled."""
    below = [n for n in walk_loops(node.body) if isinstance(n, For)]
    return bool(below) and all(n.mark == Mark.UNROLL for n in below)


def _versioned(loop: For, around: frozenset[str], rows: Rows) -> LoopNode:
    own = own_variables(loop)
    found: dict[tuple[str, Expr, Expr], tuple[Expr, Expr]] = {}
    for n in walk_loops(loop.body):
        if not isinstance(n, For) or n.trip is not None:
            continue
        if any(depends_on(e, var) for e in (n.lower, n.upper) for var in around):
            whole = _bounds_of_tile(n, around, rows)
            if whole is None or any(own & {*indices_of(e)} for e in (n.lower, n.upper)):
                return loop
            found[n.var, n.lower, n.upper] = whole
    conditions = dict.fromkeys(
        p for (_, *inner), outer in found.items() for p in parts_of(tidied(_covers(inner, outer)))
    )
    left = strongest(c for c in conditions if c != Const(True))
    if not left or Const(False) in left:
        return loop

    def whole_rows(node: LoopNode) -> LoopNode:
        node = map_children(node, whole_rows)
        if isinstance(node, For) and (node.var, node.lower, node.upper) in found:
            lower, upper = found[node.var, node.lower, node.upper]
            return replace(node, lower=lower, upper=upper)
        return node

    return If(all_of(left), whole_rows(loop), loop)


def _bounds_of_tile(node: For, around: frozenset[str], rows: Rows) -> tuple[Expr, Expr] | None:
    """The bounds of the rows of the tile along which a loop moves: those of the loops that set the
    registers, within which it runs.
    """
    moved = {
        (s.target.tensor, d)
        for s in walk_loops(node.body)
        if isinstance(s, Store)
        for d, index in enumerate(s.target.indices)
        if depends_on(index, node.var)
    }
    outer = {
        bounds
        for key in moved
        for bounds in rows.get(key, ())
        if not any(depends_on(e, var) for e in bounds for var in around)
    }
    inner = (node.lower, node.upper)
    return outer.pop() if len(outer) == 1 and is_within(inner, next(iter(outer))) else None


def _covers(inner: Sequence[Expr], outer: tuple[Expr, Expr]) -> Expr:
    """Whether a loop runs through all of the bounds within which it runs."""
    lower = [Op("le", (e, outer[0])) for e in parts_of_extremum(inner[0], "max")]
    rest = sorted(parts_of_extremum(inner[1], "min") - parts_of_extremum(outer[1], "min"), key=str)
    upper = [Op("le", (outer[1], e)) for e in rest]
    return all_of([*sorted(lower, key=str), *upper])
