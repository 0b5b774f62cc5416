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
