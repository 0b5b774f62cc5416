"""The memory plan of a graph: which values share storage, and where the rest lies in one arena.

A view shares its input's storage.  A value that a kernel makes for the caller is made in the
caller's array; every other one gets a place in the arena, which is free again after its last use.
Places are chosen largest value first, each at the lowest offset that is free during its life
(Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", MLSys 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.graph import Call, Graph, View

ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Where values lie.

    roots : for each value, the value whose storage it shares (itself if none)
    offsets : for each value that lies in the arena, its offset in bytes
    direct : values that kernels write into an output's array, with that output's name
    copied : outputs that must be copied from another value after the run
    arena : size of the arena in bytes; `bound` is the least that any plan needs
    """

    roots: Mapping[str, str]
    offsets: Mapping[str, int]
    direct: Mapping[str, str]
    copied: Mapping[str, str]
    arena: int
    bound: int


def plan_memory(graph: Graph, scratch: Mapping[str, Mapping[str, int]]) -> MemoryPlan:
    """Plan a graph; `scratch` gives, for each call, the bytes of its named temporaries.

    Temporaries are in the plan's `offsets` as ``call/name``.
    """
    roots: dict[str, str] = {}
    for name in (*graph.inputs, *graph.constants):
        roots[name] = name
    for node in graph.nodes:
        for out in node.outputs:
            roots[out] = roots[node.input] if isinstance(node, View) else out
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
        for name in (*node.inputs, *node.outputs):
            root = roots[name]
            if root in given or root in direct:
                continue
            first, _ = lives.get(root, (time, time))
            lives[root] = (first, time)
            sizes[root] = value_bytes(graph, root)
        if isinstance(node, Call):
            for temp, count in scratch.get(node.name, {}).items():
                lives[f"{node.name}/{temp}"] = (time, time)
                sizes[f"{node.name}/{temp}"] = count
    offsets, arena = _pack(sizes, lives)
    bound = max(
        (
            sum(_aligned(sizes[n]) for n, (first, last) in lives.items() if first <= t <= last)
            for t in range(len(graph.nodes) + 1)
        ),
        default=0,
    )
    return MemoryPlan(roots, offsets, direct, copied, arena, bound)


def value_bytes(graph: Graph, name: str) -> int:
    """The size of a value's array in bytes."""
    count = graph.values[name].dtype.bytes
    for extent in graph.shape(name):
        count *= extent
    return count


def _aligned(count: int) -> int:
    return -(-max(count, 1) // ALIGNMENT) * ALIGNMENT


def _pack(
    sizes: Mapping[str, int], lives: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, int], int]:
    """Offsets for blocks with sizes and lives, and the size of the whole."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], lives[n], n)):
        first, last = lives[name]
        need = _aligned(sizes[name])
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
