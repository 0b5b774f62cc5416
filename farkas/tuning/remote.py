"""Measuring on other machines, through any executor of `concurrent.futures`: dask's, ray's, …

A worker gets C text that was made from a checked schedule, and measures it beside the automatic
schedule's as this machine would, in a process of its own.  It measures only for machines like
itself.  Whatever happens to it costs the point that it was at: winners are compared here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from farkas.targets.base import Runner
from farkas.targets.find_target import target_of
from farkas.tuning.measure_main import Setup
from farkas.tuning.measurer import ROUNDS, Measurer, Timing, lost
from poly.errors import FarkasError
from runtime.tuned.record_file import TunedSchedules

#: Seconds in which workers have to answer for one generation, beside what measuring may take; and
#: how many they have if less is left to tune.
ANSWER, LEAST_ANSWER = 120.0, 30.0


@dataclass(frozen=True)
class Task:
    """A kernel to measure.

    where : the target, by its name; threads : of a call, None where there is no such number
    cc : the compiler; machine : the description of those that may measure it, and of that
    automatic : the kernel that it is measured beside; sizes, seed : of the inputs
    """

    where: str
    threads: int | None
    cc: str | None
    machine: str
    automatic: Any
    source: Any
    sizes: Mapping[str, int]
    seed: int


#: The measurer of this worker, by what it measures, and who may use it: a worker may have threads,
#: of which one measures at a time.
_measurers: dict[str, Measurer] = {}
_turn = threading.Lock()


def measure_there(task: Task) -> Timing:
    """Measure a kernel in a worker."""
    try:
        with _turn:
            return _measured(task)
    except FarkasError as error:
        return lost(str(error))


def _measured(task: Task) -> Timing:
    runner = target_of(None, None, task.threads, task.where).runner
    if task.cc is not None and _described(runner) != task.machine:
        # The default compiler is another one here, or was not asked for.
        runner = target_of(task.cc, None, task.threads, task.where).runner
    if _described(runner) != task.machine:
        return lost(f"the worker is another machine: {_described(runner)}")
    setup = Setup(task.automatic, runner, task.sizes, task.seed)
    if setup.key not in _measurers:
        while _measurers:
            _measurers.popitem()[1].stop()
        measurer = Measurer(setup)
        measurer.begin()
        _measurers[setup.key] = measurer
    return _measurers[setup.key].measure([task.source])[0]


def _described(runner: Runner) -> str:
    return "" if runner.tuned is None else runner.tuned.file.description


class RemoteMeasurer(Measurer):
    """Measures kernels by an executor's workers, and compares winners in a process here.

    end : when tuning ends, as `time.monotonic` says it
    """

    def __init__(self, setup: Setup, executor: Executor, tuned: TunedSchedules, end: float) -> None:
        super().__init__(setup)
        self._executor, self._tuned, self._end = executor, tuned, end

    def measure(self, emitted: Iterable[Any]) -> list[Timing]:
        futures: list[Future[Any] | None] = []
        try:
            for source in emitted:
                try:
                    futures.append(self._executor.submit(measure_there, self._task(source)))
                except Exception:  # of any library: the executor has no workers any more, say
                    futures.append(None)
            now = time.monotonic()
            most = ANSWER + self._limit(sum(ROUNDS)) * len(futures)
            until = now + min(most, max(LEAST_ANSWER, self._end - now))
            return [self._answer(f, until) for f in futures]
        finally:
            for future in futures:
                if future is not None:
                    future.cancel()  # no worker need begin with it any more

    def _task(self, source: Any) -> Task:
        setup, tuned = self._setup, self._tuned
        return Task(
            where=setup.runner.name,
            threads=None if setup.runner.one_thread is None else tuned.threads,
            cc=setup.runner.cc,
            machine=tuned.file.description,
            automatic=setup.source,
            source=source,
            sizes=setup.sizes,
            seed=setup.seed,
        )

    def _answer(self, future: Future[Any] | None, until: float) -> Timing:
        if future is None:
            return lost("no worker took it")
        try:
            timing = future.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return lost("the worker did not answer")
        except Exception as error:  # the worker died, or its library failed
            return lost(f"{type(error).__name__}: {error}")
        return timing if _is_timing(timing) else lost("the worker's answer is not a timing")


def _is_timing(answer: Any) -> bool:
    if not isinstance(answer, Timing):
        return False
    numbers = (answer.ratio, answer.spread)
    return all(isinstance(x, float) for x in numbers) and numbers[0] > 0 and numbers[1] >= 0
