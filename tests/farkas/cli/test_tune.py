"""``farkas tune``: what is printed and written, and bad input."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import farkas as fk
from farkas.cli.tune import Table
from farkas.networks.tune_network import TunedNetwork
from farkas.tuning.job import Progress
from tests.farkas.conftest import Cli

TEXT = (
    "-e",
    "ij,jk->ik",
    "--dtype",
    "float32",
    "--size",
    "I=13",
    "--size",
    "J=301",
    "--size",
    "K=37",
)


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))


def test_a_text_once_and_again(cli: Cli) -> None:
    first = cli("tune", *TEXT, "--trials", "8", "--budget", "1m")
    assert first.exit_code == 0, first.output
    assert "times as fast" in first.output or "nothing is faster" in first.output
    assert cli("tune", *TEXT).output.splitlines()[-1] == first.output.splitlines()[-1]
    assert "of those drawn were refused" in first.output
    assert "goes on with" in cli("tune", *TEXT).output
    out = cli("tune", "--export", "r.jsonl")
    assert out.output == "written   1 record to r.jsonl\n" and Path("r.jsonl").exists()
    again = "added     0 records, 1 record no faster than this machine's\n"
    assert cli("tune", "--import", "r.jsonl").output == again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "0"), "expected seconds, from 1 to a week"),
        (("--budget", "soon"), "expected seconds or minutes, as in 60s or 5m"),
        (("--budget", "9" * 50), "expected seconds or minutes"),
        (("--trials", "0"), "not in the range"),
        (("--size", "I"), "--size I: expected a name and a number"),
        (("--at", "I=x"), "--at I=x: expected a name and a number"),
        (("--export", "r.jsonl"), "take no program"),
    ],
)
def test_bad_options(cli: Cli, words: tuple[str, ...], message: str) -> None:
    result = cli("tune", "-e", "ij,jk->ik", "--dtype", "float32", *words)
    assert result.exit_code in (1, 2) and message in result.output


def test_what_a_terminal_shows() -> None:
    """One table that is written over; elsewhere, a line every five seconds."""
    shown = io.StringIO()
    with Table(Console(file=shown, force_terminal=True, width=100)) as table:
        table.show(Progress("mm", 12.0, 60.0, 24, 3, 0.08, 0.5, 2e-3, "rows 4"))
    for words in ("12 of 60 s", "24 schedules, 3 of them failed", "8.0% of those drawn", "rows 4"):
        assert words in shown.getvalue()
    assert "2.00 times as fast as 2.0 ms" in shown.getvalue()
    lines = io.StringIO()
    with Table(Console(file=lines, width=100)) as table:
        for second in (6.0, 7.0, 12.0):
            table.show(Progress("mm", second, 60.0, 24, 3, 0.08, 0.5, 2e-3, "rows 4"))
    assert lines.getvalue().count("mm: ") == 2


def test_nothing_to_tune(cli: Cli) -> None:
    assert "give either a FILE" in cli("tune").output
    assert "is for texts, not for networks" in cli("tune", "m.onnx", "--trials", "3").output
    assert "no values for I, J, K" in cli("tune", "-e", "ij,jk->ik", "--dtype", "float32").output


def network() -> onnx.ModelProto:
    """Two products of odd shapes."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype(np.float32) for s in ((501, 37), (37, 11))]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 501])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 11])],
        [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_network(cli: Cli) -> None:
    onnx.save(network(), "m.onnx")
    assert "kernels of open sizes are not tuned" in cli("tune", "m.onnx", "--budget", "10s").output
    x = np.random.default_rng(1).standard_normal((13, 501)).astype(np.float32)
    before = fk.compile_onnx("m.onnx", shapes={"batch": 13}).run({"x": x})["y"]
    result = cli("tune", "m.onnx", "--shape", "batch=13", "--budget", "20s")
    assert result.exit_code == 0, result.output
    assert "the network: " in result.output
    after = fk.compile_onnx("m.onnx", shapes={"batch": 13}).run({"x": x})["y"]
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_what_is_said_of_a_network() -> None:
    made = TunedNetwork(fk.compile_onnx(network(), shapes={"batch": 2}), (), 2e-3, 1e-3, True)
    assert made.gain == 2.0 and str(made).endswith("2.0 ms to 1.0 ms")
    assert "no kernel was tuned" in str(made)
    given_up = replace(made, kept=False)
    assert given_up.gain == 1.0 and str(given_up).endswith("it keeps the schedules that it had")
