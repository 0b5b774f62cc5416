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
from runtime.tuned.record_file import ENVIRONMENT, RecordFile

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
    interrupted : whether the search was ended by Ctrl-C
    """

    winner: Winner
    history: tuple[Measured, ...] = ()
    illegal: float = 0.0
    timed: bool = True
    interrupted: bool = False


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
        self.lost: dict[str, str] = {}  # why, by script
        self.history: list[Measured] = []
        self.interrupted = self.exhausted = False

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.began + self.budget - time.monotonic()

    def run(self, trials: int | None) -> None:
        """Generation by generation, until the time or the number of trials is reached, or Ctrl-C
        ends it.
        """
        try:
            self._run(trials)
        except KeyboardInterrupt:  # what was found is confirmed and kept
            self.interrupted = True

    def _run(self, trials: int | None) -> None:
        confirm = min(self.budget / 2, max(LEAST_CONFIRM, CONFIRM * self.budget))
        took = 0.0
        while self.left > took + confirm and (trials is None or len(self.found) < trials):
            start = time.monotonic()
            count = GENERATION if trials is None else min(GENERATION, trials - len(self.found))
            asked = self.search.ask(count)
            if not asked:
                self.exhausted = True
                break
            self.report(str(asked[0].point))
            self.search.tell(self.measured(asked))
            took = time.monotonic() - start

    def measured(self, asked: Sequence[Candidate]) -> list[tuple[Candidate, Trial]]:
        """The trials of schedules, without what was lost: known ones are not measured again, the
        others are kept.
        """
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
            self.file.add(t for s, t in new.items() if timings[s].is_kept)
        self.lost |= {s: t.failure for s, t in timings.items() if t.lost}
        by_script = {**self.known, **new}
        pairs = [(c, by_script[c.script]) for c in asked]
        self.found |= {c.script: (c, t) for c, t in pairs}
        now = time.monotonic() - self.began
        self.history += [Measured(now, t) for _, t in pairs]
        return [(c, t) for c, t in pairs if c.script not in self.lost]

    def trial(self, c: Candidate, timing: Timing) -> Trial:
        known = features(c.cost, self.search.automatic.cost)
        return Trial(
            self.job.key, self.job.base, self.job.family, c.script, point_data(c.point),
            rounded(timing.ratio), rounded(timing.spread), tuple(map(rounded, known)),
            " ".join(timing.failure.split())[:500],
        )  # fmt: skip

    def winner(self) -> Winner:
        """The best schedule that is faster than the automatic one, or that one.

        A recorded winner remains unless a new schedule is faster than that: what it was chosen from
        is not compared again, since noise would choose another.
        """
        recorded = self.job.winner()
        to_beat = 1.0
        if recorded is not None and recorded.script:
            to_beat = recorded.seconds / recorded.automatic
        for number, (candidate, source) in enumerate(self.finalists(to_beat)):
            if number and self.left < -LEAST_CONFIRM:
                break
            self.report(f"confirm {candidate.point}")
            try:
                compared = self.measurer.compare(source, max(LEAST_CONFIRM, self.left))
            except ChildError:
                continue
            if compared.is_faster(FASTER * min(1.0, to_beat)):
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
            datetime.now(UTC).date().isoformat(), version(), job.numbers,
        )  # fmt: skip

    @property
    def is_settled(self) -> bool:
        """Whether the search had its time, so that if nothing has won, nothing is faster."""
        has_tried = self.exhausted or any(s not in self.lost for s in self.found)
        return has_tried and not self.interrupted

    def warn(self) -> None:
        """Name the schedules that should have been refused, if there are any; and say if none could
        be measured.
        """
        if self.lost and len(self.lost) == len(self.found):
            warnings.warn(
                f"{self.job.program.name}: none of {len(self.lost)} schedules could be measured, "
                f"the last for this reason: {[*self.lost.values()][-1]}",
                TuningWarning,
                stacklevel=2,
            )
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
        job.use(known)
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
    TuningError : the file of records is that of another machine.
    """
    began, file = time.monotonic(), job.file
    records = [] if file is None else _records(file)
    mine = [r for r in records if (r.key, r.base) == (job.key, job.base)]
    own = {r.script: r for r in mine if isinstance(r, Trial)}
    # What is known of this program is found again on the way, in the same order.
    others = [r for r in records if isinstance(r, Trial) and r.key != job.key]
    search = Search(job.space, job.estimate, seed, Ranking(others, _prior(job)), _starts(job))
    source = job.emit(search.automatic.schedule)
    setup = Setup(source, job.runner, job.sizes, seed)
    with _measurer(setup, job, began + budget, budget, executor) as measurer:
        measurer.begin()
        tuning = _Tuning(job, search, measurer, file, own, _settled(mine), began, budget, tell)
        tuning.run(trials)
        winner = tuning.winner()
    tuning.warn()
    # Where nothing was tried, the next call is to search.
    if file is not None and (winner.script or tuning.is_settled):
        file.add([winner])
        winner = job.winner() or winner  # with the digits that are written
    history, illegal = tuple(tuning.history), search.counts.share
    return Tuned(winner, history, illegal, file is not None, tuning.interrupted)


def _records(file: RecordFile) -> list[Trial | Winner]:
    """The records of a file that can be added to."""
    records, problems = file.read()
    if problems and problems[0].line == 1:
        raise TuningError(
            f"{problems[0]}; move the file away, or choose another folder with {ENVIRONMENT}"
        )
    return records


def _settled(records: Sequence[Trial | Winner]) -> frozenset[str]:
    """The scripts of the trials before the last winner, in the order of writing."""
    ends = [n for n, r in enumerate(records) if isinstance(r, Winner)]
    return frozenset(r.script for r in records[: ends[-1]]) if ends else frozenset()


def _measurer(
    setup: Setup, job: Job, end: float, budget: float, executor: Executor | None
) -> Measurer:
    tuned = job.runner.tuned
    if tuned is None:
        return Checker(setup, budget / 2)
    if executor is None:
        return Measurer(setup, min(BUILD, budget / 4))
    return RemoteMeasurer(setup, executor, tuned, end)


def _prior(job: Job) -> tuple[Row, ...]:
    """What is known of machines of the same kind."""
    return prior() if job.target.name == "cpu" else ()


def _starts(job: Job) -> list[Point]:
    """Points that won for the same program at other sizes, with other threads, or beside another
    automatic schedule, to be tried first: those of the nearest sizes, and of equals the latest.
    """
    winners = () if job.file is None else job.file.winners()
    alike = [w for w in reversed(winners) if w.family == job.family and w.point]
    alike = [w for w in alike if (w.key, w.base) != (job.key, job.base)]
    place = (*job.numbers, *(value for _, value in job.key.sizes))
    found: list[Point] = []
    for w in sorted(alike, key=lambda w: distance(place, w.place))[:NEIGHBOURS]:
        with contextlib.suppress(TuningError):  # it was edited
            found.append(read_point(w.point))
    return list(dict.fromkeys(found))


def distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Between two programs of a family: the sum of the logarithms of their numbers' ratios."""
    if len(first) != len(second):
        return math.inf
    return sum(abs(math.log((a + 1) / (b + 1))) for a, b in zip(first, second, strict=True))
