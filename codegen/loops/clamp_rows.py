"""Rows of a register tile that may not exist, computed anyway.

The remainder of a tile has only some of its rows, and only some lanes in some of its vectors.  A
condition on each would fill the innermost loop with branches.  But a register that stands for no
element may hold any value: its update needs no condition as long as its reads are valid.  So rows
that do not exist read what the last existing row reads, and vectors without lanes read nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.loops.conditions import parts_of_extremum
from codegen.loops.index_ranges import depends_on, replace_var
from codegen.loops.nodes import (
    Block,
    Buffer,
    CallIntrinsic,
    For,
    If,
    LoopNode,
    Store,
    VectorStore,
)
from codegen.loops.traverse import children_of, map_exprs, own_values
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    computed,
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
    """The loops that move along a register buffer.  If they all run within the bounds of one,
    registers beyond these stand for no element in any of them.
    """
    rows: Rows = {}

    def visit(n: LoopNode, loops: dict[str, tuple[Expr, Expr]]) -> None:
        if isinstance(n, For):
            loops = {**loops, n.var: (n.lower, n.upper)}
        for read in (r for e in own_values(n) for r in reads_of(e)):
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
    """The body of a loop over rows, made valid for any row of the tile, even beyond the last one;
    None if it does more than update registers of its row.

    bounds : of the loop, the second one exclusive
    """
    if not _is_row(body, var, bounds, rows):
        return None
    last: Expr = Index(var)
    for end in _ends(bounds[1]):
        last = Op("min", (last, simplify(sub(end, Const(1)))))
    return _reading(body, var, last, rows)


def inside(body: LoopNode, var: str, bounds: tuple[Expr, Expr], rows: Rows) -> LoopNode | None:
    """The body of a loop over rows, in which a row that does not exist reads what another one
    reads: all reads are valid as long as there is any row.  None if it does more than update
    registers of its row, or if its lanes cannot be masked.
    """
    if not _is_row(body, var, None, rows):
        return None
    last: Expr = Index(var)
    for end in _ends(bounds[1]):
        last = Op("min", (last, simplify(sub(end, Const(1)))))
    return _reading(body, var, Op("max", (last, bounds[0])), rows)


def _ends(upper: Expr) -> list[Expr]:
    """The ends of which a bound is the least; a constant is beyond any row of the tile."""
    parts = sorted(parts_of_extremum(upper, "min"), key=str)
    return [e for e in parts if not isinstance(e, Const)] or parts


def _reading(body: LoopNode, var: str, row: Expr, rows: Rows) -> LoopNode:
    """The body with another row read in place of that of `var`; registers stay as they are."""
    registers = {name for name, _ in rows}

    def at_row(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor in registers:
            return e
        return replace(e, indices=tuple(replace_var(i, var, row) for i in e.indices))

    return map_exprs(body, lambda e: rewrite(e, at_row))


def _is_row(node: LoopNode, var: str, bounds: tuple[Expr, Expr] | None, rows: Rows) -> bool:
    """Whether a node only updates registers that move with `var`, and no condition, loop or mask
    in it moves with `var`.

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
                else all(is_within(b, bounds) for d in moved for b in rows[target.tensor, d])
            )
        )
    if isinstance(node, CallIntrinsic):
        return bounds is not None and _is_row_of(node, var, bounds, rows)
    if isinstance(node, If):
        fixed = not depends_on(node.cond, var)
    elif isinstance(node, For):
        fixed = not (depends_on(node.lower, var) or depends_on(node.upper, var))
    else:
        fixed = isinstance(node, Block)
    return fixed and all(_is_row(c, var, bounds, rows) for c in children_of(node))


def _is_row_of(node: CallIntrinsic, var: str, bounds: tuple[Expr, Expr], rows: Rows) -> bool:
    """Whether an instruction only adds to a register that moves with `var`; see `_is_row`."""
    registers = {name for name, _ in rows}
    if node.intrinsic.statement.op == "=":
        return False
    for tensor, read in zip(node.tensors, node.operands, strict=True):
        if tensor not in node.written:
            if read.tensor in registers:
                return False
            continue
        moved = [d for d, i in enumerate(read.indices) if depends_on(i, var)]
        if read.tensor not in registers or not moved:
            return False
        if not all(is_within(b, bounds) for d in moved for b in rows[read.tensor, d]):
            return False
    return True


def is_within(inner: tuple[Expr, Expr], outer: tuple[Expr, Expr]) -> bool:
    """Whether a loop runs within another one's bounds: ``max(a, b):min(c, d)`` within ``a:c``."""
    return parts_of_extremum(inner[0], "max") >= parts_of_extremum(outer[0], "max") and (
        parts_of_extremum(inner[1], "min") >= parts_of_extremum(outer[1], "min")
    )


def _has_scalars(node: VectorStore, var: str) -> bool:
    """Whether all values that a store reads for a row are the same in all lanes, some of which may
    be masked: values that vary by lane have masks of their own (`codegen.loops.loop_versioning`).
    """
    rows = [r for r in reads_of(node.store.value) if depends_on(r, var)]
    masked = node.lanes * node.store.dtype.compute.bytes == VECTOR_BYTES
    return masked and node.store.op != "=" and not any(depends_on(r, node.var) for r in rows)


def is_free(node: VectorStore, registers: Collection[str]) -> bool:
    """Whether a store only updates a register, or sets it to a number."""
    store = node.store
    kind = store.op != "=" or isinstance(store.value, Const)
    return kind and store.target.tensor in registers and is_untrapped(store)


#: Types that have masked instructions, and whose arithmetic cannot trap on inactive lanes.
MASKABLE = frozenset(
    "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 uint32".split()
)
#: Operators that integers may trap in.
_TRAPS = frozenset(("div", "floordiv", "mod", "fmod"))


def is_untrapped(s: Store) -> bool:
    """Whether a store's value may be computed for elements that do not exist."""
    parts = computed(s.value)
    if any(isinstance(e, Index) for e in parts):
        return False
    if not s.dtype.is_float and any(isinstance(e, Op) and e.fn in _TRAPS for e in parts):
        return False
    types = {s.dtype, *(e.dtype for e in parts if isinstance(e, Cast))}
    return all(t.name in MASKABLE for t in types)
