"""Tune one program: search, measure, keep what was measured, and confirm the winner."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from farkas.tuning.child import ChildError
from farkas.tuning.job import Job, Progress, Tell
from farkas.tuning.learned import Ranking, Row, features
from farkas.tuning.measure_main import Setup
from farkas.tuning.measurer import BUILD, FASTER, Checker, Comparison, Measurer, Timing
from farkas.tuning.prior import prior
from farkas.tuning.remote import RemoteMeasurer
from farkas.tuning.search import Candidate, Search
from farkas.version import version
from poly.errors import ScheduleError, TuningError, TuningWarning
from poly.space.point_data import point_data, read_point
from poly.strategy.common.point import Point
from runtime.tuned.record import Trial, Winner, rounded
from runtime.tuned.record_file import RecordFile

#: Schedules that are measured at a time, those of one generation.
GENERATION = 8
#: The part of a budget that is left to confirm the winner, and seconds for it at least.
CONFIRM, LEAST_CONFIRM = 0.12, 4.0
#: Of the schedules that were measured, one in so many is measured again, at least and at most, and
#: how many of these are compared with the automatic schedule, until one is faster.
AGAIN, LEAST_AGAIN, MOST_AGAIN, FINALISTS = 8, 4, 32, 3
#: Winners of the same program at other sizes that are tried first.
NEIGHBOURS = 6


@dataclass(frozen=True)
class Measured:
    """A trial, and the seconds after which it was measured."""

    seconds: float
    trial: Trial


@dataclass(frozen=True)
class Tuned:
    """What tuning a program has found.

    history : what was measured, in order; illegal : the share of drawn points that are illegal
    timed : whether there is anything to time; on an emulator, schedules are only checked
    """

    winner: Winner
    history: tuple[Measured, ...] = ()
    illegal: float = 0.0
    timed: bool = True


@dataclass
class _Tuning:
    """A program that is being tuned.

    known : what was measured before; settled : what a recorded winner was chosen from
    """

    job: Job
    search: Search
    measurer: Measurer
    file: RecordFile | None
    known: Mapping[str, Trial]
    settled: Set[str]
    began: float
    budget: float
    tell: Tell

    def __post_init__(self) -> None:
        self.found: dict[str, tuple[Candidate, Trial]] = {}
        self.history: list[Measured] = []

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.began + self.budget - time.monotonic()

    def run(self, trials: int | None) -> None:
        """Generation by generation, until the time or the number of trials is reached."""
        confirm = max(LEAST_CONFIRM, CONFIRM * self.budget)
        took = 0.0
        while self.left > took + confirm and (trials is None or len(self.found) < trials):
            start = time.monotonic()
            count = GENERATION if trials is None else min(GENERATION, trials - len(self.found))
            asked = self.search.ask(count)
            if not asked:
                break
            self.report(str(asked[0].point))
            self.search.tell(self.measured(asked))
            took = time.monotonic() - start

    def measured(self, asked: Sequence[Candidate]) -> list[tuple[Candidate, Trial]]:
        """The trials of schedules: known ones are not measured again, the others are kept."""
        emitted: list[str] = []
        timings: dict[str, Timing] = {}

        def sources() -> Iterator[Any]:
            for c in asked:
                if c.script in self.known:
                    continue
                try:
                    source = self.job.emit(c.schedule)
                except ScheduleError as error:
                    timings[c.script] = Timing(math.inf, 0.0, f"no code: {error}")
                else:
                    emitted.append(c.script)
                    yield source

        measured = self.measurer.measure(sources())
        timings |= dict(zip(emitted, measured, strict=True))
        tried = [c for c in asked if c.script in timings]
        new = {c.script: self.trial(c, timings[c.script]) for c in tried}
        if self.file is not None:
            self.file.add(t for s, t in new.items() if not timings[s].lost)
        by_script = {**self.known, **new}
        pairs = [(c, by_script[c.script]) for c in asked]
        self.found |= {c.script: (c, t) for c, t in pairs}
        now = time.monotonic() - self.began
        self.history += [Measured(now, t) for _, t in pairs]
        return pairs

    def trial(self, c: Candidate, timing: Timing) -> Trial:
        known = features(c.cost, self.search.automatic.cost)
        return Trial(
            self.job.key, self.job.base, self.job.family, c.script, point_data(c.point),
            rounded(timing.ratio), rounded(timing.spread), tuple(map(rounded, known)),
            " ".join(timing.failure.split())[:500],
        )  # fmt: skip

    def winner(self) -> Winner:
        """The best schedule that is faster than the automatic one, or that one.

        A recorded winner remains unless a new schedule was faster: what it was chosen from is not
        compared again, since noise would choose another.
        """
        recorded = self.job.winner()
        best = None if recorded is None else self.known.get(recorded.script)
        to_beat = 1.0 if best is None else best.ratio
        for candidate, source in self.finalists(to_beat):
            self.report(f"confirm {candidate.point}")
            try:
                compared = self.measurer.compare(source)
            except ChildError:
                continue
            if compared.is_faster(FASTER):
                return self.won(candidate, compared)
        return recorded or self.won(None, None)

    def finalists(self, to_beat: float) -> list[tuple[Candidate, Any]]:
        """The new schedules that were faster than `to_beat`, and their kernels; when measured
        again, the fastest first.
        """
        fresh = [x for script, x in self.found.items() if script not in self.settled]
        faster = [x for x in fresh if x[1].ratio < to_beat]
        faster.sort(key=lambda x: (x[1].ratio, x[0].script))
        count = min(MOST_AGAIN, max(LEAST_AGAIN, len(fresh) // AGAIN))
        self.report("measure the best again")
        best: list[tuple[Candidate, Any]] = []
        late = time.monotonic() + self.left / 2
        for candidate, _ in faster[:count]:
            if len(best) >= FINALISTS and time.monotonic() > late:
                break
            with contextlib.suppress(ScheduleError):  # it was measured by another version
                best.append((candidate, self.job.emit(candidate.schedule)))
        order = self.measurer.ranked([source for _, source in best], self.left / 2)
        return [best[n] for n in order[:FINALISTS]]

    def won(self, candidate: Candidate | None, compared: Comparison | None) -> Winner:
        job, once = self.job, self.measurer.seconds
        seconds = (once, once) if compared is None else (compared.seconds(0), compared.seconds(1))
        return Winner(
            job.key, job.base, job.family, job.program.name,
            "" if candidate is None else candidate.script,
            None if candidate is None else point_data(candidate.point),
            *seconds, 0.0 if compared is None else compared.spread, time.monotonic() - self.began,
            datetime.now(UTC).date().isoformat(), version(),
        )  # fmt: skip

    def warn_of_wrong(self) -> None:
        """Name the schedules that should have been refused, if there are any."""
        wrong = [t for _, t in self.found.values() if t.is_wrong]
        if not wrong:
            return
        where = "" if self.file is None else f"\nAll are in {self.file.path}"
        warnings.warn(
            f"{self.job.program.name}: {len(wrong)} of {len(self.found)} schedules that were tried "
            "gave other results than the automatic one, and were left out. Unless the program "
            "amplifies rounding errors, this is a bug of Farkas: please report it. The first gave "
            f"a {wrong[0].failure}\n{wrong[0].script}{where}",
            TuningWarning,
            stacklevel=2,
        )

    def report(self, what: str) -> None:
        trials = [t for _, t in self.found.values()]
        self.tell(
            Progress(
                self.job.program.name, time.monotonic() - self.began, self.budget, len(trials),
                sum(1 for t in trials if t.failure), self.search.counts.share,
                min([1.0, *(t.ratio for t in trials)]), self.measurer.seconds, what,
            )
        )  # fmt: skip


def tune_once(
    job: Job,
    budget: float,
    seed: int = 0,
    trials: int | None = None,
    tell: Tell = lambda progress: None,
    again: bool = False,
    executor: Executor | None = None,
) -> Tuned:
    """What was tuned before, or `tune_program`.

    again : tune it in any case; what was measured is not measured again
    """
    known = None if again else job.winner()
    if known is not None:
        return Tuned(known)
    return tune_program(job, budget, seed, trials, tell, executor)


def tune_program(
    job: Job,
    budget: float,
    seed: int = 0,
    trials: int | None = None,
    tell: Tell = lambda progress: None,
    executor: Executor | None = None,
) -> Tuned:
    """Search for a schedule that is faster than the automatic one, and record it.

    budget : seconds; trials : schedules to measure at most
    executor : whose workers measure; None: this machine

    Raises
    ------
    ChildError : the automatic schedule's kernel cannot be run.
    ToolchainError : the compiler failed on it.
    CacheError : records cannot be written.
    """
    began, file = time.monotonic(), job.file
    records = [] if file is None else file.read()[0]
    mine = [r for r in records if (r.key, r.base) == (job.key, job.base)]
    own = {r.script: r for r in mine if isinstance(r, Trial)}
    # What is known of this program is found again on the way, in the same order.
    others = [r for r in records if isinstance(r, Trial) and r.key != job.key]
    search = Search(job.space, job.estimate, seed, Ranking(others, _prior(job)), _starts(job))
    source = job.emit(search.automatic.schedule)
    setup = Setup(source, job.runner, job.sizes, seed)
    with _measurer(setup, job, budget, executor) as measurer:
        measurer.begin()
        tuning = _Tuning(job, search, measurer, file, own, _settled(mine), began, budget, tell)
        with contextlib.suppress(KeyboardInterrupt):  # what was found is confirmed and kept
            tuning.run(trials)
        winner = tuning.winner()
    tuning.warn_of_wrong()
    if file is not None:
        file.add([winner])
        winner = job.winner() or winner  # with the digits that are written
    return Tuned(winner, tuple(tuning.history), search.counts.share, file is not None)


def _settled(records: Sequence[Trial | Winner]) -> frozenset[str]:
    """The scripts of the trials before the last winner, in the order of writing."""
    ends = [n for n, r in enumerate(records) if isinstance(r, Winner)]
    return frozenset(r.script for r in records[: ends[-1]]) if ends else frozenset()


def _measurer(setup: Setup, job: Job, budget: float, executor: Executor | None) -> Measurer:
    tuned = job.runner.tuned
    if tuned is None:
        return Checker(setup, budget / 2)
    if executor is None:
        return Measurer(setup, min(BUILD, budget / 4))
    return RemoteMeasurer(setup, executor, tuned)


def _prior(job: Job) -> tuple[Row, ...]:
    """What is known of machines of the same kind."""
    return prior() if job.target.name == "cpu" else ()


def _starts(job: Job) -> list[Point]:
    """Points that won for the same program at other sizes, with other threads, or beside another
    automatic schedule, to be tried first.
    """
    winners = () if job.file is None else job.file.winners()
    near = [w for w in winners if w.family == job.family and w.point]
    near = [w for w in near if (w.key, w.base) != (job.key, job.base)]
    found: list[Point] = []
    for w in near[-NEIGHBOURS:]:
        with contextlib.suppress(TuningError):  # it was edited
            found.append(read_point(w.point))
    return list(dict.fromkeys(found))
