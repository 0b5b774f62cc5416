"""Guards around register values that are never observed where the guard fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from codegen.loops.conditions import implies, parts_of
from codegen.loops.index_ranges import Ranges, extreme
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import Block, Buffer, Combine, For, If, IfAligned, LoopNode, Store
from codegen.loops.traverse import children_of, map_children, reads_in, walk_loops
from poly.ir.dtypes import DType
from poly.ir.expr import (
    Const,
    Expr,
    Op,
    Read,
    indices_of,
    operand_dtype,
    reads_of,
    walk,
)
from poly.tree.kinds import Scope


def drop_unobserved_guards(root: LoopNode) -> LoopNode:
    """Drop guards around register values that are never observed where the guard fails.

    If all accesses to an element of a register buffer are below a condition that is invariant while
    the buffer exists, the element is never used where the condition fails, and may hold any value.
    It may then be computed from any buffer contents, as long as the buffer indices are valid.
    """

    def visit(
        node: LoopNode, ranges: Ranges, bound: frozenset[str], buffers: dict[str, Buffer]
    ) -> LoopNode:
        ranges = ranges_inside(node, ranges)
        if isinstance(node, For):
            bound |= {node.var}
        if isinstance(node, Buffer):
            buffers = {**buffers, node.name: node}
        node = map_children(node, lambda c: visit(c, ranges, bound, buffers))
        if isinstance(node, Buffer) and node.scope == Scope.REGISTER:
            free = _common_conditions(node, bound)
            if free:
                return replace(node, body=_without(node.body, node.name, free, ranges, buffers))
        return node

    return visit(root, {}, frozenset(), {})


def _common_conditions(buffer: Buffer, bound: frozenset[str]) -> dict[Read, frozenset[Expr]]:
    """For each element of a buffer, the conditions that all accesses to it are below."""
    found: dict[Read, list[frozenset[Expr]]] = defaultdict(list)
    asked = {n.cond for n in walk_loops(buffer.body) if isinstance(n, If) and n.other is None}
    asked = {c for c in asked if set(indices_of(c)) <= bound}

    def visit(node: LoopNode, above: frozenset[Expr]) -> None:
        if isinstance(node, If) and node.other is None:
            visit(node.then, above | ({node.cond} & asked))
        elif isinstance(node, IfAligned):
            whole = [p for p in parts_of(node.cond) if set(indices_of(p)) <= bound]
            visit(node.then, above | {c for c in asked if any(implies(p, c) for p in whole)})
            visit(node.other, above)
        elif isinstance(node, (Store, Combine)):
            for read in reads_in(node):
                if read.tensor == buffer.name:
                    found[read].append(above)
        else:
            for child in children_of(node):
                visit(child, above)

    visit(buffer.body, frozenset())
    if not all(isinstance(i, Const) for read in found for i in read.indices):
        return {}
    return {read: frozenset.intersection(*all_of) for read, all_of in found.items()}


def _without(
    node: LoopNode,
    name: str,
    free: dict[Read, frozenset[Expr]],
    ranges: Ranges,
    buffers: dict[str, Buffer],
) -> LoopNode:
    """The tree without conditions that have no observable effect."""
    ranges = ranges_inside(node, ranges)
    if isinstance(node, Buffer):
        buffers = {**buffers, node.name: node}
    node = map_children(node, lambda c: _without(c, name, free, ranges, buffers))
    if not isinstance(node, If) or node.other is not None:
        return node
    for n in walk_loops(node.then):
        if isinstance(n, Store):
            if node.cond not in free.get(n.target, ()) or not _computable(n, name, ranges, buffers):
                return node
        elif not isinstance(n, (If, Block)):
            return node
    return node.then


def _computable(store: Store, name: str, ranges: Ranges, buffers: dict[str, Buffer]) -> bool:
    """Whether a store may run anywhere: it reads valid elements only, and cannot trap."""
    for read in reads_of(store.value):
        buffer = buffers.get(read.tensor)
        if buffer is None:
            return False
        if read.tensor == name:
            continue
        for index, size in zip(read.indices, buffer.shape, strict=True):
            low, high = extreme(index, ranges, min), extreme(index, ranges, max)
            if low is None or high is None or low < 0 or high >= size:
                return False
    dtypes = {n: b.dtype for n, b in buffers.items()}
    return not any(_may_trap(e, dtypes) for e in walk(store.value))


def _may_trap(e: Expr, dtypes: Mapping[str, DType]) -> bool:
    """Whether an expression divides integers by a value that may be 0."""
    if not isinstance(e, Op) or e.fn not in ("div", "floordiv", "mod", "fmod"):
        return False
    by_zero = not isinstance(e.args[1], Const) or e.args[1].value == 0
    return by_zero and not operand_dtype(e, dtypes, None).is_float
