"""Points as plain data, for records, and back."""

from __future__ import annotations

from typing import Any

from poly.errors import ScheduleError, TuningError
from poly.schedule.script import parse_script
from poly.strategy.common.point import Pick, Point


def point_data(point: Point) -> Any:
    """A point as lists and texts."""
    picks = [
        [[*names], pick.tactic, [[n, v] for n, v in pick.values]] for names, pick in point.picks
    ]
    return {"apart": [*point.apart], "picks": picks, "steps": [str(s) for s in point.steps]}


def read_point(data: Any) -> Point:
    """The point that `point_data` was given.

    Raises
    ------
    TuningError : it is not such data.
    """
    try:
        lines = parse_script("\n".join(map(_text, data["steps"])))
        steps = tuple(line.step for line in lines if line.step is not None)
        picks = tuple(
            (
                tuple(map(_text, names)),
                Pick(_text(tactic), tuple((_text(n), _value(v)) for n, v in values)),
            )
            for names, tactic, values in data["picks"]
        )
        return Point(tuple(map(_text, data["apart"])), picks, steps)
    except (KeyError, TypeError, ValueError, ScheduleError) as error:
        raise TuningError(f"'point' is not a point: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _value(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"{value!r} is not a value")
    return value
