"""Random programs equal the reference on every layer of checks; see `random_programs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.find_device import find_device
from tests.gpu import random_programs
from tests.gpu.layers import missing_layers
from tests.gpu.random_programs import judge


def sweep(start: int, end: int, *layers: str) -> None:
    """In a process of its own, which may fork: drivers have threads."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.random_programs"]
    command += [str(start), str(end)]
    for layer in layers:
        if layer == "opencl":
            pytest.importorskip("pyopencl", reason="pip install '.[opencl]'")
            find_device("opencl")
        if layer in missing_layers():
            pytest.skip(f"nothing runs in {layer} here")
        command += ["--layer", layer]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    words = done.stdout.split()
    assert words[1].rstrip(",") == "equal" and int(words[0]) > 0.9 * (end - start)


@pytest.mark.parametrize("layer", ["opencl", "machine"])
def test_random_programs(layer: str) -> None:
    sweep(0, 8, layer)


def test_what_was_equal_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known"
    assert judge(range(2), ["forward"], known) == ["equal", "equal"]
    keys = known.read_text().split()
    assert len(set(keys)) == len(keys) >= 2
    monkeypatch.setattr(random_programs, "_fault", lambda *_: "wrong")
    assert judge(range(2), ["forward"], known) == ["equal", "equal"]  # without a look
    assert all("wrong" in said for said in judge(range(2, 4), ["forward"], known))
    assert known.read_text().split() == keys  # what is wrong is looked at again


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_many_on_devices(start: int) -> None:
    sweep(start, start + 50, "opencl", "forward", "backward", "machine")


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["address", "thread", "oclgrind"])
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_many_in_simulators(start: int, layer: str) -> None:
    sweep(start, start + 50, layer)
