"""The memory plan of a graph: which values share storage, and where the rest lies in one arena.

A view shares its input's storage.  What a concatenation only puts one after the other is made in
its place in the result, where that is possible: then there is nothing left to do for it (`share`).
A value that a kernel makes for the caller is made in the
caller's array; every other one gets a place in the arena, which is free again after its last use.
Places are chosen largest value first, each at the lowest offset that is free during its life
(Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", MLSys 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from poly.graph_passes.simplify_graph import copied_parts
from poly.ir.graph import Call, Graph, View
from runtime.common.arguments import ALIGNMENT
from runtime.network.memory_plan import MemoryPlan, Sharing

#: How much larger the arena may become by making values in their places.
GROWTH = 1.25


def plan_memory(
    graph: Graph,
    scratch: Mapping[str, Mapping[str, int]],
    sharing: Sharing | None = None,
    alignment: int = ALIGNMENT,
) -> MemoryPlan:
    """Plan a graph; `scratch` gives, for each call, the bytes of its named temporaries.

    Temporaries are in the plan's `offsets` as ``call/name``.

    alignment : bytes that what lies in the arena begins at a multiple of
    """
    sharing = share(graph) if sharing is None else sharing
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
        if isinstance(node, Call):
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


def share(graph: Graph, grain: int = 1) -> Sharing:
    """What can share storage: views, and operands of concatenations unless that costs memory.

    grain : bytes of a storage that a value in it begins at a multiple of
    """
    plain = _Shares(graph, join=False).sharing()
    joined = _Shares(graph, join=True, grain=grain).sharing()
    if not joined.joined:
        return plain
    arenas = [plan_memory(graph, {}, s).arena for s in (plain, joined)]
    return joined if arenas[1] <= GROWTH * arenas[0] else plain


def views_only(graph: Graph) -> Sharing:
    """What shares storage whatever the sizes of an open graph are: views, which begin with it."""
    roots: dict[str, str] = {n: n for n in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        for name in node.outputs:
            roots[name] = roots[node.input] if isinstance(node, View) else name
    return Sharing(roots, dict.fromkeys(roots, 0), {}, frozenset())


class _Shares:
    """Storage of values, as it is joined."""

    def __init__(self, graph: Graph, join: bool, grain: int = 1) -> None:
        self.graph, self.grain = graph, grain
        self.given = set(graph.inputs) | set(graph.constants)
        self.places: dict[str, tuple[str, int]] = {}
        self.sizes: dict[str, int] = {}
        self.members: dict[str, list[str]] = {}
        self.joined: set[str] = set()
        self.shown = self._shown()
        for name in (*graph.inputs, *graph.constants):
            self._define(name, name)
        for node in graph.nodes:
            if isinstance(node, View):
                self._define(node.output, *self.places[node.input])
            elif not (join and self._join(node)):
                for name in node.outputs:
                    self._define(name, name)

    def sharing(self) -> Sharing:
        return Sharing(
            {name: root for name, (root, _) in self.places.items()},
            {name: start for name, (_, start) in self.places.items()},
            self.sizes,
            frozenset(self.joined),
        )

    def _shown(self) -> set[str]:
        """The values that callers see, under whatever shape: each has a whole array of its own."""
        shown = set(self.graph.outputs)
        for node in reversed(self.graph.nodes):
            if isinstance(node, View) and node.output in shown:
                shown.add(node.input)
        return shown

    def _define(self, name: str, root: str, start: int = 0) -> None:
        self.places[name] = root, start
        self.members.setdefault(root, []).append(name)
        if root == name:
            self.sizes[root] = value_bytes(self.graph, name)

    def _join(self, call: Call) -> bool:
        """Make the operands of a concatenation in their places in its result, if they can be."""
        parts = copied_parts(call.program)
        if parts is None:
            return False
        (result,) = call.outputs
        width = self.graph.values[result].dtype.bytes
        found: dict[str, int] = {}  # where storages begin, counted from the result's first byte
        for name, part in zip(call.inputs, parts, strict=True):
            root, start = self.places[name]
            at = part * width - start
            if root in self.given or at % self.grain or found.setdefault(root, at) != at:
                return False
        if any(name in self.shown for root in found for name in self.members[root]):
            return False
        spans = sorted((at, at + self.sizes[root]) for root, at in found.items())
        if any(a[1] > b[0] for a, b in pairwise(spans)):
            return False
        first, last = spans[0][0], spans[-1][1]
        size = value_bytes(self.graph, result)
        if result in self.shown and (first, last) != (0, size):
            return False
        self._move(found, result, first)
        self._define(result, result, -first)
        self.sizes[result] = last - first
        self.joined.add(result)
        return True

    def _move(self, found: Mapping[str, int], result: str, first: int) -> None:
        """Put storages into a new one that is named after a result."""
        moved: Sequence[tuple[str, int]] = list(found.items())
        for root, at in moved:
            for name in self.members.pop(root):
                self.places[name] = result, self.places[name][1] + at - first
                self.members.setdefault(result, []).append(name)
            del self.sizes[root]


def value_bytes(graph: Graph, name: str) -> int:
    """The size of a value's array in bytes."""
    count = graph.values[name].dtype.bytes
    for extent in graph.shape(name):
        count *= extent
    return count


def up_to(count: int, alignment: int) -> int:
    """The next multiple of an alignment."""
    return -(-count // alignment) * alignment


def _pack(
    sizes: Mapping[str, int], lives: Mapping[str, tuple[int, int]], alignment: int
) -> tuple[dict[str, int], int]:
    """Offsets for blocks with sizes and lives, and the size of the whole."""
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
