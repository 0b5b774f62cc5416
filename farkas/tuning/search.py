"""The search: which points to try next, from what was measured so far.

An evolutionary search over points, in generations: neighbours and crosses of the best, and points
drawn anew, are ranked by a model; the best of them, and some at random, are measured.  The same
seed and the same times give the same points.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from farkas.tuning.learned import Ranking
from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.space.cost import Cost
from poly.space.space import Space
from poly.strategy.common.point import AUTOMATIC, Point
from runtime.tuned.record import Trial

#: Points that are drawn for each one that is measured, at most, at least, and over the number of
#: statements: these have to be scheduled for each.
DRAWN, LEAST_DRAWN, STATEMENTS = 8, 2, 24
#: Of the points of a generation, those that are not chosen by the model.
ANY = 0.25
#: Points whose neighbours are tried, and how often a point is a neighbour, a cross, or new.
PARENTS, NEIGHBOUR, CROSS = 8, 0.5, 0.2
#: Schedules that are estimated to take so many times as long as the automatic one are not measured:
#: one thread of a GPU in place of all takes seconds, of which there are few.
HOPELESS = 64.0
#: Where parameters give so few of the points that are wanted, steps are added to the best or take
#: the place of tactics.
FEW = 0.5


@dataclass(frozen=True)
class Candidate:
    """A point that may be measured, and its schedule."""

    point: Point
    schedule: Schedule
    script: str
    cost: Cost


@dataclass
class Counts:
    """Points that were drawn, and those of them that are illegal."""

    drawn: int = 0
    illegal: int = 0

    @property
    def share(self) -> float:
        """Of the illegal ones."""
        return self.illegal / max(1, self.drawn)


class Search:
    """The search for one program.

    cost : what a schedule may cost; ranking : what orders points
    starts : what is tried first, in this order
    """

    def __init__(
        self,
        space: Space[Any],
        cost: Callable[[Schedule], Cost],
        seed: int,
        ranking: Ranking,
        starts: Iterable[Point] = (),
    ) -> None:
        self._space, self._cost = space, cost
        self._rng, self._ranking = Random(seed), ranking
        self._starts = deque(starts)
        self.counts = Counts()
        self.automatic = self._drawn(AUTOMATIC)
        self._seen = {self.automatic.script}
        statements = len(self.automatic.schedule.statements)
        self._draws = min(DRAWN, max(LEAST_DRAWN, STATEMENTS // statements))
        self._best: list[tuple[float, int, Point]] = [(1.0, 0, AUTOMATIC)]

    def ask(self, count: int) -> list[Candidate]:
        """Up to so many schedules that were not asked for before; none if no more were found.

        Points to start from come first, whatever the model thinks of them.
        """
        first = self._new([self._starts.popleft() for _ in range(min(count, len(self._starts)))])
        count -= len(first)
        draws = range(self._draws * count)
        drawn = self._likely(self._next_point() for _ in draws)
        if len(drawn) < FEW * count:
            drawn += self._likely(self._longer_point() for _ in draws)
        scores = self._ranking.scores([c.cost for c in drawn], self.automatic.cost)
        order = sorted(range(len(drawn)), key=lambda n: (scores[n], n))
        free = min(len(drawn), math.ceil(ANY * count))
        best, rest = order[: count - free], order[count - free :]
        chosen = [*best, *self._rng.sample(rest, min(free, len(rest)))]
        # What was drawn and not chosen may be drawn again.
        self._seen -= {c.script for n, c in enumerate(drawn) if n not in chosen}
        return [*first, *(drawn[n] for n in chosen)]

    def tell(self, trials: Sequence[tuple[Candidate, Trial]]) -> None:
        """What was measured."""
        for candidate, trial in trials:
            if math.isfinite(trial.ratio):
                self._best.append((trial.ratio, len(self._best), candidate.point))
        self._best.sort(key=lambda x: x[:2])
        self._ranking.learn([t for _, t in trials])

    def _new(self, points: Iterable[Point]) -> list[Candidate]:
        """Those that are legal and were not asked for before."""
        found: list[Candidate] = []
        for point in points:
            candidate = self._candidate(point)
            if candidate is not None and candidate.script not in self._seen:
                self._seen.add(candidate.script)
                found.append(candidate)
        return found

    def _likely(self, points: Iterable[Point]) -> list[Candidate]:
        """The new ones that are not hopeless."""
        most = HOPELESS * self.automatic.cost.cycles
        return [c for c in self._new(points) if c.cost.cycles <= most]

    def _longer_point(self) -> Point:
        if self._rng.random() < 0.5:
            return self._space.compose(self._rng)
        return self._space.with_steps(self._rng.choice(self._best[:PARENTS])[2], self._rng)

    def _next_point(self) -> Point:
        rng = self._rng
        parents = self._best[:PARENTS]
        draw = rng.random()
        if draw < NEIGHBOUR:
            return self._space.mutate(rng.choice(parents)[2], rng)
        if draw < NEIGHBOUR + CROSS and len(parents) > 1:
            a, b = rng.sample(parents, 2)
            return self._space.cross(a[2], b[2], rng)
        return self._space.sample(rng)

    def _candidate(self, point: Point) -> Candidate | None:
        """The candidate of a point, None if it is illegal."""
        try:
            return self._drawn(point)
        except ScheduleError:
            self.counts.illegal += 1
            return None

    def _drawn(self, point: Point) -> Candidate:
        self.counts.drawn += 1
        schedule = self._space.schedule(point)
        return Candidate(point, schedule, str(schedule), self._cost(schedule))
