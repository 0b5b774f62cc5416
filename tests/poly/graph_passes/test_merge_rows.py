"""Attention in networks: which calls become one, and that the results are ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk
from poly.ir.graph import Call

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


def masked_layers(
    kind: str, layers: int, batch: str | int = "batch", length: str | int = "length"
) -> onnx.ModelProto:
    """Layers of attention over x[batch,length,H*D], which share a mask."""
    draw = np.random.default_rng(0)
    at: dict[str, np.ndarray] = {
        "zero": np.array(0), "one": np.array(1), "of_rows": np.array([1]),
        "of_batch": np.array([1, 2]), "kept": np.float32([0]), "dropped": np.float32([-np.inf]),
        "heads": np.array([0, 0, H, D]), "rows": np.array([0, 0, H * D]),
    }  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["size"], start=1, end=2),
        node("Squeeze", ["size"], ["length"]),
        node("Range", ["zero", "length", "one"], ["columns"]),
        node("Unsqueeze", ["columns", "of_rows"], ["lines"]),
    ]
    if kind == "triangle":
        nodes += [
            node("Concat", ["size", "size"], ["square"], axis=0),
            node("Expand", ["dropped", "square"], ["full"]),
            node("Trilu", ["full", "one"], ["mask"], upper=1),
        ]
    else:
        nodes += [
            node("LessOrEqual", ["columns", "lines"], ["causal"]),
            node("Unsqueeze", ["valid", "of_batch"], ["keys"]),
            node("And", ["causal", "keys"], ["counts"]),
        ]
    if kind == "added":
        nodes.append(node("Where", ["counts", "kept", "dropped"], ["mask"]))
    last = "x"
    for layer in range(layers):
        for n in "qkv":
            at[f"w{n}{layer}"] = np.float32(draw.standard_normal((H * D, H * D)) / 7)
            perm = [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]
            nodes += [
                node("MatMul", [last, f"w{n}{layer}"], [f"{n}0_{layer}"]),
                node("Reshape", [f"{n}0_{layer}", "heads"], [f"{n}1_{layer}"]),
                node("Transpose", [f"{n}1_{layer}"], [f"{n}{layer}"], perm=perm),
            ]
        nodes.append(node("MatMul", [f"q{layer}", f"k{layer}"], [f"s{layer}"]))
        scores = node("Where", ["counts", f"s{layer}", "dropped"], [f"t{layer}"])
        if kind != "chosen":
            scores = node("Add", [f"s{layer}", "mask"], [f"t{layer}"])
        last = f"y{layer}"
        nodes += [
            scores,
            node("Softmax", [f"t{layer}"], [f"p{layer}"], axis=-1),
            node("MatMul", [f"p{layer}", f"v{layer}"], [f"o{layer}"]),
            node("Transpose", [f"o{layer}"], [f"turned{layer}"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"turned{layer}", "rows"], [last]),
        ]
    info = helper.make_tensor_value_info
    inputs = [info("x", F, [batch, length, H * D])]
    if kind != "triangle":
        inputs.append(info("valid", TensorProto.BOOL, [batch, length]))
    used = {name for n in nodes for name in n.input}
    constants = [numpy_helper.from_array(a, n) for n, a in at.items() if n in used]
    graph = helper.make_graph(nodes, kind, inputs, [info(last, F, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["added", "chosen", "triangle"])
def test_masks_that_layers_share(kind: str, layers: int) -> None:
    """They are computed for each row of scores, and nothing as large as all scores is stored."""
    proto = masked_layers(kind, layers)
    model = fk.compile_onnx(proto, threads=2)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    draw = np.random.default_rng(1)
    for batch, length in ((2, 140), (1, 33), (3, 1)):
        given = {"x": draw.standard_normal((batch, length, H * D)).astype(np.float32)}
        if kind != "triangle":
            given["valid"] = draw.random((batch, length)) < 0.7
            given["valid"][:, 0] = True
        (expected,) = session.run(None, given)
        (found,) = model.run(given).values()
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    graphs = [part.graph for part in model.compiled]
    shapes = [graph.values[v].shape for graph in graphs for n in graph.nodes for v in n.outputs]
    long = [[e for e in shape if "length" in str(e)] for shape in shapes]
    assert max(map(len, long)) == 1
    chains = [n for g in graphs for n in g.nodes if "Softmax" in n.origin and isinstance(n, Call)]
    assert len(chains) == layers
    assert all(t.dtype.bits <= 32 for n in chains for t in n.program.inputs), "no positions"
    sized = fk.compile_onnx(masked_layers(kind, layers, 1, 1200))
    assert sized.report.arena_bytes < 1200 * 1200


@pytest.mark.parametrize("dtype", [F, TensorProto.FLOAT16])
def test_masks_that_others_read_too(dtype: int) -> None:
    """A mask of which there is a result, and one in 16 bits, whose values are rounded."""
    draw = np.random.default_rng(0)
    low = numpy_helper.from_array(np.array(-0.1), "low")
    nodes = [
        node("Cast", ["a"], ["narrow"], to=dtype),
        node("CastLike", ["low", "narrow"], ["least"]),
        node("Mul", ["narrow", "least"], ["mask"]),
        node("Cast", ["mask"], ["wide"], to=F),
        node("MatMul", ["q", "k"], ["s"]),
        node("Add", ["s", "wide"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
        node("ReduceMax", ["wide"], ["z"], keepdims=0),
    ]
    info, n = helper.make_tensor_value_info, 800
    shapes = {"a": [n, n], "q": [2, n, D], "k": [2, D, n], "v": [2, n, D]}
    graph = helper.make_graph(
        nodes, "masks", [info(name, F, shape) for name, shape in shapes.items()],
        [info("y", F, None), info("z", F, None), info("mask", dtype, None)], [low],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    given = {k: draw.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    narrow = given["a"].astype(helper.tensor_dtype_to_np_dtype(dtype))
    mask = narrow * narrow.dtype.type(-0.1)  # ONNX Runtime does not round it where it adds it
    wide = mask.astype(np.float32)
    scores = given["q"] @ given["k"] + wide
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ given["v"]
    model = fk.compile_onnx(proto)
    for found, wanted in zip(model.run(given).values(), (y, wide.max(), mask), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    graph = model.compiled[0].graph
    assert all("a" in n.inputs for n in graph.nodes if {*n.inputs} & {"q"}), "it is computed anew"


def test_rows_of_products_with_oneself() -> None:
    """softmax(h h^T) x, whose first contraction reads one value twice."""
    nodes = [
        node("Relu", ["x"], ["h"]), node("Einsum", ["h", "h"], ["s"], equation="bid,bjd->bij"),
        node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"]),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    x_info = info("x", F, ["batch", "length", D])
    graph = helper.make_graph(nodes, "oneself", [x_info], [info("y", F, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = fk.compile_onnx(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for length in (200, 1):
        x = np.random.default_rng(0).standard_normal((1, length, D)).astype(np.float32) / 4
        np.testing.assert_allclose(
            model.run({"x": x})["y"], session.run(None, {"x": x})[0], 1e-4, 1e-5
        )


def test_one_head_whose_values_are_made_beside_it() -> None:
    """Without a transpose, the product that makes V looks like rows as well."""
    draw = np.random.default_rng(0)
    stored = {f"w{n}": draw.standard_normal((D, D)).astype(np.float32) for n in "qkv"}
    nodes = [node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"] + [
        node("Transpose", ["k"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["q", "turned"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "head", [info("x", F, [2, 300, D])], [info("y", F, None)],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = fk.compile_onnx(proto)
    x = draw.standard_normal((2, 300, D)).astype(np.float32) / 3
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(model.run({"x": x})["y"], expected, 1e-4, 1e-5)
    assert model.report.arena_bytes < 300 * 300 * 4
