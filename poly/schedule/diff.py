"""Differences between two schedules, as unified diffs of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff


@dataclass(frozen=True, repr=False)
class Difference:
    """The texts that differ, each as its name and a unified diff; false if there are none."""

    parts: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __repr__(self) -> str:
        return str(self) or "<no difference>"

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.parts)

    def __getitem__(self, name: str) -> str:
        """The diff of one text, ``""`` if it is unchanged."""
        return dict(self.parts).get(name, "")


def difference(*texts: tuple[str, str, str]) -> Difference:
    """Compare texts, each given as its name and its two versions.

    A diff has three lines of context, and its hunks begin with ``@@`` and line numbers.
    """
    parts = []
    for name, one, other in texts:
        lines = unified_diff(
            one.splitlines(), other.splitlines(), f"{name} (one)", f"{name} (other)", lineterm=""
        )
        text = "\n".join(lines)
        if text:
            parts.append((name, text))
    return Difference(tuple(parts))
