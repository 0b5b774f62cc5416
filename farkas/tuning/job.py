"""What is tuned, and how far that has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from farkas.targets.base import Target
from farkas.targets.cpu import CpuRunner
from poly.errors import ArgumentError, TuningError
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from runtime.common.arguments import default_threads
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain
from runtime.tuned.record import Key
from runtime.tuned.record_file import RecordFile, family_of, record_file

#: Budgets in seconds.
LEAST, MOST = 1.0, 7 * 24 * 3600.0


@dataclass(frozen=True)
class Job:
    """A program to tune.

    program : as callers see it; start : the written order of what it was rewritten to
    sizes : a value for every size that is not fixed
    threads : of a call; cache : where kernels are built
    """

    program: Program
    start: Schedule
    sizes: Mapping[str, int]
    machine: Machine
    toolchain: Toolchain
    cache: Cache
    threads: int

    @property
    def key(self) -> Key:
        digest = self.start.program.form.digest
        return Key(digest, self.start.exact, self.threads, tuple(sorted(self.sizes.items())))

    @cached_property
    def family(self) -> str:
        """The digest of the program without its numbers."""
        return family_of(self.start.program)

    @property
    def file(self) -> RecordFile:
        """The records of this machine."""
        return record_file(self.cache, self.machine, self.toolchain)


@dataclass(frozen=True)
class Progress:
    """How far tuning has come.

    name : of the program; seconds : since it began
    trials, failed, illegal : schedules that were measured, those of them that failed, and the share
        of drawn points that are illegal
    best : the least time so far over that of the automatic schedule; what : is tried now
    """

    name: str
    seconds: float
    budget: float
    trials: int
    failed: int
    illegal: float
    best: float
    automatic: float
    what: str


Tell = Callable[[Progress], None]


def job_of(
    program: Program, exact: bool, sizes: Mapping[str, int], target: Target, is_call: bool = False
) -> Job:
    """The job of tuning a program.

    sizes : of those that are not fixed, as they are measured; is_call : of a network

    Raises
    ------
    ArgumentError : a target without a C compiler; sizes that do not match.
    """
    runner = target.runner
    if not isinstance(runner, CpuRunner) or not isinstance(target.machine, Machine):
        raise ArgumentError("only kernels for the CPU can be tuned")
    pipeline = target.pipeline
    if is_call:
        prepared = pipeline.prepare_call(program, target.machine)
    else:
        prepared = pipeline.prepare(program, target.machine, exact)
    threads = default_threads() if runner.threads is None else runner.threads
    start = Schedule.of(prepared, exact)
    every = all_sizes(prepared, sizes)
    return Job(program, start, every, target.machine, runner.toolchain, runner.cache, threads)


def check_budget(budget: Any) -> float:
    """A budget in seconds.

    Raises
    ------
    TuningError : it is not a number of seconds that makes sense.
    """
    try:
        seconds = math.nan if isinstance(budget, (bool, str)) else float(budget)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not LEAST <= seconds <= MOST:
        raise TuningError(
            f"a budget of {budget!r}: expected seconds, from {LEAST:g} to a week, as in 60"
        )
    return seconds


def check_trials(trials: Any) -> int | None:
    """A number of schedules to measure; None is any.

    Raises
    ------
    TuningError : it is not a whole number from 1 on.
    """
    whole = isinstance(trials, int) and not isinstance(trials, bool) and trials >= 1
    if trials is not None and not whole:
        raise TuningError(f"trials={trials!r}: expected a whole number from 1 on")
    return None if trials is None else int(trials)
