"""`Clock`: the seconds that each stage of a compilation takes."""

from __future__ import annotations

import time


class Clock:
    """Seconds spent in each stage; those of workers count as well, although they work at once."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.add(stage, now - self._last)
        self._last = now

    def add(self, stage: str, seconds: float) -> None:
        """Add the seconds of a worker."""
        self.laps[stage] = self.laps.get(stage, 0.0) + seconds

    def restart(self) -> None:
        """Leave out the time since the last lap: it was added otherwise."""
        self._last = time.perf_counter()
