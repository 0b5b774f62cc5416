"""What is tuned, and how far that has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from farkas.targets.base import NoRunner, Runner, Target
from poly.errors import ArgumentError, TuningError
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from poly.schedule.schedule import Schedule
from poly.space.cost import Cost
from poly.space.space import Space
from poly.strategy.common.point import AUTOMATIC
from runtime.tuned.record import Key, Winner, short_digest
from runtime.tuned.record_file import RecordFile, family_of, numbers_of

#: Budgets in seconds.
LEAST, MOST = 1.0, 7 * 24 * 3600.0


@dataclass(frozen=True)
class Job:
    """A program to tune.

    program : as callers see it; start : the written order of what it was rewritten to
    sizes : a value for every size that is not fixed
    target : where it is to run
    """

    program: Program
    start: Schedule
    sizes: Mapping[str, int]
    target: Target

    @property
    def runner(self) -> Runner:
        """What compiles and runs its kernels."""
        return self.target.runner

    @cached_property
    def space(self) -> Space[Any]:
        """Its schedules."""
        return Space(self.start, self.target.machine, self.target.pipeline.strategy)

    @property
    def key(self) -> Key:
        digest, tuned = self.start.program.form.digest, self.runner.tuned
        threads = 1 if tuned is None else tuned.threads
        return Key(digest, self.start.exact, threads, tuple(sorted(self.sizes.items())))

    @cached_property
    def family(self) -> str:
        """The digest of the program without its numbers."""
        return family_of(self.start.program)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Those of the program."""
        return numbers_of(self.start.program)

    @property
    def file(self) -> RecordFile | None:
        """The records of where it runs; None if nothing can be timed there."""
        tuned = self.runner.tuned
        return None if tuned is None else tuned.file

    @cached_property
    def base(self) -> str:
        """The digest of the schedule that is to be beaten: of its steps, as records have them."""
        script = str(self.space.schedule(AUTOMATIC))
        return short_digest(script)

    def winner(self) -> Winner | None:
        """What was found before, if today's automatic schedule is the one that it was compared
        with.
        """
        found = None if self.file is None else self.file.winner(self.key)
        return found if found is not None and found.base == self.base else None

    def use(self, winner: Winner) -> None:
        """Let compilations use a record, also if the program was tuned at other sizes since."""
        tuned = self.runner.tuned
        if tuned is not None and tuned.winner(self.key.program, self.key.exact) != winner:
            tuned.file.add([winner])

    def estimate(self, schedule: Schedule) -> Cost:
        """What one of its schedules may cost."""
        return self.target.pipeline.estimate(schedule, self.sizes, self.target.machine)

    def emit(self, schedule: Schedule) -> Any:
        """The text of one of its schedules.  Raises `ScheduleError` if there is none."""
        return self.target.emit(schedule, self.program)


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
    ArgumentError : a target that only generates text; sizes that do not match.
    """
    if isinstance(target.runner, NoRunner):
        raise ArgumentError("the target only generates text, so nothing can be tuned for it")
    pipeline = target.pipeline
    if is_call:
        prepared = pipeline.prepare_call(program, target.machine)
    else:
        prepared = pipeline.prepare(program, target.machine, exact)
    return Job(program, Schedule.of(prepared, exact), all_sizes(prepared, sizes), target)


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
