"""Comparing a compiled network with a reference: the first value that diverges is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

import farkas as fk
from farkas.networks.compare import Compared, Tolerance, compare
from frontends.onnx import Maker, open_model
from frontends.onnx.core import node
from runtime.common.cache import ENVIRONMENT
from tests.farkas.conftest import Cli

F = TensorProto.FLOAT
Arrays = dict[str, np.ndarray]
RANDOM = np.random.default_rng(3)
W = RANDOM.standard_normal((4, 4)).astype(np.float32)


def chain(rows: int | str = "rows", outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """x @ w -> p, tanh -> t, @ w -> q, relu -> y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="first"),
        helper.make_node("Tanh", ["p"], ["t"], name="bend"),
        helper.make_node("MatMul", ["t", "w"], ["q"], name="second"),
        helper.make_node("Relu", ["q"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", F, [rows, 4])],
        [helper.make_tensor_value_info(n, F, None) for n in outputs],
        [nh.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def every(x: np.ndarray) -> Arrays:
    """All values of the chain, by numpy."""
    p = x @ W
    t = np.tanh(p)
    q = t @ W
    return {"p": p, "t": t, "q": q, "y": np.maximum(q, 0)}


def some() -> Arrays:
    return {"x": RANDOM.standard_normal((3, 4)).astype(np.float32)}


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tanh is imported as something else."""
    right = node.find_operator("Tanh", 13)
    wrong = node.find_operator("Sigmoid", 13)
    assert right is not None and wrong is not None
    found = [(since, wrong if f is right else f) for since, f in node._OPERATORS["", "Tanh"]]
    monkeypatch.setitem(node._OPERATORS, ("", "Tanh"), found)
    # The cache knows code by its files, which are as they were.
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache of what is wrong"))


# --- references ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, "rows"])
def test_what_is_right_agrees_with_all_kinds_of_reference(rows: int | str) -> None:
    proto, inputs = chain(rows), some()
    model = fk.compile_onnx(proto)
    assert model.is_whole == (rows == 3)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    evaluator = ReferenceEvaluator(proto)
    references: list[Any] = [
        "onnxruntime", session, every(inputs["x"]), lambda given: every(given["x"]),
        lambda given: evaluator.run(None, given),
    ]  # fmt: skip
    for reference, count in zip(references, (1, 1, 4, 4, 1), strict=True):
        found = model.compare(reference, inputs)
        assert found.agrees and found.first is None and len(found.values) == count
        assert 0 <= max(v.error for v in found.values) < 1e-5
        assert "agree" in str(found) and "the largest error is" in str(found)


@pytest.mark.parametrize("damaged", ["p", "t", "q", "y"])
def test_a_damaged_value_is_found(damaged: str) -> None:
    inputs = some()
    wanted = every(inputs["x"])
    wanted[damaged] = wanted[damaged] + np.float32(0.25)
    found = fk.compile_onnx(chain()).compare(wanted, inputs)
    assert not found.agrees and found.first is not None
    names = {"p": "first", "t": "bend", "q": "second", "y": "last"}
    operators = {"p": "MatMul", "t": "Tanh", "q": "MatMul", "y": "Relu"}
    assert found.first.tensor == damaged
    assert found.first.maker == Maker(names[damaged], operators[damaged], 13)
    assert found.first.error == pytest.approx(0.25, rel=1e-3)
    assert [v.tensor for v in found.values] == ["p", "t", "q", "y"]
    text = f"'{damaged}' of {operators[damaged]} '{names[damaged]}' (opset 13) diverges by 0.25"
    assert str(found).startswith(text) and str(found).endswith("of 4 values compared, 1 diverge")


def test_the_first_of_several_is_named() -> None:
    inputs = some()
    wanted = every(inputs["x"])
    found = fk.compile_onnx(chain()).compare({"q": wanted["q"] * 2, "t": wanted["q"]}, inputs)
    assert found.first is not None and found.first.tensor == "t"
    assert [v.tensor for v in found.values] == ["t", "q"]


@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("rows", [3, "rows"])
def test_a_wrong_operator_in_the_middle_is_found(rows: int | str) -> None:
    inputs = some()
    model = fk.compile_onnx(chain(rows))
    found = model.compare("onnxruntime", inputs)
    assert found.first is not None and str(found.first.maker) == "Tanh 'bend' (opset 13)"
    expected = np.abs(1 / (1 + np.exp(-inputs["x"] @ W)) - np.tanh(inputs["x"] @ W)).max()
    assert found.first.error == pytest.approx(float(expected), rel=1e-3)
    # A reference that knows outputs only can name no other value.
    found = model.compare(lambda given: [every(given["x"])["y"]], inputs)
    assert found.first is not None and found.first.tensor == "y" and len(found.values) == 1


def test_weights_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    inputs = some()
    wanted = every(inputs["x"])
    model = fk.compile_onnx(path)
    assert model.compare("onnxruntime", inputs).agrees
    assert model.compare(wanted, inputs).agrees


# --- how values are compared ---------------------------------------------------------------


def judged(found: Any, wanted: Any, rtol: float | None = None, atol: float = 1e-5) -> Compared:
    """Compare one array as the output of a model."""
    source = open_model(chain())
    result = compare(source, lambda _: {"y": found}, {"y": wanted}, {}, Tolerance(rtol, atol))
    return result.values[0]


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), 0.001),
        (np.float32([np.nan, np.inf, -np.inf]), np.float32([np.nan, np.inf, -np.inf]), 0),
        (np.float16([1, 2]), np.float16([1, 2.004]), 0.004),
        (np.float32([]), np.float32([]), 0),
        (np.ones(1, ml_dtypes.bfloat16), np.full(1, 1.01, ml_dtypes.bfloat16), 0.008),
        (np.complex64([1j]), np.complex64([1j]), 0),
        (np.array([2**62, 1]), np.array([2**62, 1]), 0),
        (np.array(["a", "b"], object), np.array(["a", "b"]), 0),
    ],
)
def test_what_agrees(found: Any, wanted: Any, error: float) -> None:
    result = judged(found, wanted)
    assert result.agrees and result.error == pytest.approx(error, abs=1e-3)


@pytest.mark.parametrize(
    ("found", "wanted", "error", "problem"),
    [
        (np.float32([1, 2]), np.float32([1, 2.01]), 0.01, "diverges by 0.01, where values reach 2"),
        (np.float32([np.nan]), np.float32([1]), np.inf, "diverges by inf"),
        (np.float32([1]), np.float32([np.nan]), np.inf, "diverges by inf"),
        (np.float32([np.inf]), np.float32([-np.inf]), np.inf, "diverges by inf"),
        (np.array([2**62 + 1]), np.array([2**62]), 1, "diverges by 1, where"),
        (np.array([True]), np.array([False]), 1, "diverges by 1, where"),
        (np.float32([1]), np.float64([1]), np.inf, "it has type float32, not float64"),
        (np.float32([1]), np.float32([1, 1]), np.inf, r"it has shape \(1,\), not \(2,\)"),
        (np.array(["a"], object), np.array(["b"]), 0, "other elements"),
    ],
)
def test_what_diverges(found: Any, wanted: Any, error: float, problem: str) -> None:
    result = judged(found, wanted)
    assert not result.agrees and result.error == pytest.approx(error, rel=1e-3)
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(str(result))


def test_tolerances() -> None:
    assert judged(np.float32([100, 1]), np.float32([100, 1.05])).agrees
    assert not judged(np.float32([100, 1]), np.float32([100, 1.05]), rtol=1e-4).agrees
    assert judged(np.int8([100, 2]), np.int8([100, 1]), atol=1).agrees
    assert not judged(np.int8([100, 2]), np.int8([100, 1]), rtol=1).agrees


@pytest.mark.parametrize("culprit", ["p", "t", "q"])
def test_calls_that_are_wrong_only_when_merged(culprit: str) -> None:
    inputs = some()
    right = every(inputs["x"])

    def values(names: tuple[str, ...]) -> Mapping[str, Any]:
        made = {n: right[n] for n in names}
        return made | {"y": right["y"] if culprit in names else right["y"] + np.float32(1)}

    result = compare(open_model(chain()), values, right, inputs, Tolerance(1e-3, 1e-5))
    assert result.first is not None and result.first is result.merged
    assert result.first.tensor == culprit
    assert "where it is merged into what reads it, 'y' of Relu 'last'" in str(result)


# --- mistakes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("torch", "there is no reference 'torch', only 'onnxruntime'"),
        (3, "not a int"),
        ({"nothing": W}, "names 'nothing', on which no output of the model depends"),
        ({"w": W}, "names 'w'"),
        (lambda given: [1, 2], "must return arrays by name, or the outputs y in a list"),
    ],
)
def test_references_that_are_none(reference: Any, message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        fk.compile_onnx(chain()).compare(reference, some())


def test_onnx_runtime_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(fk.ArgumentError, match="needs the package onnxruntime"):
        fk.compile_onnx(chain()).compare("onnxruntime", some())


def test_onnx_runtime_refuses_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no\nwhy")

    model = fk.compile_onnx(chain())
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(fk.ModelError, match=r"ONNX Runtime cannot run the model: no$"):
        model.compare("onnxruntime", some())


# --- the command ---------------------------------------------------------------------------


@pytest.fixture
def chain_file(tmp_path: Path) -> Path:
    onnx.save(chain(), tmp_path / "chain.onnx")
    return tmp_path / "chain.onnx"


def run(cli: Cli, path: Path) -> Any:
    words = ["--shape", "rows=3", "--random", "--compare", "onnxruntime"]
    return cli("run", str(path), *words)


def test_the_command_compares(cli: Cli, chain_file: Path) -> None:
    done = run(cli, chain_file)
    assert done.exit_code == 0 and "compared  1 value agrees" in done.output


@pytest.mark.usefixtures("wrong_tanh")
def test_the_command_fails_where_values_diverge(cli: Cli, chain_file: Path) -> None:
    done = run(cli, chain_file)
    assert done.exit_code == 1
    assert "compared  't' of Tanh 'bend' (opset 13) diverges by" in done.output
