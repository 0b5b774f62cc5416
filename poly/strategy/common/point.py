"""Points of the space of schedules that tactics span: where their choices are not their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poly.strategy.common.tactic import Value
from poly.tree.steps import Step


@dataclass(frozen=True)
class Pick:
    """The tactic of a group, and those parameters of its plan that it would choose otherwise.

    tactic : its name, "" for the order that the group is in
    """

    tactic: str
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        return ", ".join([self.tactic or "as it is", *(f"{n} {v}" for n, v in self.values)])


@dataclass(frozen=True)
class Point:
    """How a schedule differs from the automatic one.

    apart : statements that share no loops with what is before them
    picks : for groups of statements that do not get the first tactic that matches
    steps : what is done after that
    """

    apart: tuple[str, ...] = ()
    picks: tuple[tuple[tuple[str, ...], Pick], ...] = ()
    steps: tuple[Step, ...] = ()

    def pick(self, names: tuple[str, ...]) -> Pick | None:
        """That of a group, None if it gets the first tactic that matches."""
        return dict(self.picks).get(names)

    def with_pick(self, names: tuple[str, ...], pick: Pick | None) -> Point:
        """The point with another pick for a group."""
        picks = {**dict(self.picks), names: pick}
        kept = sorted(((n, p) for n, p in picks.items() if p is not None), key=lambda x: x[0])
        return replace(self, picks=tuple(kept))

    def __str__(self) -> str:
        parts = [f"{', '.join(names)}: {pick}" for names, pick in self.picks]
        parts += [f"{name} apart" for name in self.apart]
        return "; ".join([*parts, *map(str, self.steps)]) or "the automatic schedule"


#: The automatic schedule.
AUTOMATIC = Point()
