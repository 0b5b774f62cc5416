"""Instructions that a whole warp runs at once on tensor cores, each declared by its meaning.

Each is a value: its meaning is a program of one comprehension over matrices of fixed extents, and
a statement that is to become the instruction is matched against it (`poly.buffers.tensorize`)
like any text.  Besides the meaning, only the instruction's requirements are declared.

The accumulator is a *fragment*, registers of all threads of a warp, with no defined assignment of
elements to threads; so a fragment can only be filled with a number, loaded and stored as a
matrix, and multiplied (PTX ISA, "Warp-level matrix instructions", wmma).
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read
from poly.ir.program import Program, Range, Statement, Tensor

#: The element type of fragments.
ACCUMULATOR = FLOAT32
#: The alignment in bytes of the rows of an accumulator matrix in memory.
SUMS_ALIGNMENT = 32


@dataclass(frozen=True)
class Intrinsic:
    """``C += A B`` for matrices of ``extents`` = (rows of C, columns of C, terms of a sum).

    operand : the element type of A and B
    alignment : in bytes, of the rows (or columns) of an operand in memory
    rounds : how operands are rounded before they are multiplied, "" if they are not
    """

    name: str
    operand: DType
    extents: tuple[int, int, int]
    alignment: int
    rounds: str = ""

    @property
    def meaning(self) -> Program:
        """The instruction as a program."""
        m, n, k = self.extents
        row, column, term = Index("i"), Index("j"), Index("k")
        a, b = self._value(Read("A", (row, term))), self._value(Read("B", (term, column)))
        ranges = tuple(
            Range(x, Const(0), Const(e)) for x, e in zip("ijk", self.extents, strict=True)
        )
        update = Statement(
            "mma", Read("C", (row, column)), "+=", False, Op("mul", (a, b)), ranges, ("k",)
        )
        inputs = (
            Tensor("A", self.operand, (Const(m), Const(k))),
            Tensor("B", self.operand, (Const(k), Const(n))),
            sums := Tensor("C", ACCUMULATOR, (Const(m), Const(n))),
        )
        return Program(self.name, (), inputs, (sums,), (), (update,))

    def _value(self, read: Read) -> Expr:
        return read if self.operand == ACCUMULATOR else Cast(ACCUMULATOR, read)


#: All intrinsics by name.
INTRINSICS: dict[str, Intrinsic] = {
    i.name: i
    for i in (
        Intrinsic("wmma_f16", FLOAT16, (16, 16, 16), 32),
        Intrinsic("wmma_bf16", BFLOAT16, (16, 16, 16), 16),
        Intrinsic("wmma_tf32", FLOAT32, (16, 16, 8), 16, "rounded to 10 fraction bits"),
    )
}
