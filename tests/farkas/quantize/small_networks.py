"""Small networks to quantise: digits, trained in a few lines, and attention with seeded weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
F = TensorProto.FLOAT
node = helper.make_node


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    weights: dict[str, Array],
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose inputs and outputs are float32."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [info(n, F, s) for n, s in inputs.items()],
        [info(n, F, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@cache
def digits() -> tuple[Array, Array]:
    """Images [samples, 1, 8, 8] from 0 to 1, noisy ones of ten shapes, and their labels."""
    rng = np.random.default_rng(4)
    shapes = rng.random((10, 1, 8, 8))
    labels = rng.integers(0, 10, 1200)
    images = shapes[labels] + 0.35 * rng.standard_normal((1200, 1, 8, 8))
    return np.clip(images, 0, 1).astype(np.float32), labels.astype(np.int64)


def digit_features() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "w": (rng.standard_normal((24, 1, 3, 3)) / 3).astype(np.float32),
        "b": (rng.standard_normal(24) / 10).astype(np.float32),
    }


@cache
def cnn() -> onnx.ModelProto:
    """A convolution with seeded weights, and scores fitted to the digits by least squares."""
    from numpy.lib.stride_tricks import sliding_window_view

    images, labels = digits()
    weights = digit_features()
    padded = np.pad(images[:, 0], ((0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2))
    maps = np.einsum("nyxuv,kuv->nkyx", windows, weights["w"][:, 0]) + weights["b"][:, None, None]
    pooled = np.maximum(maps, 0).reshape(-1, 24, 4, 2, 4, 2).max((3, 5)).reshape(len(images), -1)
    wide = np.c_[pooled, np.ones(len(pooled))]
    half = wide[::2]
    fit = np.linalg.solve(
        half.T @ half + 0.1 * np.eye(half.shape[1]), half.T @ np.eye(10)[labels[::2]]
    )
    weights |= {"v": fit[:-1].astype(np.float32), "c": fit[-1].astype(np.float32)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["maps"], "conv", pads=[1] * 4),
        node("Relu", ["maps"], ["active"], "relu"),
        node("MaxPool", ["active"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["pooled"], ["flat"], "flat"),
        node("Gemm", ["flat", "v", "c"], ["scores"], "gemm"),
    ]
    return model(nodes, {"x": ["n", 1, 8, 8]}, {"scores": ["n", 10]}, weights)


@cache
def mlp() -> onnx.ModelProto:
    """A perceptron of seeded features, with scores fitted to the digits by least squares."""
    images, labels = digits()
    rng = np.random.default_rng(3)
    v, b = rng.standard_normal((64, 48)) / 8, rng.standard_normal(48) / 4
    hidden = np.maximum(images[::2].reshape(-1, 64) @ v + b, 0)
    ones = np.ones((len(hidden), 1))
    fitted = np.linalg.lstsq(np.hstack([hidden, ones]), np.eye(10)[labels[::2]], rcond=None)[0]
    w, c = fitted[:-1], fitted[-1]
    weights = {n: np.asarray(a, np.float32) for n, a in zip("vwbc", (v, w, b, c), strict=True)}
    nodes = [
        node("Flatten", ["x"], ["flat"]),
        node("MatMul", ["flat", "v"], ["h0"]),
        node("Add", ["h0", "b"], ["h1"]),
        node("Relu", ["h1"], ["h2"]),
        node("MatMul", ["h2", "w"], ["s0"]),
        node("Add", ["s0", "c"], ["scores"]),
    ]
    return model(nodes, {"x": ["n", 1, 8, 8]}, {"scores": ["n", 10]}, weights)


def attention(length: int = 16, width: int = 32, opset: int = 17) -> onnx.ModelProto:
    """One head of attention and a perceptron, with seeded weights."""
    rng = np.random.default_rng(1)

    def drawn(*shape: int) -> Array:
        return (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    weights = {n: drawn(width, width) for n in ("wq", "wk", "wv", "w1", "w2")}
    weights["b1"] = drawn(width)
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], "query"),
        node("MatMul", ["x", "wk"], ["k"], "key"),
        node("MatMul", ["x", "wv"], ["v"], "value"),
        node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "product"),
        node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["a"], "mix"),
        node("Add", ["a", "x"], ["r"], "sum"),
        node("MatMul", ["r", "w1"], ["h0"], "inner"),
        node("Add", ["h0", "b1"], ["h1"], "bias"),
        node("Relu", ["h1"], ["h2"], "relu"),
        node("MatMul", ["h2", "w2"], ["h3"], "outer"),
        node("Add", ["h3", "r"], ["y"], "last"),
    ]
    shape = [1, length, width]
    return model(nodes, {"x": shape}, {"y": shape}, weights, opset)


def attention_samples(count: int = 6, length: int = 16, width: int = 32) -> Array:
    rng = np.random.default_rng(2)
    return rng.standard_normal((count, 1, length, width)).astype(np.float32)
