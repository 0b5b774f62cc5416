"""`PointerOrder`: which pointers a call of a network on the CPU passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.ir.graph import Graph
from runtime.network.memory_plan import MemoryPlan, Sharing

#: Temporaries of calls: by the call's name, then by their own.
Temporaries = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class PointerOrder:
    """The pointers of a call, by position: first the inputs, then the outputs.

    positions : of each storage and temporary (``call/name``) that has a pointer
    arena : the position of the arena, if offsets from its start are part of the code; None if
        each storage in it has a pointer of its own, since offsets depend on sizes
    count : of all pointers
    """

    positions: Mapping[str, int]
    arena: int | None
    count: int

    def offsets(self, plan: MemoryPlan) -> dict[int, int]:
        """For each pointer into the arena, by position, the bytes from the arena's start."""
        if self.arena is not None:
            return {self.arena: 0}
        return {self.positions[name]: offset for name, offset in plan.offsets.items()}


def pointer_order(graph: Graph, sharing: Sharing, scratch: Temporaries) -> PointerOrder:
    """The order for a graph of fixed or open sizes.

    An output has a position even if it is filled after the call, for example a constant.
    """
    ends = len(graph.inputs) + len(graph.outputs)
    positions = {name: n for n, name in enumerate(graph.inputs)}
    if not graph.sizes:
        positions |= {name: n for n, name in enumerate(sorted(graph.constants), ends)}
        arena = ends + len(graph.constants)
        return PointerOrder(positions, arena, arena + 1)
    for position, name in enumerate(graph.outputs, len(positions)):
        if sharing.roots[name] not in graph.constants:
            positions.setdefault(sharing.roots[name], position)
    made = (sharing.roots[n] for node in graph.nodes for n in node.outputs)
    temporaries = (f"{call}/{t}" for call, own in scratch.items() for t in own)
    count = ends
    for name in (*sorted(graph.constants), *made, *temporaries):
        if name not in positions:
            positions[name] = count
            count += 1
    return PointerOrder(positions, None, max(count, 1))
