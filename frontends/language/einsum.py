"""Einsum strings as programs, with numpy's semantics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count

from frontends.language.parse_program import parse_program
from poly.errors import LanguageError, Span
from poly.ir.dtypes import BOOL, DType
from poly.ir.program import Program

_SHAPE = re.compile(r"[A-Za-z\s]*(,[A-Za-z\s]*)*(->[A-Za-z\s]*)?\Z")


def is_einsum(text: str) -> bool:
    """Whether a text is einsum subscripts rather than comprehensions.

    >>> is_einsum("ij,jk->ik"), is_einsum("C[i,j] +=! A[i,k] * B[k,j]")
    (True, False)
    """
    if "..." in text:
        return _SHAPE.match(text.replace("...", "")) is not None
    return bool(text.strip()) and _SHAPE.match(text) is not None


def einsum_program(subscripts: str, dtypes: Sequence[DType]) -> Program:
    """The program of an einsum; operands are A, B, … and the result is ``out``.

    As in numpy: blanks are ignored, upper and lower case letters differ, a repeated letter
    takes a diagonal, and without ``->`` the result has the letters that occur once, in
    alphabetical order.  Operand names that are letters of the subscripts are skipped.

    Raises
    ------
    LanguageError : for an ellipsis, a result letter that no operand has or that is repeated, or
        a wrong number of dtypes.
    """
    operands, result = _split(subscripts)
    if len(operands) != len(dtypes):
        raise LanguageError(
            f"the subscripts have {len(operands)} operands, but there are {len(dtypes)}",
            subscripts,
            Span(0, len(subscripts)),
        )
    used = {*"".join(operands), "out"}
    names = [n for n, _ in zip(_names(used), operands, strict=False)]
    reads = [f"{n}[{','.join(letters)}]" for n, letters in zip(names, operands, strict=True)]
    summed = set("".join(operands)) - set(result)
    all_bool = all(d == BOOL for d in dtypes)
    value = (" and " if all_bool else " * ").join(reads)
    op = "=" if not summed else "max=!" if all_bool else "+=!"
    text = f"out[{','.join(result)}] {op} {value}"
    return parse_program(text, dict(zip(names, dtypes, strict=True)), "einsum")


def operand_names(subscripts: str) -> tuple[str, ...]:
    """The names that `einsum_program` gives to the operands, in order."""
    operands, _ = _split(subscripts)
    used = {*"".join(operands), "out"}
    return tuple(n for n, _ in zip(_names(used), operands, strict=False))


def _names(used: set[str]) -> Iterator[str]:
    yield from (c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used)
    yield from (f"A{n}" for n in count())


def _split(subscripts: str) -> tuple[list[str], str]:
    """The letters of each operand, and of the result."""
    at = subscripts.find("...")
    if at >= 0:
        raise LanguageError(
            "an ellipsis stands for an unknown number of dimensions",
            subscripts,
            Span(at, at + 3),
            "write the dimensions as letters: bij,bjk->bik",
        )
    if not is_einsum(subscripts):
        bad = re.search(r"[^A-Za-z,\s]", subscripts.replace("->", "  "))
        at = bad.start() if bad else 0
        raise LanguageError(
            "these are not einsum subscripts",
            subscripts,
            Span(at, at + 1),
            "subscripts are letters and commas: ij,jk->ik",
        )
    left, arrow, right = re.sub(r"\s", "", subscripts).partition("->")
    operands = left.split(",")
    letters = "".join(operands)
    if not arrow:
        return operands, "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    for c in right:
        position = subscripts.index(c, subscripts.index("->"))
        span = Span(position, position + 1)
        if c not in letters:
            raise LanguageError(f"no operand has the index {c!r}", subscripts, span)
        if right.count(c) > 1:
            raise LanguageError(f"the result has the index {c!r} twice", subscripts, span)
    return operands, right
