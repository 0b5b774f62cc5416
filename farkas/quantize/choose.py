"""Which units stay in float32: pure functions of measured errors and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Gains within this share of a unit's time, or this many seconds, are noise.
_NOISE, _NOISE_SECONDS = 0.03, 1e-6
#: Where nothing is gained, any error is too much.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class Measured:
    """A unit's error when it alone is quantised, and its seconds in float32 and in 8 bits.

    drop : in the unit of the metric; error : relative, which tells units apart where the drop of
    a coarse metric does not
    """

    drop: float
    error: float
    wide: float
    narrow: float

    @property
    def gain(self) -> float:
        """Seconds that 8 bits save in a run."""
        return self.wide - self.narrow

    @property
    def loses(self) -> bool:
        """Whether it takes longer in 8 bits."""
        return self.gain < -max(_NOISE * self.wide, _NOISE_SECONDS)


def worst_first(units: Mapping[int, Measured]) -> list[int]:
    """The units by the harm that they do for each second that they save, the worst first."""

    def key(unit: int) -> tuple[float, float, int]:
        found = units[unit]
        gain = max(found.gain, _LEAST_GAIN)
        return -max(found.drop, 0.0) / gain, -found.error / gain, unit

    return sorted(units, key=key)


def fewest(count: int, enough: Callable[[int], bool]) -> int:
    """The smallest number from 0 to `count` that is enough, if any more than enough is so, too.

    `count` itself is not asked: it is the answer if nothing less is enough.
    """
    if not count or enough(0):
        return 0
    low, high = 0, count  # low is not enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def errors_by_halves(
    units: Sequence[int], trials: int, trial: Callable[[Sequence[int]], tuple[float, float]]
) -> dict[int, tuple[tuple[float, float], int]]:
    """The error of each unit and the number of units that it was measured with, itself included.

    With more units than `trials`, neighbours are measured together first, and the groups with the
    greatest errors in halves, as long as trials are left.
    """
    if not units:
        return {}
    first = min(len(units), trials if len(units) <= trials else max(1, trials // 2))
    cuts = [i * len(units) // first for i in range(first + 1)]
    groups = [tuple(units[a:b]) for a, b in pairwise(cuts)]
    found = {group: trial(group) for group in groups}
    left = trials - len(found)
    while left >= 2:
        wide = [g for g in found if len(g) > 1]
        if not wide:
            break
        worst = max(wide, key=lambda g: found[g])
        del found[worst]
        half = len(worst) // 2
        for part in (worst[:half], worst[half:]):
            found[part] = trial(part)
        left -= 2
    return {unit: (error, len(group)) for group, error in found.items() for unit in group}
