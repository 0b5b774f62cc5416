"""Which values of a graph share storage: views, and the operands of concatenations.

A view shares its input's storage.  The operands of a concatenation are written directly into its
result where possible: then the concatenation itself has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from poly.graph_passes.simplify_graph import copied_parts
from poly.ir.graph import Call, Graph, View
from runtime.network.memory_plan import Sharing, value_bytes
from runtime.network.plan_memory import plan_memory

#: How much larger the arena may become by writing operands directly into results.
GROWTH = 1.25


def share(graph: Graph, grain: int = 1) -> Sharing:
    """What can share storage: views, and operands of concatenations unless that costs memory.

    grain : alignment in bytes of a value in a storage
    """
    plain = _Shares(graph, join=False).sharing()
    joined = _Shares(graph, join=True, grain=grain).sharing()
    if not joined.joined:
        return plain
    arenas = [plan_memory(graph, {}, s).arena for s in (plain, joined)]
    return joined if arenas[1] <= GROWTH * arenas[0] else plain


def views_only(graph: Graph) -> Sharing:
    """What shares storage for all sizes of an open graph: views at the start of their storage."""
    roots: dict[str, str] = {n: n for n in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        for name in node.outputs:
            roots[name] = roots[node.input] if isinstance(node, View) else name
    return Sharing(roots, dict.fromkeys(roots, 0), {}, frozenset())


class _Shares:
    """The storage of values, while it is joined."""

    def __init__(self, graph: Graph, join: bool, grain: int = 1) -> None:
        self.graph, self.grain = graph, grain
        self.given = set(graph.inputs) | set(graph.constants)
        self.slots: dict[str, tuple[str, int]] = {}
        self.sizes: dict[str, int] = {}
        self.members: dict[str, list[str]] = {}
        self.joined: set[str] = set()
        self.shown = self._shown()
        for name in (*graph.inputs, *graph.constants):
            self._define(name, name)
        for node in graph.nodes:
            if isinstance(node, View):
                self._define(node.output, *self.slots[node.input])
            elif not (join and isinstance(node, Call) and self._join(node)):
                for name in node.outputs:
                    self._define(name, name)

    def sharing(self) -> Sharing:
        return Sharing(
            {name: root for name, (root, _) in self.slots.items()},
            {name: start for name, (_, start) in self.slots.items()},
            self.sizes,
            frozenset(self.joined),
        )

    def _shown(self) -> set[str]:
        """The values that callers see, in any shape: each has a whole array of its own."""
        shown = set(self.graph.outputs)
        for node in reversed(self.graph.nodes):
            if isinstance(node, View) and node.output in shown:
                shown.add(node.input)
        return shown

    def _define(self, name: str, root: str, start: int = 0) -> None:
        self.slots[name] = root, start
        self.members.setdefault(root, []).append(name)
        if root == name:
            self.sizes[root] = value_bytes(self.graph, name)

    def _join(self, call: Call) -> bool:
        """Write the operands of a concatenation directly into its result, if possible."""
        parts = copied_parts(call.program)
        if parts is None:
            return False
        (result,) = call.outputs
        width = self.graph.values[result].dtype.bytes
        found: dict[str, int] = {}  # offset of each storage from the result's first byte
        for name, part in zip(call.inputs, parts, strict=True):
            root, start = self.slots[name]
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
        """Move storages into a new one named after a result."""
        moved: Sequence[tuple[str, int]] = list(found.items())
        for root, at in moved:
            for name in self.members.pop(root):
                self.slots[name] = result, self.slots[name][1] + at - first
                self.members.setdefault(result, []).append(name)
            del self.sizes[root]
