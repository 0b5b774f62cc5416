"""Peers of a GPU without one: torch on the CPU where it is installed, and numpy for CuPy."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import models
from benchmarks.gpu import networks, peers, worker
from benchmarks.gpu.cases import MODES, suite
from benchmarks.gpu.clock import HostClock
from benchmarks.gpu.peers import PEERS, Rotation, Work
from benchmarks.gpu.worker import GpuSettings, expected_of, first_calls, take_turns
from benchmarks.kernel import Product
from benchmarks.peers import PEERS as ON_CPU
from benchmarks.task import Task, UnavailableError, kernel_task
from benchmarks.worker import Job, difference

KERNELS = {k.name: k for k in suite(tiny=True)}
TASKS = [*KERNELS, *networks.TINY]
#: Of every kind of what is compiled, as compiling takes seconds.
COMPILED = ("linear3x10x17", "conv3x5", "attention", "tiny_bert", "tiny_mobilenet")


def task_of(name: str, folder: Path) -> Task:
    if name in KERNELS:
        return kernel_task(KERNELS[name], "gpu", folder)
    return models.task(name, networks.write(name, folder))


def work_of(name: str, mode: str, device: str, folder: Path) -> Work:
    return Work(task_of(name, folder), mode, 2, device, HostClock(), folder)


def checked(work: Work, rotation: Rotation) -> None:
    """Each set has a call; the results have the type and are near, and the calls can be timed."""
    assert len(rotation.calls) == work.sets
    results, memory = first_calls(rotation)
    assert memory is None  # which only a device has
    expected = expected_of(work, 1)
    tolerance = work.how.tolerance if work.task.kernel is not None else work.how.deep
    for found in results:
        assert {a.dtype for a in found} == {np.dtype(work.how.element)}
        assert difference(found, expected) < tolerance
    quick = GpuSettings(rounds=1, samples=1)
    assert take_turns(work.clock, {"peer": rotation.calls}, quick)["peer"] > 0


# --- torch --------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Iterator[Any]:
    found = pytest.importorskip("torch")
    yield found
    found.set_grad_enabled(True)
    found.backends.cuda.matmul.allow_tf32 = found.backends.cudnn.allow_tf32 = False
    found.compiler.reset()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TASKS)
def test_torch(name: str, mode: str, torch: Any, tmp_path: Path) -> None:
    work = work_of(name, mode, "cpu", tmp_path)
    PEERS["torch"].load()
    checked(work, PEERS["torch"].prepare(work))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["conv3x5", "tiny_mobilenet"])
def test_channels_last(name: str, mode: str, torch: Any, tmp_path: Path) -> None:
    work = work_of(name, mode, "cpu", tmp_path)
    peer = PEERS["torch-cl"]
    assert peer.suits(work.task)
    rotation = peer.prepare(work)
    (image,) = (a for a in rotation.calls[0].args if a.ndim == 4)  # type: ignore[attr-defined]
    assert image.is_contiguous(memory_format=torch.channels_last)
    checked(work, rotation)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "float16"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, mode: str, torch: Any, tmp_path: Path) -> None:
    work = work_of(name, mode, "cpu", tmp_path)
    PEERS["compile"].load()
    checked(work, PEERS["compile"].prepare(work))


def test_what_is_compiled(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that inductor knows: graphs for networks alone, Triton's kernels alone for it."""
    config = importlib.import_module("torch._inductor.config")
    given = []

    def compile(module: Any, **how: Any) -> Any:
        assert how["fullgraph"] and how["dynamic"] is False
        given.append(how["options"])
        with config.patch(how["options"]):  # refuses what is not there
            return module.forward

    monkeypatch.setattr(torch, "compile", compile)
    for peer, name in (("compile", "attention"), ("compile", "tiny_bert"), ("triton", "conv3x5")):
        work = work_of(name, "float32", "cpu", tmp_path)
        assert PEERS[peer].suits(work.task)
        checked(work, PEERS[peer].prepare(work))
    assert all(o["max_autotune"] for o in given)
    assert [o.get("triton.cudagraphs", False) for o in given] == [False, True, False]
    assert ["TRITON" in o.values() for o in given] == [False, False, True]


def test_tf32_of_torch(torch: Any, tmp_path: Path) -> None:
    """What products, convolutions and Triton go by; turned on, and off again."""
    for mode, allowed in (("float32", False), ("tf32", True), ("float32", False)):
        PEERS["torch"].prepare(work_of("mm9x17x33", mode, "cpu", tmp_path))
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert torch.backends.cudnn.allow_tf32 is allowed
        if hasattr(torch.backends.cudnn, "fp32_precision"):
            assert (torch.backends.cudnn.fp32_precision == "tf32") is allowed
            assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is allowed


def test_memory_of_torch() -> None:
    """What is asked of torch's allocator, and when."""
    log: list[str] = []

    class Cuda:
        def __getattr__(self, name: str) -> Any:
            if "torch" in sys.modules:
                assert callable(getattr(sys.modules["torch"].cuda, name))

            def call(place: str) -> int:
                assert place == "cuda:1"
                log.append(name)
                return {"memory_allocated": 1000, "max_memory_allocated": 5000}.get(name, 0)

            return call

    def second() -> None:
        log.append("second")

    rotation = Rotation((log.clear, second), lambda y: [], peers._peak_of(Cuda(), "cuda:1"))
    assert log == ["memory_allocated"]  # before anything is there
    assert first_calls(rotation) == ([[], []], 4000)
    assert log == [
        "synchronize", "reset_peak_memory_stats", "second", "synchronize", "max_memory_allocated"
    ]  # fmt: skip


def test_a_process(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process does for a network, by Farkas and torch, each on a device of its own."""

    class OnCpu(peers.Torch):
        def prepare(self, work: Work) -> Rotation:
            return super().prepare(replace(work, device="cpu"))

    class Wrong(OnCpu):
        name = "torch-cl"

        def compiled(self, torch: Any, module: Any, whole: bool) -> Any:
            assert whole
            return lambda x: [y + 1 for y in module(x)]

    class Broken(OnCpu):
        name = "compile"

        def compiled(self, torch: Any, module: Any, whole: bool) -> Any:
            raise RuntimeError("no [such] thing")

    for peer in (OnCpu(), Wrong(), Broken()):
        monkeypatch.setitem(PEERS, peer.name, peer)
    path = str(networks.write("tiny_mobilenet", tmp_path))
    job = Job(
        "float16", "tiny_mobilenet", 1, (0,), ("farkas", "torch", "torch-cl", "compile", "cupy"),
        str(tmp_path / "report"), path, device="cuda-emulator",
        settings=GpuSettings(rounds=1, samples=1, tiny=True).as_dict(),
    )  # fmt: skip
    worker.run(job, tmp_path)
    lines = [json.loads(line) for line in Path(job.report).read_text().splitlines()]
    assert [x["at"] for x in lines if "at" in x] == ["task", *job.peers[:4], "timing"]
    assert [x["peak"] for x in lines if "peak" in x] == ["farkas"]
    assert {x["failed"]: x["message"].partition(":")[0] for x in lines if "failed" in x} == {
        "torch-cl": "wrong result",
        "compile": "RuntimeError",
    }
    apart = {x["prepared"]: x["difference"] for x in lines if "prepared" in x}
    assert 0 < apart["farkas"] < 5e-3 and 0 < apart["torch"] < 5e-3 and apart["torch-cl"] > 0.05
    assert set(lines[-1]["times"]) == {"farkas", "torch"}


def test_results_are_right_when_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the first calls, and of the type that everybody computes in."""

    class Peer(PEERS["farkas"].__class__):  # type: ignore[misc]
        def __init__(self, name: str, fetch: Any) -> None:
            self.name, self._later = name, fetch

        def prepare(self, work: Work) -> Rotation:
            found, fetched = super().prepare(work), list[int]()

            def fetch(returned: Any) -> Any:
                fetched.append(1)
                return self._later(found.fetch(returned), len(fetched) > 2)

            return replace(found, fetch=fetch)

    def breaks(arrays: Any, later: bool) -> Any:
        if later:
            raise RuntimeError("lost")
        return arrays

    for name, fetch in {
        "steady": lambda arrays, later: arrays,
        "stale": lambda arrays, later: [a + later for a in arrays],
        "lost": breaks,
        "wide": lambda arrays, later: [a.astype(np.float32) for a in arrays],
    }.items():
        monkeypatch.setitem(PEERS, name, Peer(name, fetch))
    job = Job(
        "float16", "linear3x10x17", 1, (0,), ("steady", "stale", "lost", "wide"),
        str(tmp_path / "report"), device="cuda-emulator",
        settings=GpuSettings(rounds=1, samples=1, tiny=True).as_dict(),
    )  # fmt: skip
    worker.run(job, tmp_path)
    lines = [json.loads(line) for line in Path(job.report).read_text().splitlines()]
    failed = {x["failed"]: x["message"] for x in lines if "failed" in x}
    assert failed.pop("wide") == "wrong result: relative difference inf"
    assert failed.pop("stale").startswith("wrong result when timed: relative difference ")
    assert failed == {"lost": "wrong result when timed: RuntimeError: lost"}
    assert set(lines[-1]["times"]) == {"steady"}


def test_who_says_what_is_right(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of("tiny_mobilenet", tmp_path)
    (first,) = networks.reference(task, 1)
    monkeypatch.setattr(type(ON_CPU["ort"]), "missing", lambda peer: "it is not installed")
    (second,) = networks.reference(task, 1)
    assert 0 < difference([second], [first]) < 1e-5  # by somebody else
    monkeypatch.setattr(type(ON_CPU["torch"]), "missing", lambda peer: "it is not installed")
    with pytest.raises(UnavailableError, match="no onnxruntime and no torch"):
        networks.reference(task, 1)


# --- CuPy ---------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with what is called of CuPy, by numpy."""
    found = ModuleType("cupy")
    found.__dict__.update(
        __version__="14.0", asarray=np.array, asnumpy=np.asarray, matmul=np.matmul, einsum=np.einsum
    )
    found.__spec__ = SimpleNamespace(name="cupy")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setenv("CUPY_TF32", "")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_cupy(mode: str, cupy: ModuleType, tmp_path: Path) -> None:
    peer = PEERS["cupy"]
    peer.load()
    assert peer.missing() is None and peer.version() == "14.0"
    suited = [n for n in TASKS if peer.suits(task_of(n, tmp_path))]
    assert suited == [n for n, k in KERNELS.items() if isinstance(k, Product)] and len(suited) == 3
    for name in suited:
        work = work_of(name, mode, "cuda", tmp_path)
        rotation = peer.prepare(work)
        first, second = ({id(a) for a in call.args[0]} for call in rotation.calls)  # type: ignore[attr-defined]
        assert not first & second  # each set has memory of its own
        checked(work, rotation)
        assert os.environ["CUPY_TF32"] == ("1" if mode == "tf32" else "0")


# --- who takes part -----------------------------------------------------------------------------


def test_who_suits_what(tmp_path: Path) -> None:
    found = {n: [p for p in PEERS if PEERS[p].suits(task_of(n, tmp_path))] for n in TASKS}
    everybody = ["farkas", "torch", "compile"]
    assert found["mm9x17x33"] == [*everybody, "triton", "cupy"]
    assert found["conv3x5"] == ["farkas", "torch", "torch-cl", "compile", "triton"]
    assert found["softmax2x3x19"] == found["tiny_bert"] == everybody
    assert found["tiny_mobilenet"] == ["farkas", "torch", "torch-cl", "compile"]


def test_torch_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert PEERS["torch"].missing() == "torch finds no CUDA device"
