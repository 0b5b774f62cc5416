"""A network as a function of jax arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.translate.network import Network, Step, UnsupportedError, pool_padding
from benchmarks.translate.torch_graph import clip_bounds, new_shape

#: jax arrays, or their tracers.
Value = Any


def jax_function(network: Network) -> Callable[..., tuple[Value, ...]]:
    """A function of (weights by name, *inputs in order) that returns a tuple of outputs.

    Raises
    ------
    UnsupportedError : an unknown operator.
    """
    emit = _Emit()
    for step in network.steps:
        if not hasattr(emit, step.op.lower()):
            raise UnsupportedError(f"the operator {step.op} is not translated to jax")

    def run(weights: Mapping[str, Value], *inputs: Value) -> tuple[Value, ...]:
        values = {**weights, **dict(zip(network.inputs, inputs, strict=True))}
        for step in network.steps:
            operands = (values.get(n) for n in step.inputs)
            values[step.outputs[0]] = getattr(emit, step.op.lower())(step, *operands)
        return tuple(values[n] for n in network.outputs)

    return run


class _Emit:
    """A method for each operator, named like it in lower case."""

    def __init__(self) -> None:
        self.jax = importlib.import_module("jax")
        self.np = importlib.import_module("jax.numpy")
        self.lax = importlib.import_module("jax.lax")

    # --- convolutions and products ---------------------------------------------------------

    def conv(self, step: Step, x: Value, w: Value, b: Value = None) -> Value:
        rank = len(step.shapes[1]) - 2
        result = self.lax.conv_general_dilated(
            x, w,
            window_strides=step.get("strides", [1] * rank),
            padding=pool_padding(step, rank),
            rhs_dilation=step.get("dilations", [1] * rank),
            feature_group_count=step.get("group", 1),
        )  # fmt: skip
        return result if b is None else result + b.reshape(-1, *[1] * rank)

    def convtranspose(self, step: Step, x: Value, w: Value, b: Value = None) -> Value:
        rank = len(step.shapes[1]) - 2
        if step.get("group", 1) != 1 or "output_shape" in step.attributes:
            raise UnsupportedError("ConvTranspose with groups")
        window = step.shapes[1][2:]
        extra = step.get("output_padding", [0] * rank)
        pads = [
            (r - 1 - lo, r - 1 - hi + more)
            for r, (lo, hi), more in zip(window, pool_padding(step, rank), extra, strict=True)
        ]
        flipped = self.np.flip(w.swapaxes(0, 1), tuple(range(2, 2 + rank)))
        result = self.lax.conv_general_dilated(
            x, flipped, [1] * rank, pads, lhs_dilation=step.get("strides", [1] * rank)
        )
        return result if b is None else result + b.reshape(-1, *[1] * rank)

    def matmul(self, step: Step, a: Value, b: Value) -> Value:
        return self.np.matmul(a, b)

    def gemm(self, step: Step, a: Value, b: Value, c: Value = None) -> Value:
        if step.get("alpha", 1.0) != 1.0 or step.get("beta", 1.0) != 1.0:
            raise UnsupportedError("Gemm with factors")
        a = a.T if step.get("transA", 0) else a
        b = b.T if step.get("transB", 0) else b
        return a @ b if c is None else a @ b + c

    def einsum(self, step: Step, *operands: Value) -> Value:
        return self.np.einsum(step.get("equation", ""), *operands, optimize="optimal")

    # --- elementwise -----------------------------------------------------------------------

    def relu(self, step: Step, x: Value) -> Value:
        return self.np.maximum(x, 0)

    def add(self, step: Step, a: Value, b: Value) -> Value:
        return a + b

    def sub(self, step: Step, a: Value, b: Value) -> Value:
        return a - b

    def mul(self, step: Step, a: Value, b: Value) -> Value:
        return a * b

    def div(self, step: Step, a: Value, b: Value) -> Value:
        return a / b

    def sum(self, step: Step, *operands: Value) -> Value:
        return sum(operands[1:], operands[0])

    def erf(self, step: Step, x: Value) -> Value:
        return self.lax.erf(x)

    def gelu(self, step: Step, x: Value) -> Value:
        return self.jax.nn.gelu(x, approximate=step.get("approximate", "none") == "tanh")

    def clip(self, step: Step, x: Value, *bounds: Value) -> Value:
        low, high = clip_bounds(step)
        return self.np.clip(x, low, high)

    def dropout(self, step: Step, x: Value, *settings: Value) -> Value:
        return x

    # --- normalisation and pooling ---------------------------------------------------------

    def batchnormalization(
        self, step: Step, x: Value, scale: Value, shift: Value, mean: Value, variance: Value
    ) -> Value:
        factor = scale * self.lax.rsqrt(variance + step.get("epsilon", 1e-5))
        along = (-1, *[1] * (len(step.shapes[0]) - 2))
        return (x - mean.reshape(along)) * factor.reshape(along) + shift.reshape(along)

    def layernormalization(self, step: Step, x: Value, g: Value, b: Value = None) -> Value:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        result = centred * self.lax.rsqrt(variance + step.get("epsilon", 1e-5)) * g
        return result if b is None else result + b

    def lrn(self, step: Step, x: Value) -> Value:
        size = step.get("size", 1)
        squares = self._windows(x * x, 0.0, self.lax.add, (1, size, 1, 1), (1,) * 4,
                                [(0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)])  # fmt: skip
        alpha, beta = step.get("alpha", 1e-4), step.get("beta", 0.75)
        return x / (step.get("bias", 1.0) + alpha / size * squares) ** beta

    def softmax(self, step: Step, x: Value) -> Value:
        axis = step.get("axis", -1 if step.opset >= 13 else 1)
        axes = axis if step.opset >= 13 else tuple(range(axis, len(step.shapes[0])))
        return self.jax.nn.softmax(x, axes)

    def maxpool(self, step: Step, x: Value) -> Value:
        return self._pool(step, x, -np.inf, self.lax.max)

    def averagepool(self, step: Step, x: Value) -> Value:
        total = self._pool(step, x, 0.0, self.lax.add)
        window = step.get("kernel_shape", ())
        padded = any(map(any, pool_padding(step, len(window))))
        if step.get("count_include_pad", 0) or not padded:
            return total / float(np.prod(window))
        return total / self._pool(step, self.np.ones(step.shapes[0]), 0.0, self.lax.add)

    def globalaveragepool(self, step: Step, x: Value) -> Value:
        return x.mean(tuple(range(2, len(step.shapes[0]))), keepdims=True)

    def _pool(self, step: Step, x: Value, start: float, combine: Value) -> Value:
        window = step.get("kernel_shape", ())
        if step.get("ceil_mode", 0):
            raise UnsupportedError(f"{step.op} with sizes rounded up")
        strides = step.get("strides", [1] * len(window))
        pads = [(0, 0), (0, 0), *pool_padding(step, len(window))]
        return self._windows(x, start, combine, (1, 1, *window), (1, 1, *strides), pads)

    def _windows(
        self, x: Value, start: float, combine: Value, window: tuple[int, ...],
        strides: tuple[int, ...], pads: list[tuple[int, int]],
    ) -> Value:  # fmt: skip
        return self.lax.reduce_window(x, start, combine, window, strides, pads)

    # --- shapes ----------------------------------------------------------------------------

    def reshape(self, step: Step, x: Value, shape: Value) -> Value:
        return x.reshape(new_shape(step))

    def flatten(self, step: Step, x: Value) -> Value:
        if step.get("axis", 1) != 1:
            raise UnsupportedError("Flatten at another axis than 1")
        return x.reshape(step.shapes[0][0], -1)

    def transpose(self, step: Step, x: Value) -> Value:
        return self.np.transpose(x, step.get("perm", None))

    def concat(self, step: Step, *operands: Value) -> Value:
        return self.np.concatenate(operands, step.get("axis", 0))
