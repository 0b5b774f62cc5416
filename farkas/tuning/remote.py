"""Measuring on other machines, through any executor of `concurrent.futures`: dask's, ray's, …

A worker gets C text that was made from a checked schedule, and measures it beside the automatic
schedule's as this machine would, in a process of its own.  It measures only for machines like
itself.  Whatever happens to it costs the point that it was at: winners are compared here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from farkas.targets.find_target import target_of
from farkas.tuning.measure_main import Setup
from farkas.tuning.measurer import Measurer, Timing
from poly.errors import FarkasError
from runtime.tuned.record_file import TunedSchedules

#: Seconds in which a worker has to answer, beside what its measuring may take.
ANSWER = 120.0


@dataclass(frozen=True)
class Task:
    """A kernel to measure.

    where : the target, by its name; threads : of a call, None where there is no such number
    machine : the description of those that may measure it
    automatic : the kernel that it is measured beside; sizes, seed : of the inputs
    """

    where: str
    threads: int | None
    machine: str
    automatic: Any
    source: Any
    sizes: Mapping[str, int]
    seed: int


#: The measurer of this worker, by what it measures.
_measurers: dict[str, Measurer] = {}


def measure_there(task: Task) -> Timing:
    """Measure a kernel in a worker."""
    try:
        runner = target_of(None, None, task.threads, task.where).runner
        own = "" if runner.tuned is None else runner.tuned.file.description
        if own != task.machine:
            return _lost(f"the worker is another machine: {own}")
        setup = Setup(task.automatic, runner, task.sizes, task.seed)
        if setup.key not in _measurers:
            while _measurers:
                _measurers.popitem()[1].stop()
            measurer = Measurer(setup)
            measurer.begin()
            _measurers[setup.key] = measurer
        return _measurers[setup.key].measure([task.source])[0]
    except FarkasError as error:
        return _lost(str(error))


class RemoteMeasurer(Measurer):
    """Measures kernels by an executor's workers, and compares winners in a process here."""

    def __init__(self, setup: Setup, executor: Executor, tuned: TunedSchedules) -> None:
        super().__init__(setup)
        self._executor, self._tuned = executor, tuned

    def measure(self, emitted: Iterable[Any]) -> list[Timing]:
        setup, tuned = self._setup, self._tuned
        threads = None if setup.runner.one_thread is None else tuned.threads
        futures: list[Future[Timing] | None] = []
        for source in emitted:
            task = Task(
                setup.runner.name,
                threads,
                tuned.file.description,
                setup.source,
                source,
                setup.sizes,
                setup.seed,
            )
            try:
                futures.append(self._executor.submit(measure_there, task))
            except Exception:  # of any library: the executor has no workers any more, say
                futures.append(None)
        return [self._answer(f) for f in futures]

    def _answer(self, future: Future[Timing] | None) -> Timing:
        if future is None:
            return _lost("no worker took it")
        try:
            timing = future.result(ANSWER + self._limit(12) * 4)
        except Exception as error:  # the worker died or hung, or its library failed
            future.cancel()
            return _lost(f"{type(error).__name__}: {error}")
        if not isinstance(timing, Timing) or not timing.ratio > 0 or not timing.spread >= 0:
            return _lost("the worker's answer is not a timing")
        return timing


def _lost(reason: str) -> Timing:
    """No time, which says nothing about the kernel."""
    return Timing(math.inf, 0.0, reason, lost=True)
