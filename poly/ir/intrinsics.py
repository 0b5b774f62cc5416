"""Instructions of processors, each declared by its meaning.

The meaning is a program of one comprehension over arrays of fixed extents, and a statement that is
to become the instruction is matched against it (`poly.buffers.tensorize`) like any text.  Besides
the meaning, only the instruction's requirements are declared.

There are two kinds.  A `MatrixIntrinsic` is one of tensor cores, which a whole warp runs at once:
its accumulator is a *fragment*, registers of all threads of a warp, with no defined assignment of
elements to threads; so a fragment can only be filled with a number, loaded and stored as a
matrix, and multiplied (PTX ISA, "Warp-level matrix instructions", wmma).  A `VectorIntrinsic` is
one of a CPU: C text over pointers to its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from poly.errors import ProgramError
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read
from poly.ir.program import Program, Range, Statement, Tensor

#: The element type of fragments.
ACCUMULATOR = FLOAT32
#: The alignment in bytes of the rows of an accumulator matrix in memory.
SUMS_ALIGNMENT = 32


@dataclass(frozen=True)
class MatrixIntrinsic:
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


@dataclass(frozen=True)
class VectorIntrinsic:
    """An instruction of a CPU.

    meaning : a program of one statement without size parameters
    template : a C statement, with ``{T}`` for a pointer to the first element of each tensor T,
        whose elements are adjacent, in row-major order
    setup : C text that the template needs, once in a file
    feature : the names by which /proc/cpuinfo lists what it needs
    reorders : whether sums of floats are rounded in another order, or otherwise, than written
    checked : whether it was compared with its meaning on this machine, or is one of ours
    """

    meaning: Program
    template: str
    setup: str = ""
    feature: str = ""
    reorders: bool = False
    checked: bool = True

    def __post_init__(self) -> None:
        if len(self.meaning.statements) != 1 or self.meaning.sizes or self.meaning.temps:
            raise ProgramError(
                f"{self.name}: the meaning of an instruction is one statement of fixed sizes"
            )

    @property
    def name(self) -> str:
        return self.meaning.name

    @property
    def statement(self) -> Statement:
        return self.meaning.statements[0]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The extents of the loops, in the order of the statement's indices."""
        found: list[int] = []
        for r in self.statement.ranges:
            if r.lo != Const(0) or not isinstance(r.hi, Const):
                raise ProgramError(f"{self.name}: {r.index} does not run from 0 to a number")
            found.append(int(r.hi.value))
        return tuple(found)

    @property
    def target(self) -> str:
        return self.statement.target.tensor

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The extents of one of its arrays."""
        extents = self.meaning.tensors[tensor].shape
        return tuple(int(e.value) for e in extents if isinstance(e, Const))

    def strides(self, tensor: str) -> tuple[int, ...]:
        """The strides of one of its arrays, in elements."""
        shape = self.shape(tensor)
        return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


Intrinsic = MatrixIntrinsic | VectorIntrinsic
