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
from runtime.network.memory_plan import Life, MemoryPlan, Sharing


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
    lives: dict[str, Life] = {}
    for time, node in enumerate(graph.nodes):
        if isinstance(node, Call) and not sharing.runs(node):
            continue
        for name in (*node.inputs, *node.outputs):
            root = roots[name]
            if root in given or root in direct:
                continue
            first = lives[root].first if root in lives else time
            lives[root] = Life(first, time, sharing.bytes[root])
        if not isinstance(node, View):
            for temp, count in scratch.get(node.name, {}).items():
                lives[f"{node.name}/{temp}"] = Life(time, time, count)
    offsets, arena = _pack(lives, alignment)
    taken = {name: up_to(max(life.bytes, 1), alignment) for name, life in lives.items()}
    bound = max(
        (
            sum(taken[n] for n, life in lives.items() if life.first <= t <= life.last)
            for t in range(len(graph.nodes) + 1)
        ),
        default=0,
    )
    return MemoryPlan(sharing, offsets, direct, copied, arena, bound, lives)


def up_to(count: int, alignment: int) -> int:
    """Round up to a multiple of an alignment."""
    return -(-count // alignment) * alignment


def _pack(lives: Mapping[str, Life], alignment: int) -> tuple[dict[str, int], int]:
    """Offsets for storages with these lives, and the total size."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[str, int] = {}
    total = 0
    for name in largest_first(lives):
        life = lives[name]
        need = up_to(max(life.bytes, 1), alignment)
        at = 0
        for offset, end, a, b in sorted(placed):
            if b < life.first or life.last < a:
                continue
            if at + need <= offset:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append((at, at + need, life.first, life.last))
        total = max(total, at + need)
    return offsets, total


def largest_first(lives: Mapping[str, Life]) -> list[str]:
    """Storages in the order in which they are placed."""
    return sorted(lives, key=lambda n: (-lives[n].bytes, lives[n], n))
