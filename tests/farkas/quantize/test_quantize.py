"""`quantize_onnx`: what comes out, what stays in float32, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import farkas as fk
from farkas.quantize.float_nodes import Wide
from farkas.quantize.prepare_model import opened, prepared
from farkas.quantize.quantiser import Quantiser
from frontends.onnx import open_model, peer_values
from tests.farkas.conftest import save_apart
from tests.farkas.quantize import small_networks as small
from tests.farkas.quantize.small_networks import node

IMAGES = small.digits()[0][1:240:2][:, None]
LABELS = small.digits()[1][1:240:2]


@pytest.fixture(scope="module")
def digits() -> fk.QuantizedModel:
    return fk.quantize_onnx(small.cnn(), {"x": IMAGES}, metric="top1", labels=LABELS, max_drop=2.0)


@pytest.fixture(scope="module")
def attention() -> fk.QuantizedModel:
    return fk.quantize_onnx(small.attention(), {"x": small.attention_samples()}, max_drop=8)


def within_a_step(model: ModelProto, sample: dict[str, Any]) -> bool:
    """Whether Farkas and ONNX Runtime give results that differ by at most 2 % of the largest."""
    found = fk.compile_onnx(model).run(sample)
    wanted = peer_values(open_model(model), sample)
    return all(np.abs(found[n] - w).max() <= 0.02 * np.abs(w).max() for n, w in wanted.items())


def in_front(model: ModelProto, name: str) -> list[str]:
    """The operators that make the inputs of a node."""
    makers = {o: n.op_type for n in model.graph.node for o in n.output}
    (found,) = [n for n in model.graph.node if n.name == name]
    return [makers.get(i, "") for i in found.input]


def test_digits_keep_their_accuracy(digits: fk.QuantizedModel) -> None:
    assert digits.reached and digits.drop <= 2 and digits.sizes[1] < digits.sizes[0] / 2
    assert digits.accuracy is not None and digits.accuracy[0] > 90
    assert digits.accuracy[0] - digits.accuracy[1] == pytest.approx(digits.drop)
    text = str(digits)
    assert "Conv 'conv'" in text and "accuracy" in text and "at most 2 %" in text


def test_the_result_is_plain_qdq(digits: fk.QuantizedModel, attention: fk.QuantizedModel) -> None:
    for made in (digits, attention):
        onnx.checker.check_model(made.model, full_check=True)
        assert [o.domain for o in made.model.opset_import] == [""]
        assert {n.op_type for n in made.model.graph.node} >= {"QuantizeLinear", "DequantizeLinear"}
        assert not any(n.domain for n in made.model.graph.node)
        # Outputs are not rounded to 8 bits.
        makers = {o: n.op_type for n in made.model.graph.node for o in n.output}
        assert makers[made.model.graph.output[0].name] not in ("DequantizeLinear",)
    assert digits.model.graph.input[0].type == small.cnn().graph.input[0].type


def test_both_runtimes_agree(digits: fk.QuantizedModel, attention: fk.QuantizedModel) -> None:
    assert within_a_step(digits.model, {"x": IMAGES[0]})
    assert within_a_step(attention.model, {"x": small.attention_samples()[0]})


def test_the_drop_is_that_of_the_outputs(attention: fk.QuantizedModel) -> None:
    wide, narrow = fk.compile_onnx(small.attention()), fk.compile_onnx(attention.model)
    samples = small.attention_samples()
    before = np.array([wide.run({"x": x})["y"] for x in samples])
    after = np.array([narrow.run({"x": x})["y"] for x in samples])
    error = 100 * np.abs(after - before).max() / np.abs(before).max()
    assert attention.reached and error == pytest.approx(attention.drop, rel=1e-3)


def test_a_perceptron_of_products() -> None:
    made = fk.quantize_onnx(small.mlp(), {"x": IMAGES}, metric="cosine", max_drop=1)
    assert made.reached and made.metric == "cosine" and made.accuracy is None


def quantiser(model: ModelProto, data: Any, folder: Path) -> Quantiser:
    return Quantiser(prepared(opened(model), folder), tuple({"x": x} for x in data), folder)


@pytest.mark.parametrize("name", ["conv", "pool", "gemm"])
def test_excluded_nodes_stay_in_float32(tmp_path: Path, name: str) -> None:
    made = quantiser(small.cnn(), IMAGES[:4], tmp_path)
    assert made.narrow == {"conv", "relu", "pool", "flat", "gemm"}
    model = made.without([name])
    assert "DequantizeLinear" not in in_front(model, name)
    onnx.checker.check_model(model, full_check=True)
    others = {"conv", "gemm"} - {name}
    assert all("DequantizeLinear" in in_front(model, other) for other in others)
    assert within_a_step(model, {"x": IMAGES[0]})


def test_without_all_nodes_nothing_is_in_8_bits(tmp_path: Path) -> None:
    made = quantiser(small.attention(), small.attention_samples(), tmp_path)
    model = made.without(made.narrow)
    assert not any("Linear" in n.op_type for n in model.graph.node)
    x = small.attention_samples()[0]
    before, after = (peer_values(open_model(m), {"x": x})["y"] for m in (made.model, model))
    assert np.array_equal(before, after)


def test_an_activation_between_8_bits_and_float32_stays_whole(tmp_path: Path) -> None:
    """The pool reads the result of Relu, not what was rounded, and not what was before Relu."""
    model = quantiser(small.cnn(), IMAGES[:4], tmp_path).without(["pool"])
    assert in_front(model, "pool") == ["Relu"] and in_front(model, "relu") == ["Conv"]


def test_weights_that_two_nodes_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8)).astype(np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("Relu", ["a"], ["b"], "relu"),
        node("MatMul", ["b", "w"], ["y"], "second"),
    ]
    shared = small.model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, weights)
    data = rng.standard_normal((4, 1, 8)).astype(np.float32)
    for name, other in (("first", "second"), ("second", "first")):
        model = quantiser(shared, data, tmp_path).without([name])
        assert "DequantizeLinear" not in in_front(model, name)
        assert in_front(model, other).count("DequantizeLinear") == 2
        onnx.checker.check_model(model, full_check=True)


def test_who_reads_a_value() -> None:
    wide = Wide(small.cnn().graph)
    assert wide.makers["pooled"].name == "pool" and wide.outputs == {"scores"}
    assert [n.name for n in wide.readers["active"]] == ["pool"]


def test_a_goal_that_is_missed() -> None:
    made = fk.quantize_onnx(small.attention(), {"x": small.attention_samples()}, max_drop=0)
    assert not made.reached and made.drop > 0 and "that is missed" in made.summary()
    assert any("Linear" in n.op_type for n in made.model.graph.node)


def test_a_tight_goal_puts_nodes_back(attention: fk.QuantizedModel) -> None:
    tight = attention.drop / 2
    made = fk.quantize_onnx(small.attention(), {"x": small.attention_samples()}, max_drop=tight)
    assert made.reached and made.drop <= tight
    assert any(r.kept == "error" for r in made.rows) and made.limitless is not None
    assert "no limit" in made.summary()


def test_an_old_opset_is_raised() -> None:
    nodes = [node("Gemm", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])]
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)}
    old = small.model(nodes, {"x": [1, 8]}, {"y": [1, 4]}, weights, opset=11)
    made = fk.quantize_onnx(old, {"x": np.eye(8, dtype=np.float32)[:, None]}, max_drop=10)
    assert made.model.opset_import[0].version == 13 and made.rows[0].nodes[0] == ("Gemm", "a")
    assert old.opset_import[0].version == 11


def test_an_old_file_in_which_weights_are_inputs() -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)}
    old = small.model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 8], "w": [8, 4]},
                      {"y": [1, 4]}, weights, opset=9)  # fmt: skip
    old.ir_version = 3
    made = fk.quantize_onnx(old, {"x": np.eye(8, dtype=np.float32)[:, None]}, max_drop=10)
    assert [i.name for i in made.model.graph.input] == ["x"] and made.reached
    assert within_a_step(made.model, {"x": np.ones((1, 8), np.float32)})


def test_weights_in_another_file(tmp_path: Path) -> None:
    copy = ModelProto()
    copy.CopyFrom(small.mlp())
    save_apart(copy, tmp_path / "m.onnx")  # which changes its argument
    made = fk.quantize_onnx(tmp_path / "m.onnx", {"x": IMAGES[:8]}, max_drop=50)
    assert made.reached and made.sizes[0] > 4 * 64 * 48
    (tmp_path / "weights").unlink()
    with pytest.raises(fk.ModelError, match="weights of the network cannot be read"):
        fk.quantize_onnx(tmp_path / "m.onnx", {"x": IMAGES[:8]})


def quantised() -> ModelProto:
    nodes = [node("QuantizeLinear", ["x", "s"], ["q"], "early"),
             node("DequantizeLinear", ["q", "s"], ["y"])]  # fmt: skip
    return small.model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, {"s": np.array(0.1, np.float32)})


def unknown() -> ModelProto:
    made = small.model([node("Relu", ["x"], ["a"]), node("Blur", ["a"], ["y"], domain="my")],
                       {"x": [1, 8]}, {"y": [1, 8]}, {})  # fmt: skip
    made.opset_import.add(domain="my", version=1)
    return made


def infinite() -> ModelProto:
    return small.model([node("Div", ["x", "z"], ["y"])], {"x": [1, 8]}, {"y": [1, 8]},
                       {"z": np.zeros(1, np.float32)})  # fmt: skip


def without_weights() -> ModelProto:
    return small.model([node("Sin", ["x"], ["y"])], {"x": [1, 8]}, {"y": [1, 8]}, {})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (quantised, "quantised already, by QuantizeLinear 'early' and 1 more nodes"),
        (unknown, "ONNX Runtime cannot .* the network: .*Blur"),
        (infinite, "not finite for sample 0"),
        (without_weights, "no node in the network that can be quantised"),
    ],
)
def test_networks_that_are_refused(model: Any, message: str) -> None:
    with pytest.raises(fk.ModelError, match=message):
        fk.quantize_onnx(model(), {"x": np.ones((2, 1, 8), np.float32)})


def test_an_opset_that_cannot_be_raised() -> None:
    graph = helper.make_graph(
        [node("Upsample", ["x"], ["y"], height_scale=1.0, width_scale=2.0)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
    )  # fmt: skip
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4)
    with pytest.raises(fk.ModelError, match="has opset 6; quantising needs 13, and onnx cannot"):
        fk.quantize_onnx(old, {"x": np.ones((2, 1, 8), np.float32)})


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "x", True])
def test_a_drop_that_is_none(bad: Any) -> None:
    with pytest.raises(fk.ArgumentError, match="max_drop"):
        fk.quantize_onnx(small.mlp(), {"x": IMAGES[:2]}, max_drop=bad)


def test_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(fk.ArgumentError, match=r"pip install '\.\[quantize\]'"):
        fk.quantize_onnx(small.mlp(), {"x": IMAGES[:2]})


def test_units_alone_are_as_if_the_others_were_excluded(tmp_path: Path) -> None:
    made = quantiser(small.cnn(), IMAGES[:8], tmp_path)
    for own in ({"conv", "relu"}, {"gemm"}, {"conv", "relu", "pool", "flat", "gemm"}):
        models = made.alone(own), made.without(made.narrow - own)
        first, second = (peer_values(open_model(m), {"x": IMAGES[0]})["scores"] for m in models)
        assert np.abs(first - second).max() < 1e-4 * np.abs(second).max(), own
