"""Graph clean-up: compose views, share equal calls, and remove dead ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poly.ir.expr import Const, Index, Read
from poly.ir.graph import Call, Graph, GraphNode, View, same_shape, static_shape
from poly.ir.linear_form import Linear, constant, linear_form
from poly.ir.program import Program, Statement, Tensor
from poly.rewrites.merge_programs import count, covers, extents


def eliminate_dead_calls(graph: Graph) -> Graph:
    """Remove nodes, constants and values on which no output depends."""
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


def simplify_views(graph: Graph) -> Graph:
    """Compose views of views, and turn copies in the same order into views."""
    source: dict[str, str] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        if isinstance(node, Call) and len(node.outputs) == 1 and copied_axes(node.program) == ():
            node = View(node.name, node.inputs[0], node.outputs[0], node.origin)
        if isinstance(node, View):
            node = replace(node, input=source.get(node.input, node.input))
            source[node.output] = node.input
        nodes.append(node)
    return _without_identities(replace(graph, nodes=tuple(nodes)))


def _without_identities(graph: Graph) -> Graph:
    """The graph without views of the same shape, except for outputs."""
    same: dict[str, str] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        node = _with_inputs(node, same)
        if (
            isinstance(node, View)
            and node.output not in graph.outputs
            and same_shape(graph.values[node.input], graph.values[node.output])
        ):
            same[node.output] = node.input
        else:
            nodes.append(node)
    return eliminate_dead_calls(replace(graph, nodes=tuple(nodes)))


def _with_inputs(node: GraphNode, names: Mapping[str, str]) -> GraphNode:
    if isinstance(node, View):
        return replace(node, input=names.get(node.input, node.input))
    return replace(node, inputs=tuple(names.get(n, n) for n in node.inputs))


def copied_axes(program: Program) -> tuple[int, ...] | None:
    """The permutation by which a program copies its one input; () for none, None if it does more.

    ``Y[i,j] = X[j,i]`` gives (1, 0): ``Y = numpy.transpose(X, (1, 0))``.
    """
    if len(program.statements) != 1 or len(program.inputs) != 1 or program.sizes:
        return None
    s, source, target = program.statements[0], program.inputs[0], program.outputs[0]
    value = s.value
    if s.op != "=" or not isinstance(value, Read) or source.dtype != target.dtype:
        return None
    if not covers(s, target) or count(source) != count(target) or source.rank != target.rank:
        return None
    axes = []
    for index, extent in zip(s.target.indices, target.shape, strict=True):
        found = [
            d for d, own in enumerate(value.indices)
            if own == index and d not in axes and source.shape[d] == extent
        ]  # fmt: skip
        if not found or not (isinstance(index, Index) or extent == Const(1)):
            return None
        axes.append(found[0])
    moving = [d for d in axes if source.shape[d] != Const(1)]
    return () if moving == sorted(moving) else tuple(axes)


def copied_parts(program: Program) -> tuple[int, ...] | None:
    """The offsets of a program's inputs in its output, if it only places them one after the other
    in memory; None if it does more.

    Concatenation along the first axis of more than one element is such a program.
    """
    if program.sizes or program.temps or len(program.outputs) != 1:
        return None
    output, tensors = program.outputs[0], program.tensors
    starts: dict[str, int] = {}
    for s in program.statements:
        if s.op != "=" or s.guards or not isinstance(s.value, Read):
            return None
        source = tensors[s.value.tensor]
        if source.name in starts or source.dtype != output.dtype or source.name == output.name:
            return None
        offset, origin = _offset(s.target, output, s), _offset(s.value, source, s)
        if (offset - origin).terms or not _counts_up(s, origin, count(source)):
            return None
        starts[source.name] = offset.constant
    if set(starts) != {t.name for t in program.inputs}:
        return None
    end = 0
    for name in sorted(starts, key=lambda n: starts[n]):
        if starts[name] != end or not count(tensors[name]):
            return None
        end += count(tensors[name])
    return tuple(starts[t.name] for t in program.inputs) if end == count(output) else None


def _offset(read: Read, tensor: Tensor, s: Statement) -> Linear:
    """The offset of an element in a row-major array; an index that is always 0 is ignored."""
    offset, stride = constant(0), 1
    for index, extent in zip(reversed(read.indices), reversed(static_shape(tensor)), strict=True):
        offset += linear_form(index).scale(stride)
        stride *= extent
    for r in s.ranges:
        if (r.lo, r.hi) == (Const(0), Const(1)):
            offset = offset.without(Index(r.index))
    return offset


def _counts_up(s: Statement, offset: Linear, length: int) -> bool:
    """Whether the instances of a statement visit each offset from 0 to `length` once."""
    if offset.constant or any(r.lo != Const(0) for r in s.ranges):
        return False
    steps = {a.name: c for a, c in offset.terms if isinstance(a, Index)}
    sizes = {i: n for i, n in extents(s).items() if n != 1}
    if len(steps) != len(offset.terms) or any(i not in steps for i in sizes):
        return False
    step = 1
    for i in sorted(sizes, key=lambda i: steps[i]):
        if steps[i] != step:
            return False
        step *= sizes[i]
    return step == length


def _what(node: GraphNode, graph: Graph) -> object:
    """What a node makes of its inputs."""
    if isinstance(node, Call):
        return node.program
    if isinstance(node, View):
        return graph.values[node.output].shape
    types = tuple(graph.values[v].dtype for v in node.outputs)
    return replace(node, name="", inputs=(), outputs=(), origin=""), types


def eliminate_common_calls(graph: Graph) -> Graph:
    """Share equal calls of the same inputs."""
    first: dict[object, tuple[str, ...]] = {}
    same: dict[str, str] = {}
    nodes: list[GraphNode] = []
    for old in graph.nodes:
        node = _with_inputs(old, same)
        key = (_what(node, graph), node.inputs)
        if key not in first:
            first[key] = node.outputs
            nodes.append(node)
            continue
        for ours, theirs in zip(node.outputs, first[key], strict=True):
            if ours in graph.outputs:
                nodes.append(View(f"{node.name}_{ours}", theirs, ours, node.origin))
            else:
                same[ours] = theirs
    return eliminate_dead_calls(replace(graph, nodes=tuple(nodes)))
