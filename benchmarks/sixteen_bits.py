"""Networks in float16 or bfloat16: the same graph, with every float32 value in that type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from benchmarks.kernel import Array

#: The types by name, for numpy and for ONNX.
NUMPY: dict[str, Any] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ONNX = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
#: Their largest numbers.
_MOST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
#: The first opset in which convolutions and pools take a type.
_SINCE = {"float16": 0, "bfloat16": 22}
_IR_VERSION = 10


def halved_model(model: ModelProto, element: str = "float16") -> ModelProto:
    """A copy of a float32 network with weights, inputs, outputs and constants in `element`.

    Operators then compute in that type, at whatever precision their libraries use inside.

    Raises
    ------
    ValueError : it has subgraphs, or an operator with inputs that are always float32.
    """
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in graph.initializer:
        _halve(tensor, element)
    infos: Iterable[ValueInfoProto] = (*graph.input, *graph.output, *graph.value_info)
    for info in infos:
        kind = info.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT:
            kind.elem_type = _ONNX[element]
    for node in graph.node:
        _halve_node(node, element)
    for opset in made.opset_import:
        if not opset.domain and opset.version < _SINCE[element]:
            opset.version = _SINCE[element]
            made.ir_version = max(made.ir_version, _IR_VERSION)
    return made


def between_wide_ports(model: ModelProto) -> ModelProto:
    """A copy of a network in 16 bits whose inputs and outputs are float32, with casts."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    narrow = {v: k for k, v in _ONNX.items()}
    stored = {t.name for t in graph.initializer}
    before, after, renamed = [], [], dict[str, str]()
    inputs = {i.name for i in graph.input}
    for port in (*graph.input, *graph.output):
        kind = port.type.tensor_type
        if kind.elem_type not in narrow or port.name in stored:
            continue
        inner = renamed[port.name] = f"{port.name}_narrow"
        if port.name in inputs:
            before.append(helper.make_node("Cast", [port.name], [inner], to=kind.elem_type))
        else:
            after.append(helper.make_node("Cast", [inner], [port.name], to=TensorProto.FLOAT))
        kind.elem_type = TensorProto.FLOAT
    for node in graph.node:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _halve_node(node: NodeProto, element: str) -> None:
    if node.op_type in ("Resize", "Upsample"):
        raise ValueError(f"{node.op_type} takes its factors in float32")
    for a in node.attribute:
        if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            raise ValueError(f"{node.op_type} has subgraphs")
        if a.type == AttributeProto.TENSOR:
            _halve(a.t, element)
        elif node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
            a.i = _ONNX[element]
        elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
            value = a.f if a.name == "value_float" else list(a.floats)
            half = numpy_helper.from_array(_rounded(np.array(value, np.float32), element))
            a.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=half))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, NUMPY[element]))  # without it, float32
        node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=zero))


def _halve(tensor: TensorProto, element: str) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        half = _rounded(numpy_helper.to_array(tensor), element)
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))


def _rounded(array: Array, element: str) -> Array:
    """Rounded to 16 bits; too large values become the largest number, not infinity."""
    most = _MOST[element]
    return np.asarray(np.clip(array, -most, most).astype(NUMPY[element]))
