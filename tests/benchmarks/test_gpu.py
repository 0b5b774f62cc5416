"""Measuring on devices: texts in both types, made-up clocks, and real runs without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farkas as fk
from benchmarks.gpu import networks
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.cases import FAMILIES, KERNELS, MODES, halved, items, suite, text_of
from benchmarks.gpu.clock import (
    Call,
    Clock,
    CudaClock,
    HostClock,
    clock_of,
    copy_bandwidth,
)
from benchmarks.gpu.peers import PEERS
from benchmarks.gpu.worker import (
    MOST_SETS,
    SETS_OF_NETWORK,
    GpuSettings,
    is_emptied,
    sets_of,
    take_turns,
)
from benchmarks.kernel import Kernel, Product
from benchmarks.kernels import linear
from benchmarks.models import names
from benchmarks.runner import ROOT
from benchmarks.task import Task
from benchmarks.worker import difference
from runtime.find_device import find_device

ELEMENTS = ("float32", "float16")
BOTH = [(k, d) for k in suite(tiny=True) for d in ELEMENTS]


# --- what is measured --------------------------------------------------------------------------


def test_suites() -> None:
    for tiny in (False, True):
        kernels = suite(tiny)
        assert len({k.name for k in kernels}) == len(kernels)
        assert [f for f in KERNELS if f in {k.family for k in kernels}] == list(KERNELS)
        assert all(k.text is not None for k in kernels)
    assert sum(k.family == "resnet50" for k in suite()) == 23


def test_items() -> None:
    found = items(tiny=True)
    assert list(dict.fromkeys(i.family for i in found)) == list(FAMILIES)
    assert [i.name for i in found if i.family == "network"] == list(networks.TINY)
    assert all(i.flops > 0 and i.bytes > 0 for i in found if i.family in ("matmul", "network"))
    assert [i.name for i in items(True, "bert|mm", ("matmul", "network"))] == [
        "mm9x17x33",
        "mm64",
        "tiny_bert",
    ]
    assert networks.names(tiny=False) == names() and len(names()) == 11
    assert all(set(m.families) <= set(FAMILIES) for m in MODES.values())


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("kernel", suite(), ids=lambda k: k.name)
def test_texts_of_full_size(kernel: Kernel, dtype: str) -> None:
    """What is declared, and the shape of the result; nothing is computed."""
    text = text_of(kernel, dtype)
    program = fk.parse(text.text)
    assert {t.dtype.name for t in (*program.inputs, *program.outputs)} == {dtype}
    assert all(t.dtype.name == "float32" for t in program.temps)
    assert [t.name for t in program.inputs] == list(text.shapes)
    assert {n: program.tensors[n].rank for n in text.shapes} == {
        n: len(s) for n, s in text.shapes.items()
    }


@pytest.mark.parametrize(("kernel", "dtype"), BOTH, ids=lambda p: getattr(p, "name", p))
def test_small_ones_agree(kernel: Kernel, dtype: str) -> None:
    """On a CPU, from the text for the type, beside numpy in float32."""
    text = text_of(kernel, dtype)
    drawn = {n: a.astype(dtype) for n, a in kernel.draw().items()}
    expected = kernel.reference({n: a.astype(np.float32) for n, a in drawn.items()})
    given = [drawn[n].reshape(s) for n, s in text.shapes.items()]
    found = fk.compile(text.text, sizes=text.sizes)(*given)
    assert isinstance(found, np.ndarray) and found.dtype == dtype
    apart = difference([found.reshape(kernel.output)], [expected])
    assert apart < (1e-5 if dtype == "float32" else 1e-3)


def test_weights_that_would_stay_in_caches() -> None:
    def emptied(i: int, k: int, element: str, cache: int = 50 << 20) -> bool:
        kernel = linear("p", "f", i, k, k)
        one = np.zeros((), np.float32)
        arrays = {
            n: np.broadcast_to(one, s) for n, s in {**kernel.inputs, **kernel.weights}.items()
        }
        task = Task("p", "gpu", Path(), {"A": one}, ("Y",), kernel, arrays)
        return is_emptied(task, element, cache)

    assert emptied(16, 4096, "float32") and emptied(16, 4096, "float16")
    assert not emptied(16, 8192, "float32")  # which no cache holds
    assert not emptied(4096, 1024, "float32")  # of which the inputs are most


def test_halves_are_computed_in_float32() -> None:
    text = halved("def f(float32 A[N], float32 B[N]) -> (Y) { Y[] +=! A[i] * B[i] }", ["A", "B"])
    assert text == (
        "def f(float16 A[N], float16 B[N]) -> (Y) { Y_f[] +=! float32(A[i]) * float32(B[i])\n"
        "Y[] = float16(Y_f[]) }"
    )
    assert [t.dtype.name for t in fk.parse(text).outputs] == ["float16"]


def test_inputs_do_not_fit_in_caches() -> None:
    def task(kernel: Product) -> Task:
        # Arrays of these shapes that take no memory.
        one = np.zeros((), np.float32)
        arrays = {n: np.broadcast_to(one, s) for n, s in kernel.inputs.items()}
        return Task(kernel.name, "gpu", Path(), arrays, ("Y",), kernel)

    small = task(Product("p", "f", "ij,jk->ik", {"i": 64, "j": 64, "k": 64}))  # 32 KiB of inputs
    assert sets_of(small, "float32", 0) == 2
    assert sets_of(small, "float32", 64 << 10) == 5
    assert sets_of(small, "float16", 64 << 10) == 9
    assert sets_of(small, "float32", 1 << 40) == MOST_SETS
    large = task(Product("p", "f", "ij,jk->ik", {"i": 16384, "j": 32768, "k": 16384}))  # 4 GiB
    assert sets_of(large, "float32", 50 << 20) == 2
    assert sets_of(replace(small, kernel=None), "float32", 1 << 40) == SETS_OF_NETWORK


# --- clocks ------------------------------------------------------------------------------------


class Device(Clock):
    """A device that takes 1 ms to fill, and whatever calls say."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.log = 0.0, list[str]()

    def fill(self) -> None:
        self.log.append("fill")
        self.now += 1e-3

    def mark(self) -> float:
        self.log.append("mark")
        return self.now

    def between(self, first: float, last: float) -> float:
        return last - first

    def wait(self) -> None:
        self.log.append("wait")

    def takes(self, name: str, seconds: float) -> Sequence[Call]:
        def call() -> None:
            self.log.append(name)
            self.now += seconds

        return [call, call]


def test_the_device_is_busy_while_the_host_hands_over() -> None:
    device = Device()
    assert device.seconds(device.takes("a", 2e-6)) == pytest.approx(2e-6)
    warm, timed = device.log[:3], device.log[-4:]
    assert warm == ["a", "a", "wait"] and timed == ["mark", "a", "a", "mark"]
    assert "fill" in device.log[-6:-4]


def test_the_caches_are_emptied() -> None:
    device = Device()
    assert device.seconds(device.takes("a", 2e-6), emptied=True) == pytest.approx(2e-6)
    assert device.log[-8:] == ["fill", "mark", "a", "mark"] * 2
    times = take_turns(
        device, {"a": device.takes("a", 1.0)}, GpuSettings(rounds=1, samples=1), 0, True
    )
    assert times == {"a": pytest.approx(1.0)} and device.log[-4:] == ["fill", "mark", "a", "mark"]


def test_turns() -> None:
    device = Device()
    rotations = {"a": device.takes("a", 1.0), "b": device.takes("b", 3.0)}
    times = take_turns(device, rotations, GpuSettings(rounds=2, samples=2), first=1)
    assert times == {"a": pytest.approx(1.0), "b": pytest.approx(3.0)}
    order = [n for n in device.log if n in "ab"]
    assert order == [*"b" * 8, *"a" * 16, *"b" * 8]
    assert take_turns(device, {}, GpuSettings()) == {}


class Driver:
    """CUDA's driver as cuda-bindings shows it; events are times."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38)

    def __init__(self) -> None:
        self.now, self.events, self.fails = 0.0, dict[int, float](), ""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        values = {"cuDeviceGet": 5, "cuDevicePrimaryCtxRetain": 6, "cuMemAlloc": 7}
        return lambda *_: (1,) if name == self.fails else (0, values.get(name))

    def cuDeviceGetAttribute(self, kind: int, device: int) -> tuple[int, int]:  # noqa: N802
        assert (kind, device) == (38, 5)
        return 0, 50 << 20

    def cuMemsetD8Async(self, *given: int) -> tuple[int]:  # noqa: N802
        assert given == (7, 0, 100 << 20, 0)  # twice the cache
        self.now += 0.5
        return (0,)

    def cuEventCreate(self, flags: int) -> tuple[int, int]:  # noqa: N802
        self.events[len(self.events)] = -1.0
        return 0, len(self.events) - 1

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:  # noqa: N802
        self.events[event] = self.now
        return (0,)

    def cuEventElapsedTime(self, first: int, last: int) -> tuple[int, float]:  # noqa: N802
        return 0, self.events[last] - self.events[first]


def test_events_of_cuda() -> None:
    driver = Driver()
    clock = CudaClock(driver, 0)
    assert clock.cache_bytes == 50 << 20 and clock.stream is None

    def call() -> None:
        driver.now += 2.0

    assert clock.seconds([call, call]) == pytest.approx(2e-3)  # the driver counts milliseconds
    driver.fails = "cuStreamSynchronize"
    with pytest.raises(RuntimeError, match="cuStreamSynchronize failed"):
        clock.wait()


def test_how_fast_a_device_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied is read and written."""
    device = find_device("cuda-emulator")
    clock = Device()

    def copy(to: Any, origin: Any, count: int, stream: Any) -> None:
        assert len(to) >= count == 4096 and len(origin) >= count and to is not origin
        clock.takes("copy", 2e-6)[0]()

    monkeypatch.setattr(device, "copy", copy)
    assert copy_bandwidth(device, clock, 4096) == pytest.approx(2 * 4096 / 2e-6)


def test_markers_of_opencl() -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    clock = clock_of(find_device("opencl"))
    first = clock.mark()
    clock.fill()
    assert 0 < clock.between(first, clock.mark()) < 60
    assert isinstance(clock_of(find_device("cuda-emulator")), HostClock)


# --- whole runs --------------------------------------------------------------------------------


def run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The same in this process, which does not have to load everything again: code, text, errors.

    What it raises is an error of the test.
    """

    def run_(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *words])
        try:
            code = main()
        except SystemExit as exit_:  # argparse's
            code = exit_.code if isinstance(exit_.code, int) else 1
        return code, *capsys.readouterr()

    return run_


@pytest.mark.parametrize(
    ("device", "name", "family"),
    [("cuda-emulator", "softmax", "rows"), ("opencl", "chain", "elementwise")],
)
def test_a_run_without_a_gpu(
    device: str,
    name: str,
    family: str,
    run_here: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    if device == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
        find_device("opencl")
    keep = tmp_path / "now.json"
    done = run(
        "--device", device, "--tiny", "--quick", "--only", f"mm9|{name}",
        "--json", str(keep), "--plot", str(tmp_path / "now"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(keep.read_text())["rows"]
    assert [(r["suite"], r["family"]) for r in rows] == [
        (d, f) for d in ELEMENTS for f in ("matmul", family)
    ]
    for row in rows:
        assert list(row["times"]) == ["farkas"] and not row["failures"]
        assert row["differences"]["farkas"] < MODES[row["suite"]].tolerance
    assert "GB/s" in done.stdout and "suite float16" in done.stdout
    assert f"without tf32: '{device},tf32' needs tensor cores" in done.stdout
    assert "copies at" in done.stdout and "%copy" in done.stdout
    assert "wrote" in done.stdout or "no plot" in done.stdout
    code, shown, _ = run_here("--show", str(keep), "--compare", str(keep))
    assert code == 0 and "time 1.000" in shown


def test_a_run_in_all_types(tmp_path: Path) -> None:
    """A product and a network, by a machine with tensor cores that is emulated."""
    keep = tmp_path / "now.json"
    done = run(
        "--device", "cuda-emulator:sm_90", "--tiny", "--quick", "--only", "tiny_bert|mm64",
        "--json", str(keep),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(keep.read_text())["rows"]
    assert all(list(row["times"]) == ["farkas"] and not row["failures"] for row in rows)
    found = {(r["name"], r["suite"]): r for r in rows}
    assert list(found) == [(n, m) for m in MODES for n in ("mm64", "tiny_bert")]
    apart = {key: row["differences"]["farkas"] for key, row in found.items()}
    assert apart["mm64", "float32"] < 1e-6 < 1e-5 < apart["mm64", "tf32"] < 2e-3
    assert apart["tiny_bert", "float32"] < 1e-6 < 1e-5 < apart["tiny_bert", "tf32"] < 2e-3
    assert max(apart[n, "float16"] for n in ("mm64", "tiny_bert")) < 2e-3
    single, half = (found["tiny_bert", m] for m in ("float32", "float16"))
    assert single["bytes"] == 2 * half["bytes"]
    assert single["memory"]["farkas"] > half["memory"]["farkas"] > half["bytes"]
    assert "MiB peak / s to load" in done.stdout


def test_who_fails_is_named(run_here: Callable[..., tuple[int, str, str]]) -> None:
    """A peer of another kind of device takes no part; a device that is not there is an error."""
    assert all("opencl" not in p.kinds for n, p in PEERS.items() if n != "farkas")
    code, listed, _ = run_here("--list", "--family", "transpose")
    assert code == 0 and len(listed.splitlines()) == 2
    for words, message in (
        (["--device", "cudda"], "did you mean 'cuda'"),
        (["--device", "cuda:77"], ""),
        (["--only", "no such kernel"], "nothing matches"),
        (["--peers", "nobody"], "invalid choice"),
        (["--device", "cuda-emulator:sm_90,tf32"], "use --dtype tf32 instead"),
        (["--device", "cuda-emulator", "--dtype", "tf32"], "did you mean 'cuda-emulator:sm_90,tf"),
    ):
        code, _, errors = run_here(*words)
        assert code in (1, 2) and "error: " in errors and message in errors


def test_a_process_that_fails_says_so_too() -> None:
    done = run("--device", "cudda")
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
