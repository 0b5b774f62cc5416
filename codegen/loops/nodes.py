"""The loop IR: isl's AST before it is printed, which passes rewrite.

Values are frozen.  Scalars everywhere are `poly.ir.expr` expressions: loop variables are `Index`,
sizes are `Size`, elements of tensors and of promoted buffers are `Read`.  Index arithmetic is
in int64; in it ``div`` and ``fmod`` are C's ``/`` and ``%`` on values known to be >= 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Read
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.layout import Layout
from poly.tree.kinds import LoopMark, Mark, Scope
from poly.tree.nodes import Accesses

#: The first active lane if all are active.
LANE_0 = Const(0)


class LoopNode:
    """Base of the loop IR's nodes.  A class declares the roles of its fields.

    children : nodes below, in order
    bounds : index arithmetic; values : elements and values that it computes with
    """

    CHILDREN: ClassVar[tuple[str, ...]] = ()
    BOUNDS: ClassVar[tuple[str, ...]] = ()
    VALUES: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls,
        children: tuple[str, ...] = (),
        bounds: tuple[str, ...] = (),
        values: tuple[str, ...] = (),
    ) -> None:
        cls.CHILDREN, cls.BOUNDS, cls.VALUES = children, bounds, values

    def __str__(self) -> str:
        """The node itself as one line, without its children."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Block(LoopNode, children=("children",)):
    """Nodes that run one after the other."""

    children: tuple[LoopNode, ...]


@dataclass(frozen=True)
class For(LoopNode, children=("body",), bounds=("lower", "upper")):
    """``for (var = lower; var < upper; var += step)``.

    label : its name in the schedule
    limits : the least and the greatest value that the schedule allows for the variable, if known:
        the remainder of a tile is of unknown size, but at most a tile
    note : why it differs from what the schedule asks for, printed above the loop
    runs : whether it is known to have an iteration
    axis : of a loop on blocks or threads: 0 for x, 1 for y, 2 for z
    at_once : iterations that the C compiler is told to put after one another
    """

    var: str
    lower: Expr
    upper: Expr
    step: int
    body: LoopNode
    mark: LoopMark = Mark.SEQ
    label: str = ""
    limits: tuple[int, int] | None = None
    note: str = ""
    runs: bool = False
    axis: int | None = None
    at_once: int = 1

    @property
    def trip(self) -> int | None:
        """Number of iterations, if it is a constant."""
        if isinstance(self.lower, Const) and isinstance(self.upper, Const):
            span = int(self.upper.value) - int(self.lower.value)
            return max(0, -(-span // self.step))
        return None

    def __str__(self) -> str:
        step = f" step {self.step}" if self.step != 1 else ""
        mark = f"  [{self.mark}]" if self.mark != Mark.SEQ else ""
        return f"for {self.var} in {self.lower}:{self.upper}{step}{mark}"


@dataclass(frozen=True)
class If(LoopNode, children=("then", "other"), bounds=("cond",)):
    """`then` where `cond` holds, else `other`.

    masked : `then` only updates registers from elements that exist whether or not `cond` holds; so
        it may always run, with no active lanes where `cond` fails
    """

    cond: Expr
    then: LoopNode
    other: LoopNode | None = None
    masked: bool = False

    def __str__(self) -> str:
        return f"{'where' if self.masked else 'if'} {self.cond}"


@dataclass(frozen=True)
class Wait(LoopNode):
    """All threads of a block on a GPU wait here for each other."""


@dataclass(frozen=True)
class Combine(LoopNode, values=("target",)):
    """Combine what adjacent threads of a block hold in `target` by `op`; all get the result.

    threads : how many threads, a power of two
    """

    target: Read
    op: str
    dtype: DType
    threads: int

    def __str__(self) -> str:
        return f"{self.target} {self.op} what {self.threads} threads hold"


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory, from its element `first` on.

    rows, columns : the dimensions of the array along which rows and columns advance
    """

    first: Read
    rows: int
    columns: int


@dataclass(frozen=True)
class MoveSums(LoopNode, bounds=("counts",), values=("sums", "memory")):
    """What a warp does with a matrix of sums in a fragment: `fill` with zeros, `load` or `store`.

    sums : the fragment, an element of a buffer of fragments; memory : the source or target
    intrinsic : of `poly.ir.intrinsics`
    counts : numbers of rows and columns that exist in memory, from the first; None: all
    """

    action: str
    sums: Read
    memory: Matrix | None
    intrinsic: str
    statement: str
    counts: tuple[Expr, Expr] | None = None

    def __str__(self) -> str:
        where = "" if self.memory is None else f", matrix at {self.memory.first}"
        if self.counts is not None:
            where += f" of {self.counts[0]} x {self.counts[1]}"
        return f"{self.intrinsic} {self.action} {self.sums}{where}"


@dataclass(frozen=True)
class MultiplyMatrices(LoopNode, values=("products",)):
    """A warp adds products of matrices to fragments: (sums, A, B), one after the other.

    Memory does not change in between, so that each matrix is loaded once.
    """

    products: tuple[tuple[Read, Matrix, Matrix], ...]
    intrinsic: str
    statement: str

    @property
    def reads(self) -> tuple[Read, ...]:
        return tuple(r for sums, a, b in self.products for r in (sums, a.first, b.first))

    def __str__(self) -> str:
        products = (f"{c} += {a.first} x {b.first}" for c, a, b in self.products)
        return f"{self.intrinsic} {', '.join(products)}"


@dataclass(frozen=True)
class CallIntrinsic(LoopNode, values=("operands",)):
    """An instruction of a CPU, for one statement.

    operands : for each of the `tensors` of its meaning, the first element that it accesses
    written : those of them that it writes
    """

    intrinsic: VectorIntrinsic
    tensors: tuple[str, ...]
    operands: tuple[Read, ...]
    statement: str
    written: tuple[str, ...]

    def __str__(self) -> str:
        given = zip(self.tensors, self.operands, strict=True)
        return f"{self.intrinsic.name} {', '.join(f'{t} = {r}' for t, r in given)}"


@dataclass(frozen=True)
class Tile(LoopNode, children=("body",), bounds=("names",)):
    """An unrolled register tile, with names for index expressions.

    names : used in `body` like loop variables; none depends on another
    """

    names: tuple[tuple[str, Expr], ...]
    body: LoopNode

    def __str__(self) -> str:
        return "tile " + ", ".join(f"{name} = {e}" for name, e in self.names)


@dataclass(frozen=True)
class Instance(LoopNode, bounds=("args",)):
    """An instance of a scop statement or of a copy, before it is lowered to a `Store`."""

    statement: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.statement}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class LaunchKernel(LoopNode, bounds=("args",)):
    """The host launches a kernel.

    number : which of the program's kernels; args : values of the surrounding host loops
    """

    number: int
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"launch kernel {self.number}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class Store(LoopNode, values=("target", "value")):
    """``target = value``, or with `op` ``target = target op value``.

    `dtype` is the target's storage type; `statement` names the statement it came from.
    """

    target: Read
    op: str
    value: Expr
    dtype: DType
    statement: str

    def __str__(self) -> str:
        return f"{self.target} {self.op} {self.value}"


@dataclass(frozen=True)
class Together(LoopNode, children=("stores",)):
    """Copies between registers and adjacent elements in memory, which a GPU makes at once.

    The first element is known to be aligned to the bytes of all of them.
    """

    stores: tuple[LoopNode, ...]


@dataclass(frozen=True)
class IfAligned(LoopNode, children=("then", "other"), bounds=("cond",)):
    """`then` where `cond` holds and tensors are aligned to so many bytes, else `other`."""

    tensors: tuple[tuple[str, int], ...]
    cond: Expr
    then: LoopNode
    other: LoopNode

    def __str__(self) -> str:
        aligned = ", ".join(f"{name} at {count} bytes" for name, count in self.tensors)
        return f"if {self.cond} and aligned are {aligned}"


@dataclass(frozen=True)
class VectorStore(LoopNode, children=("store",), bounds=("first", "last")):
    """A `Store` in `lanes` lanes at once; `var` is the lane, which runs from 0.

    Only lanes from `first` to before `last` (None: to the end) are active.  Where the target does
    not move with the lane, all of them combine with one element.
    alone : nothing uses the other lanes of the target, a register or a buffer, so that they need
        not be kept
    """

    store: Store
    var: str
    lanes: int
    first: Expr = LANE_0
    last: Expr | None = None
    alone: bool = False

    def __str__(self) -> str:
        upper = self.lanes if self.last is None else f"{self.last} of {self.lanes}"
        return f"lanes {self.var} in {self.first}:{upper}"


@dataclass(frozen=True)
class Transposed(LoopNode, children=("rows",), bounds=("count",)):
    """Vector stores, as rows of a matrix whose columns are contiguous in memory.

    `scattered` says which side is scattered: the target (row n of column l goes to
    ``target(l) + n``), or the value, which then is an element.
    count : how many of the rows are active, from the first; None: all
    """

    rows: tuple[VectorStore, ...]
    scattered: bool
    count: Expr | None = None

    def __str__(self) -> str:
        return "transposed" + ("" if self.count is None else f" {self.count} rows")


@dataclass(frozen=True)
class Interleaved(LoopNode, children=("rows",)):
    """Vector stores to adjacent elements: lane l of row n goes to element ``len(rows)*l + n``."""

    rows: tuple[VectorStore, ...]

    def __str__(self) -> str:
        return "interleaved"


@dataclass(frozen=True)
class Buffer(LoopNode, children=("body",)):
    """A buffer that stands for part of `tensor` in `body`.

    scope : ``register`` or ``local``; or ``lanes``: `shape` is (vectors, lanes) that begin as the
    identity of `op`, and a read without indices combines them all.
    `layout` maps the tensor's elements to `shape`; it is unused once they are lowered.
    `prefix` is the iteration of the loops around the promotion.
    halves : double-buffered: `shape` begins with 2, and iterations of the last of these loops
        alternate
    padded : it has room for all elements that tensor core instructions access in it
    accesses : see `poly.tree.nodes.Promote`
    inside : the statements and buffers below the promotion: isl may have put others into `body`,
        for which the tensor is not promoted
    origins : where the elements of each dimension begin, if not at multiples of its size: in terms
        of ``p0', p1', …``, the iteration of loops that tell buffers apart, and in that of `body`
    """

    name: str
    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    scope: Scope
    body: LoopNode
    prefix: tuple[Expr, ...] = ()
    op: str = ""
    halves: bool = False
    padded: bool = False
    accesses: Accesses = None
    inside: frozenset[str] = frozenset()
    origins: tuple[tuple[Expr, Expr] | None, ...] = ()

    @property
    def key(self) -> tuple[str, tuple[Expr, ...]]:
        """The key that tells one use of a promotion from others."""
        return self.name, self.prefix

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.scope} {self.dtype} {self.name}[{shape}]"


@dataclass(frozen=True)
class Single(LoopNode, children=("body",)):
    """Code that one thread of the team runs while the others wait."""

    body: LoopNode


@dataclass(frozen=True)
class CompilerFence(LoopNode):
    """A compiler barrier: values read before it are read again, not kept in registers."""

    def __str__(self) -> str:
        return "compiler fence"


def axis_of(node: For) -> int:
    """The axis of a loop on blocks or threads: 0 for x, 1 for y, 2 for z."""
    assert node.axis is not None, f"{node.var} is on no axis"
    return node.axis


def block(children: list[LoopNode]) -> LoopNode:
    """A block in normal form: flat, and no block around a single node."""
    flat: list[LoopNode] = []
    for c in children:
        flat += c.children if isinstance(c, Block) else [c]
    return flat[0] if len(flat) == 1 else Block(tuple(flat))
