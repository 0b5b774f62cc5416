"""What random programs are made of: sources of decisions, extents, arrays, statements as text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from poly.ir.dtypes import DTYPES

T = TypeVar("T")

FLOATS = ("float32", "float32", "float32", "float64", "float64", "float16", "bfloat16")
INTEGERS = (
    "int32", "int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
INDICES = "ijklmnpqrstuvw"
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64,
        "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}  # fmt: skip


class Choices(Protocol):
    """Where decisions come from."""

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included."""

    def pick(self, values: Sequence[T]) -> T:
        """One of some values."""

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""


class Seeded:
    """Decisions from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent


class Drawn:
    """Decisions from hypothesis; the first value of a choice is the simplest."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def pick(self, values: Sequence[T]) -> T:
        return values[self.integer(0, len(values) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent


@dataclass(frozen=True)
class Extent:
    """``factor * size + offset``, or a number if `size` is empty."""

    size: str
    factor: int = 1
    offset: int = 0

    def plus(self, other: Extent) -> Extent | None:
        if self.size and other.size and self.size != other.size:
            return None
        factor = (self.factor if self.size else 0) + (other.factor if other.size else 0)
        return Extent(self.size or other.size, factor, self.offset + other.offset)

    def times(self, n: int) -> Extent:
        return Extent(self.size, n * self.factor, n * self.offset)

    def __str__(self) -> str:
        if not self.size:
            return str(self.offset)
        text = self.size if self.factor == 1 else f"{self.factor}*{self.size}"
        if self.offset:
            text += f" {'+' if self.offset > 0 else '-'} {abs(self.offset)}"
        return text


def number(n: int) -> Extent:
    return Extent("", 0, n)


@dataclass(frozen=True)
class Loop:
    """An index with its range ``0:extent``."""

    name: str
    extent: Extent


@dataclass
class Array:
    """A tensor that may be read: `extents` are its shape."""

    name: str
    dtype: str
    extents: tuple[Extent, ...]
    role: str  # input, temp, output, updated

    def declaration(self) -> str:
        return f"{self.dtype} {self.name}[{','.join(map(str, self.extents))}]"


@dataclass
class Statement:
    """One statement as text, with its ranges apart."""

    target: str
    op: str
    value: str
    ranges: tuple[Loop, ...]
    guards: tuple[str, ...] = ()
    lows: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{x.name} in {self.lows.get(x.name, 0)}:{x.extent}" for x in self.ranges]
        parts += self.guards
        return f"{self.target} {self.op} {self.value}" + (
            f" where {', '.join(parts)}" if parts else ""
        )


@dataclass(frozen=True)
class Profile:
    """What kind of programs to make.

    smooth : only operators whose error can be bounded by magnitudes (sums, products, extrema)
    functions : functions such as exp, which no two libraries round alike; only if smooth
    contractions : sums of products with reuse, which get register tiles
    narrow : their factors are of 8 or 16 bits
    """

    smooth: bool = False
    functions: bool = False
    contractions: bool = False
    narrow: bool = False


def sum_of(a: Extent, b: Extent) -> Extent:
    result = a.plus(b)
    assert result is not None
    return result


def renamed(text: str, name: str, other: str) -> str:
    return re.sub(rf"\b{name}\b", other, text)


def words_of(text: str) -> set[str]:
    return set("".join(ch if ch.isalnum() or ch == "_" else " " for ch in text).split())


def weak_literal(c: Choices, profile: Profile, dtype: str) -> str:
    """An expression of weak literals that an element type can hold."""
    text = _weak(c, profile, dtype)
    return re.sub(r"-?\b(0x\w+|\d[\d.]*(e[-+]?\d+)?)", lambda m: _fitting(m[0], dtype), text)


def _fitting(literal: str, dtype: str) -> str:
    """A literal, or one in its place that an element type can hold."""
    if dtype in FLOATS:
        most = {"float64": 1e308, "float16": 65504.0}.get(dtype, 3.0e38)
        fits = "x" in literal or abs(float(literal)) <= most
        return literal if fits else str(most)
    least, greatest = DTYPES[dtype].limits
    value = int(literal, 0)
    return literal if least <= value <= greatest else str(abs(value) % (greatest + 1))


def _weak(c: Choices, profile: Profile, dtype: str) -> str:
    negative = "(3 - 5)" if dtype.startswith("u") else "(-(3))"
    whole = c.pick(("0", "1", "2", "3", "5", "7", "-1", "-3", "(2 + 3)", "(7 / 2)",
                         "(-7 // 2)", "0x1f", "100", negative, "max(2, 5)"))  # fmt: skip
    if dtype not in FLOATS:
        if dtype == "int64" and c.chance(20):
            return c.pick(("(0x10000000000 * 3)", "9007199254740993", "-4611686018427387904"))
        if c.chance(10):
            return c.pick(("300", "-129", "70000", "4294967295"))
        return whole
    if profile.smooth:
        return c.pick((whole, "0.5", "0.1", "-0.1", "(1 / 4)", "1.5"))
    special = ["inf", "-inf", "nan", "-0.0", "1e-40", "1e39", "65504.0", "3.0e38"]
    if not profile.functions and c.chance(8):
        return c.pick(special)
    return c.pick((
        whole, "0.1", "-0.1", "0.5", "(1 / 3)", "1e-3", "(0.1 + 0.2)", "(1 / 3.0)",
        "2.5", "sqrt(2)", "-(1.0e-5)", "(7 % 4.5)", "16777217", "123456.789",
    ))  # fmt: skip
