"""Transformations of graphs: functions from a `Graph` to a `Graph` that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from poly.graph import Graph, verify_graph

Pass = Callable[[Graph], Graph]


def remove_dead(graph: Graph) -> Graph:
    """Without the nodes, constants and values on which no output depends."""
    wanted = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            wanted.update(node.inputs)
            nodes.append(node)
    nodes.reverse()
    kept = wanted | set(graph.inputs) | {o for n in nodes for o in n.outputs}
    return replace(
        graph,
        nodes=tuple(nodes),
        constants={k: v for k, v in graph.constants.items() if k in kept},
        values={k: v for k, v in graph.values.items() if k in kept},
        labels={k: v for k, v in graph.labels.items() if k in kept},
    )


def apply_passes(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """The graph after each pass in turn, verified in between."""
    for transform in passes:
        graph = verify_graph(transform(graph))
    return graph
