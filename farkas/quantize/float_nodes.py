"""Nodes that stay in float32 read and give values in float32, not what comes back from 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.numpy_helper import to_array

from frontends.onnx.core.graph_names import captured_names, subgraphs, used_names
from frontends.onnx.model.loading import check_structure

#: What ONNX Runtime appends to the name of a value whose name an output of the network has taken.
OUTPUT_SUFFIX = "_QuantizeLinear_Input"
BACK_SUFFIX = "_DequantizeLinear_Output"
_WEIGHT_SUFFIX = "_float32"
#: Activations that may disappear into the range of a quantised value.
REMOVABLE = ("Relu", "Clip")


@dataclass(frozen=True, eq=False)
class Wide:
    """The network in float32: who makes and who reads each value."""

    graph: GraphProto

    @cached_property
    def makers(self) -> Mapping[str, NodeProto]:
        return {name: node for node in self.graph.node for name in node.output if name}

    @cached_property
    def readers(self) -> Mapping[str, list[NodeProto]]:
        found: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in {*used_names(node)}:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def inner(self) -> frozenset[str]:
        """What bodies read."""
        bodies = (body for node in self.graph.node for body in subgraphs(node))
        return frozenset(name for body in bodies for name in captured_names(body))

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(v.name for v in self.graph.output)


def narrow_nodes(wide: Wide, quantised: ModelProto, kinds: frozenset[str]) -> frozenset[str]:
    """The names of the nodes that read values in 8 bits, or have disappeared into these.

    kinds : the operators that can be quantised; others may read such values, but compute in float32
    """
    left = {n.name: n for n in quantised.graph.node}
    narrow = {n.output[0] for n in quantised.graph.node if n.op_type == "DequantizeLinear"}
    return frozenset(
        node.name
        for node in wide.graph.node
        if node.op_type in kinds
        and (node.name not in left or any(i in narrow for i in left[node.name].input))
    )


def with_activations(wide: Wide, narrow: Iterable[str], excluded: Iterable[str]) -> frozenset[str]:
    """`excluded`, the activations before what reads values in float32, and those that a range of 8
    bits, which always includes 0, cannot stand for.

    narrow : the nodes that can be quantised; outputs of the network count as reading float32
    """
    can, found = frozenset(narrow), set(excluded)
    stored = {t.name: t for t in wide.graph.initializer}
    for node in reversed(wide.graph.node):
        if node.op_type not in REMOVABLE:
            continue
        readers = [r for name in node.output for r in wide.readers.get(name, ())]
        kept = any(name in wide.outputs for name in node.output) or node.input[0] in wide.inner
        kept |= any(r.name in found or r.name not in can for r in readers)
        if kept or not _has_zero(node, stored):
            found.add(node.name)
    return frozenset(found)


def _has_zero(node: NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Whether the bounds of an activation are known, and 0 is between them."""
    bounds = [*node.input[1:], "", ""][:2]
    if not {*filter(None, bounds)} <= stored.keys():
        return False
    least, most = (to_array(stored[b]) if b else np.float32(0) for b in bounds)
    return bool(least <= 0 <= most)


def read_wide(wide: Wide, quantised: ModelProto, excluded: frozenset[str]) -> ModelProto:
    """The quantised network with outputs and inputs of the nodes `excluded` in float32.

    A value stays in 8 bits where an activation has disappeared into its range.
    """
    model = ModelProto()
    model.CopyFrom(quantised)
    makers = {name: node for node in model.graph.node for name in node.output}
    sources = {
        name: source
        for name, source in _round_trips(model).items()
        if _is_whole(wide, makers, source)
    }
    stored = {t.name: t for t in wide.graph.initializer}
    before = {n.name: n for n in wide.graph.node if n.name in excluded}
    needed: dict[str, TensorProto] = {}
    for node in model.graph.node:
        if node.name not in before:
            continue
        for k, (name, own) in enumerate(zip(node.input, before[node.name].input, strict=True)):
            if own not in stored:
                node.input[k] = sources.get(name, name)
                continue
            # Weights that another node may read in 8 bits: what comes back may have their name.
            node.input[k] = f"{own}{_WEIGHT_SUFFIX}" if own in makers else own
            needed[node.input[k]] = stored[own]
    kept = {t.name for t in model.graph.initializer}
    for own, tensor in needed.items():
        if own not in kept:
            model.graph.initializer.add().CopyFrom(tensor)
            model.graph.initializer[-1].name = own
    for output in model.graph.output:
        if output.name in sources:
            _give(model, output.name, sources[output.name])
    _remove_unused(model)
    order = [NodeProto.FromString(n.SerializeToString()) for n in check_structure(model)]
    del model.graph.node[:]
    model.graph.node.extend(order)  # bodies may read what ONNX Runtime makes only later
    return model


def _round_trips(model: ModelProto) -> dict[str, str]:
    """Values that come back from 8 bits, and the values that they were."""
    quantised = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return {
        n.output[0]: quantised[n.input[0]]
        for n in model.graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in quantised
    }


def _is_whole(wide: Wide, makers: Mapping[str, NodeProto], value: str) -> bool:
    """Whether a value is the one of the network in float32, with its activation."""
    before = wide.makers.get(value.removesuffix(OUTPUT_SUFFIX))
    after = makers.get(value)
    return (before.name if before else "") == (after.name if after else "")


def _give(model: ModelProto, output: str, source: str) -> None:
    """Give an output by its value in float32; what reads it in 8 bits goes on to do so."""
    taken = {name for node in model.graph.node for name in node.output}
    back = f"{output}{BACK_SUFFIX}"
    while back in taken:
        back += "_"
    for node in model.graph.node:
        is_trip = node.op_type == "DequantizeLinear" and output in node.output
        for k, name in enumerate(node.input):
            node.input[k] = back if name == output else output if name == source else name
        for k, name in enumerate(node.output):
            node.output[k] = back if is_trip else output if name == source else name


def _remove_unused(model: ModelProto) -> None:
    """Remove conversions that nothing reads, and constants that nothing reads then."""
    graph = model.graph
    while True:
        read = {name for n in graph.node for name in used_names(n)}
        read |= {v.name for v in graph.output}
        idle = [
            n
            for n in graph.node
            if n.op_type in ("QuantizeLinear", "DequantizeLinear") and n.output[0] not in read
        ]
        if not idle:
            break
        for node in idle:
            graph.node.remove(node)
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
