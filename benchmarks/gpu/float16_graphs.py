"""Networks in float16: the same graph, with every float32 value in that type."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from benchmarks.kernel import Array

#: The largest finite number.
_MOST = float(np.finfo(np.float16).max)


def halved_model(model: ModelProto) -> ModelProto:
    """A copy of a float32 network with weights, inputs, outputs and constants in float16.

    Operators then compute in float16, at whatever precision their libraries use inside.

    Raises
    ------
    ValueError : it has subgraphs, or an operator with inputs that are always float32.
    """
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in graph.initializer:
        _halve(tensor)
    infos: Iterable[ValueInfoProto] = (*graph.input, *graph.output, *graph.value_info)
    for info in infos:
        kind = info.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT:
            kind.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        _halve_node(node)
    return made


def _halve_node(node: NodeProto) -> None:
    if node.op_type in ("Resize", "Upsample"):
        raise ValueError(f"{node.op_type} takes its factors in float32")
    for a in node.attribute:
        if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            raise ValueError(f"{node.op_type} has subgraphs")
        if a.type == AttributeProto.TENSOR:
            _halve(a.t)
        elif node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
            a.i = TensorProto.FLOAT16
        elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
            value = a.f if a.name == "value_float" else list(a.floats)
            half = numpy_helper.from_array(_rounded(np.array(value, np.float32)))
            a.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=half))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float16))  # without it, float32
        node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=zero))


def _halve(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        half = _rounded(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))


def _rounded(array: Array) -> Array:
    """Rounded to float16; too large values become the largest number, not infinity."""
    return np.asarray(np.clip(array, -_MOST, _MOST).astype(np.float16))
