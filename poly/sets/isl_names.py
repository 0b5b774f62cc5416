"""Names of dimensions in the texts that isl reads.

Where a dimension has the name of a size, isl takes it for that size: ``[p0] -> { [p0] -> S[p0] }``
is one pair.  So they have names that no program can have: a program's names do not end in a prime.
"""

from __future__ import annotations


def dim(letter: str, number: int) -> str:
    """``p0'``"""
    return f"{letter}{number}'"


def dims(letter: str, count: int) -> list[str]:
    """``p0', p1', …``"""
    return [dim(letter, n) for n in range(count)]
