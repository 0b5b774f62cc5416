"""All threads of a block come to the same barriers: on a GPU, anything else is undefined."""

from __future__ import annotations

from collections.abc import Iterable

from codegen.loops.nodes import Combine, For, If, IfAligned, LoopNode, Wait
from codegen.loops.traverse import children_of, own_bounds, walk_loops
from poly.errors import ScheduleError
from poly.ir.expr import Const, add, indices_of
from poly.tree.kinds import ON_THREADS


def check_barriers(root: LoopNode) -> LoopNode:
    """Check that no barrier is below a condition or a loop that differs between threads of a block.

    Returns the loops.

    Raises
    ------
    ScheduleError : one is, as where iterations were set apart by what each thread has to do.
    """
    _check(root, frozenset())
    return root


def _check(node: LoopNode, own: frozenset[str]) -> None:
    """own : the names of values that differ between threads"""
    if isinstance(node, For) and (node.mark in ON_THREADS or _differs(node, own)):
        if node.mark not in ON_THREADS and not _is_single(node):
            _refuse(node, f"loop {node.var}")
        own |= {node.var}
    elif isinstance(node, (If, IfAligned)) and _differs(node, own):
        _refuse(node, f"the condition {node.cond}")
    for child in children_of(node):
        _check(child, own)


def _differs(node: LoopNode, own: Iterable[str]) -> bool:
    return any(not {*indices_of(e)}.isdisjoint(own) for e in own_bounds(node))


def _is_single(node: For) -> bool:
    """Whether a loop gives a name to a value: it has one iteration, wherever that is."""
    return node.upper == add(node.lower, Const(1))


def _refuse(node: LoopNode, where: str) -> None:
    if any(isinstance(n, (Wait, Combine)) for n in walk_loops(node)):
        raise ScheduleError(
            f"threads of a block would wait at different barriers: {where} differs between them "
            "and has a barrier inside; isolate no loop that shared memory is filled in, or make "
            "the threads' tiles fit the extents"
        )
