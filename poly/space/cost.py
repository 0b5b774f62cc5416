"""What an estimate of a schedule says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from math import log2
from typing import Any, TypeVar

C = TypeVar("C", bound="Cost")


class Cost(ABC):
    """An estimate of what a schedule costs: a dataclass of numbers."""

    instructions: float

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Of all processors together, at work side by side."""

    @property
    def features(self) -> tuple[float, ...]:
        """Logarithms of all of it, for a learned model."""
        numbers: Any = self
        return tuple(log2(1 + x) for x in (*astuple(numbers), self.cycles))


def together(parts: Sequence[C], sums: Iterable[str]) -> C:
    """The cost of several statements: sums of these fields, the rest of the statement with the most
    instructions.
    """
    most: Any = max(parts, key=lambda x: x.instructions)
    found: C = replace(most, **{name: sum(getattr(p, name) for p in parts) for name in sums})
    return found
