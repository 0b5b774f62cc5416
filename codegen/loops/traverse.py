"""Walk and rewrite loop trees, by the fields that `codegen.loops.nodes` declares."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import (
    Block,
    CallIntrinsic,
    For,
    If,
    IfAligned,
    Interleaved,
    LoopNode,
    Matrix,
    MoveSums,
    MultiplyMatrices,
    Store,
    Together,
    Transposed,
    VectorStore,
    block,
)
from poly.ir.expr import Expr, Read, walk
from poly.tree.kinds import LoopMark, Mark


def children_of(node: LoopNode) -> tuple[LoopNode, ...]:
    """The nodes directly below, in order."""
    found: list[LoopNode] = []
    for name in node.CHILDREN:
        value = getattr(node, name)
        found += value if isinstance(value, tuple) else () if value is None else (value,)
    return tuple(found)


def walk_loops(node: LoopNode) -> Iterator[LoopNode]:
    """The node and everything below, in order."""
    yield node
    for child in children_of(node):
        yield from walk_loops(child)


def own_bounds(node: LoopNode) -> tuple[Expr, ...]:
    """A node's own index arithmetic, except that inside of `own_values`."""
    return tuple(e for name in node.BOUNDS for e in _exprs(getattr(node, name)))


def own_values(node: LoopNode) -> tuple[Expr, ...]:
    """The values and elements that a node itself computes with."""
    return tuple(e for name in node.VALUES for e in _exprs(getattr(node, name)))


def _exprs(value: Any) -> Iterator[Expr]:
    """The expressions in a field, including those in tuples and the first elements of matrices."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, Matrix):
        yield value.first
    elif isinstance(value, tuple):
        for part in value:
            yield from _exprs(part)


def own_variables(node: LoopNode) -> set[str]:
    """The variables that the node binds for its children."""
    return {n.var for n in walk_loops(node) if isinstance(n, (For, VectorStore))}


def map_children(node: LoopNode, fn: Callable[[LoopNode], LoopNode]) -> LoopNode:
    """The node with `fn` applied to its direct children; vector stores are left as they are.

    What stays the same is not copied.
    """
    if isinstance(node, (VectorStore, Transposed, Interleaved)) or not node.CHILDREN:
        return node
    if isinstance(node, Block):
        children = [fn(c) for c in node.children]
        same = all(map(operator.is_, children, node.children))
        flat = len(children) != 1 and not any(isinstance(c, Block) for c in children)
        return node if same and flat else block(children)
    if isinstance(node, Together):
        stores = _mapped(node.stores, fn)
        if not all(isinstance(s, Store) for s in stores):
            return block([*stores])
        return replace(node, stores=stores)
    return _changed(node, {name: _mapped(getattr(node, name), fn) for name in node.CHILDREN})


def _changed(node: LoopNode, fields: Mapping[str, Any]) -> LoopNode:
    """The node with other values of fields; itself if all of them are the ones that it has."""
    if all(getattr(node, name) is value for name, value in fields.items()):
        return node
    return replace(node, **fields)  # type: ignore[type-var]


def map_exprs(
    node: LoopNode, fn: Callable[[Expr], Expr], value: Callable[[Expr], Expr] | None = None
) -> LoopNode:
    """The tree with `fn` applied to every expression (whole bounds, conditions, values).

    `value`, if given, is applied to the values of stores instead.
    """
    if isinstance(node, (VectorStore, Transposed, Interleaved)):
        (name,) = node.CHILDREN
        below = _mapped(getattr(node, name), lambda c: map_exprs(c, fn, value))
        node = _changed(node, {name: below})
    else:
        node = map_children(node, lambda c: map_exprs(c, fn, value))
    if isinstance(node, Store):
        made = {"target": _mapped(node.target, fn), "value": (value or fn)(node.value)}
    else:
        made = {name: _mapped(getattr(node, name), fn) for name in (*node.BOUNDS, *node.VALUES)}
    return _changed(node, made)


def _mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """A field with `fn` applied to the nodes or expressions in it."""
    if isinstance(value, (LoopNode, Expr)):
        made = fn(value)
        assert isinstance(made, Read) or not isinstance(value, Read), "an element stays one"
        return made
    if isinstance(value, Matrix):
        first = _mapped(value.first, fn)
        return value if first is value.first else replace(value, first=first)
    if isinstance(value, tuple):
        parts = tuple([_mapped(part, fn) for part in value])
        return value if all(map(operator.is_, parts, value)) else parts
    return value


def show_loops(node: LoopNode, indent: str = "") -> str:
    """The loop tree as indented text."""
    return "\n".join(_lines(node, indent))


def _lines(node: LoopNode, indent: str) -> Iterator[str]:
    inner = indent if isinstance(node, Block) else indent + "  "
    if not isinstance(node, Block):
        yield f"{indent}{node}"
    branches = isinstance(node, (If, IfAligned))
    for number, child in enumerate(children_of(node)):
        if branches and number:
            yield f"{indent}else"
        yield from _lines(child, inner)


def reads_in(node: LoopNode) -> Iterator[Read]:
    """Every element that stores below read or write, and the first elements of matrices."""
    for n in walk_loops(node):
        for e in own_values(n):
            yield from (x for x in walk(e) if isinstance(x, Read))


def statements_in(node: LoopNode) -> tuple[str, ...]:
    """Names of the statements that run below, in order of first appearance."""
    made = (Store, MoveSums, MultiplyMatrices, CallIntrinsic)
    return tuple(dict.fromkeys(n.statement for n in walk_loops(node) if isinstance(n, made)))


def has_mark(node: LoopNode, mark: LoopMark) -> bool:
    return any(isinstance(n, For) and n.mark == mark for n in walk_loops(node))


def is_simple(node: LoopNode) -> bool:
    """Whether a loop body may be printed as an OpenMP simd loop: stores only.

    Conditions would be allowed, but gcc 12 puts masked AVX-512 stores at wrong addresses.
    """
    if isinstance(node, Block):
        return all(is_simple(c) for c in node.children)
    return isinstance(node, Store)


def collapsible(node: For) -> int:
    """How many parallel loops, from `node` inwards, form one rectangular perfect nest."""
    depth, outer = 1, {node.var}
    inner = node.body
    while isinstance(inner, For) and inner.mark == Mark.PARALLEL:
        if any(depends_on(e, v) for e in (inner.lower, inner.upper) for v in outer):
            break
        depth, outer = depth + 1, outer | {inner.var}
        inner = inner.body
    return depth
