"""Products of two tensors, of one element type or of narrow ones, and what follows their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.differential.generate import ProgramMaker

#: Element types of both factors and of the sum.
NARROW = (
    ("uint8", "int8", "int32"), ("uint8", "int8", "int32"), ("int8", "int8", "int32"),
    ("int8", "uint8", "int32"), ("uint8", "uint8", "int32"), ("int8", "int8", "int64"),
    ("int16", "int16", "int32"), ("int8", "int16", "int32"), ("uint8", "int8", "float32"),
    ("bfloat16", "bfloat16", "float32"), ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float32", "float32"), ("float16", "float16", "float32"),
    ("float16", "float16", "float16"),
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A product of two reads.

    left, right, dtype : element types of the factors and of the sum
    zeros : what is subtracted from each factor, "" for nothing
    """

    left: str
    right: str
    dtype: str
    zeros: tuple[str, str] = ("", "")

    def text(self, a: str, b: str) -> str:
        if self.left == self.right == self.dtype:
            return f"{a} * {b}"
        return " * ".join(map(self._factor, (a, b), (self.left, self.right), self.zeros))

    def _factor(self, read: str, dtype: str, zero: str) -> str:
        wide = read if dtype == self.dtype else f"{self.dtype}({read})"
        return f"({wide} - {zero})" if zero else wide


def product(maker: ProgramMaker, dtypes: Sequence[str]) -> Product:
    """One of some element types for all, or narrow ones where the profile asks for them."""
    if not maker.profile.narrow:
        dtype = maker.c.pick(dtypes)
        return Product(dtype, dtype, dtype)
    left, right, dtype = maker.c.pick(NARROW)
    zeros = tuple(_zero(maker, x, dtype) for x in (left, right))
    return Product(left, right, dtype, (zeros[0], zeros[1]))


def _zero(maker: ProgramMaker, dtype: str, wide: str) -> str:
    """A zero point: a number, or the one element of an input; most often none."""
    if not dtype.endswith("int8") or maker.c.chance(70):
        return ""
    if maker.c.chance(60):
        return str(maker.c.pick((1, 7, 127)))
    array = maker.new("input", dtype, ())
    return f"{wide}({array.name}[])"


def follow(maker: ProgramMaker, value: str, dtype: str, bias: str) -> tuple[str, str]:
    """What comes of a sum and a bias of its element type: a value and its element type."""
    if not maker.profile.narrow or maker.c.chance(40):
        return f"max({value} + {bias}, 0)", dtype
    real = f"float32({value} + {bias})"
    if maker.profile.smooth or maker.c.chance(40):
        return f"{real} * {maker.c.pick(('0.5', '0.03', '0.0071'))}", "float32"
    narrow = maker.c.pick(("uint8", "int8", "bfloat16", "float16"))
    if not narrow.endswith("int8"):
        return f"{narrow}({real} * 0.25)", narrow
    low, high = (0, 255) if narrow == "uint8" else (-128, 127)
    return f"{narrow}(min(max(round({real} * 0.031), {low}), {high}))", narrow
