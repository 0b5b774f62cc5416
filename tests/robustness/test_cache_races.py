"""Two processes compile one model at the same time into one empty cache; one of them is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import farkas as fk
from runtime.common.cache import Cache
from tests.frontends.onnx.onnx_support import close, ort_run
from tests.robustness.nets import tiny_net

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import sys
import numpy as np
import farkas as fk
from frontends.onnx import import_model
import runtime.network.cpu_model
print("ready", flush=True)
model = fk.compile_onnx(sys.argv[1], threads=1)
rows = model.run({"x": np.ones((2, 3), np.float32)})["y"]
print(rows.tobytes().hex(), flush=True)
"""


def start(model: Path, cache: Path) -> subprocess.Popen[str]:
    """A process that has imported everything and begins to compile."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(model)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FARKAS_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process


def one_round(model: Path, folder: Path, seconds: float, expected: str) -> bool:
    """Kill one of two processes so long after it began; whether it was still at work."""
    victim, survivor = start(model, folder), start(model, folder)
    for process in (victim, survivor):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    working = victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    output, errors = survivor.communicate(timeout=120)
    victim.communicate()
    assert survivor.returncode == 0, errors
    assert output.strip() == expected
    check_cache(folder, expected, model)
    return working


def check_cache(folder: Path, expected: str, model: Path) -> None:
    """Everything in the cache can be used, and what was left behind goes away in time."""
    store = Cache(folder)
    entries = [e for group in (folder / "v1").iterdir() for e in group.iterdir()]
    assert entries and all(store.get(e.name) is not None for e in entries)
    again = fk.compile_onnx(model, cache=folder, threads=1)
    assert again.report.from_cache
    rows = again.run({"x": np.ones((2, 3), np.float32)})["y"]
    assert rows.tobytes().hex() == expected
    left = list((folder / "temporary").iterdir())
    assert len(left) <= 3  # of the process that was killed, and of no other
    for path in left:
        os.utime(path, (1, 1))
    Cache(folder).put("0" * 16, {"x": b""})
    assert list((folder / "temporary").iterdir()) == []
    Cache(folder).clear()
    assert Cache(folder).info().entries == 0


def rounds(count: int, folder: Path) -> int:
    """How often the process was killed while it worked."""
    path = folder / "m.onnx"
    onnx.save(tiny_net(), path)
    start_time = time.monotonic()
    model = fk.compile_onnx(path, cache=folder / "first", threads=1)
    cold = time.monotonic() - start_time
    inputs = {"x": np.ones((2, 3), np.float32)}
    close(model.run(inputs), ort_run(tiny_net(), inputs))
    expected = model.run(inputs)["y"].tobytes().hex()
    rng = random.Random(count)
    working = 0
    for number in range(count):
        # Two processes at once take longer than one.
        delay = rng.uniform(0, 1.5 * cold)
        working += one_round(path, folder / f"cache{number}", delay, expected)
    return working


def test_one_of_two_processes_is_killed(tmp_path: Path) -> None:
    assert rounds(5, tmp_path) >= 1


@pytest.mark.slow
def test_one_of_two_processes_is_killed_often(tmp_path: Path) -> None:
    assert rounds(20, tmp_path) >= 8
