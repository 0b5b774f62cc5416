"""Unroll loops, with register tiles of unknown sizes in cases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from codegen.loops.clamp_rows import Rows, clamped, inside, rows_of
from codegen.loops.conditions import all_of, surely
from codegen.loops.index_ranges import Ranges, extreme
from codegen.loops.loop_versioning import (
    FAR,
    narrowed,
    tile_cases,
    with_named_ends,
    without_branches,
)
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, walk_loops
from poly.ir.expr import Const, Expr, Op, evaluate_int, simplify, sizes_of, walk
from poly.tree.kinds import Mark, Scope

#: The most statements that unrolling may create for one loop nest.
UNROLL_LIMIT = 2048


#: Up to this many rows that may not exist are computed if any row exists; more only if one of them
#: does.
HALF = 4


def unroll(root: LoopNode) -> LoopNode:
    """Unroll loops marked so, if few iterations are possible.

    Where the bounds are not constant but bounded, each possible iteration gets the condition under
    which it runs, unless that is known to hold.
    """
    return _unroll(_in_cases(root, {}), {}, {})


def _in_cases(node: LoopNode, ranges: Ranges) -> LoopNode:
    """Register tiles of unknown sizes in cases, each of them unrolled."""
    if isinstance(node, For):
        low, high = (extreme(e, ranges, f) for e, f in ((node.lower, min), (node.upper, max)))
        ranges = {**ranges, node.var: (-FAR if low is None else low, FAR if high is None else high)}
    if not isinstance(node, Buffer) or node.scope != Scope.REGISTER:
        return map_children(node, lambda c: _in_cases(c, ranges))

    made: LoopNode | None = None
    cases = tile_cases(node, ranges)
    for case in reversed(cases):
        written = _unroll(case.body, dict(case.ranges), {})
        tile = _in_widths(case.resolved(written), ranges, case is cases[0])
        inside = case.inside(written) if case is cases[0] else None
        if inside is not None and isinstance(inside[1], Buffer):
            tile = If(inside[0], with_named_ends(inside[1], ranges), tile)
        made = tile if case.condition is None else If(case.condition, tile, made)
    return made or node


def _in_widths(tile: LoopNode, taken: Collection[str], both: bool) -> LoopNode:
    """A register tile without branches; if `both`, also in narrower vectors where these suffice."""
    if not isinstance(tile, Buffer):
        return tile

    def straight(t: Buffer) -> LoopNode:
        return with_named_ends(replace(t, body=without_branches(t.body, {t.name})), taken)

    narrow = narrowed(tile) if both else None
    return straight(tile) if narrow is None else If(narrow[0], straight(narrow[1]), straight(tile))


def _unroll(node: LoopNode, ranges: Ranges, rows: Rows) -> LoopNode:
    if isinstance(node, Buffer) and node.scope == Scope.REGISTER:
        rows = {**rows, **rows_of(node)}
    if not isinstance(node, For):
        return map_children(node, lambda c: _unroll(c, ranges, rows))
    ranges = ranges_inside(node, ranges)
    bound = ranges.get(node.var)
    if node.mark != Mark.UNROLL or node.step != 1:
        return map_children(node, lambda c: _unroll(c, ranges, rows))
    size = sum(isinstance(n, (Store, VectorStore)) for n in walk_loops(node.body))
    if bound is None or (bound[1] - bound[0] + 1) * max(size, 1) > UNROLL_LIMIT:
        why = "of unknown length" if bound is None else f"more than {UNROLL_LIMIT} statements"
        note = f"not unrolled, {why}"
        return replace(node, mark=Mark.SEQ, body=_unroll(node.body, ranges, rows), note=note)
    bounds = (node.lower, node.upper)
    whole = clamped(node.body, node.var, bounds, rows)
    # Tiles of known sizes have few or no rows of unknown existence.
    unknown = any(map(sizes_of, bounds))
    partly = inside(node.body, node.var, bounds, rows) if unknown and whole is None else None
    children: list[LoopNode] = []
    parts: tuple[list[tuple[int, LoopNode]], ...] = ([], [])
    for value in range(bound[0], bound[1] + 1):
        checks = (Op("le", (node.lower, Const(value))), Op("lt", (Const(value), node.upper)))
        conditions = [c for c in checks if not surely(c, ranges)]
        # After the first row, rows that may not exist are computed anyway.
        later = value > bound[0] and conditions == [checks[1]]
        here = (whole if later else None) or (partly if conditions else None)
        body = fold_conditions(substitute_var(here or node.body, node.var, Const(value)))
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
    """Rows that may be computed whether they exist or not: those up to `HALF` if there is any row,
    the later ones if one of them exists.
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
