"""Which tensors threads may exchange values through, and where their last barrier is.

C's ``restrict`` says of a parameter that while the function runs, whatever is written through it is
accessed through nothing else.  But each thread has its own parameters.  Where one thread reads or
overwrites, after a barrier, what another has written, ``restrict`` is wrong, and LLVM takes it at
its word: it keeps values in registers across calls, including barriers.  (PoCL 3.0 turned sums that
other threads had added to into zeros.)  gcc does not.
"""

from __future__ import annotations

from collections.abc import Collection

from codegen.loops.grid_limits import is_strided
from codegen.loops.nodes import (
    Buffer,
    CallIntrinsic,
    Combine,
    For,
    If,
    IfAligned,
    LoopNode,
    MoveSums,
    Single,
    Store,
    Wait,
)
from codegen.loops.traverse import children_of, reads_in, walk_loops
from poly.tree.kinds import Mark, Scope


def exchanged(body: LoopNode) -> frozenset[str]:
    """What is stored, and accessed in several of the stretches between barriers, or again in
    another iteration of a loop that contains barriers.

    Threads of a CPU wait after each parallel loop and after code that one of them runs alone.
    A thread of a GPU runs one iteration of its loops, and blocks do not wait for each other.
    """
    stretches: dict[str, set[int]] = {}
    again: set[str] = set()

    def visit(node: LoopNode, now: int) -> int:
        """The number of the stretch after a node that begins in stretch `now`."""
        loop = node.mark if isinstance(node, For) else None
        ends = isinstance(node, (Single, Wait, Combine)) or loop == Mark.PARALLEL
        if ends or not children_of(node):
            for read in reads_in(node):
                stretches.setdefault(read.tensor, set()).add(now)
            return now + int(ends)
        if isinstance(node, (If, IfAligned)):
            return max(visit(c, now) for c in children_of(node))
        after = now
        for child in children_of(node):
            after = visit(child, after)
        if after > now and loop not in (None, Mark.BLOCK, Mark.THREAD, Mark.OWN_THREAD):
            again.update(r.tensor for r in reads_in(node))
        return after

    visit(body, 0)
    return stored_in(body) & (again | {t for t, found in stretches.items() if len(found) > 1})


def touched_last(body: LoopNode, apart: Collection[str]) -> bool:
    """Whether, after the last barrier of a part of a kernel, a thread may touch anything but global
    memory or registers, as named by `apart` and the buffers inside.

    A loop may execute zero times, so it is not a barrier.
    """
    own = {n.name for n in walk_loops(body) if isinstance(n, Buffer) and n.scope == Scope.REGISTER}
    plain = {*apart, *own}

    def visit(node: LoopNode, before: bool) -> bool:
        """The same after a node, given whether something is touched `before` it."""
        if isinstance(node, Wait):
            return False
        if isinstance(node, (If, IfAligned)):
            return before or any(visit(c, before) for c in children_of(node))
        if isinstance(node, For) and is_strided(node):
            return before  # it ends with a barrier of its own, if it needs one
        if not children_of(node):
            stores = isinstance(node, Store) and all(r.tensor in plain for r in reads_in(node))
            return before or not stores
        after = before
        for child in children_of(node):
            after = visit(child, after)
        return after or (before and isinstance(node, For))

    return visit(body, False)


def stored_in(body: LoopNode) -> frozenset[str]:
    """The tensors and buffers that are stored to."""
    found: set[str] = set()
    for n in walk_loops(body):
        if isinstance(n, Store):
            found.add(n.target.tensor)
        elif isinstance(n, CallIntrinsic):
            found |= {
                r.tensor for t, r in zip(n.tensors, n.operands, strict=True) if t in n.written
            }
        elif isinstance(n, MoveSums) and n.action == "store" and n.memory is not None:
            found.add(n.memory.first.tensor)
    return frozenset(found)
