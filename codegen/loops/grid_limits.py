"""Limits of GPU grids, and loops on blocks that exceed them."""

from __future__ import annotations

from codegen.loops.nodes import For, axis_of
from poly.ir.expr import Const, Expr, Op
from poly.tree.kinds import Mark

#: The most blocks of a grid in x, y and z.
MOST_BLOCKS = (2**31 - 1, 65535, 65535)


def is_strided(node: For) -> bool:
    """Whether a loop on blocks may have more iterations than a grid has blocks along its axis."""
    if node.mark != Mark.BLOCK or axis_of(node) == 0:
        return False
    most = _most(node.upper)
    return most is None or most > MOST_BLOCKS[1]


def _most(e: Expr) -> int | None:
    """The greatest possible number of blocks, or None if unknown."""
    if isinstance(e, Op) and e.fn == "select":  # no blocks where there is nothing to do
        found = [_most(arg) for arg in e.args[1:]]
        return None if None in found else max(n for n in found if n is not None)
    return int(e.value) if isinstance(e, Const) else None
