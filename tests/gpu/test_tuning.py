"""Tuning for a GPU, by the interfaces that tune for the CPU, on devices without a card."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from farkas.tuning.exchange import records_here
from runtime.gpu.emulator import CpuDevice

PRODUCT = "def f(float32 A[37,45], float32 B[45,70]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


def test_an_emulator_checks_schedules(records: Path) -> None:
    made = fk.tune(PRODUCT, target="cuda-emulator", trials=10, budget=120)
    assert len(made.found.history) == 10
    trials = [m.trial for m in made.found.history]
    assert all(t.ratio == 1.0 or t.failure.startswith("no code: ") for t in trials)
    assert sum(t.ratio == 1.0 for t in trials) >= 5
    assert "10 schedules were checked" in str(made) and "nothing can be timed" in str(made)
    assert not records.exists()
    with pytest.raises(fk.ArgumentError, match="nothing can be timed on it"):
        records_here(target="cuda-emulator")


def test_what_is_timed_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the emulator's times were those of a card."""
    monkeypatch.setattr(CpuDevice, "is_timed", True)
    made = fk.tune(PRODUCT, target="cuda-emulator", trials=8, budget=120)
    times = [m.trial.ratio for m in made.found.history]
    assert sum(map(math.isfinite, times)) >= 4 and len(set(times)) > 1
    assert made.winner == records_here(target="cuda-emulator").winners()[-1]
    kernel = fk.compile(PRODUCT, target="cuda-emulator")
    assert str(kernel.schedule) == made.script
    automatic = fk.compile(PRODUCT, target="cuda-emulator", schedule="auto")
    assert (str(automatic.schedule) == made.script) == (made.winner.script == "")


def test_a_network_uses_what_was_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "is_timed", True)
    b = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    a, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("a", (48, 96)), ("y", (48, 64)))
    )
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    weights = [onnx.numpy_helper.from_array(b, "b")]
    model = helper.make_model(helper.make_graph(nodes, "g", [a], [y], weights)).SerializeToString()
    before = fk.compile_onnx(model, target="cuda-emulator")
    made = fk.tune_onnx(model, target="cuda-emulator", budget=40)
    (kernel,) = made.kernels
    assert kernel.found.history
    after = fk.compile_onnx(model, target="cuda-emulator")
    assert (before.source == after.source) == (not made.kept)
    x = np.ones((48, 96), np.float32)
    np.testing.assert_allclose(after.run({"a": x})["y"], x @ b, rtol=1e-4, atol=1e-4)
