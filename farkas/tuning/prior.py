"""Measurements that Farkas ships, so that a model has something to start from on a new machine.

Features and times are relative to the automatic schedule's, so that much of them carries over to
other programs and machines.  `python -m benchmarks.tuning_prior` writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from random import Random

from farkas.tuning.learned import Row
from runtime.tuned.record import Trial

#: Lines of numbers: the logarithm of a time over that of the automatic schedule, then features.
PATH = Path(__file__).with_name("prior.csv")
#: Trials that are kept of each program, and digits of each number.
EACH, DIGITS = 12, 2


@lru_cache(maxsize=1)
def prior() -> tuple[Row, ...]:
    """The measurements, each as a value and features."""
    lines = PATH.read_text(encoding="utf-8").split()
    numbers = [tuple(map(float, line.split(","))) for line in lines]
    return tuple((row[0], row[1:]) for row in numbers)


def write_prior(rows: Iterable[Row]) -> None:
    """Replace the measurements."""
    lines = (",".join(f"{x:.{DIGITS}f}" for x in (value, *features)) for value, features in rows)
    PATH.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def chosen(trials: Iterable[Trial], seed: int = 0) -> list[Trial]:
    """The same number of trials of each program, at random."""
    rng = Random(seed)
    programs: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.features:
            programs.setdefault(trial.key.program, []).append(trial)
    return [t for same in programs.values() for t in rng.sample(same, min(EACH, len(same)))]
