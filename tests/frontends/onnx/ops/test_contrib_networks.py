"""Small networks as ONNX Runtime's own tools quantise and fuse them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import farkas as fk
from tests.frontends.onnx.onnx_support import floats, model_of

Array = np.ndarray


class _Reader(CalibrationDataReader):
    """Some random inputs of a shape."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._inputs: Iterator[dict[str, Array]] = iter([{name: floats(*shape)} for _ in range(3)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._inputs, None)


def pixels() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Convolutions with a sum, a gate, a pool, parts side by side, and a product at the end."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        make("Sigmoid", ["a"], ["s"]),
        make("Mul", ["a", "s"], ["m"]),
        make("Conv", ["m", "w1"], ["b"]),
        make("Add", ["b", "m"], ["c"]),
        make("LeakyRelu", ["c"], ["l"], alpha=0.1),
        make("AveragePool", ["l"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Conv", ["p", "w2"], ["q"]),
        make("Concat", ["p", "q"], ["r"], axis=1),
        make("GlobalAveragePool", ["r"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w3", "b3"], ["e"], transB=1),
        make("Softmax", ["e"], ["y"]),
    ]
    constants = {
        "w0": floats(8, 3, 3, 3, low=-0.5, high=0.5), "w1": floats(8, 8, 1, 1),
        "w2": floats(8, 8, 1, 1), "w3": floats(10, 16), "b3": floats(10),
    }  # fmt: skip
    inputs = {"x": floats(1, 3, 12, 12)}
    return model_of(nodes, inputs, ["y"], constants), inputs


def agrees(path: Path, inputs: dict[str, Array], tolerance: float) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = fk.compile_onnx(str(path)).run(inputs)
    for name, expected in zip(found, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(found[name], expected, atol=tolerance)


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_ranges_found_beforehand(kind: QuantType, per_channel: bool, tmp_path: Path) -> None:
    """A value may be a step apart, and its consequences."""
    model, inputs = pixels()
    onnx.save(model, tmp_path / "wide.onnx")
    quantize_static(
        tmp_path / "wide.onnx", tmp_path / "narrow.onnx", _Reader("x", (1, 3, 12, 12)),
        quant_format=QuantFormat.QOperator, activation_type=kind, weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )  # fmt: skip
    operators = {n.op_type for n in onnx.load(tmp_path / "narrow.onnx").graph.node}
    assert {
        "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool",
        "QLinearConcat", "QLinearGlobalAveragePool", "QGemm", "QLinearSoftmax",
    } <= operators  # fmt: skip
    agrees(tmp_path / "narrow.onnx", inputs, 0.03)


def test_any_batch(tmp_path: Path) -> None:
    """Tables of functions of one value are the same for all sizes."""
    model, _ = pixels()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "wide.onnx")
    quantize_static(
        tmp_path / "wide.onnx", tmp_path / "narrow.onnx", _Reader("x", (1, 3, 12, 12)),
        quant_format=QuantFormat.QOperator,
    )  # fmt: skip
    agrees(tmp_path / "narrow.onnx", {"x": floats(3, 3, 12, 12)}, 0.03)


def test_an_lstm_quantised_as_it_runs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["h"], hidden_size=8,
                         direction="bidirectional"),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["s"]),
        helper.make_node("MatMul", ["s", "m"], ["y"]),
    ]  # fmt: skip
    constants = {
        "w": floats(2, 32, 6, low=-0.5, high=0.5), "r": floats(2, 32, 8, low=-0.5, high=0.5),
        "b": floats(2, 64), "shape": np.array([5, 3, 16]), "m": floats(16, 4),
    }  # fmt: skip
    inputs = {"x": floats(5, 3, 6)}
    onnx.save(model_of(nodes, inputs, ["y"], constants), tmp_path / "wide.onnx")
    quantize_dynamic(tmp_path / "wide.onnx", tmp_path / "narrow.onnx", weight_type=QuantType.QInt8)
    operators = {n.op_type for n in onnx.load(tmp_path / "narrow.onnx").graph.node}
    assert "DynamicQuantizeLSTM" in operators
    agrees(tmp_path / "narrow.onnx", inputs, 1e-2)


def test_a_network_as_the_optimiser_writes_it(tmp_path: Path) -> None:
    """Two layers with what it fuses: convolutions, activations, and sums that are normalised."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1]),
        make("Relu", ["a"], ["c"]),
        make("Reshape", ["c", "shape"], ["d"]),
        make("MatMul", ["d", "w1"], ["e"]),
        make("Add", ["e", "b1"], ["f"]),
        make("Div", ["f", "root"], ["g"]),
        make("Erf", ["g"], ["h"]),
        make("Add", ["h", "one"], ["i"]),
        make("Mul", ["f", "i"], ["j"]),
        make("Mul", ["j", "half"], ["k"]),
        make("Add", ["k", "d"], ["l"]),
        make("LayerNormalization", ["l", "gamma", "beta"], ["y"], axis=-1, epsilon=1e-6),
    ]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    constants = {n: np.array(v, np.float32) for n, v in numbers.items()} | {
        "w0": floats(8, 3, 3, 3), "b0": floats(8), "shape": np.array([1, 8, 36]),
        "w1": floats(36, 36), "b1": floats(36), "gamma": floats(36), "beta": floats(36),
    }  # fmt: skip
    inputs = {"x": floats(1, 3, 6, 6)}
    model = model_of(nodes, inputs, ["y"], constants)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    operators = {n.op_type for n in onnx.load(tmp_path / "fused.onnx").graph.node}
    assert {"FusedConv", "Gelu", "SkipLayerNormalization"} <= operators
    agrees(tmp_path / "fused.onnx", inputs, 1e-4)


def language_model() -> onnx.ModelProto:
    """A layer as exporters of language models write it: weights of 4 bits, states of any length."""
    make, own, draw = helper.make_node, "com.microsoft", np.random.default_rng(3).integers
    constants: dict[str, Array] = {}

    def product(x: str, name: str, inner: int, columns: int) -> onnx.NodeProto:
        blocks = inner // 16
        constants[f"{name}_w"] = draw(256, size=(columns, blocks, 8)).astype(np.uint8)
        constants[f"{name}_s"] = floats(columns, blocks, low=0.01, high=0.05)
        return make(
            "MatMulNBits", [x, f"{name}_w", f"{name}_s"], [name], domain=own, K=inner, N=columns,
            bits=4, block_size=16,
        )  # fmt: skip

    angles = np.arange(40)[:, None] / 100 ** (np.arange(8)[None] / 8)
    constants |= {
        "words": draw(256, size=(50, 16)).astype(np.uint8),
        "words_s": floats(50, 2, low=0.1, high=0.2), "g0": floats(32), "g1": floats(32),
        "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32),
        "one": np.array([1], np.int32), "axis": np.array([1]),
    }  # fmt: skip
    nodes = [
        make("Cast", ["mask"], ["mask32"], to=onnx.TensorProto.INT32),
        make("ReduceSum", ["mask32", "axis"], ["sums"], keepdims=0),
        make("Sub", ["sums", "one"], ["ends"]),
        make("Shape", ["mask"], ["length"], start=1, end=2),
        make("Cast", ["length"], ["total"], to=onnx.TensorProto.INT32),
        make("GatherBlockQuantized", ["words", "ids", "words_s"], ["x"], domain=own, block_size=16),
        make("SimplifiedLayerNormalization", ["x", "g0"], ["n"], epsilon=1e-5),
        product("n", "q", 32, 64), product("n", "k", 32, 32), product("n", "v", 32, 32),
        make("GroupQueryAttention",
             ["q", "k", "v", "past_k", "past_v", "ends", "total", "cos", "sin"],
             ["a", "now_k", "now_v"], domain=own, num_heads=4, kv_num_heads=2, do_rotary=1),
        product("a", "o", 64, 32),
        make("SkipSimplifiedLayerNormalization", ["x", "o", "g1"], ["m", "", "", "r"], domain=own,
             epsilon=1e-5),
        product("m", "gate", 32, 64), product("m", "up", 32, 64),
        make("QuickGelu", ["gate"], ["act"], domain=own, alpha=1.0),
        make("Mul", ["act", "up"], ["h"]),
        product("h", "down", 64, 32),
        make("Add", ["r", "down"], ["y"]),
    ]  # fmt: skip
    kind = onnx.TensorProto
    states = ["batch", 2, "past", 16]
    inputs = [
        helper.make_tensor_value_info("ids", kind.INT64, ["batch", "rows"]),
        helper.make_tensor_value_info("mask", kind.INT64, ["batch", "total"]),
        helper.make_tensor_value_info("past_k", kind.FLOAT, states),
        helper.make_tensor_value_info("past_v", kind.FLOAT, states),
    ]
    outputs = [helper.make_tensor_value_info(n, kind.FLOAT, None) for n in ("y", "now_k", "now_v")]
    stored = [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(own, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_layer_of_a_language_model() -> None:
    """A prompt, then word after word, each with the states of those before."""
    model = language_model()
    network = fk.compile_onnx(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    draw = np.random.default_rng(4).integers
    states = {n: np.zeros((2, 2, 0, 16), np.float32) for n in ("past_k", "past_v")}
    length = 0
    for rows in (5, 1, 1, 1):
        length += rows
        inputs = {"ids": draw(50, size=(2, rows)), "mask": np.ones((2, length), np.int64), **states}
        found, expected = network.run(inputs), session.run(None, inputs)
        for name, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(found[name], wanted, atol=1e-4)
        states = {"past_k": found["now_k"], "past_v": found["now_v"]}
