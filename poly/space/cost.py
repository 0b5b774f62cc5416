"""What an estimate of a schedule says."""

from __future__ import annotations

from typing import Protocol


class Cost(Protocol):
    """An estimate of what a schedule costs."""

    @property
    def cycles(self) -> float:
        """Of all processors together, at work side by side."""

    @property
    def features(self) -> tuple[float, ...]:
        """What a learned model is told of it: always as many numbers for the same machine."""
