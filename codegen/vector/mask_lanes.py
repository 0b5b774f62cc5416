"""Masked lanes: vector loops that leave out some lanes of registers which others use whole.

The accumulators of a tile are vectors of W lanes at multiples of W.  A loop along them that starts
at 1, because a filter tap falls on the padding to the left, or that ends before W, because the
image does, still works on whole vectors: it is one `VectorStore` of W lanes of which only those
from `first` to `last` are active.  Only the elements these need are read from memory.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace

from codegen.loops.clamp_rows import MASKABLE, is_untrapped
from codegen.loops.index_ranges import Ranges, depends_on, moves, replace_var
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import LANE_0, Block, Buffer, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.rolled import Copies, at_points, map_copies
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, reads_in, walk_loops
from poly.ir.dtypes import DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, reads_of, walk
from poly.ir.linear_form import linear_form, normal
from poly.machine.cpu import VECTOR_BYTES
from poly.tree.kinds import Mark, Scope

#: The fewest lanes that are masked.
FEWEST_LANES = 4


def mask_widths(root: LoopNode) -> dict[str, int]:
    """The lanes of the registers and packed operands that some vector loop uses in part.

    All vector loops along such a buffer run within its vectors, between 0 and W.
    """
    registers = {
        n.name: n.dtype
        for n in walk_loops(root)
        if isinstance(n, Buffer) and n.dtype.name in MASKABLE
        and (n.scope == Scope.REGISTER or (n.scope == Scope.LOCAL and _is_filled(n)))
    }  # fmt: skip
    widths: dict[str, int] = {}
    in_part: set[str] = set()
    other: set[str] = set()

    def visit(node: LoopNode, ranges: Ranges) -> LoopNode:
        if isinstance(node, For):
            ranges = ranges_inside(node, ranges)
            bound = ranges.get(node.var)
            if node.mark == Mark.VECTOR:
                names = _moving(node, registers)
                if bound is None or bound[0] < 0:
                    other.update(names)
                else:
                    width = 1 << bound[1].bit_length()
                    if node.trip != width:
                        in_part.update(names)
                    for name in names:
                        widths[name] = max(width, widths.get(name, 0))
        return map_children(node, lambda c: visit(c, ranges))

    visit(root, {})
    return {
        name: width
        for name, width in widths.items()
        if name in in_part - other
        and FEWEST_LANES <= width <= VECTOR_BYTES * 8 // _bits(registers[name])
    }


def _is_filled(buffer: Buffer) -> bool:
    """Whether a single statement sets all elements of a buffer."""
    stores = [n for n in walk_loops(buffer.body) if isinstance(n, Store)]
    own = {(n.statement, n.op) for n in stores if n.target.tensor == buffer.name}
    return len(own) == 1 and "=" in next(iter(own))


def _moving(node: For, names: Collection[str]) -> set[str]:
    return {r.tensor for r in reads_in(node) if r.tensor in names and depends_on(r, node.var)}


def masked(
    node: For, bound: tuple[int, int] | None, widths: dict[str, int], registers: Collection[str],
    dtypes: dict[str, DType], lane: str,
) -> LoopNode | None:  # fmt: skip
    """A vector loop along registers as masked stores, or None if it does not have that form.

    widths : see `mask_widths`
    registers : the buffers among these that are in registers
    lane : the name for the lane
    """
    stores = node.body.children if isinstance(node.body, Block) else (node.body,)
    # A packed operand may be read in vectors of fewer lanes.
    own = {*registers, *(s.target.tensor for s in stores if isinstance(s, Store))}
    names = _moving(node, widths) & own
    lanes = {widths[name] for name in names}
    if len(lanes) != 1 or bound is None:
        return None
    (width,) = lanes
    for s in stores:
        if not isinstance(s, Store) or not maskable(s, node.var, width, names, dtypes):
            return None
    made: list[LoopNode] = []
    for s in stores:
        moved = substitute_var(s, node.var, Index(lane))
        assert isinstance(moved, Store)
        made.append(VectorStore(moved, lane, width, node.lower, node.upper))
    if node.trip is None and not node.runs:
        return If(Op("lt", (node.lower, node.upper)), block(made))
    return Block(()) if node.trip == 0 else block(made)


def maskable(
    s: Store, var: str, width: int, registers: Collection[str], dtypes: dict[str, DType]
) -> bool:
    """Whether lanes of a store may be masked: its value cannot trap, and it uses whole vectors of
    registers.
    """
    if not is_untrapped(s) or not any(moves(i, var) for i in s.target.indices):
        return False
    casts = {e.dtype for e in walk(s.value) if isinstance(e, Cast)}
    if len({_bits(t) for t in (s.dtype, *casts)}) > 1:
        return False
    for read in (s.target, *reads_of(s.value)):
        own = dtypes[read.tensor]
        if own.name not in MASKABLE or _bits(own) != _bits(s.dtype):
            return False
        if any(reads_of(i) for i in read.indices):
            return False
        if read.tensor not in registers or not depends_on(read, var):
            continue
        *outer, last = read.indices
        form = linear_form(last)
        rest = form.without(Index(var))
        if any(depends_on(i, var) for i in (*outer, *(a for a, _ in rest.terms))):
            return False
        # Lane k is at a multiple of the lanes, plus k.
        if form.coefficient(Index(var)) != 1 or not rest.is_multiple_of(width):
            return False
    return True


def _bits(dtype: DType) -> int:
    """The bits of a lane in which values of a type are computed with others."""
    return max(32, dtype.compute.bits)


def is_masked(node: LoopNode, buffer: str) -> bool:
    """Whether a store changes only some lanes of a buffer's registers."""
    if isinstance(node, If):
        return node.masked
    return (
        isinstance(node, VectorStore)
        and node.last is not None
        and not node.alone
        and node.store.target.tensor == buffer
    )


def resolve_masks(root: LoopNode) -> LoopNode:
    """Remove stores without active lanes, and masks that all lanes pass or that nothing needs.

    Lanes of a register that no store uses need not be kept.  Nor need those of a vector of a packed
    operand, which are set to zero, so that registers can be computed from whole vectors of it.
    """

    def visit(node: LoopNode) -> LoopNode:
        if not isinstance(node, VectorStore):
            return map_children(node, visit)
        first, last = node.first, node.last
        if last is None or not isinstance(first, Const) or not isinstance(last, Const):
            return node
        begin, end = max(0, int(first.value)), min(node.lanes, int(last.value))
        if begin >= end:
            return Block(())
        if (begin, end) == (0, node.lanes):
            return replace(node, first=LANE_0, last=None)
        return replace(node, first=Const(begin), last=Const(end))

    return _settled(visit(root), {})


def _settled(node: LoopNode, packed: Mapping[str, Buffer]) -> LoopNode:
    """The tree with `VectorStore.alone` where it holds.

    packed : the buffers around whose vectors are set as a whole
    """
    if isinstance(node, Buffer) and node.scope == Scope.LOCAL:
        packed = {n: b for n, b in packed.items() if n != node.name}
        if _is_packed(node):
            packed = {**packed, node.name: node}
    node = map_children(node, lambda c: _settled(c, packed))
    if not isinstance(node, Buffer) or not _has_parts(node):
        return node
    if node.scope == Scope.REGISTER and _is_in_vectors(node):
        return replace(node, body=_alone_in_registers(node, packed))
    if node.name in packed:
        return replace(node, body=_alone_in_buffer(node))
    return node


def _has_parts(buffer: Buffer) -> bool:
    """Whether some vector in a buffer is set in part."""
    parts = (
        n for n in walk_loops(buffer.body) if isinstance(n, VectorStore) and n.last is not None
    )
    return any(n.store.target.tensor == buffer.name for n in parts)


def _alone_in_buffer(buffer: Buffer) -> LoopNode:
    def settled(copies: Copies) -> LoopNode:
        n = copies.node
        return replace(n, alone=True) if n.store.target.tensor == buffer.name else n

    return map_copies(buffer.body, settled)


def _alone_in_registers(buffer: Buffer, packed: Mapping[str, Buffer]) -> LoopNode:
    lanes: dict[Hashable, set[tuple[Expr, Expr]]] = {}

    def collect(copies: Copies) -> LoopNode:
        if copies.node.store.target.tensor == buffer.name:
            for register, active in _registers(copies):
                lanes.setdefault(register, set()).add(active)
        return copies.node

    def settled(copies: Copies) -> LoopNode:
        n = copies.node
        if n.store.target.tensor != buffer.name:
            return n
        alone = all(active == used[register] for register, active in _registers(copies))
        if alone and n.last is not None and _is_whole(n, buffer.name, packed):
            return replace(n, first=LANE_0, last=None)
        return replace(n, alone=alone)

    map_copies(buffer.body, collect)
    used = {register: _lanes_used(found) for register, found in lanes.items()}
    return map_copies(buffer.body, settled)


def _is_in_vectors(buffer: Buffer) -> bool:
    """Whether each store to a buffer sets lanes of one of its vectors."""
    return len({n.lanes for n in _filling(buffer)}) == 1


def _is_packed(buffer: Buffer) -> bool:
    """Whether one statement fills a buffer, in vectors at multiples of the lanes from lane 0 on.

    Then nothing uses the elements of a vector beyond its active lanes.
    """
    filling = _filling(buffer)
    return (
        bool(filling)
        and _is_filled(buffer)
        and buffer.dtype.name in MASKABLE
        and all(n.first == LANE_0 for n in filling)
    )


def _filling(buffer: Buffer) -> list[VectorStore]:
    """The stores to a buffer, if each is of vectors at multiples of the lanes; else none."""
    below = [*walk_loops(buffer.body)]
    own = {id(n) for n in below if isinstance(n, Store) and n.target.tensor == buffer.name}
    found = [n for n in below if isinstance(n, VectorStore) and id(n.store) in own]
    whole = {id(n.store) for n in found} == own
    return found if whole and all(_is_aligned(n.store.target, n, buffer) for n in found) else []


def _is_aligned(read: Read, node: VectorStore, buffer: Buffer) -> bool:
    """Whether all lanes are in one row of a buffer, at a multiple of their number."""
    *outer, last = read.indices
    form = linear_form(last)
    rest = form.without(Index(node.var))
    return (
        form.coefficient(Index(node.var)) == 1
        and rest.is_multiple_of(node.lanes)
        and buffer.shape[-1] % node.lanes == 0
        and not any(depends_on(e, node.var) for e in (*outer, *(a for a, _ in rest.terms)))
    )


def _is_whole(node: VectorStore, register: str, packed: Mapping[str, Buffer]) -> bool:
    """Whether all lanes of a store to a register may be computed: of what moves with the lane, it
    reads registers and whole vectors of packed operands.
    """
    if not is_untrapped(node.store):
        return False
    for read in reads_of(node.store.value):
        if read.tensor == register or not depends_on(read, node.var):
            continue
        buffer = packed.get(read.tensor)
        if buffer is None or not _is_aligned(read, node, buffer):
            return False
    return True


def _registers(copies: Copies) -> Iterator[tuple[Hashable, tuple[Expr, Expr]]]:
    """The registers of a store's copies, each with its active lanes."""
    first, last = _lanes_of(copies.node)
    target = _register(copies.node)
    ends = (at_points(e, copies.ranges) for e in (first, last))
    forms = (at_points(i, copies.ranges) for i in target.indices)
    yield from zip(zip(*forms, strict=True), zip(*ends, strict=True), strict=True)


def _lanes_used(lanes: set[tuple[Expr, Expr]]) -> tuple[Expr, Expr] | None:
    """The lanes that stores to one register use together, None if unknown."""
    if len(lanes) == 1:
        return next(iter(lanes))
    ends = [(a.value, b.value) for a, b in lanes if isinstance(a, Const) and isinstance(b, Const)]
    if len(ends) < len(lanes):
        return None
    return Const(min(int(a) for a, _ in ends)), Const(max(int(b) for _, b in ends))


def _lanes_of(node: VectorStore) -> tuple[Expr, Expr]:
    """The first active lane, and the one after the last."""
    return (LANE_0, Const(node.lanes)) if node.last is None else (node.first, node.last)


def _register(node: VectorStore) -> Read:
    """The register of a store."""
    target = node.store.target
    return replace(
        target, indices=tuple(normal(replace_var(i, node.var, LANE_0)) for i in target.indices)
    )
