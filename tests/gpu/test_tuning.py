"""Tuning for a GPU, by the interfaces that tune for the CPU, on devices without a card."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from farkas.targets.find_target import target_of
from farkas.tuning.exchange import records_here
from farkas.tuning.job import job_of
from farkas.tuning.learned import Ranking
from farkas.tuning.search import HOPELESS, Search
from poly.machine.gpu import cuda_machine
from poly.space.estimate_gpu import GpuEstimate, estimate_gpu
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


HALVES = """def f(float16 A[1024,1024], float16 B[1024,1024]) -> (C) {
    S[i,j] +=! float32(A[i,k]) * float32(B[k,j])
    C[i,j] = float16(S[i,j]) }"""


def test_estimates_know_tensor_cores() -> None:
    """On an H200, other tiles took 1.8 times as long or more, a thread of each block 122 times."""
    kernel = fk.compile(HALVES, target="cuda-emulator:sm_90")
    machine = cuda_machine("sm_90", 132)
    cores = estimate_gpu(kernel.schedule, {}, machine)
    assert cores.threads == 128 and "wmma_f16" in str(kernel.schedule)
    plain = fk.Schedule.of(kernel.program).fuse("S0_init", "S0", ["i", "j"]).map_blocks("S0", "i")
    assert estimate_gpu(plain, {}, machine).cycles > HOPELESS * cores.cycles
    floats = fk.compile(HALVES.replace("float16", "float32"), target="cuda-emulator:sm_90")
    assert estimate_gpu(floats.schedule, {}, machine).cycles > 1.5 * cores.cycles


def test_what_would_take_seconds_is_not_tried() -> None:
    job = job_of(fk.parse(PRODUCT), False, {}, target_of(None, None, None, "cuda-emulator"))
    search = Search(job.space, job.estimate, 0, Ranking())
    asked = search.ask(20)
    costs = sorted(c.cost.cycles for c in asked)
    between = costs[len(costs) // 2]
    search = Search(job.space, job.estimate, 0, Ranking(), starts=[asked[-1].point])
    cheap = replace(GpuEstimate(), instructions=between / HOPELESS)
    search.automatic = replace(search.automatic, cost=cheap)
    start, *others = search.ask(20)
    assert start.script == asked[-1].script, "it is tried whatever it is estimated to take"
    assert others and max(c.cost.cycles for c in others) <= between < costs[-1]
