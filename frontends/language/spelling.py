"""Guesses which declared name a misspelt one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Shorter names are never taken for misspellings of each other: i and j, kh and kw are idiom.
LEAST_LENGTH = 4


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that an unknown name resembles most; None if it resembles none."""
    others = [c for c in dict.fromkeys(candidates) if c != name]
    near = [c for c in others if is_near(name, c)]
    near += [c for c in others if c.lower() == name.lower()]
    if near or len(name) == 1:
        return near[0] if near else None
    matches = get_close_matches(name, others, n=1, cutoff=0.6)
    return matches[0] if matches else None


def is_near(name: str, other: str) -> bool:
    """Whether two names are one slip of the keyboard apart.

    A slip inserts, drops, replaces or swaps one letter.  Short names, digits and parts between
    underscores are different on purpose (``i`` and ``j``, ``k1`` and ``k2``, ``row_a`` and
    ``row_b``), and so are names that differ in case alone (``n`` and ``N``).
    """
    parts, others = name.lower().split("_"), other.lower().split("_")
    if len(parts) != len(others):
        return False
    unlike = [(a, b) for a, b in zip(parts, others, strict=True) if a != b]
    return len(unlike) == 1 and _one_slip(*unlike[0])


def _one_slip(a: str, b: str) -> bool:
    if min(len(a), len(b)) < LEAST_LENGTH - 1 or max(len(a), len(b)) < LEAST_LENGTH:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    x, y = a[start : len(a) - end], b[start : len(b) - end]
    if any(c.isdigit() for c in x + y):
        return False
    return (len(x) <= 1 and len(y) <= 1) or (len(x) == 2 and x == y[::-1])
