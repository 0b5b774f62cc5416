"""Plan the memory of a graph: where each storage is placed.

A value that a kernel makes for the caller is written to the caller's array; every other one is
in one arena, in bytes that are free again after its last use.  Offsets are chosen largest value
first, each the lowest one that is free during the value's life (Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference", MLSys 2020).  Which values share storage is
decided before, in `runtime.network.share_storage`.
"""

from __future__ import annotations

from collections.abc import Mapping

from poly.ir.graph import Call, Graph, View
from runtime.common.arguments import ALIGNMENT
from runtime.network.memory_plan import MemoryPlan, Sharing


def plan_memory(
    graph: Graph,
    scratch: Mapping[str, Mapping[str, int]],
    sharing: Sharing,
    alignment: int = ALIGNMENT,
) -> MemoryPlan:
    """Plan a graph; `scratch` gives, for each call, the bytes of its named temporaries.

    Temporaries are in the plan's `offsets` as ``call/name``.

    alignment : in bytes, of storage in the arena
    """
    roots = sharing.roots
    given = set(graph.inputs) | set(graph.constants)
    direct: dict[str, str] = {}
    copied: dict[str, str] = {}
    for name in graph.outputs:
        root = roots[name]
        if root in given or root in direct:
            copied[name] = root
        else:
            direct[root] = name
    lives: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for time, node in enumerate(graph.nodes):
        if isinstance(node, Call) and not sharing.runs(node):
            continue
        for name in (*node.inputs, *node.outputs):
            root = roots[name]
            if root in given or root in direct:
                continue
            first, _ = lives.get(root, (time, time))
            lives[root] = (first, time)
            sizes[root] = sharing.bytes[root]
        if not isinstance(node, View):
            for temp, count in scratch.get(node.name, {}).items():
                lives[f"{node.name}/{temp}"] = (time, time)
                sizes[f"{node.name}/{temp}"] = count
    offsets, arena = _pack(sizes, lives, alignment)
    taken = {name: up_to(max(count, 1), alignment) for name, count in sizes.items()}
    bound = max(
        (
            sum(taken[n] for n, (first, last) in lives.items() if first <= t <= last)
            for t in range(len(graph.nodes) + 1)
        ),
        default=0,
    )
    return MemoryPlan(sharing, offsets, direct, copied, arena, bound)


def up_to(count: int, alignment: int) -> int:
    """Round up to a multiple of an alignment."""
    return -(-count // alignment) * alignment


def _pack(
    sizes: Mapping[str, int], lives: Mapping[str, tuple[int, int]], alignment: int
) -> tuple[dict[str, int], int]:
    """Offsets for blocks with sizes and lifetimes, and the total size."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], lives[n], n)):
        first, last = lives[name]
        need = up_to(max(sizes[name], 1), alignment)
        at = 0
        for offset, end, a, b in sorted(placed):
            if b < first or last < a:
                continue
            if at + need <= offset:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append((at, at + need, first, last))
        total = max(total, at + need)
    return offsets, total
