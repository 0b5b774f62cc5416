"""A schedule being tried out: steps are added, changed and removed, and each is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from poly.errors import IllegalScheduleError, ScheduleError
from poly.schedule.schedule import Schedule
from poly.schedule.script import Line, parse_script
from poly.tree.steps import Step


@dataclass(frozen=True)
class Trial:
    """A start, the schedule made from it so far, and the result of the last request.

    refused : the error of the last request, None if it succeeded; after an error, the schedule is
    unchanged
    """

    start: Schedule
    schedule: Schedule
    refused: ScheduleError | None = None

    @staticmethod
    def of(schedule: Schedule) -> Trial:
        """A trial of a schedule in which every step can be undone."""
        return Trial(Schedule.of(schedule.program, schedule.exact), schedule)

    @property
    def script(self) -> str:
        return str(self.schedule)

    @property
    def verdict(self) -> str:
        """One line: legal, or why the last request was refused."""
        if self.refused is None:
            count = len(self.schedule.steps)
            return f"legal: {count} step{'' if count == 1 else 's'}"
        kind = "illegal" if isinstance(self.refused, IllegalScheduleError) else "refused"
        return f"{kind}: {self.refused}"

    def then(self, text: str) -> Trial:
        """Add one or more steps, as lines of a script."""
        return self._tried(lambda: self.schedule.replay(text))

    def replayed(self, script: str) -> Trial:
        """Replace the steps so far by those of a script."""
        return self._tried(lambda: self.start.replay(script))

    def without_last(self) -> Trial:
        """Undo the last step, with its comments."""
        lines = list(self.schedule.lines)
        while lines and lines.pop().step is None:
            pass
        return self.replayed(_text(lines))

    def with_number(self, step: int, position: int, value: int) -> Trial:
        """Replace a number in a step (such as ``by`` of a tile), and replay all later steps.

        step, position : counted from 0
        """
        lines, seen = list(self.schedule.lines), -1
        for n, line in enumerate(lines):
            seen += line.step is not None
            if line.step is not None and seen == step:
                by = list(line.step.by)
                by[position] = value
                lines[n] = replace(line, step=replace(line.step, by=tuple(by)))
                return self.replayed(_text(lines))
        return replace(self, refused=ScheduleError(f"there is no step {step}"))

    @property
    def numbers(self) -> tuple[tuple[int, int, Step], ...]:
        """Every number of the script that can be changed: step, position, and the step itself."""
        steps = self.schedule.steps
        return tuple((n, k, s) for n, s in enumerate(steps) for k in range(len(s.by)))

    def _tried(self, made: Callable[[], Schedule]) -> Trial:
        try:
            return Trial(self.start, made())
        except ScheduleError as error:
            return replace(self, refused=error)


def step_text(primitive: str, statements: str, loops: str, numbers: str, words: str) -> str:
    """A line of a script from its parts; empty ones are left out.

    Raises
    ------
    ScheduleError : the parts do not form a step.
    """
    text = primitive
    for lead, part in ((" ", statements), (": ", loops), (" by ", numbers), (" as ", words)):
        if part.strip():
            text += lead + part.strip()
    (line,) = parse_script(text)
    return str(line)


def _text(lines: list[Line]) -> str:
    return "\n".join(map(str, lines))
