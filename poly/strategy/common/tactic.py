"""Tactics: ways to schedule a group of statements, and the choice among them for each group.

A tactic says whether it applies to a group, with a plan of what it will do, before any step is
made.  `apply` turns a plan into steps of the checked `Schedule`, so a wrong plan costs speed, not
results: where a step is refused, the next tactic is tried, and the `Choice` records it.

Its parameters say what else a plan may be: tuning looks for better ones, see `poly.space`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Core

M = TypeVar("M")
P = TypeVar("P")

#: What a parameter may be.
Value = int | str


@dataclass(frozen=True)
class Group(Generic[M]):
    """Statements of a schedule that share loops, and the machine that they are for."""

    schedule: Schedule
    names: tuple[str, ...]
    machine: M


@dataclass(frozen=True)
class NoMatch:
    """Why a tactic does not apply to a group."""

    reason: str


@dataclass(frozen=True)
class Parameter(Generic[M, P]):
    """A choice in the plan of a tactic, and what else it may be.

    name : in records and tables
    value : what a plan has chosen
    values : what may be chosen for a group instead, given what else a plan has chosen
    change : the plan with another value, what depends on it chosen anew; `NoMatch` if there is none
    """

    name: str
    value: Callable[[P], Value]
    values: Callable[[Group[M], P], Iterable[Value]]
    change: Callable[[Group[M], P, Any], P | NoMatch]


def field_parameter(
    name: str, field: str, values: Callable[[Group[Any], Any], Iterable[Value]]
) -> Parameter[Any, Any]:
    """The parameter that is a field of the plan: a number, a text, or a flag, which is 0 or 1."""

    def value(plan: Any) -> Value:
        now = getattr(plan, field)
        found: Value = int(now) if isinstance(now, bool) else now
        return found

    def change(group: Group[Any], plan: Any, new: Value) -> Any:
        return replace(plan, **{field: type(getattr(plan, field))(new)})

    return Parameter(name, value, values, change)


def yes_or_no(group: Group[Any], plan: Any) -> tuple[int, int]:
    """The values of a flag."""
    return (0, 1)


class UnsuitableError(ScheduleError):
    """Steps were legal, but did not achieve what a tactic needs."""


class Tactic(ABC, Generic[M, P]):
    """One way to schedule a group of statements.

    name : its name in `explain` and the docs
    plain : isl can generate its loops for any extents, so that it is the fallback where others fail
    parameters : of its plans, in the order in which they may be changed
    """

    name: ClassVar[str]
    plain: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter[Any, Any], ...]] = ()

    def core(self, group: Group[M]) -> Core | None:
        """The core that the tactic would tile a group around; None if it has no preference.

        All or none of its free loops are then shared.
        """
        return None

    @abstractmethod
    def match(self, group: Group[M]) -> P | NoMatch:
        """Plan what to do with a group, before any step is made."""

    def asked_for(self, group: Group[M]) -> P | NoMatch:
        """The plan where a point asks for this tactic: also if another one seems cheaper."""
        return self.match(group)

    @abstractmethod
    def apply(self, group: Group[M], plan: P) -> Schedule:
        """The schedule with the steps of a plan.

        Raises
        ------
        ScheduleError : a step that the tactic needs is refused.
        UnsuitableError : the steps do not achieve what the tactic needs.
        """


@dataclass(frozen=True)
class Choice:
    """How a group was scheduled.

    tactic : the one that was applied, "" if none was
    passed : those tried before it, each with the reason why it was not applied
    """

    names: tuple[str, ...]
    tactic: str
    passed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{', '.join(self.names)}: {self.tactic or 'as written'}"]
        lines += [f"    not {tactic}: {reason}" for tactic, reason in self.passed]
        return "\n".join(lines)
