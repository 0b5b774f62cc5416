"""The networks of suite narrow on float32, with seeded random weights that keep values in scale.

They are built as exporters write them: batch normalisation folded, layer normalisation as one
node, GELU as Erf, linear layers as MatMul and Add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.kernel import IR_VERSION, OPSET, Array, Shape, one_model
from benchmarks.networks import Builder, mobilenetv2

#: Inverse standard deviations after an activation of a normal value.
_GAIN = {"": 1.0, "Relu": 2.0**0.5, "Swish": 1.55}
#: Of the last layer before a sum with the input: sums of many blocks grow little.
_SMALL = 0.3
#: Of the weights of queries and keys.
_SHARP = 1.5


class _Layers(Builder):
    """Layers that several networks have."""

    def vector(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def conv(
        self, x: str, c: int, k: int, window: Sequence[int], stride: int = 1, groups: int = 1,
        active: str = "", gain: float = 1.0,
    ) -> str:  # fmt: skip
        """A convolution with bias and activation; `gain` scales its weights."""
        fan = c // groups * int(np.prod(window))
        w = self.normal((k, c // groups, *window), gain * _GAIN[active] * fan**-0.5)
        y = self.node(
            "Conv", [x, w, self.normal((k,), 0.1)], kernel_shape=list(window), group=groups,
            strides=[stride] * len(window), pads=[r // 2 for r in window] * 2,
        )  # fmt: skip
        return self.activated(y, active)

    def activated(self, x: str, name: str) -> str:
        if name == "Swish":
            return self.node("Mul", [x, self.node("Sigmoid", [x])])
        return self.node(name, [x]) if name else x

    def gelu(self, x: str) -> str:
        root, one, half = (self.constant(np.array(v, np.float32)) for v in (2.0**0.5, 1.0, 0.5))
        inner = self.node("Erf", [self.node("Div", [x, root])])
        inner = self.node("Mul", [x, self.node("Add", [inner, one])])
        return self.node("Mul", [inner, half])

    def linear(self, x: str, inner: int, columns: int, gain: float = 1.0) -> str:
        y = self.node("MatMul", [x, self.normal((inner, columns), gain * inner**-0.5)])
        return self.node("Add", [y, self.normal((columns,), 0.1)])

    def norm(self, x: str, width: int) -> str:
        scale, shift = self.near_one(width), self.normal((width,), 0.1)
        return self.node("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-5)

    def transformer(
        self, x: str, layers: int, width: int, heads: int, inner: int, before: bool
    ) -> str:
        """Layers on values [1, L, width]; normalised `before` attention and perceptron or after."""
        for _ in range(layers):
            y = self.norm(x, width) if before else x
            x = self.node("Add", [x, self._attention(y, width, heads)])
            x = y = x if before else self.norm(x, width)
            y = self.norm(y, width) if before else y
            y = self.gelu(self.linear(y, width, inner, 1.3))
            x = self.node("Add", [x, self.linear(y, inner, width)])
            x = x if before else self.norm(x, width)
        return x

    def _attention(self, x: str, width: int, heads: int) -> str:
        apart = self.vector([0, -1, heads, width // heads])

        def split(perm: list[int], gain: float) -> str:
            y = self.node("Reshape", [self.linear(x, width, width, gain), apart])
            return self.node("Transpose", [y], perm=perm)

        # Attention to few positions, like that of trained networks.
        q, k, v = split([0, 2, 1, 3], _SHARP), split([0, 2, 3, 1], _SHARP), split([0, 2, 1, 3], 1.0)
        factor = self.constant(np.array((width // heads) ** -0.5, np.float32))
        scores = self.node("Mul", [self.node("MatMul", [q, k]), factor])
        y = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), v])
        y = self.node("Transpose", [y], perm=[0, 2, 1, 3])
        y = self.node("Reshape", [y, self.vector([0, -1, width])])
        return self.linear(y, width, width)

    def embedded(self, ids: str, words: int, width: int) -> str:
        return self.node("Gather", [self.normal((words, width), 1.0), ids], axis=0)

    def scores(self, x: str, width: int, classes: int) -> None:
        """The output Y: scores [1, classes] of an image [1, width, H, W]."""
        x = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        weights, bias = self.normal((classes, width), width**-0.5), self.normal((classes,), 0.1)
        self.nodes.append(helper.make_node("Gemm", [x, weights, bias], ["Y"], transB=1))


def resnet50(
    size: int = 224, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
) -> ModelProto:
    """ResNet-50 for one image."""
    build = _Layers(0)
    x = build.conv("X", 3, width, (7, 7), 2, active="Relu")
    x = build.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(blocks):
        inner, out = width << stage, 4 * width << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            y = build.conv(x, channels, inner, (1, 1), active="Relu")
            y = build.conv(y, inner, inner, (3, 3), stride, active="Relu")
            y = build.conv(y, inner, out, (1, 1), gain=_SMALL)
            if channels != out:
                x = build.conv(x, channels, out, (1, 1), stride)
            x, channels = build.node("Relu", [build.node("Add", [x, y])]), out
    build.scores(x, channels, classes)
    return _image_model("resnet50", build, size, classes)


#: Expansion, window, stride, channels, repetitions of EfficientNet-B0.
_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip


def efficientnet_b0(
    size: int = 224, stages: Sequence[tuple[int, int, int, int, int]] = _STAGES,
    head: int = 1280, classes: int = 1000,
) -> ModelProto:  # fmt: skip
    """EfficientNet-B0 for one image: squeeze and excitation, swish."""
    build, channels = _Layers(1), 32
    x = build.conv("X", 3, channels, (3, 3), 2, active="Swish")
    for expansion, window, first, out, repetitions in stages:
        for number in range(repetitions):
            stride, inner = (first if number == 0 else 1), expansion * channels
            y = build.conv(x, channels, inner, (1, 1), active="Swish") if expansion > 1 else x
            y = build.conv(y, inner, inner, (window,) * 2, stride, inner, "Swish")
            few = max(1, channels // 4)
            s = build.node("GlobalAveragePool", [y])
            s = build.conv(s, inner, few, (1, 1), active="Swish")
            s = build.node("Sigmoid", [build.conv(s, few, inner, (1, 1))])
            y = build.conv(build.node("Mul", [y, s]), inner, out, (1, 1), gain=1.6)
            x = build.node("Add", [x, y]) if stride == 1 and channels == out else y
            channels = out
    x = build.conv(x, channels, head, (1, 1), active="Swish")
    build.scores(x, head, classes)
    return _image_model("efficientnet_b0", build, size, classes)


def vit_small(
    size: int = 224, layers: int = 12, width: int = 384, heads: int = 6, classes: int = 1000
) -> ModelProto:
    """A vision transformer on patches of 16 x 16, ViT-S/16."""
    build, patch = _Layers(2), 16
    count = (size // patch) ** 2
    w = build.normal((width, 3, patch, patch), (3 * patch * patch) ** -0.5)
    x = build.node(
        "Conv", ["X", w, build.normal((width,), 0.1)], kernel_shape=[patch] * 2, strides=[patch] * 2
    )
    x = build.node("Reshape", [x, build.vector([1, width, count])])
    x = build.node("Transpose", [x], perm=[0, 2, 1])
    x = build.node("Concat", [build.normal((1, 1, width), 1.0), x], axis=1)
    x = build.node("Add", [x, build.normal((1, count + 1, width), 0.3)])
    x = build.norm(build.transformer(x, layers, width, heads, 4 * width, before=True), width)
    x = build.node("Gather", [x, build.constant(np.array(0, np.int64))], axis=1)
    build.linear(x, width, classes)
    build.nodes[-1].output[0] = "Y"
    return _image_model("vit_small", build, size, classes)


def distilbert(
    length: int = 128, layers: int = 6, width: int = 768, heads: int = 12, words: int = 30522
) -> ModelProto:
    """DistilBERT on token numbers; its states are the output."""
    build = _Layers(3)
    x = build.node(
        "Add", [build.embedded("ids", words, width), build.normal((1, length, width), 0.3)]
    )
    build.transformer(build.norm(x, width), layers, width, heads, 4 * width, before=False)
    build.nodes[-1].output[0] = "Y"
    return _token_model("distilbert", build, (1, length), (1, length, width))


def whisper_tiny(
    positions: int = 1500, layers: int = 4, width: int = 384, heads: int = 6, bands: int = 80
) -> ModelProto:
    """Whisper's encoder, tiny, on spectra [1, bands, 2 · positions]."""
    build = _Layers(4)
    x = build.gelu(build.conv("X", bands, width, (3,), gain=1.3))
    x = build.gelu(build.conv(x, width, width, (3,), 2, gain=1.7))
    x = build.node("Transpose", [x], perm=[0, 2, 1])
    x = build.node("Add", [x, build.normal((1, positions, width), 0.3)])
    build.norm(build.transformer(x, layers, width, heads, 4 * width, before=True), width)
    build.nodes[-1].output[0] = "Y"
    inputs, outputs = {"X": (1, bands, 2 * positions)}, {"Y": (1, positions, width)}
    return one_model("whisper_tiny", build.nodes, inputs, outputs, build.weights)


def lstm_tagger(
    length: int = 40, words: int = 10_000, width: int = 128, hidden: int = 256, tags: int = 20
) -> ModelProto:
    """Token numbers, an LSTM in both directions, scores of tags."""
    build = _Layers(5)
    x = build.embedded("ids", words, width)
    weights = [build.normal((2, 4 * hidden, n), n**-0.5) for n in (width, hidden)]
    bias = build.normal((2, 8 * hidden), 0.1)
    y = build.node("LSTM", [x, *weights, bias], hidden_size=hidden, direction="bidirectional")
    y = build.node("Transpose", [y], perm=[0, 2, 1, 3])
    y = build.node("Reshape", [y, build.vector([length, 1, 2 * hidden])])
    build.linear(y, 2 * hidden, tags, 3.0)
    build.nodes[-1].output[0] = "Y"
    return _token_model("lstm_tagger", build, (length, 1), (length, 1, tags))


def _image_model(name: str, build: Builder, size: int, classes: int) -> ModelProto:
    shapes: dict[str, Shape] = {"X": (1, 3, size, size)}
    return one_model(name, build.nodes, shapes, {"Y": (1, classes)}, build.weights)


def _token_model(name: str, build: Builder, ids: Shape, output: Shape) -> ModelProto:
    info = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(a, n) for n, a in build.weights.items()]
    graph = helper.make_graph(
        build.nodes, name,
        [info("ids", TensorProto.INT64, ids)], [info("Y", TensorProto.FLOAT, output)], stored,
    )  # fmt: skip
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


#: The networks by name.
NETWORKS: Mapping[str, Callable[[], ModelProto]] = {
    "resnet50": resnet50,
    "mobilenetv2": mobilenetv2,
    "efficientnet_b0": efficientnet_b0,
    "vit_small": vit_small,
    "distilbert": distilbert,
    "whisper_tiny": whisper_tiny,
    "lstm_tagger": lstm_tagger,
}


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Random inputs: normal values, or numbers of words."""
    rng = np.random.default_rng(seed)
    stored = {t.name: t.dims for t in model.graph.initializer}
    tables = [n.input[0] for n in model.graph.node if n.op_type == "Gather"]
    words = [stored[n][0] for n in tables if n in stored]
    found: dict[str, Array] = {}
    for port in model.graph.input:
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            found[port.name] = rng.standard_normal(shape, np.float32)
        else:
            found[port.name] = rng.integers(0, min(words), shape)
    return found
