"""Masked lanes: vector loops that leave out some lanes of registers which others use whole.

The accumulators of a tile are vectors of W lanes at multiples of W.  A loop along them that starts
at 1, because a filter tap falls on the padding to the left, or that ends before W, because the
image does, still works on whole vectors: it is one `VectorStore` of W lanes of which only those
from `first` to `last` are active.  Only the elements these need are read from memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.loops.clamp_rows import MASKABLE, is_untrapped
from codegen.loops.index_ranges import Ranges, depends_on, moves, replace_var
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import LANE_0, Block, Buffer, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, reads_in, walk_loops
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Op, Read, reads_of
from poly.ir.linear_form import linear_form, normal
from poly.machine.cpu import VECTOR_BYTES
from poly.tree.kinds import Mark, Scope

#: The fewest lanes that are masked.
FEWEST_LANES = 4


def mask_widths(root: LoopNode) -> dict[str, int]:
    """The lanes of the register buffers that some vector loop uses in part.

    All vector loops along such a buffer run within its vectors, between 0 and W.
    """
    registers = {
        n.name: n.dtype
        for n in walk_loops(root)
        if isinstance(n, Buffer) and n.scope == Scope.REGISTER and n.dtype.name in MASKABLE
    }
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
        and FEWEST_LANES <= width <= VECTOR_BYTES // (registers[name].bits // 8)
    }


def _moving(node: For, names: Collection[str]) -> set[str]:
    return {r.tensor for r in reads_in(node) if r.tensor in names and depends_on(r, node.var)}


def masked(
    node: For, bound: tuple[int, int] | None, widths: dict[str, int], dtypes: dict[str, DType],
    lane: str,
) -> LoopNode | None:  # fmt: skip
    """A vector loop along registers as masked stores, or None if it does not have that form.

    widths : see `mask_widths`
    lane : the name for the lane
    """
    names = _moving(node, widths)
    lanes = {widths[name] for name in names}
    stores = node.body.children if isinstance(node.body, Block) else (node.body,)
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
    if node.trip is None:
        return If(Op("lt", (node.lower, node.upper)), block(made))
    return block(made) if node.trip else Block(())


def maskable(
    s: Store, var: str, width: int, registers: Collection[str], dtypes: dict[str, DType]
) -> bool:
    """Whether lanes of a store may be masked: its value cannot trap, and it uses whole vectors of
    registers.
    """
    if not is_untrapped(s) or not any(moves(i, var) for i in s.target.indices):
        return False
    for read in (s.target, *reads_of(s.value)):
        if dtypes[read.tensor] != s.dtype or any(reads_of(i) for i in read.indices):
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
    """Remove stores without active lanes, and masks that all lanes pass.

    Trailing lanes of a register that no store uses need not be kept either.
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

    return _settle_registers(visit(root))


def _settle_registers(root: LoopNode) -> LoopNode:
    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer) or node.scope != Scope.REGISTER:
            return node
        stores: dict[Read, list[VectorStore]] = {}
        for n in walk_loops(node.body):
            if isinstance(n, VectorStore) and n.store.target.tensor == node.name:
                stores.setdefault(_register(n), []).append(n)
        used = {register: _lanes_used(found) for register, found in stores.items()}

        def settled(n: LoopNode) -> LoopNode:
            if isinstance(n, VectorStore) and n.store.target.tensor == node.name:
                return replace(n, alone=_lanes_of(n) == used[_register(n)])
            return map_children(n, settled)

        return replace(node, body=settled(node.body)) if used else node

    return visit(root)


def _lanes_used(stores: list[VectorStore]) -> tuple[Expr, Expr] | None:
    """The lanes that stores to one register use together, None if unknown."""
    lanes = {_lanes_of(n) for n in stores}
    if len(lanes) == 1:
        return lanes.pop()
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
