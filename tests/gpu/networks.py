"""Small ONNX models that are compiled for GPUs, with arrays for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

Arrays = dict[str, np.ndarray]
F, L = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def floats(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / 2).astype(np.float32)


def build(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[int | str]]],
    outputs: list[str],
    **stored: np.ndarray,
) -> onnx.ModelProto:
    """A model of nodes whose outputs' types are inferred."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [nh.from_array(a, n) for n, a in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    types = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in model.graph.output:
        output.type.CopyFrom(types[output.name].type)
    return model


@dataclass(frozen=True)
class Network:
    """A model and arrays, at several shapes if those are open.

    opaque : operators that run as numpy; rtol : of its floats
    """

    model: onnx.ModelProto
    arrays: tuple[Arrays, ...]
    opaque: tuple[str, ...] = ()
    rtol: float = 1e-4


def image(batch: int | str = 1, channels: int = 3, size: int = 8) -> onnx.ModelProto:
    """Convolution, normalisation, activation, pool, product, softmax."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "g", "h"], ["z"], transB=1),
        node("Softmax", ["z"], ["y"]),
    ]
    return build(
        nodes, {"x": (F, [batch, channels, size, size])}, ["y"],
        w=floats(1, 8, channels, 3, 3), b=floats(2, 8), scale=floats(3, 8), bias=floats(4, 8),
        mean=floats(5, 8), var=np.abs(floats(6, 8)) + 0.5,
        g=floats(7, 5, 8 * (size // 2) ** 2), h=floats(8, 5),
    )  # fmt: skip


def attention(rows: int | str = 6, width: int = 16, heads: int = 2) -> onnx.ModelProto:
    """A block of a transformer: attention, sums, normalisations, and a product with GELU."""
    split = np.array([0, 0, heads, width // heads])
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=order),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s"]), node("Mul", ["s", "scale"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "join"], ["o2"]), node("MatMul", ["o2", "wo"], ["o3"]),
        node("Add", ["o3", "x"], ["a"]),
        node("LayerNormalization", ["a", "g", "b"], ["n"], axis=-1),
        node("MatMul", ["n", "w1"], ["m"]), node("Div", ["m", "root"], ["d"]),
        node("Erf", ["d"], ["e"]), node("Add", ["e", "one"], ["e1"]),
        node("Mul", ["m", "e1"], ["u"]), node("MatMul", ["u", "w2"], ["u2"]),
        node("Add", ["u2", "n"], ["y"]),
    ]  # fmt: skip
    weights = {f"w{n}": floats(10 + k, width, width) for k, n in enumerate("qkvo")}
    return build(
        nodes, {"x": (F, [1, rows, width])}, ["y"], **weights, split=split,
        join=np.array([0, 0, width]), scale=np.array(0.3, np.float32),
        root=np.array(2**0.5, np.float32), one=np.array(1, np.float32), g=floats(20, width),
        b=floats(21, width), w1=floats(22, width, 2 * width), w2=floats(23, 2 * width, width),
    )  # fmt: skip


def scan(steps: int) -> onnx.ModelProto:
    """A recurrent cell, h' = tanh(h R + e W), written as a Scan."""
    body = helper.make_graph(
        [
            node("MatMul", ["h", "R"], ["a"]), node("MatMul", ["e", "W"], ["b"]),
            node("Add", ["a", "b"], ["c"]), node("Tanh", ["c"], ["next"]),
            node("Identity", ["next"], ["row"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, F, None) for n in ("h", "e")],
        [helper.make_tensor_value_info(n, F, None) for n in ("next", "row")],
    )  # fmt: skip
    loop = node("Scan", ["h0", "x"], ["last", "rows"], body=body, num_scan_inputs=1)
    inputs: dict[str, tuple[int, list[int | str]]] = {"h0": (F, [2, 4]), "x": (F, [steps, 2, 3])}
    return build([loop], inputs, ["last", "rows"], R=floats(30, 4, 4), W=floats(31, 3, 4))


def recurrent() -> onnx.ModelProto:
    """An LSTM of both directions."""
    units, width = 4, 3
    lstm = node(
        "LSTM", ["x", "W", "R", "B"], ["rows", "last"], hidden_size=units, direction="bidirectional"
    )
    return build(
        [lstm], {"x": (F, [5, 2, width])}, ["rows", "last"],
        W=floats(32, 2, 4 * units, width), R=floats(33, 2, 4 * units, units),
        B=floats(34, 2, 8 * units),
    )  # fmt: skip


def quantised() -> onnx.ModelProto:
    """A convolution of 8-bit integers between floats."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("ConvInteger", ["q", "w", "zero", "wz"], ["c"], pads=[1, 1, 1, 1]),
        node("Cast", ["c"], ["f"], to=F), node("Mul", ["f", "scale"], ["y"]),
        node("QuantizeLinear", ["y", "s2", "z2"], ["q2"]),
        node("QLinearConv", ["q2", "s2", "z2", "w2", "sw", "wz", "s3", "z2"], ["y8"]),
    ]  # fmt: skip
    draw = np.random.default_rng(40)
    return build(
        nodes, {"x": (F, [1, 3, 6, 6])}, ["y", "y8"],
        w=draw.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8), wz=np.array(3, np.int8),
        w2=draw.integers(-90, 90, (5, 4, 1, 1)).astype(np.int8), s2=np.array(2.5, np.float32),
        z2=np.array(9, np.uint8), sw=np.array(0.1, np.float32), s3=np.array(7.5, np.float32),
    )  # fmt: skip


def joined() -> onnx.ModelProto:
    """Layers that append to what is there, some at places where memory of a GPU may not begin."""
    nodes = []
    last = "x"
    for n in range(3):
        nodes += [
            node("Conv", [last, f"w{n}"], [f"c{n}"]), node("Relu", [f"c{n}"], [f"r{n}"]),
            node("Concat", [last, f"r{n}"], [f"t{n}"], axis=1),
        ]  # fmt: skip
        last = f"t{n}"
    nodes.append(node("Sigmoid", [last], ["y"]))
    widths = (8, 16, 19)
    stored = {
        f"w{n}": floats(50 + n, made, given, 1, 1)
        for n, (made, given) in enumerate(zip((8, 3, 5), widths, strict=True))
    }
    return build(nodes, {"x": (F, [1, 8, 4, 4])}, ["y", "t1"], **stored)


def edges() -> onnx.ModelProto:
    """Outputs that are an input, a constant, equal, and views of each other."""
    nodes = [
        node("Identity", ["x"], ["same"]), node("Identity", ["k"], ["constant"]),
        node("Exp", ["x"], ["a"]), node("Exp", ["x"], ["b"]),
        node("Reshape", ["a", "flat"], ["c"]),
    ]  # fmt: skip
    return build(
        nodes, {"x": (F, [2, 3])}, ["same", "constant", "a", "b", "c"], k=floats(60, 4),
        flat=np.array([6]),
    )  # fmt: skip


def places() -> onnx.ModelProto:
    """A network with an operator whose result has a shape that depends on data."""
    nodes = [
        node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["n"]),
        node("Cast", ["n"], ["f"], to=F), node("ReduceSum", ["f", "axis"], ["s"], keepdims=0),
        node("ReduceMax", ["s"], ["s1"], keepdims=0), node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "s1"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": (F, [4, 5])}, ["y", "n"], axis=np.array([0]), w=floats(70, 5, 3))


def reshaped() -> onnx.ModelProto:
    """A network that is compiled for elements of an input: the shape that a Reshape asks for."""
    nodes = [
        node("Relu", ["x"], ["r"]), node("Reshape", ["r", "shape"], ["v"]),
        node("Softmax", ["v"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": (F, [4, 6]), "shape": (L, [2])}, ["y"])


def empty() -> onnx.ModelProto:
    """Nothing, through a network: its sums are 0."""
    nodes = [
        node("Relu", ["x"], ["r"]), node("ReduceSum", ["r", "axis"], ["s"], keepdims=1),
        node("MatMul", ["r", "w"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": (F, ["rows", 4])}, ["s", "y"], axis=np.array([0]), w=floats(80, 4, 3))


def halves() -> onnx.ModelProto:
    """Numbers of 16 bits, integers and truth."""
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Mul", ["h", "h"], ["q"]),
        node("Cast", ["q"], ["f"], to=F), node("Greater", ["f", "x"], ["more"]),
        node("Where", ["more", "f", "x"], ["y"]), node("ArgMax", ["y"], ["k"], axis=1),
    ]  # fmt: skip
    return build(nodes, {"x": (F, [3, 7])}, ["y", "k"])


def _image(size: int) -> tuple[Arrays, ...]:
    return ({"x": floats(90, 1, 3, size, size)},)


#: By name; built when they are asked for.
NETWORKS: dict[str, Callable[[], Network]] = {
    "image": lambda: Network(image(), _image(8)),
    "attention": lambda: Network(attention(), ({"x": floats(91, 1, 6, 16)},)),
    "scan": lambda: Network(scan(20), ({"h0": floats(92, 2, 4), "x": floats(93, 20, 2, 3)},)),
    "recurrent": lambda: Network(recurrent(), ({"x": floats(94, 5, 2, 3)},)),
    "quantised": lambda: Network(quantised(), _image(6)),
    "joined": lambda: Network(joined(), ({"x": floats(95, 1, 8, 4, 4)},)),
    "edges": lambda: Network(edges(), ({"x": floats(96, 2, 3)},)),
    "places": lambda: Network(places(), ({"x": floats(97, 4, 5)},), ("NonZero",)),
    "reshaped": lambda: Network(
        reshaped(),
        tuple({"x": floats(98, 4, 6), "shape": np.array(s)} for s in ((8, 3), (2, 12), (8, 3))),
    ),
    # ONNX Runtime rounds the product when it is done with it, and not before.
    "halves": lambda: Network(halves(), ({"x": floats(99, 3, 7)},), rtol=1e-3),
    "open batch": lambda: Network(
        image("batch"), tuple({"x": floats(n, n, 3, 8, 8)} for n in (2, 1, 3, 2))
    ),
    "open rows": lambda: Network(
        attention("rows"), tuple({"x": floats(n, 1, n, 16)} for n in (7, 2, 12, 7))
    ),
    "no rows": lambda: Network(empty(), tuple({"x": floats(n, n, 4)} for n in (3, 0, 2))),
}
