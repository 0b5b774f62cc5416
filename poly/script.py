"""Schedules as text: one step a line, ``primitive statements: loops by numbers as names``.

``#`` starts a comment.  What `parse_script` accepts, `Step.__str__` prints.
"""

from __future__ import annotations

import re

from poly.errors import ScheduleError
from poly.transforms import PRIMITIVES, Step

_STEP = re.compile(
    r"(?P<primitive>[a-z]+)"
    r"(?:\s+(?P<statements>\w+(?:\s*,\s*\w+)*))?"
    r"(?:\s*:\s*(?P<loops>\w+(?:\s*,\s*\w+)*))?"
    r"(?:\s+by\s+(?P<by>-?\d+(?:\s*,\s*-?\d+)*))?"
    r"(?:\s+as\s+(?P<words>\w+(?:\s*,\s*\w+)*))?\s*\Z",
    re.ASCII,
)


def parse_script(text: str) -> list[tuple[int, Step]]:
    """The steps of a script with their line numbers, from 1.

    Raises
    ------
    ScheduleError : naming the line that is no step.
    """
    steps: list[tuple[int, Step]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if line:
            steps.append((number, _parse_step(line, number)))
    return steps


def _parse_step(line: str, number: int) -> Step:
    match = _STEP.match(line) if len(line) < 10_000 else None
    if match is None:
        raise ScheduleError(
            f"line {number} is no schedule step: {line[:200]}\n"
            "hint: a step reads `primitive statements: loops by numbers as names`, "
            "for example `tile C: i, j by 32, 32`"
        )
    if match["primitive"] not in (*PRIMITIVES, "reschedule"):
        raise ScheduleError(
            f"line {number}: there is no primitive {match['primitive']!r}; "
            f"there are {', '.join(PRIMITIVES)}"
        )
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


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(w.strip() for w in text.split(",")) if text else ()
