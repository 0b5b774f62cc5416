"""Bind the sizes of an open graph: their values, and the shapes that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.errors import ArgumentError
from poly.ir.expr import Size
from poly.ir.graph import Graph, View
from runtime.network.built import Scratch, scratch_bytes
from runtime.network.memory_plan import MemoryPlan, Sharing, value_bytes
from runtime.network.plan_memory import plan_memory


def size_axes(graph: Graph) -> tuple[tuple[int, int], ...]:
    """How to read each size of a graph: the position of an input, and its axis."""
    shown = {
        e.name: (n, axis)
        for n, name in reversed(list(enumerate(graph.inputs)))
        for axis, e in enumerate(graph.values[name].shape)
        if isinstance(e, Size)
    }
    return tuple(shown[s] for s in graph.sizes)


def graph_at(
    graph: Graph, sizes: Sequence[int], sharing: Sharing
) -> tuple[dict[str, int], Graph, Sharing]:
    """The values of all sizes, the graph with concrete shapes, and which values share storage.

    sizes : in the order of ``graph.sizes``; sharing : for all sizes

    Raises
    ------
    ArgumentError : the graph is not valid for these sizes.
    """
    given = dict(zip(graph.sizes, sizes, strict=True))
    env = graph.environment(given)
    negative = [n for n, v in env.items() if v < 0]
    if negative:
        raise ArgumentError(f"sizes {given} make {negative[0]} negative")
    fixed = graph.at_sizes(given)
    counts = {name: value_bytes(fixed, name) for name in fixed.values}
    for node in fixed.nodes:
        if isinstance(node, View) and counts[node.input] != counts[node.output]:
            raise ArgumentError(f"{node.origin}: sizes {given} do not fit")
    return env, fixed, replace(sharing, bytes=counts)


def plan_at(
    graph: Graph, sizes: Sequence[int], sharing: Sharing, scratch: Scratch
) -> tuple[dict[str, int], Graph, MemoryPlan]:
    """The values of all sizes, the graph with concrete shapes, and the plan of its memory.

    scratch : of calls; the others are those of `graph_at`, also for what is raised
    """
    env, fixed, shared = graph_at(graph, sizes, sharing)
    return env, fixed, plan_memory(fixed, scratch_bytes(scratch, env), shared)
