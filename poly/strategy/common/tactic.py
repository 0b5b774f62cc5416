"""Tactics: ways to schedule a group of statements, and which of them each group gets.

A tactic says whether a group is its own, with a plan of what it will do, before any step is made.
What `apply` makes of a plan are steps of the checked `Schedule`, so a plan that was wrong costs
speed, not results: where a step is refused, the next tactic has its turn, and the `Choice` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Core

M = TypeVar("M")
P = TypeVar("P")


@dataclass(frozen=True)
class Group(Generic[M]):
    """Statements of a schedule that share loops, and the machine that they are for."""

    schedule: Schedule
    names: tuple[str, ...]
    machine: M


@dataclass(frozen=True)
class NoMatch:
    """Why a group is none for a tactic."""

    reason: str


class UnsuitableError(ScheduleError):
    """Steps were legal, but did not give what a tactic needs."""


class Tactic(ABC, Generic[M, P]):
    """One way to schedule a group of statements.

    name : what `explain` and the docs call it
    plain : isl can generate its loops whatever is open, so that it stands in where others fail
    """

    name: ClassVar[str]
    plain: ClassVar[bool] = False

    def core(self, group: Group[M]) -> Core | None:
        """What the tactic would tile a group around, so that its free loops are shared all or not
        at all; None if it has nothing to say of that.
        """
        return None

    @abstractmethod
    def match(self, group: Group[M]) -> P | NoMatch:
        """What to do with a group, decided before any step is made."""

    @abstractmethod
    def apply(self, group: Group[M], plan: P) -> Schedule:
        """The schedule with the steps of a plan.

        Raises
        ------
        ScheduleError : a step that the tactic cannot do without is refused.
        UnsuitableError : what the steps give does not suit.
        """


@dataclass(frozen=True)
class Choice:
    """How a group was scheduled.

    tactic : by which, "" if none took it
    passed : those that were asked before it, each with the reason why it did not
    """

    names: tuple[str, ...]
    tactic: str
    passed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{', '.join(self.names)}: {self.tactic or 'as written'}"]
        lines += [f"    not {tactic}: {reason}" for tactic, reason in self.passed]
        return "\n".join(lines)
