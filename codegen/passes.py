"""Passes over the loop IR: pure functions from tree to tree, in the order of `optimise`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.cases import FAR, narrowed, tile_cases, with_named_ends, without_branches
from codegen.clamped import Rows, clamped, inside, rows_of
from codegen.conditions import all_of, surely
from codegen.decide import decide
from codegen.lanes import lane_stride, vectorise
from codegen.linear import Ranges, extreme
from codegen.loopir import (
    Block,
    Buffer,
    Combine,
    For,
    If,
    IfAligned,
    LoopNode,
    MoveSums,
    MultiplyMatrices,
    Single,
    Store,
    VectorStore,
    block,
    has_mark,
    map_children,
    reads_in,
    verify_loops,
    walk_loops,
)
from codegen.lower import ranges_inside
from codegen.masks import settle_masks
from codegen.places import at_place, simplify_indices
from codegen.rounds import fence_rounds
from codegen.transposed import transpose
from codegen.unswitch import unswitch
from poly.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    evaluate_int,
    simplify,
    sizes_of,
    walk,
)
from poly.linear import linear_form
from poly.program import Program

#: The most statements that unrolling may write out for one loop nest.
UNROLL_LIMIT = 2048

#: Rows that may not be there and are computed all the same; more than so many only if one is.
HALF = 4


def optimise(root: LoopNode, program: Program) -> LoopNode:
    """All passes, with the verifier between them."""
    for fn in (
        simplify_indices,
        lambda n: vectorise(n, program),
        unroll,
        settle_masks,
        lambda n: decide(n, program),
        drop_unread,
        unswitch,
        lambda n: transpose(n, program),
        fence_rounds,
        workshare,
    ):
        root = verify_loops(fn(root))
    return root


def drop_unread(root: LoopNode) -> LoopNode:
    """Leave out buffers that are only written, and what is stored there.

    That is what becomes of a temporary which nobody reads when it is promoted.
    """

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer):
            return node
        own = [n for n in walk_loops(node) if isinstance(n, Store) and n.target.tensor == node.name]
        inside = {id(n) for n in own}
        for n in walk_loops(node):
            if isinstance(n, MultiplyMatrices) and node.name in {r.tensor for r in n.reads}:
                return node
            if isinstance(n, (MoveSums, Combine)) and node.name in {r.tensor for r in reads_in(n)}:
                return node
            if isinstance(n, Store):
                read = [n.value] if id(n) in inside else [n.value, n.target]
                if any(
                    isinstance(x, Read) and x.tensor == node.name for e in read for x in walk(e)
                ):
                    return node
        return visit(without(node.body, inside))  # what fed it may now be unread

    return without(visit(root), set())


def without(root: LoopNode, stores: set[int]) -> LoopNode:
    """The tree without some stores (by id), and without the loops that then do nothing."""
    if isinstance(root, (Store, VectorStore)):
        store = root.store if isinstance(root, VectorStore) else root
        return Block(()) if id(store) in stores else root
    node = map_children(root, lambda c: without(c, stores))
    empty = Block(())
    if isinstance(node, IfAligned) and node.then == node.other == empty:
        return empty
    if isinstance(node, If):
        other = None if node.other == empty else node.other
        if node.then == empty and other is not None:
            return If(Op("not", (node.cond,)), other)
        return empty if node.then == empty else replace(node, other=other)
    return empty if isinstance(node, (For, Buffer)) and node.body == empty else node


# --- unrolling -----------------------------------------------------------------------------


def unroll(root: LoopNode) -> LoopNode:
    """Write out loops marked so, when few iterations are possible.

    Where the bounds are not constant but bounded, each iteration that may run gets the condition
    under which it does, as far as that is not known.
    """
    return _unroll(_in_cases(root, {}), {}, {})


def _in_cases(node: LoopNode, ranges: Ranges) -> LoopNode:
    """Register tiles of unknown sizes in cases, each of them written out."""
    if isinstance(node, For):
        low, high = (extreme(e, ranges, f) for e, f in ((node.lower, min), (node.upper, max)))
        ranges = {**ranges, node.var: (-FAR if low is None else low, FAR if high is None else high)}
    if not isinstance(node, Buffer) or node.scope != "register":
        return map_children(node, lambda c: _in_cases(c, ranges))

    made: LoopNode | None = None
    cases = tile_cases(node, ranges)
    for case in reversed(cases):
        written = _unroll(case.body, dict(case.ranges), {})
        tile = _in_widths(case.placed(written), ranges, case is cases[0])
        inside = case.inside(written) if case is cases[0] else None
        if inside is not None and isinstance(inside[1], Buffer):
            tile = If(inside[0], with_named_ends(inside[1], ranges), tile)
        made = tile if case.condition is None else If(case.condition, tile, made)
    return made or node


def _in_widths(tile: LoopNode, taken: Collection[str], both: bool) -> LoopNode:
    """A register tile without branches; if `both`, one in narrower vectors where these do, too."""
    if not isinstance(tile, Buffer):
        return tile

    def straight(t: Buffer) -> LoopNode:
        return with_named_ends(replace(t, body=without_branches(t.body, {t.name})), taken)

    narrow = narrowed(tile) if both else None
    return straight(tile) if narrow is None else If(narrow[0], straight(narrow[1]), straight(tile))


def _unroll(node: LoopNode, ranges: Ranges, rows: Rows) -> LoopNode:
    if isinstance(node, Buffer) and node.scope == "register":
        rows = {**rows, **rows_of(node)}
    if not isinstance(node, For):
        return map_children(node, lambda c: _unroll(c, ranges, rows))
    ranges = ranges_inside(node, ranges)
    bound = ranges.get(node.var)
    if node.mark != "unroll" or node.step != 1:
        return map_children(node, lambda c: _unroll(c, ranges, rows))
    size = sum(isinstance(n, (Store, VectorStore)) for n in walk_loops(node.body))
    if bound is None or (bound[1] - bound[0] + 1) * max(size, 1) > UNROLL_LIMIT:
        why = "of unknown length" if bound is None else f"more than {UNROLL_LIMIT} statements"
        note = f"not unrolled, {why}"
        return replace(node, mark="seq", body=_unroll(node.body, ranges, rows), note=note)
    bounds = (node.lower, node.upper)
    whole = clamped(node.body, node.var, bounds, rows)
    # Tiles of known sizes have few rows of which that depends on the tile, or none.
    unknown = any(map(sizes_of, bounds))
    partly = inside(node.body, node.var, bounds, rows) if unknown and whole is None else None
    children: list[LoopNode] = []
    parts: tuple[list[tuple[int, LoopNode]], ...] = ([], [])
    for value in range(bound[0], bound[1] + 1):
        checks = (Op("le", (node.lower, Const(value))), Op("lt", (Const(value), node.upper)))
        conditions = [c for c in checks if not surely(c, ranges)]
        # Behind the first row, what may not be there is computed all the same.
        behind = value > bound[0] and conditions == [checks[1]]
        here = (whole if behind else None) or (partly if conditions else None)
        body = fold_conditions(at_place(here or node.body, node.var, Const(value)))
        body = _unroll(body, ranges, rows)
        if here is None:
            for c in conditions:
                body = If(simplify(c), body)
            children.append(body)
        elif here is whole:
            parts[1].append((value, body))
        else:
            parts[0].append((value, If(simplify(all_of(conditions)), body, masked=True)))
    return block([*children, *(n for part in parts for n in _halves(node, part, ranges))])


def _halves(node: For, rows: list[tuple[int, LoopNode]], ranges: Ranges) -> list[LoopNode]:
    """Rows that may be computed whether they are there or not: those up to `HALF` if there is
    any, those behind if one of them is there.
    """
    made: list[LoopNode] = []
    half: Expr = Const(HALF)
    if not surely(Op("le", (node.lower, half)), ranges):
        half = Op("max", (node.lower, half))
    for least, part in (
        (node.lower, [body for value, body in rows if value < HALF]),
        (half, [body for value, body in rows if value >= HALF]),
    ):
        some = Op("lt", (least, node.upper))
        if part:
            made.append(block(part) if surely(some, ranges) else If(simplify(some), block(part)))
    return made


def fold_conditions(root: LoopNode) -> LoopNode:
    """Decide conditions that have become constant."""

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if isinstance(node, If) and all(isinstance(e, (Op, Const)) for e in walk(node.cond)):
            if evaluate_int(node.cond, {}):
                return node.then
            return node.other if node.other is not None else Block(())
        return node

    return visit(root)


# --- threads -------------------------------------------------------------------------------


def workshare(root: LoopNode) -> LoopNode:
    """Every thread runs the tree; what is not in a parallel loop is left to a single one.

    Loops that contain a parallel loop run on all threads, in step: a parallel loop and a
    `Single` both end in a barrier.  A thread that is late runs what is around them later than the
    others, so bounds and conditions there must not read what they write: no guard reads data.
    """
    if not has_mark(root, "parallel"):
        return root

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, For) and node.mark == "parallel":
            return node
        if not has_mark(node, "parallel"):
            return Single(node)
        if isinstance(node, Block):
            return block(_join([visit(c) for c in node.children]))
        return map_children(node, visit)

    return visit(root)


def _join(nodes: list[LoopNode]) -> list[LoopNode]:
    """Merge neighbouring singles, so that they share one barrier."""
    result: list[LoopNode] = []
    for node in nodes:
        last = result[-1] if result else None
        if isinstance(node, Single) and isinstance(last, Single):
            result[-1] = Single(block([last.body, node.body]))
        else:
            result.append(node)
    return result


# --- registers -----------------------------------------------------------------------------


def is_scalarisable(buffer: Buffer) -> bool:
    """Whether every access to a buffer has a constant place, up to whole vectors of lanes."""
    lanes = vector_lanes(buffer)
    if lanes is None:
        return False
    vectors = {id(n.store): n.var for n in walk_loops(buffer.body) if isinstance(n, VectorStore)}
    for n in walk_loops(buffer.body):
        if not isinstance(n, Store):
            continue
        var = vectors.get(id(n))
        for read in reads_in(n):
            if read.tensor != buffer.name:
                continue
            for index in read.indices:
                form = linear_form(index)
                if var is not None:
                    form = form.without(Index(var))
                if form.terms:
                    return False
    return True


def vector_lanes(buffer: Buffer) -> int | None:
    """The one number of lanes in which a buffer is accessed (1: scalars), None if it varies."""
    widths: set[int] = set()
    inside: set[int] = set()
    for n in walk_loops(buffer.body):
        if isinstance(n, VectorStore):
            inside.add(id(n.store))
            for read in reads_in(n.store):
                if read.tensor == buffer.name:
                    stride = lane_stride(read, n.var)
                    if stride not in (0, 1):
                        return None  # its lanes lie in different places
                    widths.add(n.lanes if stride == 1 else 1)
        elif isinstance(n, Store) and id(n) not in inside:
            widths |= {1 for read in reads_in(n) if read.tensor == buffer.name}
    return widths.pop() if len(widths) == 1 else None
