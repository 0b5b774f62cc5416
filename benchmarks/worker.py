"""One fresh process: one computation by all contenders.  Started by `benchmarks.runner`.

    python -m benchmarks.worker JOB.json

The job is described in the file; events are appended to a report, one JSON line each, so that the
parent knows which contender was running when a process dies.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernel import Array
from benchmarks.measure import Settings, take_turns
from benchmarks.task import Task

#: A contender whose first call takes more seconds than this is not called again.
PATIENCE = 10.0


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes
    ----------
    suite, name : the computation; `path` is the file of a network
    threads, processors : how many threads, on which processors
    peers : contenders, in order
    settings : of `benchmarks.measure`; None measures memory and no time
    number : of this process among those with the same job
    module : that the process runs; device : of `benchmarks.gpu`
    report : the file to which lines are appended
    """

    suite: str
    name: str
    threads: int
    processors: tuple[int, ...]
    peers: tuple[str, ...]
    report: str
    path: str | None = None
    number: int = 0
    module: str = "benchmarks.worker"
    device: str = ""
    settings: dict[str, Any] | None = field(default_factory=lambda: Settings().as_dict())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        values = json.loads(text)
        for name in ("processors", "peers"):
            values[name] = tuple(values[name])
        return Job(**values)


class Report:
    """The file to which a process reports its events."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __call__(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def make_task(job: Job, folder: Path) -> Task:
    """The computation that a job names."""
    from benchmarks.suites import kernels_of, models_of

    models = models_of(job.suite)
    if models is not None and job.path is not None:
        return models.task(job.name, Path(job.path))
    from benchmarks.task import kernel_task

    kernel = next(k for k in kernels_of(job.suite) if k.name == job.name)
    return kernel_task(kernel, job.suite, folder)


def difference(
    results: Sequence[Array], expected: Sequence[Array], element: str | None = None
) -> float:
    """The greatest difference relative to the greatest magnitude; infinite for other shapes, and
    for floats of another type than `element`, if given.
    """
    worst = 0.0
    if len(results) != len(expected):
        return float("inf")
    for result, reference in zip(results, expected, strict=True):
        if result.shape != reference.shape:
            return float("inf")
        if element is not None and result.dtype.kind == "f" and result.dtype != element:
            return float("inf")
        exact = reference.astype(np.float64)
        apart = float(np.abs(result.astype(np.float64) - exact).max(initial=0.0))
        scale = float(np.abs(exact).max(initial=0.0)) or 1.0
        worst = max(worst, apart / scale if np.isfinite(apart) else float("inf"))
    return worst


def run(job: Job, folder: Path) -> None:
    """Prepare, check and time every contender; those that fail are reported and left out."""
    from benchmarks.peers import PEERS

    report = Report(job.report)
    report(at="task")
    task = make_task(job, folder)
    expected = task.reference() if task.reference is not None else None
    calls, slow = {}, {}
    for name in job.peers:
        peer = PEERS[name]
        if not peer.suits(task):
            continue
        report(at=name)
        try:
            peer.load()
            start = time.perf_counter()
            prepared = peer.prepare(task, job.threads)
            seconds = time.perf_counter() - start
            start = time.perf_counter()
            returned = prepared.call()
            first = time.perf_counter() - start
            results = prepared.fetch(returned)
            if expected is None and not peer.ours:
                expected = results
            apart = difference(results, expected) if expected is not None else None
        except Exception as error:
            text = " ".join(str(error).split())
            report(failed=name, message=f"{type(error).__name__}: {text}"[:600])
            continue
        report(prepared=name, seconds=seconds, difference=apart, weights=prepared.weights)
        if apart is not None and not apart <= task.tolerance:
            report(failed=name, message=f"wrong result: relative difference {apart:.2g}")
            continue
        if first > PATIENCE:
            slow[name] = first
        else:
            calls[name] = prepared.call
    report(at="timing")
    assert job.settings is not None
    report(times={**take_turns(calls, Settings(**job.settings), first=job.number), **slow})


def weigh(job: Job, folder: Path) -> None:
    """Measure the peak memory of one contender: preparing and three calls."""
    from benchmarks.peers import PEERS

    report = Report(job.report)
    (name,) = job.peers
    peer = PEERS[name]
    task = make_task(job, folder)
    report(at=name)
    peer.load()
    before = _peak()
    prepared = peer.prepare(task, job.threads)
    for _ in range(3):
        prepared.call()
    report(memory=_peak(), before=before)


def _peak() -> int:
    """The peak memory of this process, in bytes.

    getrusage would include the parent's at the time of the fork.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    job = Job.from_json(Path(sys.argv[1]).read_text())
    os.sched_setaffinity(0, job.processors)
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as folder:
        if job.settings is None:
            weigh(job, Path(folder))
        else:
            run(job, Path(folder))


if __name__ == "__main__":
    main()
