"""Suite compile: its networks, one run of it, its files and its command line."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from rich.console import Console

from benchmarks.compile_time import networks as module
from benchmarks.compile_time import run
from benchmarks.compile_time.networks import Network, detector, encoder
from benchmarks.runner import ROOT


def tiny_runs(path: Path) -> module.Runs:
    return tuple({"X": np.ones((1, 3, n, n), np.float32)} for n in (32, 48))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector with few channels, and one that cannot be had."""
    make = partial(detector, 0, (2, 4))

    def unavailable(folder: Path) -> Path:
        raise run.UnavailableError("there is no network")

    small = Network("tiny", True, partial(module._saved, "tiny", make), tiny_runs)
    monkeypatch.setattr(
        run, "networks", lambda: (small, Network("away", False, unavailable, tiny_runs))
    )


def test_built_networks_are_valid_for_all_sizes() -> None:
    for model, shapes in (
        (detector(0, (4, 8)), ({"X": (1, 3, 16, 32)}, {"X": (2, 3, 32, 16)})),
        (encoder(1, 32, 2, 64), ({"X": (1, 5, 32)}, {"X": (1, 9, 32)})),
    ):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for shape in shapes:
            made = session.run(None, {n: np.ones(s, np.float32) for n, s in shape.items()})
            assert all(np.isfinite(x).all() for x in made)


def test_a_run(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=200)
    rows = run.measure("", 1, 1, ["ort"], ROOT, console)
    found, away = rows
    assert found.is_open and not found.failures
    assert away.failures == {"farkas": "there is no network"}
    for contender in ("farkas", "before"):
        (cold,), (cached,) = found.cold[contender], found.cached[contender]
        assert 0 < cold["first"] < cold["all"] and cold["processor"] > 0
        assert cold["kernels"] > 2 and cold["lines"] > 100 and cold["library"] > 1000
        assert {"import", "schedule", "generate", "compile"} <= cold["stages"].keys()
        assert cached["lines"] == cold["lines"]
    assert found.cold["ort"][0]["all"] > 0 and "ort" not in found.cached
    run.save(rows, tmp_path / "found.json")
    earlier = run.load(tmp_path / "found.json")
    assert earlier == rows
    run.show(rows, earlier, console)
    shown = capsys.readouterr().out
    assert (
        "1.00" in shown and "open sizes:" in shown and "away, farkas: there is no network" in shown
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--suite", "compile", "K"], "suite compile runs alone"),
        (["--suite", "compile", "--threads", "4097"], "4097 threads, but only"),
        (["--suite", "compile", "--against", "/nowhere"], "/nowhere has no Farkas"),
        (["--suite", "compile", "--compare", "setup.cfg"], "no earlier results"),
    ],
)
def test_refused_command_lines(options: list[str], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and problem in done.stderr, done.stderr
