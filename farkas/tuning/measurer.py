"""Measuring schedules beside the automatic one: built at once, timed one by one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from farkas.tuning import measure_main
from farkas.tuning.child import Child, ChildError, NoChildError
from farkas.tuning.measure_main import Setup, Timed, Turns
from poly.errors import CacheError, FarkasError
from runtime.common.workers import processes
from runtime.cpu.shared_library import LIMIT

#: Seconds that one call of a kernel may take, at least, and how many times as long as that of the
#: automatic schedule.
LEAST, TIMES = 5.0, 20.0
#: Seconds until a new process may have made its inputs and run the automatic schedule.
SET_UP = 600.0
#: Seconds that the compiler may take for a kernel, if nothing else is said.
BUILD = 30.0
#: Rounds of each halving, in which the better half stays, of new kernels and of the best of all;
#: and seconds of a turn, at least.
ROUNDS, AGAIN, TURN = (2, 4, 6), (6, 12, 24), 0.002
#: Processes that a winner has to be faster in, rounds in each, those of kernels that take long, in
#: all of which it has to be faster then, and seconds of a turn.
PROCESSES, CONFIRMING, FEW, LONG_TURN = 3, 10, 3, 0.01


@dataclass(frozen=True)
class Timing:
    """The time of a kernel over that of the automatic schedule.

    ratio : `math.inf` if it has none; spread : the part of it that half of the rounds are within
    failure : why it has none; lost : that says nothing about the kernel
    hurried : nor does it to a search that has more time
    """

    ratio: float
    spread: float = 0.0
    failure: str = ""
    lost: bool = False
    hurried: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether later searches may rely on it."""
        return not (self.lost or self.hurried)


def lost(reason: str) -> Timing:
    """No time, which says nothing about the kernel."""
    return Timing(math.inf, 0.0, reason, lost=True)


@dataclass(frozen=True)
class Comparison:
    """Seconds of a call, round by round, of the automatic schedule and of another, by process."""

    rounds: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def _pairs(self) -> list[tuple[float, float]]:
        return [pair for process in self.rounds for pair in process]

    @property
    def ratio(self) -> float:
        """The median of a round's ratios."""
        return statistics.median(b / a for a, b in self._pairs)

    @property
    def spread(self) -> float:
        """The part of the ratio that half of the rounds are within."""
        ratio = self.ratio
        return statistics.median(abs(b / a - ratio) for a, b in self._pairs) / ratio

    @property
    def chance(self) -> float:
        """The probability of so many faster rounds if both were equally fast (a sign test)."""
        count, faster = len(self._pairs), sum(b < a for a, b in self._pairs)
        return float(sum(math.comb(count, k) for k in range(faster, count + 1)) / 2**count)

    def is_faster(self, part: float) -> bool:
        """Whether the other is faster in every process, not by chance, and takes less than this
        part of the time.
        """
        medians = [statistics.median(b / a for a, b in process) for process in self.rounds]
        return all(m < 1 for m in medians) and self.ratio < part and self.chance < CHANCE

    def seconds(self, which: int) -> float:
        """The median seconds of the automatic schedule (0) or the other (1)."""
        return statistics.median(pair[which] for pair in self._pairs)


#: What counts as faster: the ratio of a kernel, and the probability that it is chance within a
#: comparison.  At another time the ratio may differ by a tenth, on the same machine, for minutes on
#: end: kernels that had won by 2 to 4 % have been slower by 9 % then, those by 5 % have not.
FASTER, CHANCE = 0.95, 0.01


class Measurer(AbstractContextManager["Measurer"]):
    """Measures kernels of one program in a process of its own.

    build : seconds that the compiler may take for a kernel
    """

    def __init__(self, setup: Setup, build: float = BUILD) -> None:
        self._setup, self._build_limit = setup, build
        self._child = Child(measure_main.__name__, measure_main.measure.__name__)
        self._once = LEAST

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._child.stop()

    def begin(self) -> None:
        """Build and run the automatic schedule.

        Raises
        ------
        ChildError : it fails, so that nothing can be compared with it.
        ToolchainError, CacheError : see `runtime.cpu.shared_library.build_library`.
        """
        self._setup.runner.build(self._setup.source, LIMIT)
        found = self._call(Turns((), 2, TURN), SET_UP)
        self._once = statistics.median(found.automatic)

    @property
    def seconds(self) -> float:
        """Of a call with the automatic schedule."""
        return self._once

    def measure(self, emitted: Iterable[Any]) -> list[Timing]:
        """Measure kernels, each only as long as it is among the better half.

        emitted : may be generated one by one, while those before are compiled
        """
        sources, failures = self._checked(emitted)
        found = {n: f for n, f in enumerate(failures) if f is not None}
        left = [n for n in range(len(sources)) if n not in found]
        for rounds in ROUNDS:
            found |= self._in_turns(sources, left, rounds)
            left = sorted(left, key=lambda n: found[n].ratio)[: -(-len(left) // 2)]
        return [found[n] for n in range(len(sources))]

    def ranked(self, sources: Sequence[Any], seconds: float) -> list[int]:
        """Measure kernels that were measured before once more, for longer; their numbers, the
        fastest first.

        seconds : for it; what does not fit remains where it was
        Of many kernels, those that seemed the fastest were also lucky.
        """
        turns = seconds / max(TURN, 2 * self._once)
        turns_of_each = sum(rounds / 2**n for n, rounds in enumerate(AGAIN))
        count = max(0, int((turns - sum(AGAIN)) / turns_of_each))
        order = [n for n, s in enumerate(sources) if not self._built(s)]
        for rounds in AGAIN:
            found = self._in_turns(sources, order[:count], rounds)
            order[:count] = [n for _, n in sorted((t.ratio, n) for n, t in found.items())]
            count = -(-count // 2)
        return order

    def _checked(self, emitted: Iterable[Any]) -> tuple[list[Any], list[Timing | None]]:
        """Kernels, and what is wrong with each, None if nothing is."""
        sources: list[Any] = []
        with ThreadPoolExecutor(processes()) as pool:
            built: list[Future[Timing | None]] = []
            for source in emitted:
                sources.append(source)
                built.append(pool.submit(self._built, source))
        return sources, [b.result() or self._wrong(s) for b, s in zip(built, sources, strict=True)]

    def compare(self, source: Any, seconds: float = math.inf) -> Comparison:
        """Compare a kernel with the automatic schedule in several processes, thoroughly.

        seconds : for it, if that is enough for a few rounds

        Raises
        ------
        ChildError : it cannot be built, or fails.
        """
        if failure := self._built(source):
            raise ChildError(failure.failure)
        of_a_round = 2 * max(LONG_TURN, 2 * self._once)
        count = max(FEW, int(min(CONFIRMING, seconds / PROCESSES / of_a_round)))
        rounds = []
        for _ in range(PROCESSES):
            self._child.stop()  # where memory lies is another matter each time
            found = self._call(Turns((source,), count, LONG_TURN), self._limit(count))
            (other,) = found.others
            if isinstance(other, str):
                raise ChildError(other)
            rounds.append(tuple(zip(found.automatic, other, strict=True)))
        return Comparison(tuple(rounds))

    def _in_turns(
        self, sources: Sequence[Any], numbers: Sequence[int], rounds: int
    ) -> dict[int, Timing]:
        if not numbers:
            return {}
        try:
            turns = Turns([sources[n] for n in numbers], rounds, TURN)
            found = self._call(turns, self._limit(rounds) * (1 + len(numbers)))
        except NoChildError as error:
            return {n: lost(str(error)) for n in numbers}
        except ChildError as error:
            # One of them is to blame, alone it will be found out.
            if len(numbers) == 1:
                return {numbers[0]: Timing(math.inf, 0.0, str(error))}
            alone = [self._in_turns(sources, [n], rounds) for n in numbers]
            return {n: timing for part in alone for n, timing in part.items()}
        return {
            n: _timing(found.automatic, other)
            for n, other in zip(numbers, found.others, strict=True)
        }

    def _limit(self, rounds: int) -> float:
        return LEAST + TIMES * self._once * (rounds + 3)

    def _call(self, turns: Turns, limit: float) -> Timed:
        found = self._answer_of(turns, limit)
        assert isinstance(found, Timed)
        return found

    def _answer_of(self, what: Any, limit: float) -> Any:
        """What the process says; it is not to blame for the time that a new one takes to set up."""
        if not self._child.is_running:
            try:
                self._child.call(self._setup, Turns((), 1, 0.0), limit=SET_UP)
            except ChildError as error:
                raise NoChildError(str(error)) from None
        return self._child.call(self._setup, what, limit=limit)

    def _wrong(self, source: Any) -> Timing | None:
        """What is wrong with a kernel that was built, None if nothing is."""
        try:
            found = self._answer_of(source, self._limit(1))
        except NoChildError as error:
            return lost(str(error))
        except ChildError as error:
            found = str(error)
        assert isinstance(found, str)
        return Timing(math.inf, 0.0, found) if found else None

    def _built(self, source: Any) -> Timing | None:
        """Build a kernel; why that fails, None if it does not."""
        try:
            self._setup.runner.build(source, self._build_limit)
        except CacheError as error:
            return lost(str(error))
        except FarkasError as error:
            return Timing(math.inf, 0.0, str(error), hurried=self._build_limit < BUILD)
        return None


class Checker(Measurer):
    """Where times say nothing, as on an emulator: kernels that are right count as equally fast."""

    def measure(self, emitted: Iterable[Any]) -> list[Timing]:
        _, failures = self._checked(emitted)
        return [f or Timing(1.0) for f in failures]


def _timing(automatic: Sequence[float], other: Sequence[float] | str) -> Timing:
    if isinstance(other, str):
        return Timing(math.inf, 0.0, other)
    found = Comparison((tuple(zip(automatic, other, strict=True)),))
    return Timing(found.ratio, found.spread)
