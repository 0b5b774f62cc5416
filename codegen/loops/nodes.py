"""The loop IR: what isl's AST becomes before it is printed, and what passes rewrite.

Values are frozen.  Scalars everywhere are `poly.ir.expr` expressions: loop variables are `Index`,
sizes are `Size`, elements of tensors and of promoted buffers are `Read`.  Index arithmetic is
in int64; in it ``div`` and ``fmod`` are C's ``/`` and ``%`` on values known to be >= 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from codegen.loops.index_ranges import depends_on
from poly.errors import FarkasError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Read, indices_of, walk
from poly.ir.layout import Layout
from poly.tree.kinds import LoopMark, Mark, Scope
from poly.tree.nodes import Accesses

#: The lane from which all take part.
LANE_0 = Const(0)


class LoopNode:
    """Base of the loop IR's nodes."""


@dataclass(frozen=True)
class Block(LoopNode):
    """Nodes that run one after the other."""

    children: tuple[LoopNode, ...]


@dataclass(frozen=True)
class For(LoopNode):
    """``for (var = lower; var < upper; var += step)``.

    mark : ``seq``, ``parallel`` (iterations may run at once on threads), ``vector`` (in lanes),
    ``unroll``; on a GPU, where each thread runs one iteration: ``block``, ``thread``, and
    ``place`` for a number that follows from these.  `label` is the loop's name in the schedule.
    limits : the least and the greatest number that the schedule has for the loop, if known: what
        is left of a tile is of unknown size, but no more than a tile
    note : why it is not what the schedule asks for, to be said where it stands
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

    @property
    def trip(self) -> int | None:
        """Number of iterations, if it is a constant."""
        if isinstance(self.lower, Const) and isinstance(self.upper, Const):
            span = int(self.upper.value) - int(self.lower.value)
            return max(0, -(-span // self.step))
        return None


@dataclass(frozen=True)
class If(LoopNode):
    """`then` where `cond` holds, else `other`.

    masked : `then` updates registers, from what is there whether `cond` holds or not; so it may
        be run in any case, for no lane where `cond` fails
    """

    cond: Expr
    then: LoopNode
    other: LoopNode | None = None
    masked: bool = False


@dataclass(frozen=True)
class Wait(LoopNode):
    """All threads of a block on a GPU wait here for each other."""


@dataclass(frozen=True)
class Combine(LoopNode):
    """What neighbouring threads of a block hold in `target`, combined by `op`, for all of them.

    threads : how many neighbours, a power of two
    """

    target: Read
    op: str
    dtype: DType
    threads: int


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory, from its element `first` on.

    rows, columns : the dimensions of the array along which its rows and columns follow each other
    """

    first: Read
    rows: int
    columns: int


@dataclass(frozen=True)
class MoveSums(LoopNode):
    """What a warp does with a matrix of sums in a fragment: `fill` with zeros, `load` or `store`.

    sums : the fragment, an element of a buffer of such; memory : where to load from or store to
    intrinsic : of `poly.ir.intrinsics`
    counts : how many rows and columns there are in memory, from the first; None: all
    """

    action: str
    sums: Read
    memory: Matrix | None
    intrinsic: str
    statement: str
    counts: tuple[Expr, Expr] | None = None


@dataclass(frozen=True)
class MultiplyMatrices(LoopNode):
    """A warp adds products of matrices to fragments: (sums, A, B), one after the other.

    What is in memory does not change in between, so that a matrix is loaded once.
    """

    products: tuple[tuple[Read, Matrix, Matrix], ...]
    intrinsic: str
    statement: str

    @property
    def reads(self) -> tuple[Read, ...]:
        return tuple(r for sums, a, b in self.products for r in (sums, a.first, b.first))


@dataclass(frozen=True)
class Tile(LoopNode):
    """A register tile that is written out, with names for index expressions.

    names : used in `body` as variables of loops are; none needs another one
    """

    names: tuple[tuple[str, Expr], ...]
    body: LoopNode


@dataclass(frozen=True)
class Instance(LoopNode):
    """An instance of a scop statement or of a copy, before it is lowered to a `Store`."""

    statement: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Store(LoopNode):
    """``target = value``, or with `op` ``target = target op value``.

    `dtype` is the target's storage type; `statement` names where it came from.
    """

    target: Read
    op: str
    value: Expr
    dtype: DType
    statement: str


@dataclass(frozen=True)
class Together(LoopNode):
    """Copies between registers and neighbours in memory, which a GPU makes at once.

    The first neighbour is known to begin at a multiple of the bytes of all.
    """

    stores: tuple[LoopNode, ...]


@dataclass(frozen=True)
class IfAligned(LoopNode):
    """`then` where `cond` holds and tensors begin at multiples of so many bytes, else `other`."""

    tensors: tuple[tuple[str, int], ...]
    cond: Expr
    then: LoopNode
    other: LoopNode


@dataclass(frozen=True)
class VectorStore(LoopNode):
    """A `Store` in `lanes` lanes at once; `var` is the lane, which runs from 0.

    Only lanes from `first` to before `last` (None: all behind) take part.  Where the target does
    not move with the lane, all of them combine with one element.
    alone : nothing uses the other lanes of the target, so that they need not be kept
    """

    store: Store
    var: str
    lanes: int
    first: Expr = LANE_0
    last: Expr | None = None
    alone: bool = False


@dataclass(frozen=True)
class Transposed(LoopNode):
    """Vector stores, as rows of a matrix whose columns are neighbours in memory.

    `scattered` tells where: in the target (row n of column l goes to ``target(l) + n``), or in
    the value, which then is an element.
    count : how many of the rows take part, from the first; None: all
    """

    rows: tuple[VectorStore, ...]
    scattered: bool
    count: Expr | None = None


@dataclass(frozen=True)
class Buffer(LoopNode):
    """A buffer that stands for part of `tensor` in `body`.

    scope : ``register`` or ``local``; or ``lanes``: `shape` is (vectors, lanes) that begin as the
    identity of `op`, and a read without indices combines them all.
    `layout` says how the tensor's elements lie in `shape`; once they are lowered, nobody asks.
    `prefix` is the iteration of the loops around the promotion.
    halves : `shape` begins with 2: iterations of the last of these loops take turns
    padded : it has a place for all that instructions of tensor cores access of it
    accesses : see `poly.tree.nodes.Promote`
    inside : the statements and buffers below the promotion: isl may have put others into `body`,
        to which the tensor is where it always is
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
        """What tells one use of a promotion from others."""
        return self.name, self.prefix


@dataclass(frozen=True)
class Single(LoopNode):
    """Code that one thread of the team runs while the others wait."""

    body: LoopNode


@dataclass(frozen=True)
class Fence(LoopNode):
    """What was read before is not kept, but read again."""


def children_of(node: LoopNode) -> tuple[LoopNode, ...]:
    if isinstance(node, Block):
        return node.children
    if isinstance(node, (For, Tile, Buffer, Single)):
        return (node.body,)
    if isinstance(node, If):
        return (node.then,) if node.other is None else (node.then, node.other)
    if isinstance(node, IfAligned):
        return (node.then, node.other)
    if isinstance(node, VectorStore):
        return (node.store,)
    if isinstance(node, Together):
        return node.stores
    return node.rows if isinstance(node, Transposed) else ()


def axis_of(node: For) -> int:
    """The axis of a loop on blocks or threads: 0 for x, 1 for y, 2 for z."""
    return "xyz".index(node.label.rstrip("_")[-1])


def walk_loops(node: LoopNode) -> Iterator[LoopNode]:
    """The node and everything below, in order."""
    yield node
    for child in children_of(node):
        yield from walk_loops(child)


def own_bounds(node: LoopNode) -> tuple[Expr, ...]:
    """The index arithmetic that a node itself has, but for that in places of `own_values`."""
    if isinstance(node, For):
        return (node.lower, node.upper)
    if isinstance(node, (If, IfAligned)):
        return (node.cond,)
    if isinstance(node, Tile):
        return tuple(e for _, e in node.names)
    if isinstance(node, Instance):
        return node.args
    if isinstance(node, MoveSums):
        return node.counts or ()
    if isinstance(node, VectorStore):
        return (node.first,) if node.last is None else (node.first, node.last)
    if isinstance(node, Transposed) and node.count is not None:
        return (node.count,)
    return ()


def own_values(node: LoopNode) -> tuple[Expr, ...]:
    """The values and elements that a node itself computes with."""
    if isinstance(node, Store):
        return (node.target, node.value)
    if isinstance(node, Combine):
        return (node.target,)
    if isinstance(node, MoveSums):
        return (node.sums,) if node.memory is None else (node.sums, node.memory.first)
    return node.reads if isinstance(node, MultiplyMatrices) else ()


def own_variables(node: LoopNode) -> set[str]:
    """The variables that are bound below."""
    return {n.var for n in walk_loops(node) if isinstance(n, (For, VectorStore))}


def block(children: list[LoopNode]) -> LoopNode:
    """A block in normal form: flat, and no block around a single node."""
    flat: list[LoopNode] = []
    for c in children:
        flat += c.children if isinstance(c, Block) else [c]
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def map_children(node: LoopNode, fn: Callable[[LoopNode], LoopNode]) -> LoopNode:
    """The node with `fn` applied to its direct children."""
    if isinstance(node, Block):
        return block([fn(c) for c in node.children])
    if isinstance(node, (For, Tile, Buffer, Single)):
        return replace(node, body=fn(node.body))
    if isinstance(node, If):
        other = None if node.other is None else fn(node.other)
        return replace(node, then=fn(node.then), other=other)
    if isinstance(node, IfAligned):
        return replace(node, then=fn(node.then), other=fn(node.other))
    if isinstance(node, Together):
        stores = tuple(map(fn, node.stores))
        return Together(stores) if all(isinstance(s, Store) for s in stores) else block([*stores])
    return node


def map_exprs(
    node: LoopNode, fn: Callable[[Expr], Expr], value: Callable[[Expr], Expr] | None = None
) -> LoopNode:
    """The tree with `fn` applied to every expression (whole bounds, conditions, values).

    `value`, if given, is applied to the values of stores in its place.
    """
    node = map_children(node, lambda c: map_exprs(c, fn, value))
    if isinstance(node, For):
        return replace(node, lower=fn(node.lower), upper=fn(node.upper))
    if isinstance(node, (If, IfAligned)):
        return replace(node, cond=fn(node.cond))
    if isinstance(node, Tile):
        return replace(node, names=tuple((name, fn(e)) for name, e in node.names))
    if isinstance(node, Instance):
        return replace(node, args=tuple(map(fn, node.args)))
    if isinstance(node, Store):
        target = fn(node.target)
        assert isinstance(target, Read)
        return replace(node, target=target, value=(value or fn)(node.value))
    if isinstance(node, Combine):
        target = fn(node.target)
        assert isinstance(target, Read)
        return replace(node, target=target)
    if isinstance(node, MoveSums):
        memory = None if node.memory is None else _map_matrix(node.memory, fn)
        counts = None if node.counts is None else (fn(node.counts[0]), fn(node.counts[1]))
        return replace(node, sums=_map_read(node.sums, fn), memory=memory, counts=counts)
    if isinstance(node, MultiplyMatrices):
        products = (
            (_map_read(sums, fn), _map_matrix(a, fn), _map_matrix(b, fn))
            for sums, a, b in node.products
        )
        return replace(node, products=tuple(products))
    if isinstance(node, VectorStore):
        store = map_exprs(node.store, fn, value)
        assert isinstance(store, Store)
        last = None if node.last is None else fn(node.last)
        return replace(node, store=store, first=fn(node.first), last=last)
    if isinstance(node, Transposed):
        rows = (map_exprs(row, fn, value) for row in node.rows)
        count = None if node.count is None else fn(node.count)
        made = tuple(r for r in rows if isinstance(r, VectorStore))
        return replace(node, rows=made, count=count)
    return node


def _map_read(read: Read, fn: Callable[[Expr], Expr]) -> Read:
    made = fn(read)
    assert isinstance(made, Read)
    return made


def _map_matrix(matrix: Matrix, fn: Callable[[Expr], Expr]) -> Matrix:
    return replace(matrix, first=_map_read(matrix.first, fn))


class LoopError(FarkasError):
    """A loop tree that breaks a rule: a fault of Farkas, not of its user."""


def verify_loops(node: LoopNode, bound: frozenset[str] = frozenset()) -> LoopNode:
    """Check that every loop variable is bound where it is used, once on each path.

    Raises
    ------
    LoopError : naming the variable.
    """

    def check(*exprs: Expr) -> None:
        for e in exprs:
            for name in indices_of(e):
                if name not in bound:
                    raise LoopError(f"loop variable {name} is used outside its loop, in {e}")

    check(*own_bounds(node), *own_values(node))
    if isinstance(node, For):
        if node.var in bound:
            raise LoopError(f"loop variable {node.var} is bound twice")
        if node.step < 1:
            raise LoopError(f"loop {node.var} has step {node.step}")
        bound = bound | {node.var}
    elif isinstance(node, Tile):
        own = [name for name, _ in node.names]
        if bound & set(own) or len(set(own)) < len(own):
            raise LoopError(f"one of {', '.join(own)} is bound twice")
        bound = bound | set(own)
    elif isinstance(node, VectorStore):
        bound = bound | {node.var}
    for child in children_of(node):
        verify_loops(child, bound)
    return node


def show_loops(node: LoopNode, indent: str = "") -> str:
    """The loop tree as indented text."""
    return "\n".join(_lines(node, indent))


def _lines(node: LoopNode, indent: str) -> Iterator[str]:
    inner = indent + "  "
    if isinstance(node, Block):
        for c in node.children:
            yield from _lines(c, indent)
    elif isinstance(node, For):
        step = f" step {node.step}" if node.step != 1 else ""
        mark = f"  [{node.mark}]" if node.mark != Mark.SEQ else ""
        yield f"{indent}for {node.var} in {node.lower}:{node.upper}{step}{mark}"
        yield from _lines(node.body, inner)
    elif isinstance(node, If):
        yield f"{indent}{'where' if node.masked else 'if'} {node.cond}"
        yield from _lines(node.then, inner)
        if node.other is not None:
            yield f"{indent}else"
            yield from _lines(node.other, inner)
    elif isinstance(node, IfAligned):
        aligned = ", ".join(f"{name} at {count} bytes" for name, count in node.tensors)
        yield f"{indent}if {node.cond} and aligned are {aligned}"
        yield from _lines(node.then, inner)
        yield f"{indent}else"
        yield from _lines(node.other, inner)
    elif isinstance(node, Together):
        yield f"{indent}together"
        yield from (line for c in node.stores for line in _lines(c, inner))
    elif isinstance(node, Tile):
        yield f"{indent}tile " + ", ".join(f"{name} = {e}" for name, e in node.names)
        yield from _lines(node.body, inner)
    elif isinstance(node, Wait):
        yield f"{indent}wait"
    elif isinstance(node, Combine):
        yield f"{indent}{node.target} {node.op} what {node.threads} threads hold"
    elif isinstance(node, MoveSums):
        where = "" if node.memory is None else f", matrix at {node.memory.first}"
        if node.counts is not None:
            where += f" of {node.counts[0]} x {node.counts[1]}"
        yield f"{indent}{node.intrinsic} {node.action} {node.sums}{where}"
    elif isinstance(node, MultiplyMatrices):
        for sums, a, b in node.products:
            yield f"{indent}{node.intrinsic} {sums} += matrices at {a.first}, {b.first}"
    elif isinstance(node, Instance):
        yield f"{indent}{node.statement}({', '.join(map(str, node.args))})"
    elif isinstance(node, Store):
        yield f"{indent}{node.target} {node.op} {node.value}"
    elif isinstance(node, Transposed):
        yield f"{indent}transposed" + ("" if node.count is None else f" {node.count} rows")
        for row in node.rows:
            yield from _lines(row, inner)
    elif isinstance(node, VectorStore):
        upper = node.lanes if node.last is None else f"{node.last} of {node.lanes}"
        yield f"{indent}lanes {node.var} in {node.first}:{upper}"
        yield from _lines(node.store, inner)
    elif isinstance(node, Buffer):
        shape = ", ".join(map(str, node.shape))
        yield f"{indent}{node.scope} {node.dtype} {node.name}[{shape}]"
        yield from _lines(node.body, inner)
    elif isinstance(node, Fence):
        yield f"{indent}fence"
    elif isinstance(node, Single):
        yield f"{indent}single"
        yield from _lines(node.body, inner)


def reads_in(node: LoopNode) -> Iterator[Read]:
    """Every element that stores below read or write, and the first ones of matrices."""
    for n in walk_loops(node):
        for e in own_values(n):
            yield from (x for x in walk(e) if isinstance(x, Read))


def statements_in(node: LoopNode) -> tuple[str, ...]:
    """Names of the statements that run below, in order of first appearance."""
    made = (Store, MoveSums, MultiplyMatrices)
    return tuple(dict.fromkeys(n.statement for n in walk_loops(node) if isinstance(n, made)))


def has_mark(node: LoopNode, mark: LoopMark) -> bool:
    return any(isinstance(n, For) and n.mark == mark for n in walk_loops(node))


def is_simple(node: LoopNode) -> bool:
    """Whether a loop body may be printed as one of OpenMP's simd loops: stores only.

    Conditions would be allowed, but gcc 12 puts masked stores of AVX-512 at wrong addresses.
    """
    if isinstance(node, Block):
        return all(is_simple(c) for c in node.children)
    return isinstance(node, Store)


def collapsible(node: For) -> int:
    """How many parallel loops, from `node` inwards, form one rectangular perfect nest."""
    depth, outer = 1, {node.var}
    inner = node.body
    while isinstance(inner, For) and inner.mark == Mark.PARALLEL:
        if any(depends_on(e, v) for e in (inner.lower, inner.upper) for v in outer):
            break
        depth, outer = depth + 1, outer | {inner.var}
        inner = inner.body
    return depth
