"""Element types: the numeric types of ONNX, their numpy names, and how they combine.

A value of a 16-bit float is *stored* in 16 bits and *computed* in float32: an expression over
float16 is evaluated in float32 and rounded once, where it is stored or cast.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from ml_dtypes import bfloat16 as _np_bfloat16

from poly.errors import ProgramError


@dataclass(frozen=True)
class DType:
    """An element type: ``kind`` is ``f`` float, ``i`` signed, ``u`` unsigned or ``b`` bool."""

    name: str
    kind: str
    bits: int

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype with the same name."""
        return np.dtype(_np_bfloat16 if self.name == "bfloat16" else self.name)

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type or of bool."""
        if self.kind == "b":
            return 0, 1
        bits = self.bits - (self.kind == "i")
        return -(1 << bits) if self.kind == "i" else 0, (1 << bits) - 1

    @property
    def compute(self) -> DType:
        """The type in which expressions of this type are evaluated (float32 for 16-bit floats)."""
        return FLOAT32 if self.kind == "f" and self.bits == 16 else self

    @property
    def is_widened(self) -> bool:
        """Whether that is another type, which holds all values of this one."""
        return self.compute != self

    def __str__(self) -> str:
        return self.name


FLOAT16 = DType("float16", "f", 16)
BFLOAT16 = DType("bfloat16", "f", 16)
FLOAT32 = DType("float32", "f", 32)
FLOAT64 = DType("float64", "f", 64)
INT8 = DType("int8", "i", 8)
INT16 = DType("int16", "i", 16)
INT32 = DType("int32", "i", 32)
INT64 = DType("int64", "i", 64)
UINT8 = DType("uint8", "u", 8)
UINT16 = DType("uint16", "u", 16)
UINT32 = DType("uint32", "u", 32)
UINT64 = DType("uint64", "u", 64)
BOOL = DType("bool", "b", 8)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64,
        UINT8, UINT16, UINT32, UINT64, BOOL,
    )
}  # fmt: skip

#: The names in C and its libraries for some of them.
_ELSEWHERE = {
    "half": "float16", "float": "float32", "double": "float64", "char": "int8", "short": "int16",
    "int": "int32", "long": "int64", "byte": "uint8", "uint": "uint32", "boolean": "bool",
}  # fmt: skip


def suggest_dtype(name: str) -> str:
    """Suggest the element type that an unknown name was probably meant to be, as a question."""
    near = get_close_matches(name.lower(), DTYPES, n=1, cutoff=0.6)
    meant = _ELSEWHERE.get(name.lower()) or (near[0] if near else "")
    return f"did you mean {meant!r}?" if meant else f"there are {', '.join(DTYPES)}"


def dtype_of(value: str | DType | np.dtype | type) -> DType:
    """The `DType` for a name, a numpy dtype or a numpy scalar type.

    Raises
    ------
    ProgramError : if Farkas has no such element type (complex, strings, datetimes …).
    """
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else np.dtype(value).name
    found = DTYPES.get(name)
    if found is None:
        raise ProgramError(f"there is no element type {name!r} here; {suggest_dtype(name)}")
    return found


def combine(a: DType, b: DType) -> DType:
    """The type of ``a ∘ b`` for an arithmetic operator.

    Equal types stay.  A float and an integer give the float; two floats, the wider (float16 and
    bfloat16: float32); two integers of one signedness, the wider.  Everything else needs a cast.

    Raises
    ------
    ProgramError : for bool with a number, and for signed with unsigned integers.
    """
    if a == b:
        return a
    if "b" in (a.kind, b.kind):
        raise ProgramError(f"{a} and {b} do not mix; cast the bool, as in {_other(a, b)}(x)")
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            return FLOAT32
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    raise ProgramError(f"{a} and {b} do not mix; cast one of them, as in {a}(x)")


def _other(a: DType, b: DType) -> DType:
    return b if a.kind == "b" else a


def identity(op: str, dtype: DType) -> int | float | bool:
    """The identity of a reduction: += 0, *= 1, max= the least value, min= the greatest."""
    if op == "+=":
        return False if dtype.kind == "b" else 0
    if op == "*=":
        return True if dtype.kind == "b" else 1
    if op not in ("max=", "min="):
        raise ProgramError(f"{op!r} is not a reduction and has no identity")
    least = op == "max="
    if dtype.kind == "b":
        return not least
    if dtype.is_float:
        return float("-inf") if least else float("inf")
    return dtype.limits[0 if least else 1]
