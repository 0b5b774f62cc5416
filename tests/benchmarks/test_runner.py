"""Measuring, keeping and showing: with clocks and processes that are made up, and one real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import report, runner
from benchmarks.measure import Settings, take_turns
from benchmarks.peers import PEERS
from benchmarks.results import OURS, Results, Row
from benchmarks.runner import ROOT, Plan, measure_item, processors
from benchmarks.suites import SUITES, Item, items_of
from benchmarks.worker import Job, difference
from runtime.cpu.roofline import Roofline

ROOF = Roofline(2, 100e9, 80e9, 40e9, 20e9, 1 << 20, 1 << 25)


class Clock:
    """A clock that only calls and pauses move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.log.append("pause")
        self.now += seconds

    def takes(self, name: str, seconds: float) -> Any:
        def call() -> None:
            if self.log[-1] != name:
                self.log.append(name)
            self.now += seconds

        return call


def test_contenders_take_turns() -> None:
    clock = Clock()
    calls = {"a": clock.takes("a", 2e-3), "b": clock.takes("b", 5e-6), "c": clock.takes("c", 0.5)}
    times = take_turns(calls, Settings(rounds=2), clock, clock.sleep, first=1)
    assert {n: round(t, 9) for n, t in times.items()} == {"a": 2e-3, "b": 5e-6, "c": 0.5}
    order = ["b", "c", "a", "a", "c", "b"]
    assert clock.log == [part for name in order for part in ("pause", name)]


def test_slow_contenders_do_not_hold_up_the_others() -> None:
    clock = Clock()
    calls = {"slow": clock.takes("slow", 15.0), "quick": clock.takes("quick", 0.01)}
    times = take_turns(calls, Settings(rounds=4), clock, clock.sleep)
    assert times == {"slow": pytest.approx(15.0), "quick": pytest.approx(0.01)}
    assert clock.log.count("slow") == 1 and clock.log.count("quick") == 4


def test_differences() -> None:
    a = np.array([1.0, -4.0], np.float32)
    assert difference([a], [a]) == 0
    assert difference([a + 1], [a]) == 0.25
    for wrong in ([], [a, a], [a[:1]], [a * np.nan], [a * np.inf]):
        assert difference(wrong, [a]) == float("inf")
    assert difference([np.zeros(0)], [np.zeros(0)]) == 0
    assert difference([a], [a], "float32") == 0
    assert difference([a], [a], "float16") == float("inf")
    assert difference([a.astype(np.float16)], [a], "float16") == 0
    assert difference([np.arange(3)], [np.arange(3)], "float16") == 0


def row(**values: Any) -> Row:
    return Row("K", "mm", "matmul", 2, 10**9, 10**6, **values)


def test_ratios_and_shares_of_the_roofline() -> None:
    found = row(times={"farkas": [0.02, 0.04, 0.03], "ort": [0.04, 0.05], "torch": [0.1]})
    assert found.best_peer == "ort"
    assert found.ratio == pytest.approx(0.03 / 0.045)
    assert found.spread == (pytest.approx(0.5), pytest.approx(0.8))
    assert found.roof("farkas", ROOF) == pytest.approx(0.01 / 0.03)
    assert found.openness is None
    assert row().ratio is None and row(times={"farkas": [1.0]}).best_peer is None
    open_sizes = Row("symbolic", "mm", "matmul", 1, 1, 1)
    open_sizes.times = {"farkas-fixed": [2.0], "farkas-symbolic": [3.0]}
    assert open_sizes.openness == 1.5 and open_sizes.ratio is None


def test_the_level_of_memory_that_holds_the_data() -> None:
    assert ROOF.bandwidth(1 << 20) == ROOF.l2
    assert ROOF.bandwidth((1 << 20) + 1) == ROOF.l3
    assert ROOF.bandwidth(1 << 26) == ROOF.dram
    assert ROOF.seconds(0, 8000) == pytest.approx(1e-7)


def results(**values: Any) -> Results:
    return Results(
        {"time": "now"}, {"ort": "1"}, {"xla": "not installed"}, {2: ROOF}, [row(**values)]
    )


def test_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    found = results(times={"farkas": [1.0]}, failures={"ort": "it died"}, memory={"ort": 5})
    found.save(path)
    assert Results.load(path) == found
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    for text in ("[]", "{}", '{"format": 0}'):
        path.write_text(text)
        with pytest.raises(ValueError):
            Results.load(path)


def shown(found: Results, old: Results | None = None) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.show(found, console)
    if old is not None:
        report.compare(old, found, console)
    return console.export_text()


def test_tables() -> None:
    now = results(
        times={"farkas": [2e-3, 2e-3], "ort": [4e-3, 4e-3]},
        compile={"farkas": [1.5, 0.25]},
        failures={"torch": "ValueError: no [such] thing"},
        memory={"farkas": 3 << 20},
    )
    text = shown(now, results(times={"farkas": [4e-3], "ort": [4e-3]}))
    for part in ("2000", "4000", "0.50", "1.50", "0.25", "no [such] thing", "xla (not installed)"):
        assert part in text
    assert "time 0.500, ratio to the best peer 0.500" in text
    assert "nothing in common" in shown(now, Results({}, {}, {}, {}))


ITEM = Item("K", "mm", "matmul", 10, 10)


def plan(tmp_path: Path, processes: int = 3) -> Plan:
    return Plan(("farkas", "ort", "torch", "xla"), processes, 2.0, Settings(), tmp_path)


def test_peers_that_lag_or_die_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def start(job: Job, folder: Path) -> tuple[list[dict[str, Any]], str | None]:
        assert Job.from_json(job.to_json()) == job
        started.append(job.peers)
        lines: list[dict[str, Any]] = []
        for name in job.peers:
            lines.append({"at": name})
            if name == "xla":
                return lines, "SIGSEGV"
            lines.append({"prepared": name, "seconds": 1.0, "difference": 0.0})
        speeds = {"farkas": 9.0, "ort": 1.0, "torch": 2.5}
        lines.append({"times": {n: speeds[n] for n in job.peers}})
        return lines, None

    monkeypatch.setattr(runner, "start", start)
    found = measure_item(ITEM, 1, plan(tmp_path))
    assert started == [
        ("farkas", "ort", "torch", "xla"),
        ("farkas", "ort", "torch"),
        ("farkas", "ort"),
        ("farkas", "ort"),
    ]
    assert found.failures == {"xla": "the process died: SIGSEGV"}
    assert found.times == {"farkas": [9.0] * 3, "ort": [1.0] * 3, "torch": [2.5]}


def test_a_process_that_dies_early_ends_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "start", lambda job, folder: ([{"at": "task"}], "exit code 1"))
    found = measure_item(ITEM, 1, plan(tmp_path, 1))
    assert not found.times and "died at task" in found.failures["farkas"]


def test_who_leaves_no_time_for_the_others_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"farkas": 3.0, "ort": 1.0, "torch": 1700.0, "xla": 2.0}
    started = []

    def start(job: Job, folder: Path) -> tuple[list[dict[str, Any]], str | None]:
        started.append(job.peers)
        lines: list[dict[str, Any]] = []
        for name in job.peers:
            lines += [{"at": name}, {"prepared": name, "seconds": seconds[name], "difference": 0.0}]
        lines.append({"at": "timing"})
        if "torch" in job.peers:
            return lines, "it took longer than 1800 s"
        return [*lines, {"times": dict.fromkeys(job.peers, 1.0)}], None

    monkeypatch.setattr(runner, "start", start)
    found = measure_item(ITEM, 1, plan(tmp_path, 1))
    assert started == [("farkas", "ort", "torch", "xla"), ("farkas", "ort", "xla")]
    assert found.failures == {
        "torch": "the process died: it took longer than 1800 s, of which 1700 s until its first "
        "call"
    }
    assert found.times == {"farkas": [1.0], "ort": [1.0], "xla": [1.0]}


def test_a_process_that_dies_when_nobody_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prepared": "farkas", "seconds": 9.0, "difference": 0.0}, {"at": "timing"}]
    for said, death in ((lines, "SIGKILL"), (lines[1:], "it took longer than 1800 s")):
        monkeypatch.setattr(runner, "start", lambda job, folder, end=(said, death): end)
        found = measure_item(ITEM, 1, plan(tmp_path, 1))
        assert not found.times
        assert found.failures["farkas"] == f"the process died at timing: {death}"


def test_processors() -> None:
    allowed = os.sched_getaffinity(0)
    assert len(set(processors(len(allowed)))) == len(allowed)
    assert processors(1)[0] in allowed
    with pytest.raises(ValueError, match="were requested"):
        processors(len(allowed) + 1)


def test_suites() -> None:
    counts = {name: len(items_of(name)) for name in SUITES if name != "E"}
    assert counts["K"] == 74 and counts["heldout"] == 40 and counts["symbolic"] > 60
    assert list(PEERS)[: len(OURS)] != [] and set(OURS) <= set(PEERS)


def test_one_real_run(tmp_path: Path) -> None:
    """The command, on the kernel that does nothing; how long it takes is not looked at."""
    keep = tmp_path / "now.json"
    line = [sys.executable, "-m", "benchmarks", "--quick", "--suite", "K", "--only", "relu16",
            "--threads", "1", "--peers", "ort", "--json", str(keep)]  # fmt: skip
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(keep.read_text())["rows"]
    assert set(found["times"]) == {"farkas", "farkas-symbolic", "ort"}
    assert max(found["differences"].values()) < 1e-6 and not found["failures"]
    again = [sys.executable, "-m", "benchmarks", "--show", str(keep), "--compare", str(keep)]
    text = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "overhead_relu16" in text and "ratio to the best peer 1.000" in text


def test_mistakes_on_the_command_line() -> None:
    for arguments in (["--only", "no such kernel"], ["--threads", "4097"], ["--peers", "nobody"]):
        line = [sys.executable, "-m", "benchmarks", *arguments]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and "error" in done.stderr


@pytest.mark.parametrize("module", ["benchmarks", "benchmarks.gpu"])
def test_results_that_are_none_are_told_before_anything_is_measured(
    module: str, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": 0}')
    for option in ("--compare", "--show"):
        for path in (wrong, tmp_path / "missing.json"):
            line = [sys.executable, "-m", module, option, str(path)]
            done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 2 and f"error: {path} has no results" in done.stderr
            assert "Traceback" not in done.stderr
