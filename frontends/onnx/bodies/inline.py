"""Inlines the bodies of functions, branches and loops in place of the node that uses them.

Every name that a body defines gets a unique prefix; names that it captures stay.  Identity nodes,
which cost nothing, connect the results of a body to the outputs of the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
)
from onnx import numpy_helper as nh
from onnx.helper import make_opsetid

from frontends.onnx.core.graph_names import captured_names, defined_names, subgraphs
from frontends.onnx.core.narrow_types import load_external
from frontends.onnx.core.node import Scope
from frontends.onnx.core.stages import Array
from frontends.onnx.core.symbolic_dims import concrete
from frontends.onnx.core.value_types import TYPE_NUMBERS
from poly.errors import ModelError
from poly.ir.dtypes import DType

_A = AttributeProto


def function_body(function: FunctionProto, node: NodeProto, prefix: str) -> list[NodeProto]:
    """The nodes of a function, called by `node`; omitted inputs stay omitted.

    Raises
    ------
    ModelError : if the node has more operands than the function.
    """
    if len(node.input) > len(function.input) or len(node.output) > len(function.output):
        raise ModelError(f"function '{function.name}' is called with too many operands")
    names = {n: prefix + n for inner in function.node for n in inner.output if n}
    actual = dict(zip(function.input, node.input, strict=False))
    names |= {formal: actual.get(formal, "") for formal in function.input}
    attributes = {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in node.attribute}
    body = [renamed(inner, names, prefix, attributes) for inner in function.node]
    return body + handed_on(
        [names.get(n, n) for n in function.output[: len(node.output)]], node.output
    )


def graph_body(
    graph: GraphProto, arguments: Sequence[str], outputs: Sequence[str], prefix: str
) -> list[NodeProto]:
    """The nodes of a subgraph on `arguments`; its stored tensors become Constant nodes.

    Raises
    ------
    ModelError : if the counts differ.
    """
    if len(arguments) != len(graph.input) or len(outputs) > len(graph.output):
        raise ModelError(f"a subgraph takes {len(graph.input)} operands, not {len(arguments)}")
    names = {n: prefix + n for inner in graph.node for n in inner.output if n}
    names |= {t.name: prefix + t.name for t in graph.initializer}
    names |= {i.name: a for i, a in zip(graph.input, arguments, strict=True)}
    stored = [
        helper.make_node("Constant", [], [names[t.name]], value=t)
        for t in graph.initializer
        if t.name not in {i.name for i in graph.input}
    ]
    body = [renamed(inner, names, prefix) for inner in graph.node]
    results = [names.get(v.name, v.name) for v in graph.output[: len(outputs)]]
    return stored + body + handed_on(results, outputs)


def distinct_results(graph: GraphProto) -> GraphProto:
    """A subgraph none of whose results is returned twice: copies have names of their own."""
    names = [v.name for v in graph.output]
    if len(set(names)) == len(names):
        return graph
    made = GraphProto()
    made.CopyFrom(graph)
    taken = {*names, *captured_names(graph), *defined_names(graph)}
    for n, value in enumerate(made.output):
        if value.name in names[:n]:
            copy = next(c for k in count() if (c := f"{value.name}:{k}") not in taken)
            taken.add(copy)
            made.node.append(helper.make_node("Identity", [value.name], [copy]))
            value.name = copy
    return made


def handed_on(results: Iterable[str], outputs: Iterable[str]) -> list[NodeProto]:
    """Identity nodes from the results to the outputs that are used."""
    pairs = zip(results, outputs, strict=False)
    return [helper.make_node("Identity", [r], [o]) for r, o in pairs if o]


def constant_node(name: str, array: Array) -> NodeProto:
    """A Constant node of an array; open sizes in it are fixed."""
    value = nh.from_array(concrete(array, np.dtype(np.int64)))
    return helper.make_node("Constant", [], [name], value=value)


def renamed(
    node: NodeProto,
    names: Mapping[str, str],
    prefix: str,
    attributes: Mapping[str, AttributeProto] | None = None,
) -> NodeProto:
    """The node with other names, and with the function's attributes in place of references."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = prefix + (node.name or node.op_type)
    copy.input[:] = [names.get(n, n) for n in node.input]
    copy.output[:] = [names.get(n, n) for n in node.output]
    kept = []
    for attribute in copy.attribute:
        if attribute.ref_attr_name and attributes is not None:
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                continue  # not given and without a default, so the operator's own default holds
            name = attribute.name
            attribute = AttributeProto()
            attribute.CopyFrom(value)
            attribute.name = name
        for graph in [attribute.g] if attribute.type == _A.GRAPH else attribute.graphs:
            _rename_graph(graph, names, prefix, attributes)
        kept.append(attribute)
    del copy.attribute[:]
    copy.attribute.extend(kept)
    return copy


def _rename_graph(
    graph: GraphProto,
    names: Mapping[str, str],
    prefix: str,
    attributes: Mapping[str, AttributeProto] | None,
) -> None:
    """Rename what a nested subgraph captures, and what it defines: that hides outer names, but
    might hide what these have become, too.
    """
    defined = [*graph.input, *graph.initializer, *(s.values for s in graph.sparse_initializer)]
    visible = {**names, **{name: f"{prefix}{name}" for name in defined_names(graph)}}
    for value in (*defined, *graph.value_info):
        value.name = visible.get(value.name, value.name)
    nodes = [renamed(inner, visible, prefix, attributes) for inner in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for output in graph.output:
        output.name = visible.get(output.name, output.name)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The stored tensors of a graph and of the graphs in its nodes."""
    yield from graph.initializer
    for inner in graph.node:
        yield from (a.t for a in inner.attribute if a.type == _A.TENSOR)
        for part in subgraphs(inner):
            yield from _tensors(part)


def body_model(
    graph: GraphProto,
    types: Sequence[DType],
    captured: Mapping[str, DType | Array],
    scope: Scope,
) -> ModelProto:
    """A subgraph as a model of its own, of any shapes.

    types : of the subgraph's own inputs; captured : types of the other names that it reads, which
    become further inputs, or their elements, which become stored tensors; scope : of its node
    """
    result = ModelProto(ir_version=max(scope.model.ir_version, 4))
    result.functions.extend(scope.model.functions)
    result.opset_import.extend(make_opsetid(d, v) for d, v in scope.versions.items())
    result.graph.CopyFrom(graph)
    for tensor in _tensors(result.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            load_external(tensor, scope.folder)
    del result.graph.value_info[:]
    inputs = [(v.name, t) for v, t in zip(graph.input, types, strict=True)]
    inputs += [(n, t) for n, t in captured.items() if isinstance(t, DType)]
    del result.graph.input[:]
    for name, dtype in inputs:
        result.graph.input.append(helper.make_tensor_value_info(name, TYPE_NUMBERS[dtype], None))
    stored = [nh.from_array(a, n) for n, a in captured.items() if isinstance(a, np.ndarray)]
    result.graph.initializer.extend(stored)
    for output in result.graph.output:
        output.type.tensor_type.ClearField("shape")
    return result
