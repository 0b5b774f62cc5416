"""The space of a program's schedules: points that tactics and single steps span, at random.

A point is a value, see `poly.strategy.common.point`; its schedule is made by the same driver as the
automatic one, of checked steps.  So a point may make no sense or break a dependence, but then it
has no schedule, and what has one computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any, Generic, TypeVar

from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.space.random_steps import last_steps, random_step, varied
from poly.strategy.common.apply_tactics import Strategy, arranged, plan_with, scheduled
from poly.strategy.common.grouping import Parallel, groups
from poly.strategy.common.point import AUTOMATIC, Pick, Point
from poly.strategy.common.tactic import Group, NoMatch, Tactic, Value
from poly.tree.steps import Step

M = TypeVar("M", bound=Parallel)

#: The most values of a group that a new point changes, and the most steps that it adds.
MOST_VALUES, MOST_STEPS = 3, 4
#: How often a group gets another tactic, statements are set apart, steps are added, and steps take
#: the place of tactics.
OTHER_TACTIC, APART, STEPS, COMPOSED = 0.2, 0.1, 0.15, 0.1
#: The most steps of a point.
LONGEST = 8


@dataclass(frozen=True, eq=False)
class Space(Generic[M]):
    """The schedules of a program.

    start : its written order
    """

    start: Schedule
    machine: M
    strategy: Strategy[M]

    def schedule(self, point: Point) -> Schedule:
        """The schedule of a point.

        Raises
        ------
        ScheduleError : it makes no sense for this program, breaks a dependence, or is undecided.
        """
        return _schedule(self, point)

    def sample(self, rng: Random) -> Point:
        """A point that differs from the automatic schedule anywhere."""
        if rng.random() < COMPOSED:
            return self.compose(rng)
        point = AUTOMATIC
        if rng.random() < APART:
            point = self._set_apart(point, rng)
        for group in self._groups(point.apart):
            if len(self._groups(point.apart)) == 1 or rng.random() < 0.5:
                point = self._picked(point, group, rng)
        if rng.random() < STEPS:
            point = self.with_steps(point, rng)
        return point

    def compose(self, rng: Random) -> Point:
        """Single steps in place of tactics, for what no tactic knows or knows too few of."""
        point, groups_ = AUTOMATIC, self._groups(())
        for group in groups_:
            if len(groups_) == 1 or rng.random() < 0.5:
                point = point.with_pick(group.names, Pick(""))
        return self.with_steps(point, rng, finished=True)

    def mutate(self, point: Point, rng: Random) -> Point:
        """A neighbour of a point: one value, one tactic, one group or one step is another."""
        draw = rng.random()
        if draw < APART:
            return self._set_apart(point, rng)
        if draw < APART + STEPS:
            return self.with_steps(point, rng)
        if point.steps and draw < APART + 2 * STEPS:
            return replace(point, steps=varied(point.steps, rng))
        group = rng.choice(self._groups(point.apart))
        pick = point.pick(group.names)
        if pick is None or rng.random() < OTHER_TACTIC:
            return self._picked(point, group, rng)
        return self._changed(point, group, pick, 1, rng)

    def cross(self, a: Point, b: Point, rng: Random) -> Point:
        """A point with groups and values of two others."""
        point = replace(a, steps=rng.choice((a, b)).steps)
        for group in self._groups(a.apart):
            ours, theirs = a.pick(group.names), b.pick(group.names)
            if ours is None or theirs is None or ours.tactic != theirs.tactic:
                point = point.with_pick(group.names, rng.choice((ours, theirs)))
                continue
            both = {**dict(ours.values), **dict(theirs.values)}
            values = [
                (name, rng.choice((dict(ours.values).get(name), dict(theirs.values).get(name))))
                for name in both
            ]
            kept = tuple((n, v) for n, v in values if v is not None)
            point = point.with_pick(group.names, Pick(ours.tactic, kept))
        return point

    def with_steps(self, point: Point, rng: Random, finished: bool = False) -> Point:
        """More steps after those of the tactics, each of which is legal.

        finished : loops that are left are shared by threads, put in vectors, … at the end
        """
        try:
            schedule = self.schedule(point)
        except ScheduleError:
            return point
        steps, marks = list(point.steps), self.strategy.marks
        for _ in range(rng.randint(1, MOST_STEPS)):
            if len(steps) >= LONGEST:
                break
            schedule, taken = _taken(schedule, random_step(schedule, rng, marks))
            steps += taken
        if finished:
            for name in schedule.statements:
                for step in last_steps(schedule, name, marks):
                    schedule, taken = _taken(schedule, step)
                    steps += taken
        return replace(point, steps=tuple(steps))

    def _groups(self, apart: tuple[str, ...]) -> tuple[Group[M], ...]:
        return _groups(self, apart)

    @property
    def _machine(self) -> M:
        return self.machine.exact if self.start.exact else self.machine

    def _set_apart(self, point: Point, rng: Random) -> Point:
        """A statement that shares loops with others begins a group of its own, or no more."""
        inside = [n for g in self._groups(point.apart) for n in g.names[1:]]
        candidates = [*inside, *point.apart]
        if not candidates:
            return point
        chosen = rng.choice(candidates)
        apart = {*point.apart} ^ {chosen}
        return replace(point, apart=tuple(sorted(apart)))

    def _picked(self, point: Point, group: Group[M], rng: Random) -> Point:
        """Another tactic for a group, or the first that matches, with other values."""
        tactics = _matching(self, group)
        if not tactics:
            return point
        other = rng.random() < OTHER_TACTIC
        tactic = rng.choice(tactics) if other else tactics[0]
        if other and rng.random() < 0.2:
            return point.with_pick(group.names, Pick(""))
        count = rng.randint(0 if other else 1, MOST_VALUES)
        return self._changed(point, group, Pick(tactic.name), count, rng)

    def _changed(self, point: Point, group: Group[M], pick: Pick, count: int, rng: Random) -> Point:
        """Other values of some parameters of a group's tactic."""
        if not pick.tactic:
            return point
        tactic = self.strategy.tactic(pick.tactic)
        values = dict(pick.values)
        for _ in range(count):
            changed = _one_value(tactic, group, tuple(values.items()), rng)
            if changed is not None:
                values[changed[0]] = changed[1]
        return point.with_pick(group.names, Pick(pick.tactic, tuple(sorted(values.items()))))


def _taken(schedule: Schedule, step: Step | None) -> tuple[Schedule, list[Step]]:
    """The schedule after a step, and that step; neither if it is illegal."""
    if step is None:
        return schedule, []
    try:
        return schedule.apply(step), [step]
    except ScheduleError:
        return schedule, []


@lru_cache(maxsize=256)
def _schedule(space: Space[Any], point: Point) -> Schedule:
    before = _arranged(space, point.apart)
    return scheduled(before, space._machine, space.strategy, False, point).schedule


@lru_cache(maxsize=64)
def _arranged(space: Space[Any], apart: tuple[str, ...]) -> Schedule:
    return arranged(space.start, space._machine, space.strategy, apart)


@lru_cache(maxsize=64)
def _groups(space: Space[Any], apart: tuple[str, ...]) -> tuple[Group[Any], ...]:
    """The groups of statements that get tactics."""
    schedule = _arranged(space, apart)
    return tuple(Group(schedule, names, space._machine) for names in groups(schedule))


@lru_cache(maxsize=256)
def _matching(space: Space[Any], group: Group[Any]) -> tuple[Tactic[Any, Any], ...]:
    """The tactics that match a group."""
    return tuple(t for t in space.strategy.tactics if not isinstance(t.asked_for(group), NoMatch))


def _one_value(
    tactic: Tactic[M, Any], group: Group[M], values: Sequence[tuple[str, Value]], rng: Random
) -> tuple[str, Value] | None:
    """Another value of one parameter; None if there is no other."""
    plan = plan_with(tactic, group, values)
    if isinstance(plan, NoMatch) or not tactic.parameters:
        return None
    parameter = rng.choice(tactic.parameters)
    now = parameter.value(plan)
    others = [v for v in parameter.values(group, plan) if v != now]
    return (parameter.name, rng.choice(others)) if others else None
