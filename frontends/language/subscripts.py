"""Subscripts of a call of einsum, with numpy's rules: letters, ellipses, and what is left out.

    ij,jk->ik       the letters of each operand, and of the result
    ij,jk           the result has the letters that occur once, in alphabetical order
    ...ij,...jk     as many dimensions as an operand has beside its letters; they are aligned from
                    the right, and come first in a result that is left out

Numbers may stand for letters, with an operand and its numbers in turn.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poly.errors import ArgumentError, LanguageError, Span

#: A dimension: a letter, or a number of an ellipsis, counted from the right.
Label = str | int
Labels = tuple[Label, ...]
_DOTS = "..."


@dataclass(frozen=True)
class Subscripts:
    """The labels of each dimension of the operands and of the result."""

    operands: tuple[Labels, ...]
    result: Labels


def read_subscripts(text: str, ranks: Sequence[int]) -> Subscripts:
    """The labels that subscripts give to operands of some ranks.

    Raises
    ------
    LanguageError : the text is none, or has not as many operands, or letters, as there are.
    """
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise LanguageError(
            f"the subscripts have {len(terms)} operands, but there are {len(ranks)}",
            text,
            Span(0, len(text)),
        )
    operands, at = [], 0
    for number, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        operands.append(_labels(text, term, at, rank, f"operand {number}"))
        at += len(term) + 1
    widest = max((sum(isinstance(x, int) for x in labels) for labels in operands), default=0)
    if not arrow:
        return Subscripts(tuple(operands), _left_out(operands, widest))
    at = len(left) + 2
    rank = widest + len("".join(right.split()).replace(_DOTS, ""))
    result = _labels(text, right, at, rank if _DOTS in right else rank - widest, "the result")
    _check_result(text, operands, result, at)
    return Subscripts(tuple(operands), result)


def _labels(text: str, term: str, at: int, rank: int, what: str) -> Labels:
    """The labels of an operand or of the result, whose term begins at `at`."""
    before, dots, after = term.partition(_DOTS)
    for number, c in enumerate(before + " " * len(dots) + after):
        if not (c == " " or (c.isascii() and c.isalpha())):
            span = Span(at + number, at + number + 1)
            message = "a second ellipsis in one term" if dots and c == "." else None
            hint = "subscripts are letters, commas and ellipses: ...ij,jk->...ik"
            raise LanguageError(message or "these are not einsum subscripts", text, span, hint)
    first, last = (tuple("".join(part.split())) for part in (before, after))
    spare = rank - len(first) - len(last)
    if spare < 0 or (spare and not dots):
        letters = len(first) + len(last)
        fits = "at least " if dots else ""
        raise LanguageError(
            f"{what} has {rank} dimensions, but the subscripts have {fits}{letters} for it",
            text,
            Span(at, at + max(1, len(term))),
        )
    return (*first, *range(spare - 1, -1, -1), *last)


def _left_out(operands: Sequence[Labels], widest: int) -> Labels:
    letters = Counter(x for labels in operands for x in labels if isinstance(x, str))
    once = sorted(letter for letter, count in letters.items() if count == 1)
    return (*range(widest - 1, -1, -1), *once)


def _check_result(text: str, operands: Sequence[Labels], result: Labels, at: int) -> None:
    known = {x for labels in operands for x in labels}
    seen: set[Label] = set()
    for label in result:
        if isinstance(label, str):
            position = text.index(label, at)
            span = Span(position, position + 1)
            if label not in known:
                raise LanguageError(f"no operand has the index {label!r}", text, span)
            if label in seen:
                raise LanguageError(f"the result has the index {label!r} twice", text, span)
        seen.add(label)
    lost = [x for x in known - seen if isinstance(x, int)]
    if lost:
        raise LanguageError(
            "the result has no ellipsis, but operands have one with dimensions",
            text,
            Span(at - 2, len(text)),
            "write ... in the result, or letters for the dimensions to sum over",
        )


def from_lists(arguments: Sequence[Any]) -> tuple[str, list[Any]]:
    """Subscripts as text, and the operands, of ``einsum(A, [0, 1], B, [1, 2], [0, 2])``.

    Raises
    ------
    ArgumentError : a list that has something else than ellipses and numbers for which there are
        letters.
    """
    count = len(arguments) // 2
    terms = [_term(one) for one in arguments[1 : 2 * count : 2]]
    text = ",".join(terms) + (f"->{_term(arguments[-1])}" if len(arguments) % 2 else "")
    return text, [arguments[2 * n] for n in range(count)]


#: For numbers, in this order: that of letters in results that are left out.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _term(numbers: Any) -> str:
    """Numbers as letters."""
    try:
        found = [_DOTS if n is ... else operator.index(n) for n in numbers]
        if any(n < 0 for n in found if isinstance(n, int)):
            raise IndexError
        return "".join(n if isinstance(n, str) else _LETTERS[n] for n in found)
    except (TypeError, IndexError):
        raise ArgumentError(
            f"{numbers!r} is no list of subscripts: numbers below {len(_LETTERS)}, and ..."
        ) from None
