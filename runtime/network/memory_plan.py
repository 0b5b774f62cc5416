"""`MemoryPlan`, made by `runtime.network.plan_memory`: where a graph's values are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poly.ir.graph import Graph, GraphNode, View
from runtime.common.arguments import Array


@dataclass(frozen=True)
class Sharing:
    """Which values share storage.

    roots : for each value, the value that names its storage (itself if it has its own)
    starts : for each value, its offset in bytes in that storage
    bytes : the size of each storage
    joined : results whose operands are written in place, so that their calls need not run
    """

    roots: Mapping[str, str]
    starts: Mapping[str, int]
    bytes: Mapping[str, int]
    joined: frozenset[str]

    def runs(self, node: GraphNode) -> bool:
        """Whether a node has anything to do."""
        return not isinstance(node, View) and node.outputs[0] not in self.joined


@dataclass(frozen=True, order=True)
class Life:
    """The numbers of the first and the last node that use a storage, and its bytes."""

    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Where values are stored.

    sharing : which values share storage
    offsets : for each storage in the arena, its offset in bytes
    direct : storage that is an output's array, with that output's name
    copied : outputs that must be copied from another value after the run
    arena : size of the arena in bytes; `bound` is a lower bound for any plan
    lives : of the storages in the arena
    """

    sharing: Sharing
    offsets: Mapping[str, int]
    direct: Mapping[str, str]
    copied: Mapping[str, str]
    arena: int
    bound: int
    lives: Mapping[str, Life]


def fill_copied(
    graph: Graph, plan: MemoryPlan, given: Sequence[Any], outputs: Sequence[Array]
) -> None:
    """Fill the outputs that share another value's storage: a constant's, an input's or an output's.

    given, outputs : the arrays of a run, in the graph's order
    """
    for position, name in enumerate(graph.outputs):
        root = plan.copied.get(name)
        if root is None:
            continue
        if root in graph.constants:
            source = graph.constants[root]
        elif root in graph.inputs:
            source = given[graph.inputs.index(root)]
        else:
            source = outputs[graph.outputs.index(plan.direct[root])]
        outputs[position][...] = source.reshape(outputs[position].shape)


def value_bytes(graph: Graph, name: str) -> int:
    """The size of a value's array in bytes."""
    count = graph.values[name].dtype.bytes
    for extent in graph.shape(name):
        count *= extent
    return count
