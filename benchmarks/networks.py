"""Networks built here, with seeded random weights: MobileNetV2, a BERT encoder, and a Swin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from benchmarks.kernel import Array, Shape, one_model


class Builder:
    """A network under construction: nodes and weights are added layer by layer."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, array: Array) -> str:
        """Add a constant; returns its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def normal(self, shape: Shape, spread: float) -> str:
        """Add a normally distributed weight; returns its name."""
        array = self._rng.standard_normal(shape, np.float32) * np.float32(spread)
        return self.constant(array)

    def near_one(self, count: int) -> str:
        """Add a scale; returns its name."""
        return self.constant(self._rng.uniform(0.9, 1.1, count).astype(np.float32))

    def linear(self, x: str, rows: int, columns: int) -> str:
        """Add a product with a weight, and a bias; returns the result's name."""
        y = self.node("MatMul", [x, self.normal((rows, columns), rows**-0.5)])
        return self.node("Add", [y, self.normal((columns,), 0.02)])

    def normalised(self, x: str, width: int, epsilon: float = 1e-5) -> str:
        """Add layer normalisation of the last dimension; returns the result's name."""
        g, b = self.near_one(width), self.normal((width,), 0.02)
        return self.node("LayerNormalization", [x, g, b], axis=-1, epsilon=epsilon)


# --- MobileNetV2 -------------------------------------------------------------------------------

#: Expansion, channels, repetitions, stride of the first: table 2 of the paper.
_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def mobilenetv2(
    seed: int = 0,
    size: int = 224,
    classes: int = 1000,
    blocks: Sequence[tuple[int, int, int, int]] = _BLOCKS,
    head: int = 1280,
) -> ModelProto:
    """MobileNetV2 1.0 for one image [1, 3, size, size], batch normalisation folded.

    The activation is min(max(x, 0), 6); outputs are the scores [1, classes].

    blocks : expansion, channels, repetitions, and stride of the first; head : channels at the end
    """
    build = Builder(seed)
    low, high = (build.constant(np.array(v, np.float32)) for v in (0, 6))

    def conv(x: str, c: int, k: int, r: int, stride: int, groups: int, active: bool) -> str:
        fan = c // groups * r * r
        w = build.normal((k, c // groups, r, r), (2.0 if active else 1.0) ** 0.5 * fan**-0.5)
        b = build.normal((k,), 0.1)
        y = build.node(
            "Conv", [x, w, b], kernel_shape=[r, r], strides=[stride] * 2, pads=[r // 2] * 4,
            group=groups,
        )  # fmt: skip
        return build.node("Clip", [y, low, high]) if active else y

    x, channels = conv("X", 3, 32, 3, 2, 1, True), 32
    for expansion, out, repetitions, first in blocks:
        for number in range(repetitions):
            stride = first if number == 0 else 1
            hidden = channels * expansion
            y = conv(x, channels, hidden, 1, 1, 1, True) if expansion > 1 else x
            y = conv(y, hidden, hidden, 3, stride, hidden, True)
            y = conv(y, hidden, out, 1, 1, 1, False)
            x = build.node("Add", [x, y]) if stride == 1 and channels == out else y
            channels = out
    x = conv(x, channels, head, 1, 1, 1, True)
    x = build.node("Flatten", [build.node("GlobalAveragePool", [x])], axis=1)
    weights, bias = build.normal((classes, head), head**-0.5), build.normal((classes,), 0.1)
    build.nodes.append(helper.make_node("Gemm", [x, weights, bias], ["Y"], transB=1))
    return one_model(
        "mobilenetv2", build.nodes, {"X": (1, 3, size, size)}, {"Y": (1, classes)}, build.weights
    )


# --- BERT --------------------------------------------------------------------------------------


def bert(
    seed: int = 0,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    inner: int = 3072,
    length: int = 128,
) -> ModelProto:
    """An encoder like BERT-base: states [1, length, hidden] in and out, no mask, no embedding.

    Each layer is attention and a two-layer perceptron with the exact GELU, each followed by a
    sum with its input and layer normalisation.
    """
    build = Builder(seed)
    depth = hidden // heads
    apart = build.constant(np.array([0, length, heads, depth], np.int64))
    joined = build.constant(np.array([0, length, hidden], np.int64))
    factor = build.constant(np.array(depth**-0.5, np.float32))
    root = build.constant(np.array(0.5**0.5, np.float32))
    half, one = (build.constant(np.array(v, np.float32)) for v in (0.5, 1.0))

    def split(x: str, order: list[int]) -> str:
        return build.node("Transpose", [build.node("Reshape", [x, apart])], perm=order)

    x = "X"
    for _ in range(layers):
        q = split(build.linear(x, hidden, hidden), [0, 2, 1, 3])
        k = split(build.linear(x, hidden, hidden), [0, 2, 3, 1])
        v = split(build.linear(x, hidden, hidden), [0, 2, 1, 3])
        scores = build.node("Mul", [build.node("MatMul", [q, k]), factor])
        y = build.node("MatMul", [build.node("Softmax", [scores], axis=-1), v])
        y = build.node("Transpose", [y], perm=[0, 2, 1, 3])
        y = build.linear(build.node("Reshape", [y, joined]), hidden, hidden)
        x = build.normalised(build.node("Add", [x, y]), hidden, 1e-12)
        y = build.linear(x, hidden, inner)
        gate = build.node("Erf", [build.node("Mul", [y, root])])
        gate = build.node("Mul", [build.node("Add", [gate, one]), half])
        y = build.linear(build.node("Mul", [y, gate]), inner, hidden)
        x = build.normalised(build.node("Add", [x, y]), hidden, 1e-12)
    build.nodes[-1].output[0] = "Y"
    shape = (1, length, hidden)
    return one_model("bert_base", build.nodes, {"X": shape}, {"Y": shape}, build.weights)


# --- Swin --------------------------------------------------------------------------------------

#: Channels and heads of each stage; all have two blocks, the second with shifted windows.
_STAGES = ((96, 3), (192, 6), (384, 12))


class _Swin(Builder):
    """Values are images [1, side, side, width]; windows have `window` places along each side."""

    def __init__(self, seed: int, window: int) -> None:
        super().__init__(seed)
        self.window = window
        self.is_rolled = False

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", [x, self.constant(np.array(shape, np.int64))])

    def turned(self, x: str, *order: int) -> str:
        return self.node("Transpose", [x], perm=list(order))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def rolled(self, x: str, side: int, by: int) -> str:
        """The image moved by so many places, along both sides, what leaves it comes back."""
        for axis in (1, 2):
            zero, cut, end, along = (
                self.constant(np.array([n], np.int64)) for n in (0, by % side, side, axis)
            )
            head = self.node("Slice", [x, zero, cut, along])
            tail = self.node("Slice", [x, cut, end, along])
            x = self.node("Concat", [tail, head], axis=axis)
        return x

    def attention(self, x: str, side: int, width: int, heads: int) -> str:
        """Attention in each window of an image."""
        w = self.window
        count, inside, depth = side // w, w * w, width // heads
        x = self.turned(self.shaped(x, count, w, count, w, width), 0, 2, 1, 3, 4)
        x = self.shaped(self.linear(x, width, 3 * width), count**2, inside, 3, heads, depth)
        x = self.turned(x, 2, 0, 3, 1, 4)
        q, k, v = (
            self.node("Gather", [x, self.constant(np.array(n, np.int64))], axis=0) for n in range(3)
        )
        q = self.node("Mul", [q, self.number(depth**-0.5)])
        scores = self.node("MatMul", [q, self.turned(k, 0, 1, 3, 2)])
        scores = self.node("Add", [scores, self.normal((1, heads, inside, inside), 0.02)])
        if self.is_rolled:
            scores = self.node("Add", [scores, self.constant(_masks(side, w))])
        x = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), v])
        x = self.shaped(self.turned(x, 0, 2, 1, 3), count**2, inside, width)
        x = self.shaped(self.linear(x, width, width), count, count, w, w, width)
        return self.shaped(self.turned(x, 0, 2, 1, 3, 4), 1, side, side, width)

    def perceptron(self, x: str, width: int) -> str:
        y = self.linear(x, width, 4 * width)
        gate = self.node("Erf", [self.node("Mul", [y, self.number(0.5**0.5)])])
        gate = self.node("Mul", [self.node("Add", [gate, self.number(1)]), self.number(0.5)])
        return self.linear(self.node("Mul", [y, gate]), 4 * width, width)

    def block(self, x: str, side: int, width: int, heads: int, is_shifted: bool) -> str:
        by, self.is_rolled = self.window // 2, is_shifted and side > self.window
        y = self.normalised(x, width)
        y = self.rolled(y, side, by) if self.is_rolled else y
        y = self.attention(y, side, width, heads)
        y = self.rolled(y, side, -by) if self.is_rolled else y
        x = self.node("Add", [x, y])
        return self.node("Add", [x, self.perceptron(self.normalised(x, width), width)])

    def merged(self, x: str, side: int, width: int) -> str:
        """Four neighbours as one place with twice the channels; side and width: of the result."""
        x = self.turned(self.shaped(x, 1, side, 2, side, 2, width // 2), 0, 1, 3, 4, 2, 5)
        x = self.normalised(self.shaped(x, 1, side, side, 2 * width), 2 * width)
        return self.node("MatMul", [x, self.normal((2 * width, width), (2 * width) ** -0.5)])


def swin(seed: int = 0, size: int = 112, window: int = 7, classes: int = 1000) -> ModelProto:
    """Windowed attention for one image [1, 3, size, size], like Swin (Liu et al., ICCV 2021).

    Every stage halves the image.  In every other block the image is rolled by half a window; what
    was not adjacent is masked by a constant that is added to the scores, as is the bias of places.
    """
    build = _Swin(seed, window)
    side, width = size // 4, _STAGES[0][0]
    w, b = build.normal((width, 3, 4, 4), 0.1), build.normal((width,), 0.02)
    x = build.node("Conv", ["X", w, b], kernel_shape=[4, 4], strides=[4, 4])
    x = build.normalised(build.turned(x, 0, 2, 3, 1), width)
    for number, (width, heads) in enumerate(_STAGES):
        if number:
            side //= 2
            x = build.merged(x, side, width)
        for is_shifted in (False, True):
            x = build.block(x, side, width, heads, is_shifted)
    x = build.node("ReduceMean", [x], axes=[1, 2], keepdims=0)
    weights, bias = build.normal((width, classes), width**-0.5), build.normal((classes,), 0.02)
    build.nodes.append(helper.make_node("Gemm", [x, weights, bias], ["Y"]))
    shape = (1, 3, size, size)
    return one_model("swin", build.nodes, {"X": shape}, {"Y": (1, classes)}, build.weights)


def _masks(side: int, window: int) -> Array:
    """What is added to scores, [windows, 1, places, places]: -100 where places were not in one part
    of the image before it was rolled.
    """
    place = np.arange(side)
    parts = (place >= side - window).astype(int) + (place >= side - window // 2)
    both = parts[:, None] * 3 + parts
    count = side // window
    tiles = both.reshape(count, window, count, window).swapaxes(1, 2).reshape(count**2, -1)
    same = tiles[:, :, None] == tiles[:, None, :]
    masks: Array = np.where(same, 0, -100).astype(np.float32)[:, None]
    return masks
