"""Goals and tables of kernels on a GPU, from made-up results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.gpu import goals
from benchmarks.gpu.goals import GOALS, speeds
from benchmarks.results import CopyRate, Results, Row


def row(suite: str, name: str, family: str, **times: float) -> Row:
    """A million operations and bytes."""
    found = Row(suite, name, family, 2, 10**6, 10**6)
    found.times = {n.replace("_", "-"): [t] for n, t in times.items()}
    return found


def made(*rows: Row, **about: Any) -> Results:
    return Results({"device": "GPU", "copy_bandwidth": 1e12, **about}, {}, {}, {}, list(rows))


#: A copy of as many bytes takes 1 µs.
RESULTS = made(
    row("float32", "mm1", "matmul", farkas=2e-3, torch=2e-3, cupy=1e-3),
    row("float32", "mm2", "matmul", farkas=4e-3, torch=2e-3),
    row("float16", "mm1", "matmul", farkas=2e-3, torch=1.5e-3),
    row("float32", "softmax", "rows", farkas=1e-6 / 0.9, torch=5e-6),
    row("float32", "chain", "elementwise", farkas=1e-6 / 0.85, torch=5e-6),
    row("float32", "three", "custom", farkas=1e-3, compile=1.5e-3, torch=1e-3),
    row("float32", "attention", "custom", farkas=1e-3, torch=1e-3),
    row("tf32", "mm1", "matmul", farkas=9.0, torch=1.0),
)


def shown(results: Results) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.finish(results, None, None, console, goals.show)
    return console.export_text()


def lines(results: Results) -> list[list[str]]:
    """The words of the lines of the goals."""
    text = shown(results).partition("goals, in times")[2]
    return [line.split() for line in text.splitlines()[2:] if line.strip()]


def test_speeds() -> None:
    products, halves, memory, memory16, einsums, _ = GOALS
    assert speeds(products, RESULTS) == {"mm1": 1.0, "mm2": 0.5}
    assert speeds(halves, RESULTS) == {"mm1": pytest.approx(0.75)}
    assert speeds(memory, RESULTS) == {
        "softmax": pytest.approx(0.9),
        "chain": pytest.approx(0.85),
    }
    assert speeds(memory16, RESULTS) == {}
    assert speeds(einsums, RESULTS) == {"three": pytest.approx(1.5)}
    assert speeds(memory, made(*RESULTS.rows, copy_bandwidth=None)) == {}


def test_goals_are_met_or_missed() -> None:
    found = lines(RESULTS)
    assert [x[-2] for x in found] == ["missed", "met", "met", "met"]
    products, halves, memory, einsums = found
    assert products[-7:] == ["2", "2", "0.80", "0.71", "0.50", "missed", "mm2"]
    assert halves[-7:] == ["1", "1", "0.70", "0.75", "0.75", "met", "mm1"]
    assert memory[-7:] == ["2", "2", "0.85", "0.87", "0.85", "met", "chain"]
    assert einsums[-7:] == ["1", "2", "1.20", "1.50", "1.50", "met", "three"]


def test_what_was_not_measured() -> None:
    failed = row("float32", "three", "custom")
    failed.failures["farkas"] = "no [such] thing"
    assert lines(made(failed)) == [
        ["fused", "einsums", "beside", "torch.compile", "float32", "0", "1", "1.20",
         "not", "measured"]
    ]  # fmt: skip
    assert "goals, in times" not in shown(made(row("tf32", "mm", "matmul", farkas=1.0)))
    assert "goals, in times" not in shown(made(*RESULTS.rows, settings={"tiny": True}))


def test_shares_of_a_copy() -> None:
    """Only of what is bound by memory, in the rows and in the means of families."""
    text = shown(RESULTS)
    assert "copies at 1000 GB/s" in text and "%roof" not in text
    means = text.partition("geometric means")[2]
    by_family = {line.split()[0]: line.split() for line in means.splitlines() if line.split()}
    # kernels, ahead, ratio to the best peer, the share of a copy, the best peer's
    assert by_family["rows"][1:6] == ["1", "1/1", "0.22", "90", "20"]
    assert by_family["matmul"][1:4] == ["1", "0/1", "9.00"]  # of tf32, which is last
    softmax = next(line for line in text.splitlines() if line.startswith("softmax"))
    product = next(line for line in text.splitlines() if line.startswith("mm2"))
    assert softmax.split()[-1] == "90" and "GB/s" in text
    assert product.split()[-1] == "0.25"  # GB/s, and no share
    old = made(*RESULTS.rows, copy_bandwidth=None)
    assert "%copy" not in shown(old) and "%roof" in shown(old)


def test_copy_rates_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    RESULTS.save(path)
    assert Results.load(path).copies == CopyRate(1e12)
    assert CopyRate(1e12).seconds(10**9, 10**6) == 1e-6
    assert made(copy_bandwidth=None).copies is None
