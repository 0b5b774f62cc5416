"""Timing calls side by side in one process.

After another library ran, its idle threads may keep spinning and take half of the processor from
the next one.  So each turn begins with a pause and some warm-up calls; contenders take turns, in
alternating order; and the median is reported.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Settings of the measurements; all times in seconds.

    settle : pause before each turn
    warm : least time of the warm-up calls at the beginning of a turn
    rounds : turns of each contender
    turn : approximate time of the measured calls of one turn
    sample : calls shorter than this are timed in groups
    least, most : samples per turn
    limit : a contender whose turns took longer than this in all gets no more
    """

    settle: float = 0.1
    warm: float = 0.02
    rounds: int = 6
    turn: float = 0.12
    sample: float = 1e-4
    least: int = 3
    most: int = 300
    limit: float = 20.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


QUICK = Settings(rounds=2, turn=0.05)

Call = Callable[[], object]


def take_turns(
    calls: Mapping[str, Call],
    settings: Settings,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    first: int = 0,
) -> dict[str, float]:
    """The median time of one call of each contender, in seconds.

    `first` rotates the order, so that over several processes each is sometimes the first.
    """
    names = list(calls)
    names = names[first % len(names) :] + names[: first % len(names)] if names else []
    samples: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(settings.rounds):
            for name in names if turn % 2 == 0 else reversed(names):
                if spent[name] > settings.limit:
                    continue
                sleep(settings.settle)
                start = clock()
                samples[name] += _turn(calls[name], settings, clock)
                spent[name] += clock() - start
    finally:
        if collecting:
            gc.enable()
    return {name: statistics.median(times) for name, times in samples.items()}


def _turn(call: Call, settings: Settings, clock: Callable[[], float]) -> list[float]:
    """Samples of one turn: seconds per call."""
    began, calls, once = clock(), 0, 0.0
    while clock() - began < settings.warm or calls < 2:
        start = clock()
        call()
        once = clock() - start
        calls += 1
        if once > 1.0:
            break
    group = max(1, round(settings.sample / max(once, 1e-7)))
    samples: list[float] = []
    began = clock()
    while len(samples) < settings.most:
        elapsed = clock() - began
        if elapsed >= settings.turn and (len(samples) >= settings.least or elapsed >= 1.0):
            break
        start = clock()
        for _ in range(group):
            call()
        samples.append((clock() - start) / group)
    return samples
