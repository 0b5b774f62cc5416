"""Which tensors threads may exchange values through.

C's ``restrict`` says of a parameter that whatever is written through it is accessed through nothing
else while the function runs.  But each thread has parameters of its own.  Where one thread reads
or overwrites what another one has written, behind a barrier, ``restrict`` is wrong, and LLVM takes
it at its word: it keeps what it has read or stored across calls, barriers among them.  (PoCL 3.0
made zeros of sums that other threads had added to.)  gcc does not.
"""

from __future__ import annotations

from codegen.loopir import (
    Combine,
    For,
    LoopNode,
    MoveSums,
    MultiplyMatrices,
    Single,
    Store,
    Wait,
    children_of,
    reads_in,
    walk_loops,
)
from poly.expr import Read, walk


def exchanged_in_team(body: LoopNode) -> frozenset[str]:
    """Of a CPU's threads, which wait behind each parallel loop and what one of them does alone:
    what is stored in one of these and accessed in another, or in another run of the same.
    """
    parts: dict[str, set[tuple[int, bool]]] = {}

    def visit(node: LoopNode, again: bool) -> None:
        if isinstance(node, Single) or (isinstance(node, For) and node.mark == "parallel"):
            for read in reads_in(node):
                parts.setdefault(read.tensor, set()).add((id(node), again))
            return
        for child in children_of(node):
            visit(child, again or isinstance(node, For))

    visit(body, False)
    shared = {t for t, found in parts.items() if len(found) > 1 or any(r for _, r in found)}
    return frozenset(shared & stored_in(body).keys())


def exchanged_in_block(body: LoopNode) -> frozenset[str]:
    """Of a block of a GPU: what is stored and read, or stored by several statements, if threads
    wait for each other at all.
    """
    if not any(isinstance(n, (Wait, Combine)) for n in walk_loops(body)):
        return frozenset()
    stored, read = stored_in(body), _read(body)
    return frozenset(t for t, statements in stored.items() if t in read or len(statements) > 1)


def stored_in(body: LoopNode) -> dict[str, set[str]]:
    """The statements that store to each tensor or buffer."""
    found: dict[str, set[str]] = {}
    for n in walk_loops(body):
        if isinstance(n, Store):
            found.setdefault(n.target.tensor, set()).add(n.statement)
        elif isinstance(n, MoveSums) and n.action == "store" and n.memory is not None:
            found.setdefault(n.memory.first.tensor, set()).add(n.statement)
    return found


def _read(body: LoopNode) -> set[str]:
    """The tensors and buffers that are read, those that are added to among them."""
    found: list[Read] = []
    for n in walk_loops(body):
        if isinstance(n, Store):
            inside = (e for part in (n.value, *n.target.indices) for e in walk(part))
            found += [e for e in inside if isinstance(e, Read)]
            found += [n.target] if n.op != "=" else []
        elif isinstance(n, MoveSums) and n.action == "load" and n.memory is not None:
            found.append(n.memory.first)
        elif isinstance(n, MultiplyMatrices):
            found += n.reads
    return {r.tensor for r in found}
