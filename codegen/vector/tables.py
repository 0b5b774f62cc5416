"""Tables of all values of 8 bits, which vectors look their lanes up in."""

from __future__ import annotations

from collections.abc import Mapping

from poly.ir.dtypes import UINT8, DType
from poly.ir.expr import Cast, Const, Expr, Read, dtype_of_expr
from poly.ir.program import Program

#: The number of values of 8 bits.
VALUES = 256


def table_index(read: Read, program: Program, dtypes: Mapping[str, DType]) -> Expr | None:
    """The index of a table of all values of 8 bits, as a uint8; None for any other read."""
    tensor = program.tensors.get(read.tensor)
    if tensor is None or tensor.dtype.bits != 8 or tensor.shape != (Const(VALUES),):
        return None
    (index,) = read.indices
    if not isinstance(index, Cast) or dtype_of_expr(index.arg, dtypes) != UINT8:
        return None
    return index.arg
