"""Which tensors threads may exchange values through, and where they wait for each other last.

C's ``restrict`` says of a parameter that whatever is written through it is accessed through nothing
else while the function runs.  But each thread has parameters of its own.  Where one thread reads
or overwrites what another one has written, behind a barrier, ``restrict`` is wrong, and LLVM takes
it at its word: it keeps what it has read or stored across calls, barriers among them.  (PoCL 3.0
made zeros of sums that other threads had added to.)  gcc does not.
"""

from __future__ import annotations

from collections.abc import Collection

from codegen.loops.grid_limits import is_strided
from codegen.loops.nodes import (
    Buffer,
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
    """What is stored, and accessed in several of the stretches between which threads wait, or again
    in another iteration of a loop that has such in it.

    Threads of a CPU wait behind each parallel loop and behind what one of them does alone.
    A thread of a GPU runs one iteration of its loops, and blocks do not wait for each other.
    """
    stretches: dict[str, set[int]] = {}
    again: set[str] = set()

    def visit(node: LoopNode, now: int) -> int:
        """The number of the stretch behind a node, which begins in stretch `now`."""
        loop = node.mark if isinstance(node, For) else None
        ends = isinstance(node, (Single, Wait, Combine)) or loop == Mark.PARALLEL
        if ends or not children_of(node):
            for read in reads_in(node):
                stretches.setdefault(read.tensor, set()).add(now)
            return now + int(ends)
        if isinstance(node, (If, IfAligned)):
            return max(visit(c, now) for c in children_of(node))
        behind = now
        for child in children_of(node):
            behind = visit(child, behind)
        if behind > now and loop not in (None, Mark.BLOCK, Mark.THREAD, Mark.OWN_THREAD):
            again.update(r.tensor for r in reads_in(node))
        return behind

    visit(body, 0)
    return stored_in(body) & (again | {t for t, found in stretches.items() if len(found) > 1})


def touched_last(body: LoopNode, apart: Collection[str]) -> bool:
    """Whether a thread may touch, behind the last barrier of a part of a kernel, anything but what
    lies in global memory or in registers, which `apart` and the buffers inside name.

    A loop may execute zero times, so it is not a barrier.
    """
    own = {n.name for n in walk_loops(body) if isinstance(n, Buffer) and n.scope == Scope.REGISTER}
    plain = {*apart, *own}

    def visit(node: LoopNode, before: bool) -> bool:
        """The same behind a node, where something is touched `before` it or not."""
        if isinstance(node, Wait):
            return False
        if isinstance(node, (If, IfAligned)):
            return before or any(visit(c, before) for c in children_of(node))
        if isinstance(node, For) and is_strided(node):
            return before  # it ends with a barrier of its own, if it needs one
        if not children_of(node):
            stores = isinstance(node, Store) and all(r.tensor in plain for r in reads_in(node))
            return before or not stores
        behind = before
        for child in children_of(node):
            behind = visit(child, behind)
        return behind or (before and isinstance(node, For))

    return visit(body, False)


def stored_in(body: LoopNode) -> frozenset[str]:
    """The tensors and buffers to which something is stored."""
    found: set[str] = set()
    for n in walk_loops(body):
        if isinstance(n, Store):
            found.add(n.target.tensor)
        elif isinstance(n, MoveSums) and n.action == "store" and n.memory is not None:
            found.add(n.memory.first.tensor)
    return frozenset(found)
