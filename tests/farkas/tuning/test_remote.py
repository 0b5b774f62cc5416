"""Measuring by executors: what their workers do wrong costs a point and nothing else."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import farkas as fk
from farkas.tuning import remote
from farkas.tuning.exchange import records_here
from farkas.tuning.measurer import Timing
from runtime.tuned.record import Trial

SIZES = {"I": 13, "J": 401, "K": 37}


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))


def tuned(executor: Executor, trials: int = 6) -> fk.TunedKernel:
    return fk.tune(
        "ij,jk->ik", dtypes="float32", sizes=SIZES, trials=trials, budget=60, executor=executor
    )


def trials() -> list[Trial]:
    return [r for r in records_here().read()[0] if isinstance(r, Trial)]


def test_threads_measure() -> None:
    with ThreadPoolExecutor(1) as executor:
        made = tuned(executor)
    assert len(made.found.history) == 6 == len(trials())
    assert all(math.isfinite(t.ratio) or t.failure for t in trials())


class Faulty(Executor):
    """An executor whose workers answer as they like."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.answer(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def raising(*_: Any) -> Any:
    raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (raising, "RuntimeError: out of luck"),
        (lambda task: "fast", "not a timing"),
        (lambda task: Timing(-1.0), "not a timing"),
        (lambda task: Timing(math.nan), "not a timing"),
        (lambda task: remote.measure_there(replace(task, machine="abacus")), "another machine"),
    ],
)
def test_answers_that_are_none(answer: Callable[..., Any], failure: str) -> None:
    made = tuned(Faulty(answer))
    assert made.gain == 1.0 and not made.winner.script
    assert all(failure in m.trial.failure for m in made.found.history)
    assert not trials(), "it says nothing about these schedules"


def test_a_lie_wins_nothing() -> None:
    made = tuned(Faulty(lambda task: Timing(1e-6)))
    assert made.gain < 20, "winners are compared here"


def test_an_executor_that_is_shut_down() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    assert tuned(executor).gain == 1.0


_killed = False


def killing(task: remote.Task) -> Timing:
    """Measure once, then die."""
    global _killed
    if _killed:
        os.kill(os.getpid(), signal.SIGKILL)
    _killed = True
    return Timing(1.0)


def test_workers_that_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "measure_there", killing)
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as executor:
        made = tuned(executor)
    assert any("BrokenProcessPool" in m.trial.failure for m in made.found.history)
    assert any(m.trial.ratio == 1.0 for m in made.found.history)
