"""The names that nodes and their subgraphs read and define."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, NodeProto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def used_names(node: NodeProto) -> Iterator[str]:
    """Names of the values that a node reads, including those that its subgraphs capture."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        yield from captured_names(graph)


def defined_names(graph: GraphProto) -> set[str]:
    """Names of the operands, stored tensors and results of a subgraph's nodes."""
    stored = [*graph.input, *graph.initializer, *(s.values for s in graph.sparse_initializer)]
    return {v.name for v in stored} | {n for node in graph.node for n in node.output if n}


def captured_names(graph: GraphProto) -> list[str]:
    """Names that a subgraph reads and does not define, in order of first use."""
    own = defined_names(graph)
    read = [n for node in graph.node for n in used_names(node)]
    return list(dict.fromkeys(n for n in (*read, *(v.name for v in graph.output)) if n not in own))


def names_within(node: NodeProto) -> Iterator[str]:
    """All names of a node, and of the nodes in its subgraphs."""
    yield from filter(None, (*node.input, *node.output))
    for graph in subgraphs(node):
        yield from defined_names(graph)
        yield from (v.name for v in graph.output)
        for inner in graph.node:
            yield from names_within(inner)
