"""Mutants of real models: no crash, no hang, no wrong answer; and that the judge sees them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.mutation.judge import BAD, Judge, Outcome, differs
from tests.mutation.mutants import Mutant, mutant, mutants
from tests.mutation.sanitize import run_sanitized
from tests.mutation.sources import Sample
from tests.mutation.workers import Answer, Worker


def tiny() -> Sample:
    """A model of three nodes with a constant of numbers and one of extents."""
    x, w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.eye(4, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "tiny", [helper.make_tensor_value_info("x", 1, [3, 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array([2, 6]), "s")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Sample("tiny", model, {"x": x})


def judged(every: Iterable[Mutant], cache: Path, sanitize: bool = False) -> list[Outcome]:
    """The outcomes of mutants, none of which is bad."""
    with Judge(cache, sanitize=sanitize) as judge:
        outcomes = [judge(one) for one in every]
    assert not [str(o) for o in outcomes if o.kind in BAD]
    return outcomes


def test_mutants_of_a_tiny_model(cache_directory: Path) -> None:
    sample = tiny()
    outcomes = judged((mutant(1, n, sample) for n in range(12)), cache_directory)
    assert {"refused", "equal"} <= {o.kind for o in outcomes}


@pytest.mark.slow
def test_mutants_of_networks(cache_directory: Path, tmp_path: Path) -> None:
    try:
        every = list(mutants(2, range(100), tmp_path))
    except OSError as error:
        pytest.skip(str(error))
    judged(every, cache_directory)
    judged(every[::10], cache_directory, sanitize=True)


def test_a_number_makes_the_same_mutant_again() -> None:
    one, other = (mutant(1, 3, tiny()) for _ in range(2))
    assert one.data == other.data and one.mutations == other.mutations


# --- the judge sees it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, 2.0], [1.0, np.nan], False),
        ([1.0, np.inf], [1.0, -np.inf], False),
        ([100.01, 0.0], [100.0, 0.01], True),
        ([1.0, 0.0], [1.0, 0.01], False),
    ],
)
def test_floats_are_compared(got: list[float], wanted: list[float], same: bool) -> None:
    arrays = ({"y": np.array(a, np.float32)} for a in (got, wanted))
    assert (differs(*arrays, {}) == "") == same


def test_types_shapes_and_integers_are_compared() -> None:
    y = np.arange(4)
    assert differs({"y": y}, {"y": y}, {}) == ""
    assert "expected 4" in differs({"y": y}, {"y": y + (y == 3)}, {})
    assert "int32" in differs({"y": y.astype(np.int32)}, {"y": y}, {})
    assert "[2, 2]" in differs({"y": y}, {"y": y.reshape(2, 2)}, {})
    assert "'z'" in differs({"y": y}, {"z": y}, {})


def test_workers_that_die_or_hang_are_replaced(tmp_path: Path) -> None:
    worker = Worker(signal.raise_signal, tmp_path, 1.0)
    try:
        assert worker(signal.SIGSEGV) == Answer("crash", "SIGSEGV")
        assert worker(signal.SIGCONT) is None
    finally:
        worker.stop()
    worker = Worker(time.sleep, tmp_path, 1.0)
    try:
        assert worker(60).how == "hang"
        assert worker(0) is None
    finally:
        worker.stop()


def test_a_network_of_open_sizes_under_the_sanitizers() -> None:
    """One output is computed, one is filled after the call: it has a place, but no storage."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 4]) for n in ("x", "same", "y")]
    w = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(nodes, "open", ports[:1], ports[1:], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    answer = run_sanitized(model.SerializeToString(), {"x": np.ones((3, 4), np.float32)})
    assert (answer.how, answer.what) == ("ran", "1 networks")
