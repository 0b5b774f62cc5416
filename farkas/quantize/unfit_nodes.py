"""Where ONNX Runtime's quantiser fails or is wrong: biases it can take, and nodes it is not given.

A node that it is not given stays in float32; without this, one node would refuse the network.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from farkas.quantize import onnxruntime_tools
from farkas.quantize.float_nodes import BACK_SUFFIX, OUTPUT_SUFFIX, Wide
from frontends.onnx.core.graph_names import names_within
from poly.ir.program import fresh_name

#: What the quantiser appends to the name of a value; it takes what has such a name for its own.
_SUFFIXES = (
    "_scale", "_zero_point", "_quantized", OUTPUT_SUFFIX, "_QuantizeLinear_Output",
    "_DequantizeLinear_Input", BACK_SUFFIX,
)  # fmt: skip


def with_types(model: ModelProto, data: bytes) -> ModelProto:
    """A model that says the types of the values that onnx cannot infer, because it does not know
    their operators: the quantiser would quantise a bias beside an operand that it leaves.

    data : the model as bytes
    """
    known = {v.name for v in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    inner = {name for n in model.graph.node for name in n.output if name} - known
    if not inner:
        return model
    made = ModelProto()
    made.CopyFrom(model)
    for name, kind in onnxruntime_tools.types_of(data, sorted(inner)).items():
        made.graph.value_info.append(helper.make_tensor_value_info(name, kind, None))
    return made


def with_plain_biases(model: ModelProto) -> ModelProto:
    """A model in which ``beta * C`` of a Gemm is a stored vector, where that is possible."""
    made = ModelProto()
    made.CopyFrom(model)
    stored = {t.name: t for t in made.graph.initializer}
    taken = {*stored, *(name for n in made.graph.node for name in names_within(n))}
    taken |= {v.name for v in made.graph.input}
    for node in made.graph.node:
        plain = _plain_bias(node, stored) if node.op_type == "Gemm" else None
        if plain is None:
            continue
        name = fresh_name(f"{node.input[2]}_bias", taken)
        made.graph.initializer.append(numpy_helper.from_array(plain, name))
        node.input[2] = name
        others = [a for a in node.attribute if a.name != "beta"]
        del node.attribute[:]
        node.attribute.extend(others)
    return made


def _plain_bias(node: NodeProto, stored: Mapping[str, TensorProto]) -> np.ndarray | None:
    """``beta * C`` as a vector; None if it is one, or cannot be."""
    if len(node.input) < 3 or not {node.input[1], node.input[2]} <= stored.keys():
        return None
    bias, beta = numpy_helper.to_array(stored[node.input[2]]), _number(node, "beta", 1.0)
    columns = stored[node.input[1]].dims[0 if _number(node, "transB", 0) else 1]
    if bias.shape == (columns,) and beta == 1:
        return None
    if bias.ndim > 1 and bias.shape[0] != 1:
        return None
    row = bias[0] if bias.ndim > 1 else bias
    return np.ascontiguousarray(np.broadcast_to(row, (columns,)) * bias.dtype.type(beta))


def unfit_nodes(wide: Wide) -> frozenset[str]:
    """The names of nodes that the quantiser would fail at, or give other results for."""
    graph = wide.graph
    stored = {t.name: t for t in graph.initializer}
    values = {*stored, *wide.makers, *(v.name for v in graph.input)}
    mistaken = {v for v in values if any(f"{v}{end}" in values for end in _SUFFIXES)}
    return frozenset(
        n.name for n in graph.node if _has_other_bias(n, stored) or mistaken & {*n.input, *n.output}
    )


def _has_other_bias(node: NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Whether a stored bias is not one number for each channel of the weights."""
    if len(node.input) < 3 or node.input[2] not in stored:
        return False
    bias = stored[node.input[2]]
    if node.op_type == "Gemm":
        return len(bias.dims) != 1 or _number(node, "beta", 1.0) != 1
    if node.op_type != "ConvTranspose" or _number(node, "group", 1) == 1:
        return False
    weights = stored.get(node.input[1])  # channels in, channels out of a group, window
    return weights is None or list(bias.dims) != [weights.dims[1]]


def _number(node: NodeProto, name: str, default: float) -> float:
    found = [helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return float(found[0]) if found else default


def nodes_without_ranges(wide: Wide, quantised: ModelProto) -> frozenset[str]:
    """The names of nodes with a value whose scale is no positive number, as that of a mask of
    infinite values.
    """
    arrays = {t.name: t for t in quantised.graph.initializer}

    def is_good(scale: str) -> bool:
        array = numpy_helper.to_array(arrays[scale]) if scale in arrays else np.ones(1)
        return bool((np.isfinite(array) & (array > 0)).all())

    bad = {
        name
        for n in quantised.graph.node
        if n.op_type in ("QuantizeLinear", "DequantizeLinear") and not is_good(n.input[1])
        for name in (n.input[0], *n.output)
    }
    left = {n.name: n for n in quantised.graph.node}
    return frozenset(
        n.name
        for n in wide.graph.node
        if bad & {*n.input, *n.output}
        or (n.name in left and bad & {*left[n.name].input, *left[n.name].output})
    )
