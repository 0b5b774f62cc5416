"""Programs that quantise and dequantise, recognised by what they compute.

    dequantise   Y[i] = float32(int32(X[i]) - int32(Z[z(i)])) * float32(S[s(i)])
    quantise     Y[i] = int8(int32(round(min(max(X[i] / S[s(i)], l - z), h - z))) + int32(Z[z(i)]))

with z = float32(Z[z(i)]) and the limits l and h of the type, for X of any rank, and zero points Z
and scales S for all elements or along some dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.dtypes import FLOAT32, INT32
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read
from poly.ir.program import Program, Statement

#: For each dimension of a scale or zero point, the dimension of X along which it varies; None: 0.
Along = tuple[int | None, ...]


@dataclass(frozen=True)
class Dequantisation:
    """A program that dequantises: its inputs by name, and how zero points and scales are indexed.

    zero : "" if there is none
    """

    source: str
    scale: str
    scale_along: Along
    zero: str = ""
    zero_along: Along = ()


def dequantisation_of(program: Program) -> Dequantisation | None:
    """The parts of a program that dequantises; None if it does anything else."""
    s = _copies_one(program)
    if s is None or program.dtypes[s.target.tensor] != FLOAT32:
        return None
    value = _plain(s.value)
    if not isinstance(value, Op) or value.fn != "mul":
        return None
    number, scale = (_plain(e) for e in value.args)
    zero: Read | None = None
    if isinstance(number, Cast):
        number = number.arg
    if isinstance(number, Op) and number.fn == "sub":
        number, shift = number.args
        if not isinstance(shift, Cast) or not isinstance(shift.arg, Read):
            return None
        zero = shift.arg
    if not isinstance(number, Cast) or number.dtype != INT32 or not isinstance(number.arg, Read):
        return None
    source = number.arg
    if source.indices != s.target.indices or not isinstance(scale, Read):
        return None
    scales = _along(scale, s.target)
    zeros = () if zero is None else _along(zero, s.target)
    if scales is None or zeros is None:
        return None
    return Dequantisation(
        source.tensor, scale.tensor, scales, "" if zero is None else zero.tensor, zeros
    )


def is_quantisation(program: Program) -> bool:
    """Whether a program quantises with a zero point, which is its only input of 8 bits."""
    s = _copies_one(program)
    if s is None or not isinstance(s.value, Cast):
        return False
    dtype = program.dtypes[s.target.tensor]
    if s.value.dtype != dtype or dtype.bits != 8 or not dtype.is_integer:
        return False
    zeros = [t for t in program.inputs if t.dtype == dtype]
    shifted = s.value.arg
    if len(zeros) != 1 or not isinstance(shifted, Op) or shifted.fn != "add":
        return False
    number, zero = shifted.args
    if not isinstance(zero, Cast) or not isinstance(number, Cast) or number.dtype != INT32:
        return False
    rounded = number.arg
    if not isinstance(rounded, Op) or rounded.fn != "round":
        return False
    clamped = rounded.args[0]
    if not isinstance(clamped, Op) or clamped.fn != "min" or not isinstance(clamped.args[0], Op):
        return False
    inner = clamped.args[0]
    limits = (inner.args[-1], clamped.args[1])
    wanted = tuple(Op("sub", (Const(float(x)), Cast(FLOAT32, zero.arg))) for x in dtype.limits)
    return inner.fn == "max" and limits == wanted and isinstance(zero.arg, Read)


def _copies_one(program: Program) -> Statement | None:
    """The only statement of a program, if it sets each element of its output on its own."""
    if len(program.statements) != 1 or len(program.outputs) != 1 or program.has_blocks:
        return None
    (s,) = program.statements
    own = [i.name for i in s.target.indices if isinstance(i, Index)]
    whole = len(own) == len(s.target.indices) == len({*own}) == len(s.indices)
    return s if s.op == "=" and not s.guards and whole else None


def _plain(e: Expr) -> Expr:
    """A value without casts of float32 to itself."""
    while isinstance(e, Cast) and e.dtype == FLOAT32 and not _is_integer(e.arg):
        e = e.arg
    return e


def _is_integer(e: Expr) -> bool:
    """Whether a value is a difference of integers, or one of them."""
    if isinstance(e, Op):
        return e.fn == "sub" and all(_is_integer(a) for a in e.args)
    return isinstance(e, Cast) and e.dtype == INT32


def _along(read: Read, target: Read) -> Along | None:
    found: list[int | None] = []
    for i in read.indices:
        if i == Const(0):
            found.append(None)
        elif i in target.indices:
            found.append(target.indices.index(i))
        else:
            return None
    return tuple(found)
