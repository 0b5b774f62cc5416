"""Recognise loop nests that are tensor core instructions.

The schedule marks them (`poly.buffers.tensorize`); they arrive here as loops around one store with
final indices into buffers.  Each nest becomes one node of the loop IR, or is refused: it has to
access matrices, and all threads of a warp have to reach it together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import (
    Block,
    Buffer,
    For,
    If,
    LoopNode,
    Matrix,
    MoveSums,
    MultiplyMatrices,
    Store,
    block,
)
from codegen.loops.traverse import map_children, walk_loops
from poly.errors import ScheduleError
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, reads_of, rewrite
from poly.ir.instruction_tables import MATRIX_INTRINSICS
from poly.ir.intrinsics import MatrixIntrinsic
from poly.ir.linear_form import Linear, linear_form, normal, render
from poly.tree.kinds import Mark, Scope, Tensorized


def to_instructions(root: LoopNode) -> LoopNode:
    """Replace each loop nest that is marked as an instruction by that instruction.

    Buffers of fragments are then indexed by matrix.

    Raises
    ------
    ScheduleError : a tile is not full, or has another layout, or only some threads of a warp
        would execute the instruction.
    """
    return _visit(root, {}, frozenset(), frozenset())


def _visit(
    node: LoopNode, kept: Mapping[str, _Kept], lanes: frozenset[str], padded: frozenset[str]
) -> LoopNode:
    """kept : enclosing buffers of fragments; lanes : variables that differ between the threads of
    a warp; padded : enclosing buffers that are padded
    """
    if isinstance(node, For):
        if isinstance(node.mark, Tensorized):
            return _instruction(node, kept, lanes, padded)
        along_x = node.mark == Mark.THREAD and node.axis == 0
        if along_x or _differ(node.lower, lanes) or _differ(node.upper, lanes):
            if node.mark not in (Mark.THREAD, Mark.OWN_THREAD):
                _check_together(f"the bounds of {node.label or node.var} differ", node)
            lanes |= {node.var}
    if isinstance(node, If) and _differ(node.cond, lanes):
        _check_together(f"{node.cond}", node)
    if isinstance(node, Buffer) and node.padded:
        padded |= {node.name}
    if not isinstance(node, Buffer) or node.scope != Scope.FRAGMENT:
        return map_children(node, lambda c: _visit(c, kept, lanes, padded))
    own = _kept(node)
    if own is None:  # isl has put a copy of the promotion's mark where nothing is promoted
        return _visit(node.body, kept, lanes, padded)
    body = _visit(node.body, {**kept, node.name: own}, lanes, padded)
    return replace(node, shape=own.shape, body=body)


def _differ(e: Expr, lanes: frozenset[str]) -> bool:
    return any(depends_on(e, var) for var in lanes)


def _check_together(why: str, node: LoopNode) -> None:
    marks = (n.mark for n in walk_loops(node) if isinstance(n, For))
    found = next((mark for mark in marks if isinstance(mark, Tensorized)), None)
    if found is not None:
        raise ScheduleError(
            f"some threads of a warp would run {found} and others not: {why}; give it loops of its "
            "own, see `distribute`"
        )


# --- nests -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nest:
    """The loops of an instruction and the store in them.

    extents : the most iterations of each loop, and `ends` the actual number: all begin at 0
    """

    intrinsic: MatrixIntrinsic
    extents: dict[str, int]
    store: Store
    ends: dict[str, Expr]

    @property
    def reads(self) -> tuple[Read, ...]:
        return (self.store.target, *reads_of(self.store.value))


@dataclass(frozen=True)
class _Kept:
    """A buffer of fragments: its dimensions along rows and columns, and its fragment counts."""

    name: str
    rows: int
    columns: int
    intrinsic: MatrixIntrinsic
    shape: tuple[int, ...]


def _nest(node: For) -> _Nest:
    assert isinstance(node.mark, Tensorized)
    intrinsic = node.mark.intrinsic
    if not isinstance(intrinsic, MatrixIntrinsic):
        raise ScheduleError(
            f"tensorize as {intrinsic.name}: an instruction of CPUs, which a GPU has not; it has "
            f"those of tensor cores: {', '.join(MATRIX_INTRINSICS)}"
        )
    extents: dict[str, int] = {}
    ends: dict[str, Expr] = {}
    body: LoopNode = node
    while isinstance(body, For) and body.mark == node.mark:
        most = body.trip if body.limits is None else body.limits[1] + 1
        if body.lower != Const(0) or body.step != 1 or most is None:
            break
        if any(depends_on(body.upper, var) for var in extents):
            break
        extents[body.var], ends[body.var] = most, body.upper
        body = body.body
    if not isinstance(body, Store):
        moved = [s for s in walk_loops(body) if isinstance(s, Store)]
        if all(s.op == "=" and isinstance(s.value, Read) for s in moved):
            raise ScheduleError(
                f"{node.mark}: sums would be loaded or stored beyond the edge of the tensor: the "
                f"elements that {moved[0].statement} moves are not known to be the first rows and "
                "columns of a matrix"
            )
        raise ScheduleError(
            f"{node.mark} in {node.label}: not every tile is known to be full, or other code is "
            "inside; the loops of an instruction have to be the innermost ones"
        )
    return _Nest(intrinsic, extents, body, ends)


def _kept(buffer: Buffer) -> _Kept | None:
    for n in walk_loops(buffer.body):
        if not isinstance(n, For) or not isinstance(n.mark, Tensorized):
            continue
        nest = _nest(n)
        for read in nest.reads:
            if read.tensor != buffer.name:
                continue
            rows, columns = sorted(_dimensions(read, nest).values())
            height, width, _ = nest.intrinsic.extents
            shape = list(buffer.shape)
            shape[rows], shape[columns] = shape[rows] // height, shape[columns] // width
            return _Kept(buffer.name, rows, columns, nest.intrinsic, tuple(shape))
    return None


def _dimensions(read: Read, nest: _Nest) -> dict[str, int]:
    """For each loop of a nest that moves an access, the dimension that it moves.

    Raises
    ------
    ScheduleError : the access does not have the form of a matrix.
    """
    found: dict[str, int] = {}
    for d, index in enumerate(read.indices):
        form = linear_form(index)
        own = [var for var in nest.extents if depends_on(index, var)]
        if not own:
            continue
        rest = form.without(Index(own[0]))
        plain = len(own) == 1 and form.coefficient(Index(own[0])) == 1
        if not plain or own[0] in found or any(depends_on(a, own[0]) for a, _ in rest.terms):
            raise ScheduleError(
                f"{nest.intrinsic.name}: {nest.store.statement} does not access a matrix: {read}"
            )
        found[own[0]] = d
    if len(found) != 2:
        raise ScheduleError(f"{nest.intrinsic.name}: {read} is not an element of a matrix")
    return found


def _first(read: Read, nest: _Nest) -> Read:
    """The first element that an access touches in a nest."""

    def zero(e: Expr) -> Expr:
        return Const(0) if isinstance(e, Index) and e.name in nest.extents else e

    return Read(read.tensor, tuple(normal(rewrite(i, zero)) for i in read.indices))


# --- instructions ----------------------------------------------------------------------------


def _instruction(
    node: For, kept: Mapping[str, _Kept], lanes: frozenset[str], padded: frozenset[str]
) -> LoopNode:
    nest = _nest(node)
    store, name = nest.store, nest.intrinsic.name
    sums = next((r for r in nest.reads if r.tensor in kept), None)
    if sums is None:
        raise ScheduleError(
            f"{name}: {store.target.tensor} is not kept in a fragment where {store.statement} runs"
        )
    own = kept[sums.tensor]
    by_dimension = {d: var for var, d in _dimensions(sums, nest).items()}
    if set(by_dimension) != {own.rows, own.columns} or own.intrinsic != nest.intrinsic:
        raise ScheduleError(f"{name}: {sums.tensor} is a fragment of other matrices")
    i, j = by_dimension[own.rows], by_dimension[own.columns]
    fragment = _in_fragments(sums, nest, own)
    moves = store.op == "=" and isinstance(store.value, Read)
    _check_extents(nest, (i, j), partial=moves)
    if store.op == "+=" and store.target == sums:
        a, b = _factors(store.value, nest, i, j)
        return MultiplyMatrices(((fragment, a, b),), name, store.statement)
    if store.op == "=" and store.target == sums and isinstance(store.value, Const):
        return MoveSums("fill", fragment, None, name, store.statement)
    if store.op == "=" and isinstance(store.value, Read):
        action, read = ("load", store.value) if store.target == sums else ("store", store.target)
        counts = (nest.ends[i], nest.ends[j])
        if any(_differ(e, lanes) for e in counts):
            raise ScheduleError(
                f"{name}: threads of a warp would {action} different parts of {sums}"
            )
        # A padded buffer has room for elements beyond the edge, which are never used.
        whole = read.tensor in padded or _are(nest.intrinsic.extents, counts)
        memory = _matrix(read, nest, i, j)
        return MoveSums(action, fragment, memory, name, store.statement, None if whole else counts)
    raise ScheduleError(f"{name}: {store.statement} is not an operation on fragments")


def _are(wanted: tuple[int, ...], ends: Sequence[Expr]) -> bool:
    return all(end == Const(n) for n, end in zip(wanted, ends, strict=False))


def _check_extents(nest: _Nest, first: tuple[str, str], partial: bool) -> None:
    """Refuse matrices of other extents than the instruction's; `partial` allows smaller ones."""
    own = [*first, *(var for var in nest.extents if var not in first)]
    wanted = nest.intrinsic.extents[: len(own)]
    if partial and all(nest.extents[var] <= n for var, n in zip(own, wanted, strict=True)):
        return
    if not _are(wanted, [nest.ends[var] for var in own]):
        found = ", ".join(str(nest.ends[var]) for var in own)
        raise ScheduleError(f"{nest.intrinsic.name} takes tiles of {wanted}, not {found}")


def _in_fragments(sums: Read, nest: _Nest, own: _Kept) -> Read:
    """The index of a fragment in a buffer of fragments, from that of its first element."""
    indices = list(_first(sums, nest).indices)
    for d, extent in zip((own.rows, own.columns), nest.intrinsic.extents, strict=False):
        form = linear_form(indices[d])
        if not form.is_multiple_of(extent):
            raise ScheduleError(
                f"{nest.intrinsic.name}: {sums} does not begin at a multiple of {extent}"
            )
        terms = tuple((a, c // extent) for a, c in form.terms)
        indices[d] = render(Linear(terms, form.constant // extent))
    return Read(sums.tensor, tuple(indices))


def _matrix(read: Read, nest: _Nest, rows: str, columns: str) -> Matrix:
    dims = _dimensions(read, nest)
    if set(dims) != {rows, columns}:
        raise ScheduleError(f"{nest.intrinsic.name}: {read} moves with other loops")
    return Matrix(_first(read, nest), dims[rows], dims[columns])


def _factors(value: Expr, nest: _Nest, i: str, j: str) -> tuple[Matrix, Matrix]:
    """A, which moves with the rows of the sums, and B, which moves with their columns."""
    (k,) = (var for var in nest.extents if var not in (i, j))
    assert isinstance(value, Op) and value.fn == "mul"
    reads = [e.arg if isinstance(e, Cast) else e for e in value.args]
    a, b = (r for r in reads if isinstance(r, Read))
    if any(depends_on(e, i) for e in b.indices):
        a, b = b, a
    return _matrix(a, nest, i, k), _matrix(b, nest, k, j)


def group_matrix_products(root: LoopNode) -> LoopNode:
    """Group consecutive matrix products, so that each matrix is loaded once."""
    node = map_children(root, group_matrix_products)
    if not isinstance(node, Block):
        return node
    children: list[LoopNode] = []
    for c in node.children:
        last = children[-1] if children else None
        if (
            isinstance(c, MultiplyMatrices)
            and isinstance(last, MultiplyMatrices)
            and last.intrinsic == c.intrinsic
        ):
            children[-1] = replace(last, products=(*last.products, *c.products))
        else:
            children.append(c)
    return block(children)
