"""The kernels that are neither products nor convolutions: a few ONNX nodes each."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import helper

from benchmarks.kernel import Array, Arrays, Composite, Shape, Text

node = helper.make_node


def linear(name: str, family: str, rows: int, inner: int, columns: int) -> Composite:
    """A product with constant weights [inner, columns], as a linear layer of a network."""
    ins, fixed = {"X": (rows, inner)}, {"W": (inner, columns)}
    text = "def linear(float32 X[M,K], float32 W[K,N]) -> (Y) { Y[i,j] +=! X[i,k] * W[k,j] }"
    return Composite(
        name, family, 2 * rows * inner * columns, ins, fixed, (rows, columns),
        lambda: [node("MatMul", ["X", "W"], ["Y"])],
        lambda a: np.asarray(a["X"] @ a["W"]),
        Text(text, {"M": rows, "K": inner, "N": columns}, {**ins, **fixed}),
    )  # fmt: skip


def relu(name: str, family: str, length: int) -> Composite:
    """A rectifier: with few elements, it measures the cost of a call."""
    ins = {"X": (length,)}
    return Composite(
        name, family, length, ins, {}, (length,),
        lambda: [node("Relu", ["X"], ["Y"])],
        lambda a: np.maximum(a["X"], 0),
        Text("def relu(float32 X[N]) -> (Y) { Y[i] = max(X[i], 0) }", {"N": length}, ins),
        own=True,
    )  # fmt: skip


def softmax(name: str, family: str, shape: Shape) -> Composite:
    """Softmax over the last of three dimensions; counted as five operations per element."""
    ins = {"X": shape}
    text = """def softmax(float32 X[B,N,M]) -> (Y) {
    top[b,i] max=! X[b,i,j]
    E[b,i,j] = exp(X[b,i,j] - top[b,i])
    total[b,i] +=! E[b,i,j]
    Y[b,i,j] = E[b,i,j] / total[b,i]
}"""
    return Composite(
        name, family, 5 * prod(shape), ins, {}, shape,
        lambda: [node("Softmax", ["X"], ["Y"], axis=-1)],
        lambda a: _softmax(a["X"]),
        Text(text, dict(zip("BNM", shape, strict=True)), ins),
    )  # fmt: skip


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(name: str, family: str, rows: int, columns: int) -> Composite:
    """Layer normalisation with scale and shift; counted as eight operations per element."""
    ins, fixed = {"X": (rows, columns)}, {"G": (columns,), "B": (columns,)}
    text = """def layernorm(float32 X[N,D], float32 G[D], float32 B[D]) -> (Y) {
    mean[i] +=! X[i,d] / D
    var[i] +=! (X[i,d] - mean[i]) * (X[i,d] - mean[i]) / D
    Y[i,d] = (X[i,d] - mean[i]) * rsqrt(var[i] + 1e-5) * G[d] + B[d]
}"""

    def reference(a: Arrays) -> Array:
        x = a["X"]
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + np.float32(1e-5)) * a["G"] + a["B"])

    return Composite(
        name, family, 8 * rows * columns, ins, fixed, (rows, columns),
        lambda: [node("LayerNormalization", ["X", "G", "B"], ["Y"], axis=-1, epsilon=1e-5)],
        reference,
        Text(text, {"N": rows, "D": columns}, {**ins, **fixed}),
    )  # fmt: skip


def addrelu(name: str, family: str, shape: Shape) -> Composite:
    """The sum of two images and a rectifier, as after a residual block."""
    ins = {"A": shape, "B": shape}
    text = (
        "def addrelu(float32 A[N,C,H,W], float32 B[N,C,H,W]) -> (Y) "
        "{ Y[n,c,h,w] = max(A[n,c,h,w] + B[n,c,h,w], 0) }"
    )
    return Composite(
        name, family, 2 * prod(shape), ins, {}, shape,
        lambda: [node("Add", ["A", "B"], ["S"]), node("Relu", ["S"], ["Y"])],
        lambda a: np.maximum(a["A"] + a["B"], 0),
        Text(text, dict(zip("NCHW", shape, strict=True)), ins),
    )  # fmt: skip


def transpose(name: str, family: str, rows: int, columns: int) -> Composite:
    """A transposed copy; no arithmetic at all."""
    ins = {"X": (rows, columns)}
    text = "def transpose(float32 X[N,M]) -> (Y) { Y[j,i] = X[i,j] }"
    return Composite(
        name, family, 0, ins, {}, (columns, rows),
        lambda: [node("Transpose", ["X"], ["Y"], perm=[1, 0])],
        lambda a: np.ascontiguousarray(a["X"].T),
        Text(text, {"N": rows, "M": columns}, ins),
    )  # fmt: skip


def maxpool(name: str, family: str, channels: int, size: int) -> Composite:
    """The maximum over windows of 3x3 with stride 2, padded by one; one operation per tap."""
    out = (size - 1) // 2 + 1
    ins, result = {"X": (1, channels, size, size)}, (1, channels, out, out)
    text = """def maxpool(float32 X[N,C,H,W]) -> (Y) {
    Y[n,c,p,q] max=! X[n,c,2*p+r-1,2*q+s-1]
        where p in 0:(H-1)//2+1, q in 0:(W-1)//2+1, r in 0:3, s in 0:3,
              0 <= 2*p+r-1 < H, 0 <= 2*q+s-1 < W
}"""

    def reference(a: Arrays) -> Array:
        padded = np.pad(a["X"], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return np.asarray(windows[:, :, ::2, ::2].max((-1, -2)))

    return Composite(
        name, family, 9 * prod(result), ins, {}, result,
        lambda: [
            node("MaxPool", ["X"], ["Y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        ],
        reference,
        Text(text, {"N": 1, "C": channels, "H": size, "W": size}, ins),
    )  # fmt: skip


def global_average(name: str, family: str, channels: int, size: int) -> Composite:
    """The mean of every channel of an image."""
    ins = {"X": (1, channels, size, size)}
    text = "def mean(float32 X[N,C,H,W]) -> (Y) { Y[n,c,0,0] +=! X[n,c,h,w] / (H * W) }"
    return Composite(
        name, family, channels * size * size, ins, {}, (1, channels, 1, 1),
        lambda: [node("GlobalAveragePool", ["X"], ["Y"])],
        lambda a: np.asarray(a["X"].mean((2, 3), keepdims=True)),
        Text(text, {"N": 1, "C": channels, "H": size, "W": size}, ins),
    )  # fmt: skip


#: The factor of `scaled_product`.
SCALE = 0.125


def scaled_product(
    name: str, family: str, batch: int, rows: int, columns: int, inner: int
) -> Composite:
    """A batch of products with the second factor transposed, then scale, bias and rectifier.

    The operations of the last three are not counted.  All operands are inputs.
    """
    ins = {"A": (batch, rows, inner), "B": (batch, columns, inner), "C": (columns,)}
    text = f"""def tbmm(float32 A[N,I,K], float32 B[N,J,K], float32 C[J]) -> (Y) {{
    T[n,i,j] +=! A[n,i,k] * B[n,j,k]
    Y[n,i,j] = max(T[n,i,j] * {SCALE} + C[j], 0)
}}"""
    return Composite(
        name, family, 2 * batch * rows * columns * inner, ins, {}, (batch, rows, columns),
        lambda: [
            node("Transpose", ["B"], ["Bt"], perm=[0, 2, 1]),
            node("MatMul", ["A", "Bt"], ["P"]),
            node("Mul", ["P", "scale"], ["S"]),
            node("Add", ["S", "C"], ["U"]),
            node("Relu", ["U"], ["Y"]),
        ],
        lambda a: np.maximum(a["A"] @ a["B"].swapaxes(1, 2) * np.float32(SCALE) + a["C"], 0),
        Text(text, {"N": batch, "I": rows, "J": columns, "K": inner}, ins),
        {"scale": np.array(SCALE, np.float32)},
        own=True,
    )  # fmt: skip


def attention(name: str, family: str, heads: int, length: int, depth: int) -> Composite:
    """Attention of several heads: softmax(Q Kᵀ / √depth) V; the softmax is not counted."""
    shape = (heads, length, depth)
    ins = {"Q": shape, "K": shape, "V": shape}
    factor = float(np.float32(depth**-0.5))
    text = f"""def attention(float32 Q[H,N,D], float32 K[H,M,D], float32 V[H,M,D]) -> (Y) {{
    S[h,i,j] +=! Q[h,i,d] * K[h,j,d]
    top[h,i] max=! S[h,i,j]
    E[h,i,j] = exp((S[h,i,j] - top[h,i]) * {factor!r})
    total[h,i] +=! E[h,i,j]
    O[h,i,d] +=! E[h,i,j] * V[h,j,d]
    Y[h,i,d] = O[h,i,d] / total[h,i]
}}"""

    def reference(a: Arrays) -> Array:
        scores = a["Q"] @ a["K"].swapaxes(1, 2) * np.float32(factor)
        return np.asarray(_softmax(scores) @ a["V"])

    return Composite(
        name, family, 4 * heads * length * length * depth, ins, {}, shape,
        lambda: [
            node("Transpose", ["K"], ["Kt"], perm=[0, 2, 1]),
            node("MatMul", ["Q", "Kt"], ["S"]),
            node("Mul", ["S", "factor"], ["Z"]),
            node("Softmax", ["Z"], ["P"], axis=-1),
            node("MatMul", ["P", "V"], ["Y"]),
        ],
        reference,
        Text(text, {"H": heads, "N": length, "M": length, "D": depth}, ins),
        {"factor": np.array(factor, np.float32)},
        own=True,
    )  # fmt: skip
