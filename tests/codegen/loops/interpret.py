"""Run loops step by step: which stores they make, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Store, VectorStore
from poly.ir.expr import Expr, evaluate_int, substitute

Event = tuple[object, ...]


def value_of(e: Expr, env: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The value of index arithmetic."""
    constants = {name: _constant(v) for name, v in env.items()}
    return evaluate_int(
        substitute(e, constants, {name: _constant(v) for name, v in sizes.items()}), {}
    )


def _constant(value: int) -> Expr:
    from poly.ir.expr import Const

    return Const(value)


def events(
    node: LoopNode, sizes: Mapping[str, int], env: Mapping[str, int] | None = None
) -> Iterator[Event]:
    """The elements stored, in order: tensor and indices; those of a vector store lane by lane."""
    env = env or {}
    if isinstance(node, Block):
        for child in node.children:
            yield from events(child, sizes, env)
    elif isinstance(node, Buffer):
        yield from events(node.body, sizes, env)
    elif isinstance(node, For):
        low, high = (value_of(e, env, sizes) for e in (node.lower, node.upper))
        assert not node.runs or low < high, f"{node} has no iteration"
        for value in range(low, high, node.step):
            yield from events(node.body, sizes, {**env, node.var: value})
    elif isinstance(node, If):
        branch = node.then if value_of(node.cond, env, sizes) else node.other
        if branch is not None:
            yield from events(branch, sizes, env)
    elif isinstance(node, VectorStore):
        first = value_of(node.first, env, sizes)
        last = node.lanes if node.last is None else value_of(node.last, env, sizes)
        for lane in range(first, last):
            yield from events(node.store, sizes, {**env, node.var: lane})
    else:
        assert isinstance(node, Store), node
        yield (node.target.tensor, *(value_of(i, env, sizes) for i in node.target.indices))
