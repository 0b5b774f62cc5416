"""Measuring by the workers of dask and ray, of which one is killed in mid-run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

import farkas as fk
from farkas.tuning.exchange import records_here
from farkas.tuning.job import Progress
from runtime.tuned.record import Trial

TEXT = "ij,jk->ik"
OPTIONS: dict[str, Any] = {
    "dtypes": "float32", "sizes": {"I": 13, "J": 401, "K": 37}, "budget": 120, "threads": 1
}  # fmt: skip


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))


@pytest.fixture
def dask() -> Iterator[tuple[Executor, Callable[[], Any]]]:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))
        yield client.get_executor(), lambda: os.kill(victim, signal.SIGKILL)


def process() -> int:
    return os.getpid()


@pytest.fixture
def ray() -> Iterator[tuple[Executor, Callable[[], Any]]]:
    module = pytest.importorskip("ray")
    from farkas.tuning.ray_executor import RayExecutor

    module.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    executor = RayExecutor(cpus=1)
    victim = executor.submit(process).result()
    yield executor, lambda: os.kill(victim, signal.SIGKILL)
    module.shutdown()


@pytest.mark.parametrize("cluster", ["dask", "ray"])
def test_a_worker_is_killed(cluster: str, request: pytest.FixtureRequest) -> None:
    """It costs what it was at; the records give the same winner on this machine alone, or a better
    one that was lost.
    """
    executor, kill = request.getfixturevalue(cluster)
    killed: list[Progress] = []

    def progress(now: Progress) -> None:
        if now.trials >= 8 and not killed:
            killed.append(now)
            kill()

    made = fk.tune(TEXT, **OPTIONS, trials=24, executor=executor, progress=progress)
    assert killed
    trials = [r for r in records_here().read()[0] if isinstance(r, Trial)]
    assert len(trials) >= 16, "the other one goes on"
    again = fk.tune(TEXT, **OPTIONS, trials=len(trials), again=True)
    lost = again.winner.script not in {t.script for t in trials}
    assert lost or again.winner.script == made.winner.script
