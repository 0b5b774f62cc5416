"""The driver: a schedule for any machine, from a list of tactics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Arranging, Core, Parallel, groups
from poly.strategy.common.point import AUTOMATIC, Pick, Point
from poly.strategy.common.tactic import (
    Choice,
    Group,
    NoMatch,
    Parameter,
    Tactic,
    UnsuitableError,
    Value,
)

M = TypeVar("M", bound=Parallel)

#: A pass over a whole schedule, before its groups get tactics or after.
Arrange = Callable[[Schedule, Arranging[M]], Schedule]


@dataclass(frozen=True)
class Strategy(Generic[M]):
    """The scheduling of programs for one kind of machine.

    arrange : passes over the whole schedule, in order
    tactics : tried in order on each group of statements after that
    marks : the primitives that say where iterations run, first that for outer loops
    finish : passes over the whole schedule after the tactics
    """

    arrange: tuple[Arrange[M], ...]
    tactics: tuple[Tactic[M, Any], ...]
    marks: tuple[str, ...]
    finish: tuple[Arrange[M], ...] = ()

    def core(self, schedule: Schedule, names: tuple[str, ...], machine: M) -> Core | None:
        """The core that the first tactic with a preference would tile some statements around."""
        group = Group(schedule, names, machine)
        found = (tactic.core(group) for tactic in self.tactics)
        return next((core for core in found if core is not None), None)

    def tactic(self, name: str) -> Tactic[M, Any]:
        """The tactic of a name.  Raises `UnsuitableError` if there is none."""
        found = next((t for t in self.tactics if t.name == name), None)
        if found is None:
            raise UnsuitableError(f"there is no tactic {name!r}")
        return found


@dataclass(frozen=True)
class Scheduled:
    """A schedule, and how each of its groups was scheduled."""

    schedule: Schedule
    choices: tuple[Choice, ...]


def apply_tactics(
    start: Schedule,
    machine: M,
    strategy: Strategy[M],
    plain: bool = False,
    point: Point = AUTOMATIC,
) -> Scheduled:
    """Schedule a program, starting from its written order: fast and legal.

    The result is deterministic for a program, machine and point.

    plain : use only tactics whose loops isl can always generate
    point : where tactics are chosen, or plan, otherwise

    Raises
    ------
    ScheduleError : what the point asks for is not possible; never for the automatic schedule.
    """
    machine = machine.exact if start.exact else machine
    schedule = arranged(start, machine, strategy, point.apart)
    return scheduled(schedule, machine, strategy, plain, point)


def scheduled(
    schedule: Schedule, machine: M, strategy: Strategy[M], plain: bool, point: Point
) -> Scheduled:
    """The rest of `apply_tactics`, from the schedule that `arranged` makes."""
    tactics = [t for t in strategy.tactics if t.plain or not plain]
    choices = []
    for names in groups(schedule):
        group, pick = Group(schedule, names, machine), point.pick(names)
        if pick is None:
            schedule, choice = _applied(group, tactics)
        else:
            schedule, choice = _picked(group, pick, strategy), Choice(names, pick.tactic, ())
        choices.append(choice)
    for finish in strategy.finish:
        schedule = finish(schedule, Arranging(machine, strategy.core))
    for step in point.steps:
        schedule = schedule.apply(step)
    return Scheduled(schedule, tuple(choices))


def arranged(
    start: Schedule, machine: M, strategy: Strategy[M], apart: Sequence[str] = ()
) -> Schedule:
    """The schedule whose groups get tactics.

    apart : statements that share no loops with what is before them
    """
    schedule = start
    for arrange in strategy.arrange:
        schedule = arrange(schedule, Arranging(machine, strategy.core, apart))
    return schedule


def plan_with(
    tactic: Tactic[M, Any], group: Group[M], values: Sequence[tuple[str, Value]]
) -> Any | NoMatch:
    """The plan of a tactic with other values of some parameters, in the order of these."""
    plan, chosen = tactic.asked_for(group), dict(values)
    for parameter in tactic.parameters:
        if isinstance(plan, NoMatch):
            break
        if parameter.name in chosen:
            value = chosen.pop(parameter.name)
            if not _is_possible(parameter, group, plan, value):
                return NoMatch(f"{parameter.name} cannot be {value!r}")
            plan = parameter.change(group, plan, value)
    return NoMatch(f"no parameters {', '.join(chosen)}") if chosen else plan


def _is_possible(parameter: Parameter[M, Any], group: Group[M], plan: Any, value: Value) -> bool:
    """Whether a plan may be changed to a value: any positive number, else one of the domain."""
    if isinstance(value, int) and value > 0 and isinstance(parameter.value(plan), int):
        return True
    return value in (parameter.value(plan), *parameter.values(group, plan))


def _picked(group: Group[M], pick: Pick, strategy: Strategy[M]) -> Schedule:
    """The schedule with the tactic that a point has for a group.

    Raises
    ------
    UnsuitableError : it does not apply, or its plan cannot be so.
    ScheduleError : a step is refused.
    """
    if not pick.tactic:
        return group.schedule
    tactic = strategy.tactic(pick.tactic)
    plan = plan_with(tactic, group, pick.values)
    if isinstance(plan, NoMatch):
        raise UnsuitableError(plan.reason)
    return _carried_out(tactic, group, plan)


def _applied(group: Group[M], tactics: Sequence[Tactic[M, Any]]) -> tuple[Schedule, Choice]:
    """Apply the first tactic that accepts a group; the schedule is unchanged if none does."""
    passed: list[tuple[str, str]] = []
    for tactic in tactics:
        plan = tactic.match(group)
        if isinstance(plan, NoMatch):
            passed.append((tactic.name, plan.reason))
            continue
        try:
            schedule = _carried_out(tactic, group, plan)
        except ScheduleError as error:
            passed.append((tactic.name, f"a step is refused: {error}"))
            continue
        return schedule, Choice(group.names, tactic.name, tuple(passed))
    return group.schedule, Choice(group.names, "", tuple(passed))


def _carried_out(tactic: Tactic[M, Any], group: Group[M], plan: Any) -> Schedule:
    """The schedule that a plan makes: checked once, and step by step only if that refuses it."""
    try:
        return tactic.apply(replace(group, schedule=group.schedule.draft()), plan).checked()
    except ScheduleError:
        return tactic.apply(group, plan)
