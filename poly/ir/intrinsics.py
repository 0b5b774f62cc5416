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

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import prod

from poly.errors import ProgramError
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, children, indices_of, reads_of
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Range, Statement, Tensor

#: The element type of fragments.
ACCUMULATOR = FLOAT32
#: The alignment in bytes of the rows of an accumulator matrix in memory.
SUMS_ALIGNMENT = 32
#: What stands for a pointer to a tensor in a template.
PLACEHOLDER = r"\{([A-Za-z_]\w*)\}"


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


@dataclass(frozen=True, repr=False)
class VectorIntrinsic:
    """An instruction of a CPU.

    meaning : a program of one statement without size parameters
    template : a C statement, with ``{T}`` for a pointer to the first element of each tensor T,
        whose elements are adjacent, in row-major order
    setup : C text that the template needs, once in a file; headers : those it includes
    feature : the names by which /proc/cpuinfo lists what it needs
    reorders : whether sums of floats are rounded in another order, or otherwise, than written
    checked : whether it was compared with its meaning on this machine, or is one of ours
    by_user : whether it is none of ours; its template is then the body of a function, so that its
        names are its own
    """

    meaning: Program
    template: str
    setup: str = ""
    feature: str = ""
    reorders: bool = False
    checked: bool = True
    headers: tuple[str, ...] = ()
    by_user: bool = False

    def __post_init__(self) -> None:
        problem = wrong_meaning(self.meaning)
        if problem:
            raise ProgramError(f"{self.name}: {problem}")

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return f"{self.name}: {self.statement}"

    def __repr__(self) -> str:
        state = "checked" if self.checked else "not checked on this machine"
        return f"<VectorIntrinsic {self}; {state}>"

    @property
    def name(self) -> str:
        return self.meaning.name

    @cached_property
    def text(self) -> str:
        """Everything that was declared: instructions of one name may differ in it."""
        parts = (self.template, self.setup, self.feature, self.reorders, *self.headers)
        return "\n".join([str(self.meaning), *map(repr, parts)])

    @cached_property
    def digest(self) -> str:
        """A content hash of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    @property
    def statement(self) -> Statement:
        return self.meaning.statements[0]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The extents of the loops, in the order of the statement's indices."""
        ends = (r.hi for r in self.statement.ranges)
        return tuple(int(e.value) for e in ends if isinstance(e, Const))

    @cached_property
    def is_dot_product(self) -> bool:
        """Whether it adds products over one loop to each element of a vector."""
        s = self.statement
        plain = s.op == "+=" and len(s.indices) == 2 and len(s.reductions) == 1
        plain = plain and s.target.indices == (Index(s.indices[0]),)
        return plain and isinstance(s.value, Op) and s.value.fn == "mul"

    @property
    def multiplied(self) -> tuple[DType, DType, DType]:
        """Of a dot product, the types of both factors and of the sums."""
        a, b = (t.dtype for t in self.meaning.inputs if t.name != self.target)
        return a, b, self.meaning.tensors[self.target].dtype

    @cached_property
    def has_windows(self) -> bool:
        """Whether an array is read in windows: an index moves with several loops."""
        return any(
            len(indices_of(i)) > 1 for r in reads_of(self.statement.value) for i in r.indices
        )

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


def wrong_meaning(meaning: Program) -> str:
    """Why a program is not the meaning of an instruction, "" if it is.

    A statement is matched by how its accesses move with its loops, and the instruction gets a
    pointer to the first element of each; so accesses begin at element 0 and reach the last one,
    each tensor has a single one, and nothing else depends on an index.
    """
    if len(meaning.statements) != 1 or meaning.temps or len(meaning.outputs) != 1:
        return "an instruction is a single statement with a single result"
    if meaning.sizes:
        return f"the extents of an instruction are numbers, and {meaning.sizes[0]} is a size"
    (s,) = meaning.statements
    if s.init:
        return (
            f"an instruction begins with what its target holds: write {s.op} instead of {s.op}!, "
            f"and {s.target.tensor} among the inputs, too"
        )
    if s.guards or s.block:
        return "an instruction has no conditions on its indices; its extents say what it accesses"
    for r in s.ranges:
        if r.lo != Const(0) or not isinstance(r.hi, Const) or r.hi.value < 1:
            return f"{r.index} does not run from 0 to a positive number"
    return _wrong_accesses(meaning, s)


def _wrong_accesses(meaning: Program, s: Statement) -> str:
    extents = {r.index: int(r.hi.value) for r in s.ranges if isinstance(r.hi, Const)}
    accesses: dict[str, Read] = {}
    for read in (s.target, *reads_of(s.value)):
        if accesses.setdefault(read.tensor, read) != read:
            return f"{read.tensor} is accessed as {accesses[read.tensor]} and as {read}"
        tensor = meaning.tensors[read.tensor]
        for d, (index, size) in enumerate(zip(read.indices, tensor.shape, strict=True)):
            form = linear_form(index)
            factors = {a.name: n for a, n in form.terms if isinstance(a, Index)}
            if len(factors) < len(form.terms) or form.constant or min([0, *factors.values()]) < 0:
                return f"{read}: an index of an instruction is a sum of multiples of loops, from 0"
            last = sum(n * (extents[x] - 1) for x, n in factors.items())
            if size != Const(last + 1):
                return (
                    f"{read.tensor} has {size} elements along dimension {d}, and {read} accesses "
                    f"{last + 1} of them"
                )
    moving = {x for i in s.target.indices for x in indices_of(i)}
    count = prod(extents[x] for x in moving)
    if count != prod(int(e.value) for e in meaning.outputs[0].shape if isinstance(e, Const)):
        return f"{s.target} leaves some elements of {s.target.tensor} as they are"
    unused = [t for t in meaning.tensors if t not in accesses]
    if unused:
        return f"{unused[0]} is not used"
    return _wrong_value(s.value)


def _wrong_value(e: Expr) -> str:
    if isinstance(e, Index):
        return f"{e} is used as a value, and the instruction does not know it"
    if isinstance(e, Read):
        return ""
    return next(filter(None, map(_wrong_value, children(e))), "")


Intrinsic = MatrixIntrinsic | VectorIntrinsic
