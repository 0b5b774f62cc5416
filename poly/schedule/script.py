"""Schedules as text: one step a line, ``primitive statements: loops by numbers as names``.

``#`` starts a comment, which is kept.  `Line.__str__` prints what `parse_script` reads: white
space inside a step is normalised, everything else is unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from poly.errors import ScheduleError
from poly.schedule.primitives import find_primitive
from poly.tree.steps import Step

_STEP = re.compile(
    r"(?P<primitive>[a-z]+(?:_[a-z]+)*)"
    r"(?:\s+(?P<statements>\w+(?:\s*,\s*\w+)*))?"
    r"(?:\s*:\s*(?P<loops>\w+(?:\s*,\s*\w+)*))?"
    r"(?:\s+by\s+(?P<by>-?\d+(?:\s*,\s*-?\d+)*))?"
    r"(?:\s+as\s+(?P<words>\w+(?:\s*,\s*\w+)*))?\s*",
    re.ASCII,
)


@dataclass(frozen=True)
class Line:
    """One line of a script: a step, a comment, both or neither.

    comment : from the white space before ``#`` to the end of the line
    """

    step: Step | None = None
    comment: str = ""

    def __str__(self) -> str:
        return f"{self.step or ''}{self.comment}"


def parse_script(text: str) -> tuple[Line, ...]:
    """The lines of a script, in order; a byte-order mark before them is left out.

    Raises
    ------
    ScheduleError : the line, counted from 1, that is not a step.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    return tuple(_parse_line(raw, number) for number, raw in enumerate(lines, 1))


def _parse_line(raw: str, number: int) -> Line:
    step, mark, rest = raw.partition("#")
    comment = step[len(step.rstrip()) :] + mark + rest.rstrip() if mark else ""
    return Line(_parse_step(step.strip(), number) if step.strip() else None, comment)


def _parse_step(line: str, number: int) -> Step:
    match = _STEP.fullmatch(line) if len(line) < 10_000 else None
    if match is None:
        start = _STEP.match(line[:10_000])
        raise _no_step(line, number, start.end() if start else 0)
    try:
        find_primitive(match["primitive"])
    except ScheduleError as error:
        raise ScheduleError(f"line {number}: {error}") from None
    numbers = tuple(int(n) for n in _words(match["by"]) if len(n) < 12)
    if len(numbers) != len(_words(match["by"])):
        raise ScheduleError(f"line {number}: a number is too large: {line[:200]}")
    return Step(
        match["primitive"],
        _words(match["statements"]),
        _words(match["loops"]),
        numbers,
        _words(match["words"]),
    )


def _no_step(line: str, number: int, end: int) -> ScheduleError:
    """An error for a line that can only be parsed up to a position."""
    hint = "a step reads `primitive statements: loops by numbers as names`, for example "
    if number == 1 and re.fullmatch(r"[\w./\\~-]+\.\w+", line):
        hint = "for a file, pass its text: Path(name).read_text(); a step reads "
    shown = line[:200]
    caret = f"\n   {' ' * end}^" if 0 < end < len(shown) else ""
    return ScheduleError(
        f"line {number} is not a schedule step:\n   {shown}{caret}\nhint: {hint}"
        "`tile C: i, j by 32, 32`"
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(w.strip() for w in text.split(",")) if text else ()
