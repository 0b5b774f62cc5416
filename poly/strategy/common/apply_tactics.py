"""The driver: a schedule for any machine, from a list of tactics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Core, CoreOf, Parallel, groups
from poly.strategy.common.tactic import Choice, Group, NoMatch, Tactic

M = TypeVar("M", bound=Parallel)

#: A pass over a whole schedule, before its groups get tactics.
Arrange = Callable[[Schedule, M, CoreOf[M]], Schedule]


@dataclass(frozen=True)
class Strategy(Generic[M]):
    """The scheduling of programs for one kind of machine.

    arrange : passes over the whole schedule, in order
    tactics : tried in order on each group of statements after that
    """

    arrange: tuple[Arrange[M], ...]
    tactics: tuple[Tactic[M, Any], ...]

    def core(self, schedule: Schedule, names: tuple[str, ...], machine: M) -> Core | None:
        """The core that the first tactic with a preference would tile some statements around."""
        group = Group(schedule, names, machine)
        found = (tactic.core(group) for tactic in self.tactics)
        return next((core for core in found if core is not None), None)


@dataclass(frozen=True)
class Scheduled:
    """A schedule, and how each of its groups was scheduled."""

    schedule: Schedule
    choices: tuple[Choice, ...]


def apply_tactics(
    start: Schedule, machine: M, strategy: Strategy[M], plain: bool = False
) -> Scheduled:
    """Schedule a program, starting from its written order: fast and legal.

    The result is deterministic for a program and machine.

    plain : use only tactics whose loops isl can always generate
    """
    schedule, machine = start, machine.exact if start.exact else machine
    for arrange in strategy.arrange:
        schedule = arrange(schedule, machine, strategy.core)
    tactics = [t for t in strategy.tactics if t.plain or not plain]
    choices = []
    for names in groups(schedule):
        schedule, choice = _applied(Group(schedule, names, machine), tactics)
        choices.append(choice)
    return Scheduled(schedule, tuple(choices))


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
