"""Matrix products and normalisations against ONNX Runtime and, where it is no judge, numpy."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.onnx import import_model
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, run_graph, single


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
        ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((1, 1), (1, 1)),
    ],
)  # fmt: skip
def test_matmul(a, b):
    inputs = {"a": floats(*a), "b": floats(*b)}
    agree(single("MatMul", inputs), inputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_matmul_of_other_types(dtype):
    inputs = {"a": np.arange(12).reshape(3, 4).astype(dtype), "b": np.ones((4, 2), dtype)}
    agree(single("MatMul", inputs), inputs)


def test_matmul_in_half_precision_sums_in_float32():
    inputs = {"a": floats(3, 300, dtype=np.float16), "b": floats(300, 4, dtype=np.float16)}
    exact = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    found = run_graph(import_model(single("MatMul", inputs)), inputs)["y0"]
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (5,), (3, 1), (3, 5), (1, 5)])
def test_gemm(trans_a, trans_b, c):
    inputs = {
        "a": floats(*((4, 3) if trans_a else (3, 4))),
        "b": floats(*((5, 4) if trans_b else (4, 5))),
    }
    if c is not None:
        inputs["c"] = floats(*c).reshape(c)
    for scale in ({}, {"alpha": 0.5, "beta": 0.25}, {"beta": 0.0}):
        model = single("Gemm", inputs, transA=trans_a, transB=trans_b, opset=13, **scale)
        agree(model, inputs)


def test_gemm_of_old_opsets():
    inputs = {"a": floats(3, 4), "b": floats(4, 5), "c": floats(5)}
    found = run_graph(import_model(single("Gemm", inputs, opset=6, broadcast=1)), inputs)
    close(found, {"y0": inputs["a"] @ inputs["b"] + inputs["c"]})


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("bij, bjk -> bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]), ("ii->i", [(4, 4)]), ("ij->", [(3, 4)]), ("ij", [(3, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (6, 4, 5)]), ("i,j", [(3,), (4,)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("ba,ca", [(2, 3), (4, 3)]),
    ],
)  # fmt: skip
def test_einsum(equation, shapes):
    # Of one sign, so that no sum is near 0.
    inputs = {f"x{n}": floats(*shape, low=0.1) for n, shape in enumerate(shapes)}
    found = run_graph(import_model(single("Einsum", inputs, equation=equation)), inputs)
    close(found, {"y0": np.asarray(np.einsum(equation, *inputs.values()))})


@pytest.mark.parametrize("equation", ["ij,jk", "ijk", "i1->i", "ij->k", "ij->ii", "ij,->"])
def test_malformed_einsum(equation):
    from onnx import TensorProto, helper

    node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3]),)]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ModelError, match="Einsum 'y'"):
        import_model(model)


def _batch(shape):
    c = shape[1]
    return {
        "x": floats(*shape), "s": floats(c), "b": floats(c), "m": floats(c),
        "v": floats(c, low=0.1),
    }  # fmt: skip


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 17])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3), (2, 3, 4), (1, 2, 3, 2, 2)])
def test_batch_normalization(opset, shape):
    inputs = _batch(shape)
    agree(single("BatchNormalization", inputs, opset=opset, epsilon=1e-3), inputs)


def test_batch_normalization_for_each_element():
    inputs = {k: floats(3, 4, low=0.1) for k in "sbmv"}
    inputs = {"x": floats(2, 3, 4), **inputs}
    x, s, b, m, v = inputs.values()
    model = single("BatchNormalization", inputs, opset=7, spatial=0)
    found = run_graph(import_model(model), inputs)
    close(found, {"y0": (x - m) / np.sqrt(v + 1e-5) * s + b})


def test_batch_normalization_while_training_is_unsupported_before_opset_14():
    inputs = _batch((2, 3, 4))
    model = single("BatchNormalization", inputs, opset=9, outputs=3)
    with pytest.raises(UnsupportedModelError, match="training mode"):
        import_model(model)


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 3), (2, 3, 2, 4)])
def test_batch_normalization_while_training(shape):
    inputs = _batch(shape)
    model = single("BatchNormalization", inputs, opset=15, training_mode=1, momentum=0.7, outputs=3)
    agree(model, inputs)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax(operator, opset, axis):
    inputs = {"x": floats(3, 4, 5, low=-9, high=9)}
    agree(single(operator, inputs, opset=opset, axis=axis), inputs)


@pytest.mark.parametrize("opset", [1, 9, 13])
def test_softmax_by_default(opset):
    inputs = {"x": floats(3, 4)}
    agree(single("Softmax", inputs, opset=opset), inputs)


@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (13, 1), (13, -1)])
def test_hardmax(opset, axis):
    inputs = {"x": np.round(floats(3, 4, 5))}
    agree(single("Hardmax", inputs, opset=opset, axis=axis), inputs)


def test_instance_normalization():
    inputs = {"x": floats(2, 3, 4, 5), "s": floats(3), "b": floats(3)}
    agree(single("InstanceNormalization", inputs, epsilon=1e-2), inputs)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("outputs", [1, 3])
def test_layer_normalization(axis, outputs):
    shape = (5,) if axis == -1 else (4, 5)
    inputs = {"x": floats(3, 4, 5), "s": floats(*shape), "b": floats(*shape)}
    model = single("LayerNormalization", inputs, axis=axis, outputs=outputs)
    agree(model, inputs, 2e-5)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization(opset):
    count = 2 if opset < 21 else 4
    inputs = {"x": floats(2, 4, 3, 3), "s": floats(count), "b": floats(count)}
    found = run_graph(
        import_model(single("GroupNormalization", inputs, opset=opset, num_groups=2)), inputs
    )
    x, s, b = inputs.values()
    grouped = x.reshape(2, 2, -1)
    mean, var = grouped.mean(2, keepdims=True), grouped.var(2, keepdims=True)
    normal = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    s, b = (np.repeat(v, 4 // count).reshape(1, 4, 1, 1) for v in (s, b))
    close(found, {"y0": normal * s + b})


def test_group_normalization_without_pixels():
    # Of two numbers that are close, the norm is mostly rounding.
    apart = np.array([0, 4, 0, 4], np.float32)
    inputs = {"x": floats(2, 4) + apart, "s": floats(4), "b": floats(4)}
    agree(single("GroupNormalization", inputs, opset=21, num_groups=2), inputs)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p):
    inputs = {"x": floats(3, 4, 5)}
    agree(single("LpNormalization", inputs, axis=1, p=p), inputs)


def test_mean_variance_normalization():
    inputs = {"x": floats(2, 3, 4, 5)}
    agree(single("MeanVarianceNormalization", inputs, opset=13), inputs)
    agree(single("MeanVarianceNormalization", inputs, opset=13, axes=[1, 2]), inputs)
