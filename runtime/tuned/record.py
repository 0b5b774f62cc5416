"""Records of tuning: what was tried for a program on a machine, and what won.

A record is one line of JSON.  It is data that anyone may edit: a script is replayed through the
checker whenever it is used, and a line that is not a record is left out and named.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from poly.errors import TuningError

#: Characters of a line, lines of a script, and numbers of a program, at most.
MOST_CHARACTERS, MOST_LINES, MOST_NUMBERS = 1 << 20, 2000, 200
#: How the failure of a schedule begins whose results are not those of the automatic one.
WRONG = "wrong result: "
_DIGEST = re.compile(r"[0-9a-f]{16}")

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Key:
    """What was tuned: a program, and how it is called.

    program : the digest of the program that is scheduled, whatever its sizes are called
    exact : whether reductions keep their written order
    threads : of a call
    sizes : those that are not fixed in the program, as they were measured
    """

    program: str
    exact: bool
    threads: int
    sizes: Sizes = ()


@dataclass(frozen=True)
class Trial:
    """A schedule that was measured beside the automatic one.

    base : the digest of that one; family : of the program without its numbers
    script : the schedule; point : how it was found, as JSON, None if by hand
    ratio : its time over that of the automatic schedule, `math.inf` if it failed
    spread : the part of the ratio by which half of the rounds differ from it at most
    features : what a model knows of it, see `farkas.tuning.learned.features`
    failure : why it has no time, "" if it has; with `WRONG` in front if its results are others
    """

    key: Key
    base: str
    family: str
    script: str
    point: Any
    ratio: float
    spread: float
    features: tuple[float, ...] = ()
    failure: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether its results were not those of the automatic schedule."""
        return self.failure.startswith(WRONG)


@dataclass(frozen=True)
class Winner:
    """The schedule that a program gets from now on.

    base : the digest of the automatic schedule, which is another one in another version of Farkas
    family : as in `Trial`; name : of the program
    script : "" for the automatic schedule, which nothing has beaten
    automatic, seconds : of a call, with the automatic schedule and with this one
    spread : as in `Trial`; spent : seconds of tuning; when, version : the day, and that of Farkas
    numbers : of the program's text, which say how near it is to another one of its family
    """

    key: Key
    base: str
    family: str
    name: str
    script: str
    point: Any
    automatic: float
    seconds: float
    spread: float
    spent: float
    when: str
    version: str
    numbers: tuple[int, ...] = ()

    @property
    def gain(self) -> float:
        """How many times as fast as the automatic schedule."""
        return self.automatic / self.seconds

    @property
    def place(self) -> tuple[int, ...]:
        """Where it is among the programs of its family: its numbers, and its sizes."""
        return (*self.numbers, *(value for _, value in self.key.sizes))


def write_line(record: Trial | Winner) -> str:
    """A record as a line of text, without its end."""
    key = record.key
    data: dict[str, Any] = {
        "kind": "winner" if isinstance(record, Winner) else "trial",
        "program": key.program,
        "exact": key.exact,
        "threads": key.threads,
        "sizes": dict(key.sizes),
        "base": record.base,
        "family": record.family,
    }
    if isinstance(record, Winner):
        data |= {
            "name": record.name,
            "automatic": rounded(record.automatic),
            "seconds": rounded(record.seconds),
            "spent": rounded(record.spent),
            "when": record.when,
            "farkas": record.version,
            "numbers": record.numbers,
        }
    else:
        data |= {
            "ratio": rounded(record.ratio) if math.isfinite(record.ratio) else None,
            "features": [rounded(x) for x in record.features],
            "failure": record.failure,
        }
    data["spread"] = rounded(record.spread)
    data |= {"script": record.script.splitlines(), "point": record.point}
    return json.dumps(data)


def read_line(line: str) -> Trial | Winner:
    """The record of a line.

    Raises
    ------
    TuningError : the line is not one.
    """
    if len(line) > MOST_CHARACTERS:
        raise TuningError("the line is too long")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise TuningError("the line is not JSON") from None
    if not isinstance(data, dict):
        raise TuningError("the line is not a record")
    fields = _Fields(data)
    kind, family, spread = fields.text("kind"), fields.text("family"), fields.number("spread")
    key = Key(fields.digest("program"), fields.flag("exact"), fields.threads(), fields.sizes())
    base = fields.digest("base")
    if kind == "winner":
        return Winner(
            key, base, family, fields.text("name"), fields.script(), data.get("point"),
            fields.seconds("automatic"), fields.seconds("seconds"), spread, fields.number("spent"),
            fields.text("when"), fields.text("farkas"),
            fields.whole_numbers("numbers"),
        )  # fmt: skip
    if kind != "trial":
        raise TuningError(f"a record is a winner or a trial, not a {kind[:40]!r}")
    ratio = math.inf if data.get("ratio") is None else fields.seconds("ratio")
    features = fields.numbers("features")
    failure = fields.text("failure")
    return Trial(
        key, base, family, fields.script(), data.get("point"), ratio, spread, features, failure
    )


@dataclass(frozen=True)
class _Fields:
    """The fields of a record, checked."""

    data: dict[str, Any]

    def text(self, name: str) -> str:
        value = self.data.get(name)
        if not isinstance(value, str) or not value.isprintable() or len(value) > 1000:
            raise TuningError(f"{name!r} is not a text")
        return value

    def digest(self, name: str) -> str:
        value = self.text(name)
        if not _DIGEST.fullmatch(value):
            raise TuningError(f"{name!r} is not a digest")
        return value

    def flag(self, name: str) -> bool:
        value = self.data.get(name)
        if not isinstance(value, bool):
            raise TuningError(f"{name!r} is neither true nor false")
        return value

    def number(self, name: str) -> float:
        value = self.data.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TuningError(f"{name!r} is not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise TuningError(f"{name!r} is not a finite number")
        return number

    def numbers(self, name: str) -> tuple[float, ...]:
        values = self.data.get(name)
        if not isinstance(values, list) or len(values) > 1000:
            raise TuningError(f"{name!r} is not a list of numbers")
        return tuple(_Fields({name: v}).number(name) for v in values)

    def whole_numbers(self, name: str) -> tuple[int, ...]:
        """None where the field is missing."""
        values = self.data.get(name, [])
        known = isinstance(values, list) and len(values) <= MOST_NUMBERS
        if not known or not all(type(v) is int and 0 <= v < 10**15 for v in values):
            raise TuningError(f"{name!r} is not a list of whole numbers")
        return tuple(values)

    def seconds(self, name: str) -> float:
        value = self.number(name)
        if value <= 0:
            raise TuningError(f"{name!r} is not positive")
        return value

    def threads(self) -> int:
        value = self.data.get("threads")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
            raise TuningError("'threads' is not a number of threads")
        return value

    def sizes(self) -> Sizes:
        value = self.data.get("sizes")
        known = isinstance(value, dict) and all(
            n.isidentifier() and isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**31
            for n, v in value.items()
        )
        if not known:
            raise TuningError("'sizes' are not sizes by name")
        assert isinstance(value, dict)
        return tuple(sorted(value.items()))

    def script(self) -> str:
        lines = self.data.get("script")
        if (
            not isinstance(lines, list)
            or len(lines) > MOST_LINES
            or not all(isinstance(x, str) and x.isprintable() for x in lines)
        ):
            raise TuningError("'script' is not a list of lines")
        return "\n".join(lines)


def short_digest(text: str) -> str:
    """Of a text, as records have it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rounded(value: float) -> float:
    """A number as it is written: five digits are more than any measurement has."""
    return float(f"{value:.5g}")
