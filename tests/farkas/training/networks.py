"""Small networks to train."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper


def network(nodes: list[NodeProto], weights: dict[str, np.ndarray], inputs: dict[str, list[object]],
            outputs: dict[str, list[object]], opset: int = 17) -> ModelProto:  # fmt: skip
    """A model over float32."""
    ports = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in some.items()]
        for some in (inputs, outputs)
    ]
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "net", *ports, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def dense(seed: int = 0, dropout: float = 0.0, norm: bool = False) -> ModelProto:
    """Two layers of 8 and 3 for rows of 5."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    weights = {"W1": drawn(5, 8), "b1": drawn(8), "W2": drawn(8, 3), "b2": drawn(3)}
    nodes = [helper.make_node("Gemm", ["x", "W1", "b1"], ["h"])]
    last = "h"
    if norm:
        weights |= {"g": drawn(8) + 1, "e": drawn(8), "mean": drawn(8), "var": drawn(8) ** 2 + 1}
        nodes.append(helper.make_node("BatchNormalization", ["h", "g", "e", "mean", "var"], ["n"]))
        last = "n"
    nodes.append(helper.make_node("Tanh", [last], ["t"]))
    last = "t"
    if dropout:
        weights["ratio"] = np.array(dropout, np.float32)
        nodes.append(helper.make_node("Dropout", ["t", "ratio"], ["d"]))
        last = "d"
    nodes.append(helper.make_node("Gemm", [last, "W2", "b2"], ["scores"]))
    return network(nodes, weights, {"x": ["N", 5]}, {"scores": ["N", 3]})


def of_floats(model: ModelProto, dtype: str) -> ModelProto:
    """A network of float32 in another type."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = ModelProto()
    made.CopyFrom(model)
    for t in made.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(dtype), t.name))
    for v in (*made.graph.input, *made.graph.output):
        v.type.tensor_type.elem_type = kind
    return made


def batch(seed: int = 1, rows: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, 5)).astype(np.float32),
        "labels": rng.integers(0, 3, rows),
    }
