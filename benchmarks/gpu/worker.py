"""One fresh process: a kernel or network by all contenders on a device.  See `benchmarks.runner`.

    python -m benchmarks.gpu.worker JOB.json

The job's suite is the mode.  Each contender has several sets of inputs, which together exceed the
device's caches, and cycles through them, so that no call finds its inputs there.  There is one set
of weights; where these are most of the memory that a call touches, the caches are filled with
other data before each.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.gpu import networks
from benchmarks.gpu.cases import MODES, named
from benchmarks.gpu.clock import Call, Clock, clock_of
from benchmarks.gpu.peers import PEERS, Rotation, Work
from benchmarks.kernel import ELEMENT, Array
from benchmarks.task import Task, kernel_task
from benchmarks.worker import Job, Report, difference
from runtime.find_device import find_device

#: Sets of inputs together have this multiple of the bytes of the caches, up to a limit on their
#: number and on their bytes.
OVER, MOST_SETS, MOST_BYTES = 2.0, 256, 4 << 30
#: The sets of networks, which mostly read weights and values, not inputs.
SETS_OF_NETWORK = 2


@dataclass(frozen=True)
class GpuSettings:
    """Settings of the measurements.

    rounds : turns of each contender; samples : per turn, each over all sets of inputs
    limit : seconds after which a turn ends once it has one sample
    tiny : whether the kernels are the small ones
    """

    rounds: int = 5
    samples: int = 20
    limit: float = 1.0
    tiny: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sets_of(task: Task, element: str, cache_bytes: int) -> int:
    """The number of sets of inputs."""
    if task.kernel is None:
        return SETS_OF_NETWORK
    one = sum(a.size for a in task.inputs.values()) * np.dtype(element).itemsize
    wanted = math.ceil(OVER * cache_bytes / one) + 1
    return max(2, min(wanted, MOST_SETS, MOST_BYTES // one))


def is_emptied(task: Task, element: str, cache_bytes: int) -> bool:
    """Whether mostly weights are read, which caches might hold from one call to the next."""
    if task.kernel is None or task.arrays is None:
        return False
    size = np.dtype(element).itemsize
    weights = sum(task.arrays[n].size for n in task.kernel.weights) * size
    return 2 * weights > task.kernel.bytes * size // ELEMENT and weights < OVER * cache_bytes


def expected_of(work: Work, threads: int) -> list[Array]:
    """The expected results, computed in float32 on the CPU.

    Kernels get the device's inputs, so that only their own rounding counts; networks get the
    original ones in float32.

    Raises
    ------
    UnavailableError : no library that computes networks is installed.
    """
    task = work.task
    if task.kernel is None or task.arrays is None:
        return networks.reference(task, threads)
    given = {n: a.astype(np.float32) for n, a in work.given(task.arrays).items()}
    return [task.kernel.reference(given)]


def first_calls(rotation: Rotation) -> tuple[list[Sequence[Array]], int | None]:
    """The results of the first two calls, and the most memory, where it is known."""
    first, second = rotation.calls[:2]
    results = [rotation.fetch(first())]

    def again() -> object:
        found = second()
        results.append(rotation.fetch(found))
        return found

    if rotation.peak is not None:
        return results, rotation.peak(again)
    again()
    return results, None


def take_turns(
    clock: Clock,
    rotations: Mapping[str, Sequence[Call]],
    settings: GpuSettings,
    first: int = 0,
    emptied: bool = False,
) -> dict[str, float]:
    """The median seconds per call of each contender.

    `first` rotates the order, so that over several processes each is sometimes the first;
    for `emptied` see `Clock.seconds`.
    """
    names = list(rotations)
    names = names[first % len(names) :] + names[: first % len(names)] if names else []
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(settings.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            end = time.monotonic() + settings.limit
            for _ in range(settings.samples):
                found[name].append(clock.seconds(rotations[name], emptied))
                if time.monotonic() > end:
                    break
    return {name: statistics.median(samples) for name, samples in found.items()}


def run(job: Job, folder: Path) -> None:
    """Prepare, check and time every contender; those that fail are reported and left out."""
    report = Report(job.report)
    report(at="task")
    assert job.settings is not None
    settings = GpuSettings(**job.settings)
    if job.path is None:
        task = kernel_task(named(job.name, settings.tiny), "gpu", folder)
    else:
        task = models.task(job.name, Path(job.path))
    clock = clock_of(find_device(job.device))
    how = MODES[job.suite]
    work = Work(task, job.suite, sets_of(task, how.element, clock.cache_bytes), job.device, clock,
                folder)  # fmt: skip
    expected = expected_of(work, job.threads)
    tolerance = how.tolerance if task.kernel is not None else how.deep
    rotations: dict[str, Rotation] = {}
    for name in job.peers:
        peer = PEERS[name]
        if not peer.suits(task):
            continue
        report(at=name)
        try:
            peer.load()
            start = time.perf_counter()
            rotation = peer.prepare(work)
            results, memory = first_calls(rotation)
            seconds = time.perf_counter() - start
        except Exception as error:
            text = " ".join(str(error).split())
            report(failed=name, message=f"{type(error).__name__}: {text}"[:600])
            # No one can continue after the device was lost; the next process omits this contender.
            clock.wait()
            continue
        apart = max(difference(r, expected, how.element) for r in results)
        report(prepared=name, seconds=seconds, difference=apart)
        if not apart <= tolerance:
            report(failed=name, message=f"wrong result: relative difference {apart:.2g}")
            continue
        if memory is not None:
            report(peak=name, memory=memory)
        rotations[name] = rotation
    report(at="timing")
    emptied = is_emptied(task, how.element, clock.cache_bytes)
    calls = {name: rotation.calls for name, rotation in rotations.items()}
    times = take_turns(clock, calls, settings, job.number, emptied)
    for name, rotation in rotations.items():
        # The timed calls may differ from the first ones, such as a recording of them.
        try:
            apart = difference(rotation.fetch(rotation.calls[0]()), expected, how.element)
            wrong = "" if apart <= tolerance else f"relative difference {apart:.2g}"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[:600]
        if wrong:
            report(failed=name, message=f"wrong result when timed: {wrong}")
            del times[name]
    report(times=times)


def main() -> None:
    job = Job.from_json(Path(sys.argv[1]).read_text())
    os.sched_setaffinity(0, job.processors)
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as folder:
        run(job, Path(folder))


if __name__ == "__main__":
    main()
