"""Attention in networks: which calls become one, and that the results are ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk

B, H, L, D = 1, 3, 140, 16
F = TensorProto.FLOAT
node = helper.make_node


def attention(kind: str) -> onnx.ModelProto:
    """Heads of x[B,L,H*D], from three linear layers, as transformers write them."""
    draw = np.random.default_rng(0)
    stored = {f"w{n}": draw.standard_normal((H * D, H * D)) / 7 for n in "qkv"}
    stored |= {"scale": np.array(D**-0.5), "mask": np.where(draw.random((L, L)) < 0.3, -1e4, 0)}
    nodes = []
    for n in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{n}"], [f"{n}0"]),
            node("Reshape", [f"{n}0", "heads"], [f"{n}1"]),
            node("Transpose", [f"{n}1"], [n], perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]),
        ]
    nodes += [node("MatMul", ["q", "k"], ["s"]), node("Mul", ["s", "scale"], ["t"])]
    if kind == "masked":
        nodes.append(node("Add", ["t", "mask"], ["u"]))
    nodes += [
        node("Softmax", ["u" if kind == "masked" else "t"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "rows"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    outputs = [info("y", F, None)]
    if kind == "weights are an output":
        outputs.append(info("p", F, None))
    if kind == "scores are read twice":
        nodes.append(node("ReduceMax", ["t"], ["z"], keepdims=0))
        outputs.append(info("z", F, None))
    arrays = {n: a.astype(np.float32) for n, a in stored.items()}
    arrays |= {"heads": np.array([0, 0, H, D]), "rows": np.array([0, 0, H * D])}
    constants = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, kind, [info("x", F, [B, L, H * D])], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("kind", "calls"), [
    ("plain", 4), ("masked", 4), ("weights are an output", 8), ("scores are read twice", 9),
])  # fmt: skip
def test_attention(kind: str, calls: int) -> None:
    """Three products of x, and one call for the rest, if nothing else reads scores or weights."""
    proto = attention(kind)
    model = fk.compile_onnx(proto, threads=2)
    x = np.random.default_rng(1).standard_normal((B, L, H * D)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found, expected in zip(model.run({"x": x}).values(), wanted, strict=True):
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    assert model.report.calls == calls or (kind not in ("plain", "masked") and calls > 4)
    stored = B * H * L * L * 4
    assert (model.report.arena_bytes < stored) == (calls == 4)
