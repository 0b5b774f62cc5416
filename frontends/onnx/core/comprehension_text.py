"""Small helpers with which operators compose the text of comprehensions.

Operators write programs with concrete sizes and explicit ranges and with tensor names of their
own, so that two nodes that compute the same thing have the same text, are parsed once, and have
equal digests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from frontends.onnx.core.symbolic_dims import CURRENT, Dim
from poly.ir.dtypes import DType

if TYPE_CHECKING:
    from poly.ir.program import Program

_LETTERS = ("i", "j", "k", "l", "m", "n")

Extent = int | tuple[int, int]


@lru_cache(maxsize=8192)
def parsed(text: str) -> Program:
    """The verified program of a text; equal texts give the same object.

    Raises
    ------
    LanguageError, ProgramError : if an operator wrote an invalid program, a defect of Farkas.
    """
    from frontends.language.parse_program import parse_program  # what is cached needs no parser

    return parse_program(text)


def names(rank: int, letters: Sequence[str] = _LETTERS) -> tuple[str, ...]:
    """`rank` index names: the letters while they last, then i0, i1, …"""
    if rank <= len(letters):
        return tuple(letters[:rank])
    return tuple(f"{letters[0]}{d}" for d in range(rank))


def limited(value: str, dtype: DType) -> str:
    """The value within the limits of a type; 64 bits are left alone, as no float holds them all.

    value : text of a float that holds the limits
    """
    if not dtype.is_integer or dtype.bits > 32:
        return value
    low, high = dtype.limits
    return f"min(max({value}, {low}), {high})"


def literal(value: float | int | bool) -> str:
    """A number as the language writes it; negative ones in parentheses.

    >>> literal(0.5), literal(-3), literal(float("-inf")), literal(True)
    ('0.5', '(-3)', '(-inf)', 'true')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Dim):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    negative = math.copysign(1.0, value) < 0 if isinstance(value, float) else value < 0
    text = "inf" if isinstance(value, float) and math.isinf(value) else repr(abs(value))
    return f"(-{text})" if negative else text


def real(value: Any, factor: float = 1.0) -> str:
    """A number, times a factor, as a float; it may be an open size.

    >>> real(3), real(3, 0.5)
    ('3.0', '1.5')
    """
    if not isinstance(value, Dim):
        return repr(float(value) * factor)
    return f"float32({value})" + (f" * {factor!r}" if factor != 1 else "")


def count_text(count: object) -> str:
    """A number of elements as text, to divide floats by."""
    return str(count) if isinstance(count, Dim) else str(float(count))  # type: ignore[arg-type]


def at(tensor: str, indices: Iterable[str | int]) -> str:
    """``X[i,j]``"""
    return f"{tensor}[{','.join(map(str, indices))}]"


def declare(name: str, dtype: DType, shape: Sequence[int]) -> str:
    """``float32 X[3,4]``"""
    return f"{dtype} {at(name, shape)}"


def affine(terms: Iterable[tuple[int, str]], offset: int = 0) -> str:
    """``2*p + r - 3`` from [(2, "p"), (1, "r")] and -3; an open offset is added as it is."""
    text = ""
    for factor, name in terms:
        if factor == 0:
            continue
        term = name if abs(factor) == 1 else f"{abs(factor)}*{name}"
        if text:
            text += f" + {term}" if factor > 0 else f" - {term}"
        else:
            text = term if factor > 0 else f"-{term}"
    if not text:
        return str(offset)
    if isinstance(offset, Dim):
        return f"{text} + {offset}"
    return text + (f" + {offset}" if offset > 0 else f" - {-offset}" if offset < 0 else "")


def line(assignment: str, ranges: Mapping[str, Extent], guards: Iterable[str] = ()) -> str:
    """One statement with its explicit ranges and guards.

    >>> line("Y[i] +=! X[i,j]", {"i": 3, "j": (1, 4)}, ["j <= i"])
    'Y[i] +=! X[i,j] where i in 0:3, j in 1:4, j <= i'
    """
    bounds = [
        f"{index} in {extent[0]}:{extent[1]}"
        if isinstance(extent, tuple)
        else f"{index} in 0:{extent}"
        for index, extent in ranges.items()
    ]
    where = ", ".join([*bounds, *guards])
    return f"{assignment} where {where}" if where else assignment


#: The form of names of open sizes, which no index or tensor has.
_SIZE = re.compile(r"\bs_\w+")


def elements(array: np.ndarray, dtype: DType) -> Program:
    """The program whose output is a small array, whose elements may be open sizes."""
    indices = names(array.ndim)
    flat = [
        str(v) if isinstance(v, Dim) else literal(np.asarray(v).item()) for v in array.reshape(-1)
    ]
    position = affine([(math.prod(array.shape[a + 1 :]), i) for a, i in enumerate(indices)])

    def one_of(first: int, end: int) -> str:
        """The element at a position from `first` on, by halves: 120 levels are too deep."""
        if end - first == 1:
            return f"{dtype}({flat[first]})"
        middle = (first + end) // 2
        return f"select({position} < {middle}, {one_of(first, middle)}, {one_of(middle, end)})"

    value = one_of(0, len(flat))
    ranges = dict(zip(indices, array.shape, strict=True))
    body = line(f"{at('Y', indices)} = {value}", ranges)
    return function("elements", [], [declare("Y", dtype, array.shape)], [body])


def function(
    name: str, inputs: Sequence[str], outputs: Sequence[str], lines: Sequence[str]
) -> Program:
    """The program with these declarations and statements, parsed at most once."""
    body = "\n".join(f"    {statement}" for statement in lines)
    signature = f"({', '.join(inputs)}) -> ({', '.join(outputs)})"
    sizes = sorted(set(_SIZE.findall(f"{signature} {body}")))
    if not sizes:
        return parsed(f"def {name}{signature} {{\n{body}\n}}")
    known = CURRENT.get()
    facts = known.facts(sizes) if known is not None else []
    where = f" where {', '.join(facts)}" if facts else ""
    return parsed(f"def {name}[{', '.join(sizes)}]{signature}{where} {{\n{body}\n}}")
