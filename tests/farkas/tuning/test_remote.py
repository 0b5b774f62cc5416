"""Measuring by executors: what their workers do wrong costs a point and nothing else."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import farkas as fk
from farkas.tuning import remote
from farkas.tuning.exchange import records_here
from farkas.tuning.learned import Ranking
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


def test_of_a_workers_threads_one_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[remote.Task] = []

    def measured(task: remote.Task) -> Timing:
        busy.append(task)
        time.sleep(0.02)
        return Timing(1.0 + (busy.pop() is not task or bool(busy)))

    monkeypatch.setattr(remote, "_measured", measured)
    with ThreadPoolExecutor(3) as executor:
        made = tuned(executor)
    assert 2.0 not in [m.trial.ratio for m in made.found.history]


def test_a_worker_with_another_default_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    target_of = remote.target_of

    def target(cc: Any, *rest: Any) -> Any:
        asked.append(cc)
        other = SimpleNamespace(runner=SimpleNamespace(tuned=None))
        return other if cc is None else target_of(cc, *rest)

    monkeypatch.setattr(remote, "target_of", target)
    with ThreadPoolExecutor(1) as executor:
        (found,) = tuned(executor, 1).found.history
    assert asked[0] is None and os.access(asked[1], os.X_OK)
    assert "another machine" not in found.trial.failure


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
        (lambda task: Timing("1"), "not a timing"),  # type: ignore[arg-type]
        (lambda task: remote.measure_there(replace(task, machine="abacus")), "another machine"),
    ],
)
def test_answers_that_are_none(
    answer: Callable[..., Any], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[Trial] = []
    monkeypatch.setattr(Ranking, "learn", lambda _, trials: learned.extend(trials))
    with pytest.warns(fk.TuningWarning, match=f"none of 6 schedules .*{failure}"):
        made = tuned(Faulty(answer))
    assert made.gain == 1.0 and not made.winner.script
    assert all(failure in m.trial.failure for m in made.found.history)
    assert not learned and not trials(), "it says nothing about these schedules"
    assert not records_here().winners(), "nor that nothing is faster"


class Silent(Executor):
    """An executor whose workers do not answer."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(Future())
        return self.futures[-1]


def test_workers_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a generation together cost one wait, and nobody begins with it later."""
    monkeypatch.setattr(remote, "ANSWER", 0.5)
    monkeypatch.setattr(remote.RemoteMeasurer, "_limit", lambda *_: 0.0)
    executor = Silent()
    with pytest.warns(fk.TuningWarning, match="none of 6 .*the worker did not answer"):
        tuned(executor)
    assert len(executor.futures) == 6 and all(f.cancelled() for f in executor.futures)


def test_a_lie_wins_nothing() -> None:
    made = tuned(Faulty(lambda task: Timing(1e-6)))
    assert made.gain < 20, "winners are compared here"


def test_an_executor_that_is_shut_down() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.warns(fk.TuningWarning, match="no worker took it"):
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
