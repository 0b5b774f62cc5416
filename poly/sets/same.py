"""Keys by identity for answers that are remembered: isl's objects have no hash."""

from __future__ import annotations

from typing import Any


class Same:
    """A key that only the same object has; it keeps that object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value
