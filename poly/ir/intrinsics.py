"""Instructions that a whole warp runs at once on tensor cores, declared by what they mean.

Each is a value: its meaning is a program of one comprehension over matrices of fixed extents, and
a statement that is to become the instruction is matched with that (`poly.buffers.tensorize`) like
any text.  Beside the meaning there is only what the instruction needs of the machine.

The accumulator lies in a *fragment*, registers of all threads of a warp, of which no thread knows
what elements it has; so there is nothing to do with one but to fill it with a number, to load and
store it as a matrix, and to multiply (PTX ISA, "Warp-level matrix instructions", wmma).
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read
from poly.ir.program import Program, Range, Statement, Tensor

#: What the elements of a fragment are.
ACCUMULATOR = FLOAT32
#: Rows of a matrix of sums in memory begin at multiples of so many bytes.
SUMS_ALIGNMENT = 32


@dataclass(frozen=True)
class Intrinsic:
    """``C += A B`` for matrices of ``extents`` = (rows of C, columns of C, terms of a sum).

    operand : the element type of A and B
    alignment : rows (or columns) of an operand in memory begin at multiples of so many bytes
    rounds : what happens to operands before they are multiplied, "" for nothing
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


#: All of them by name.
INTRINSICS: dict[str, Intrinsic] = {
    i.name: i
    for i in (
        Intrinsic("wmma_f16", FLOAT16, (16, 16, 16), 32),
        Intrinsic("wmma_bf16", BFLOAT16, (16, 16, 16), 16),
        Intrinsic("wmma_tf32", FLOAT32, (16, 16, 8), 16, "rounded to 10 bits behind the point"),
    )
}
