"""Small networks that compile in a second or two and have a bit of everything."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.frontends.onnx.onnx_support import model_of

node = helper.make_node


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {n: random.normal(0, 0.5, s).astype(np.float32) for n, s in shapes.items()}


def conv_net() -> onnx.ModelProto:
    """Padded, strided and grouped convolutions, normalisation, pools, a residual, a classifier."""
    nodes = [
        node("Conv", ["x", "f0", "b0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Conv", ["p0", "f1"], ["c1"], pads=[1, 1, 1, 1], group=2),
        node("BatchNormalization", ["c1", "g", "b0", "b0", "v"], ["n1"]),
        node("Add", ["n1", "r0"], ["a1"]),
        node("GlobalAveragePool", ["a1"], ["gap"]),
        node("Flatten", ["gap"], ["flat"]),
        node("Gemm", ["flat", "w", "b1"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["y"], axis=1),
    ]
    constants = _weights(1, f0=(6, 3, 3, 3), b0=(6,), f1=(6, 3, 3, 3), g=(6,), w=(5, 6), b1=(5,))
    constants["v"] = np.linspace(0.5, 1.5, 6).astype(np.float32)
    inputs = {"x": np.zeros((1, 3, 13, 11), np.float32)}
    return model_of(nodes, inputs, ["y"], constants)


def dense_net() -> onnx.ModelProto:
    """Attention without heads, layer normalisation, and a table look-up."""
    nodes = [
        node("Gather", ["table", "at"], ["e"], axis=0),
        node("Add", ["e", "x"], ["h"]),
        node("LayerNormalization", ["h", "g", "b"], ["n"], axis=-1),
        node("MatMul", ["n", "q"], ["nq"]),
        node("MatMul", ["n", "k"], ["nk"]),
        node("Transpose", ["nk"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["nq", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "n"], ["o"]),
        node("Concat", ["o", "h"], ["y"], axis=2),
    ]
    constants = _weights(2, table=(9, 17), g=(17,), b=(17,), q=(17, 13), k=(17, 13))
    constants["at"] = np.array([[0, 8, 3, 5, 5]])
    inputs = {"x": np.zeros((1, 5, 17), np.float32)}
    return model_of(nodes, inputs, ["y"], constants)


def tiny_net() -> onnx.ModelProto:
    """One product and one activation: the cheapest model with two kernels."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Tanh", ["m"], ["y"])]
    inputs = {"x": np.zeros((2, 3), np.float32)}
    return model_of(nodes, inputs, ["y"], _weights(3, w=(3, 4)))
