"""Networks at which ONNX Runtime's quantiser alone fails, or of which it makes another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import farkas as fk
from farkas.quantize import onnxruntime_tools
from farkas.quantize.prepare_model import opened, prepared
from farkas.quantize.quantiser import Quantiser
from tests.farkas.quantize import small_networks as small
from tests.farkas.quantize.small_networks import node

ROWS = np.random.default_rng(1).standard_normal((8, 1, 8)).astype(np.float32)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def between(nodes: list[Any], weights: dict[str, Any], extra: str = "") -> ModelProto:
    """Nodes from `a`, which is a product of the input, to `c`, of which the result is one."""
    made = small.model(
        [
            node("MatMul", ["x", "first"], ["a"], "first"),
            *nodes,
            node("MatMul", ["c", "last"], ["y"], "last"),
        ],
        {"x": [1, 8]}, {"y": [1, 8]},
        {"first": drawn(8, 8), "last": drawn(8, 8).T.copy(), **weights},
    )  # fmt: skip
    if extra:
        made.opset_import.append(helper.make_opsetid(extra, 1))
    return made


def looped(captured: str) -> ModelProto:
    """A loop that adds a value from outside three times."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["go"], ["more"]), node("Add", ["s", captured], ["sum"])], "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("s", TensorProto.FLOAT, [1, 8])],
        [info("more", TensorProto.BOOL, []), info("sum", TensorProto.FLOAT, [1, 8])],
    )  # fmt: skip
    nodes = [
        node("Relu", ["a"], ["r"], "relu"),
        node("MatMul", ["r", "w"], ["b"], "second"),
        node("Loop", ["trips", "", "b"], ["c"], "loop", body=body),
    ]
    return between(nodes, {"w": drawn(8, 8), "trips": np.array(3)})


def clipped(least: float, most: float) -> ModelProto:
    bounds = {"least": np.float32(least), "most": np.float32(most)}
    return between([node("Clip", ["a", "least", "most"], ["c"], "clip")], bounds)


def gemm(bias: np.ndarray, **attributes: float) -> ModelProto:
    nodes = [node("Gemm", ["a", "w", "bias"], ["c"], "gemm", **attributes)]
    return between(nodes, {"w": drawn(8, 8), "bias": bias})


def rows_of_biases() -> ModelProto:
    nodes = [
        node("Reshape", ["a", "to"], ["b"], "rows"),
        node("Gemm", ["b", "w", "bias"], ["c"], "gemm"),
    ]
    return between(nodes, {"w": drawn(4, 8), "bias": drawn(2, 8), "to": np.array([2, 4])})


def masked() -> ModelProto:
    nodes = [
        node("Add", ["a", "mask"], ["masked"], "mask"),
        node("Softmax", ["masked"], ["c"], "softmax"),
    ]
    mask = np.where(np.arange(8) > 4, -np.inf, 0).astype(np.float32)
    return between(nodes, {"mask": mask[None]})


def of_another_domain() -> ModelProto:
    nodes = [
        node("Gelu", ["a"], ["b"], "gelu", domain="com.microsoft"),
        node("Gemm", ["b", "w", "bias"], ["c"], "gemm"),
    ]
    return between(nodes, {"w": drawn(8, 8), "bias": drawn(8)}, "com.microsoft")


def unknown_to_onnx() -> ModelProto:
    nodes = [
        node("SimplifiedLayerNormalization", ["a", "g"], ["b"], "norm", axis=-1),
        node("Gemm", ["b", "w", "bias"], ["c"], "gemm"),
    ]
    return between(nodes, {"g": drawn(8), "w": drawn(8, 8), "bias": drawn(8)})


def captured() -> ModelProto:
    """Branches that read a value which is quantised, and a name that a bias could take."""
    info = helper.make_tensor_value_info("bias_bias", TensorProto.FLOAT, [1, 8])
    branches = [
        helper.make_graph([node(kind, ["b"], ["bias_bias"])], "branch", [], [info])
        for kind in ("Neg", "Abs")
    ]
    nodes = [
        node("Gemm", ["a", "w", "bias"], ["b"], "gemm"),
        node("If", ["yes"], ["c"], "if", then_branch=branches[0], else_branch=branches[1]),
    ]
    return between(nodes, {"w": drawn(8, 8), "bias": drawn(1, 8), "yes": np.array(True)})


def named_like_a_scale() -> ModelProto:
    return between([node("Mul", ["a", "a_scale"], ["c"], "mul")], {"a_scale": np.float32(0.002)})


@pytest.mark.parametrize(
    ("network", "left"),
    [
        (lambda: looped("r"), ""),
        (lambda: looped("a"), ""),
        (lambda: clipped(1, 5), ""),
        (lambda: clipped(-3, -1), ""),
        (lambda: clipped(0, 6), ""),
        (lambda: gemm(drawn(8) + 5, beta=0.5), ""),
        (lambda: gemm(drawn(8) + 5, beta=-0.5), ""),
        (lambda: gemm(drawn(1, 8)), ""),
        (lambda: gemm(drawn(1) + 3, beta=2.0, transB=1), ""),
        (lambda: gemm(np.float32(3)), ""),
        (rows_of_biases, "gemm"),
        (masked, "mask softmax"),
        (of_another_domain, ""),
        (unknown_to_onnx, ""),
        (captured, ""),
        (named_like_a_scale, "first mul"),
    ],
)
def test_all_but_few_nodes_are_quantised(
    network: Callable[[], ModelProto], left: str, tmp_path: Path
) -> None:
    model = network()
    samples = tuple({"x": x} for x in ROWS)
    made = Quantiser(prepared(opened(model), tmp_path), samples, tmp_path)
    assert made.unfit == {*left.split()} and {"last"} <= made.narrow
    for form in (made.without(()), made.alone(made.narrow)):
        exact, found = (onnxruntime_tools.runner(m.SerializeToString(), 1) for m in (model, form))
        for sample in samples:
            (a,), (b,) = exact(sample), found(sample)
            assert np.abs(a - b).max() <= 0.12 * np.abs(a).max()


def test_transposed_convolutions_in_groups(tmp_path: Path) -> None:
    nodes = [
        node("ConvTranspose", ["x", "w", "b"], ["a"], "groups", group=2),
        node("Conv", ["a", "v"], ["y"], "conv"),
    ]
    weights = {"w": drawn(4, 3, 3, 3), "b": drawn(6), "v": drawn(2, 6, 3, 3)}
    model = small.model(nodes, {"x": [1, 4, 5, 5]}, {"y": [1, 2, 5, 5]}, weights)
    samples = tuple({"x": drawn(1, 4, 5, 5) * k} for k in (1, 2))
    made = Quantiser(prepared(opened(model), tmp_path), samples, tmp_path)
    assert made.unfit == {"groups"} and made.narrow == {"conv"}


@pytest.mark.parametrize("network", [masked, unknown_to_onnx, captured])
def test_such_networks_come_out(network: Callable[[], ModelProto]) -> None:
    made = fk.quantize_onnx(network(), {"x": ROWS}, max_drop=np.float64(20))
    assert made.reached
