"""Unroll loops, with register tiles of unknown sizes in cases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from codegen.loops.clamp_rows import Rows, clamped, inside, rows_of
from codegen.loops.conditions import all_of, parts_of, surely
from codegen.loops.index_ranges import Ranges, extreme
from codegen.loops.loop_versioning import (
    FAR,
    Case,
    narrowed,
    tile_cases,
    whole_tile,
    with_loops_of_rows,
    with_named_ends,
    without_branches,
)
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import (
    Block,
    Buffer,
    CallIntrinsic,
    For,
    If,
    LoopNode,
    Store,
    VectorStore,
    block,
)
from codegen.loops.rolled import can_roll, is_irregular, may_roll
from codegen.loops.substitute import substitute_var
from codegen.loops.tidy import tidied
from codegen.loops.traverse import children_of, map_children, walk_loops
from poly.ir.expr import Const, Expr, Index, Op, evaluate_int, simplify, sizes_of, walk
from poly.tree.kinds import Mark, Scope

#: The most statements that unrolling may create for one loop nest.
UNROLL_LIMIT = 2048


#: Masks of a tile that are named even if hardly any row shares one with another.  In depthwise
#: convolutions of stride 2 none does: 3 x 3 elements have 63 masks for as many updates, 5 x 5 have
#: 100.  With stride 1, 5 x 5 have 35 for 100 updates, 7 x 7 have 77 for 147: naming is faster.
MOST_MASKS = 32
#: The first of fewer iterations than this is told apart from the others if it is known to exist.
FEWEST_ROWS = 3
#: Up to this many rows that may not exist are computed if any row exists; more only if one of them
#: does.
HALF = 4


def unroll(root: LoopNode) -> LoopNode:
    """Unroll loops marked so, if few iterations are possible.

    Where the bounds are not constant but bounded, each possible iteration gets the condition under
    which it runs, unless that is known to hold.
    """
    return _unroll(_in_cases(root, {}, None), {}, {}, None)


def unroll_irregular(root: LoopNode) -> LoopNode:
    """Unroll loops marked so, except those whose iterations differ in constants alone, which the C
    compiler unrolls.
    """
    return _unroll(_in_cases(root, {}, frozenset()), {}, {}, frozenset())


def _in_cases(node: LoopNode, ranges: Ranges, irregular: frozenset[str] | None) -> LoopNode:
    """Register tiles of unknown sizes in cases, each of them unrolled: masks that are named before
    all rows are faster than those that each row computes.  Only in the case without masks are
    loops left to the C compiler; irregular : see `_unroll`
    """
    if isinstance(node, For):
        low, high = (extreme(e, ranges, f) for e, f in ((node.lower, min), (node.upper, max)))
        ranges = {**ranges, node.var: (-FAR if low is None else low, FAR if high is None else high)}
    if not isinstance(node, Buffer) or node.scope != Scope.REGISTER:
        return map_children(node, lambda c: _in_cases(c, ranges, irregular))

    cases = tile_cases(node, ranges)
    if not cases:
        return node
    made: LoopNode | None = None
    for case in reversed(cases):
        written = _unroll(case.body, dict(case.ranges), {}, None)
        whole = _whole(case, written, ranges, irregular) if case is cases[0] else None
        if whole is not None and _has_many_masks(written):
            return _by_filter_rows(node, case, whole, ranges, irregular)
        tile = _in_widths(case.resolved(written), ranges, case is cases[0])
        if whole is not None:
            tile = If(whole.cond, whole.then, tile)
        made = tile if case.condition is None else If(case.condition, tile, made)
    return made or node


def _whole(
    case: Case, written: LoopNode, ranges: Ranges, irregular: frozenset[str] | None
) -> If | None:
    """The tile of a case without masks, under the condition that it needs none."""
    inside = case.inside(written)
    if inside is None or not isinstance(inside[1], Buffer):
        return None
    whole = _unroll(whole_tile(case.body, case.ranges), {}, {}, irregular)
    assert isinstance(whole, Buffer)
    return If(inside[0], with_named_ends(whole, ranges))


def _has_many_masks(written: LoopNode) -> bool:
    """Whether the updates of a tile without branches that depend on the existence of a row would
    have many masks, few of them the same.
    """
    masks: list[tuple[Expr, ...]] = []

    def visit(n: LoopNode, conditions: tuple[Expr, ...]) -> None:
        if isinstance(n, If) and n.other is None:
            conditions = (*conditions, *parts_of(n.cond))
        if isinstance(n, VectorStore) and n.last is not None and conditions:
            masks.append((*conditions, n.first, n.last))
        for c in children_of(n):
            visit(c, conditions)

    visit(written, ())
    return len({*masks}) > max(MOST_MASKS, 3 * len(masks) // 4)


def _by_filter_rows(
    node: Buffer, case: Case, whole: If, ranges: Ranges, irregular: frozenset[str] | None
) -> LoopNode:
    """A register tile in few lines: a loop over the rows of the filter, in which each row of the
    tile has its condition.  Masks differ between columns of the filter only.
    """
    rolled = with_loops_of_rows(node)
    written = _unroll(rolled, ranges, {}, irregular)
    assert isinstance(written, Buffer)
    narrow = narrowed(written)
    tile: LoopNode = with_named_ends(written, ranges)
    if narrow is not None:
        tile = If(narrow[0], with_named_ends(narrow[1], ranges), tile)
    known = () if case.condition is None else parts_of(case.condition)
    return If(all_of([*known, *parts_of(whole.cond)]), whole.then, tile)


def _in_widths(tile: LoopNode, taken: Collection[str], both: bool) -> LoopNode:
    """A register tile without branches; if `both`, also in narrower vectors where these suffice."""
    if not isinstance(tile, Buffer):
        return tile

    def straight(t: Buffer) -> LoopNode:
        return with_named_ends(replace(t, body=without_branches(t.body, {t.name})), taken)

    narrow = narrowed(tile) if both else None
    return straight(tile) if narrow is None else If(narrow[0], straight(narrow[1]), straight(tile))


def _unroll(
    node: LoopNode, ranges: Ranges, rows: Rows, irregular: frozenset[str] | None
) -> LoopNode:
    """irregular : the enclosing buffers of `is_irregular`; None: no loop is left to C compilers"""
    if isinstance(node, Buffer) and irregular is not None:
        irregular = irregular - {node.name} | ({node.name} if is_irregular(node) else set())
    if isinstance(node, Buffer) and node.scope == Scope.REGISTER:
        rows = {**rows, **rows_of(node)}
    if not isinstance(node, For):
        return map_children(node, lambda c: _unroll(c, ranges, rows, irregular))
    ranges = ranges_inside(node, ranges)
    bound = ranges.get(node.var)
    if node.mark != Mark.UNROLL or node.step != 1:
        return map_children(node, lambda c: _unroll(c, ranges, rows, irregular))
    size = sum(isinstance(n, (Store, VectorStore)) for n in walk_loops(node.body))
    if bound is None or (bound[1] - bound[0] + 1) * max(size, 1) > UNROLL_LIMIT:
        why = "of unknown length" if bound is None else f"more than {UNROLL_LIMIT} statements"
        note = f"not unrolled, {why}"
        return replace(
            node, mark=Mark.SEQ, body=_unroll(node.body, ranges, rows, irregular), note=note
        )
    return _unrolled(node, bound, _Copies(node, ranges, rows, irregular))


def _unrolled(node: For, bound: tuple[int, int], copies: _Copies) -> LoopNode:
    """The iterations of a loop that are possible.

    bound : the least and the greatest value of its variable
    """
    bounds = (node.lower, node.upper)
    whole = clamped(node.body, node.var, bounds, copies.rows)
    # Tiles of known sizes have few or no rows of unknown existence.
    unknown = any(map(sizes_of, bounds))
    partly = inside(node.body, node.var, bounds, copies.rows) if unknown and not whole else None
    values = range(bound[0], bound[1] + 1)
    # After the first row, rows that may not exist are computed anyway; with it, if that is a loop.
    least = bound[0]
    if whole is None or not copies.can_roll(whole, [*values[:HALF]]):
        least += 1
    later: list[int] = []
    masked: list[int] = []
    runs: list[tuple[list[int], tuple[bool, ...]]] = []
    sets = whole is not None and _sets_numbers(whole)
    for value in values:
        unsure = copies.unsure(value)
        clamps = value >= least and unsure == (False, True)
        if whole is not None and (sets or clamps):
            later.append(value)
        elif partly is not None and any(unsure):
            masked.append(value)
        elif runs and runs[-1] == ([*range(runs[-1][0][0], value)], unsure):
            runs[-1][0].append(value)
        else:
            runs.append(([value], unsure))
    made = copies.runs(runs)
    for body, of, rows in ((partly, copies.masked, masked), (whole, copies.of, later)):
        if body is not None and sets:
            made += [n for _, n in of(body, rows)]
        elif body is not None:
            first, second = ([v for v in rows if (v < HALF) == low] for low in (True, False))
            made += _halves(node, [*of(body, first), *of(body, second)], copies.ranges)
    return block(made)


def _sets_numbers(whole: LoopNode) -> bool:
    """Whether the body of `clamped` only sets registers to numbers, which is never wrong."""
    return not any(
        isinstance(n, CallIntrinsic) or (isinstance(n, Store) and n.op != "=")
        for n in walk_loops(whole)
    )


@dataclass(frozen=True)
class _Copies:
    """Copies of the body of a loop, for some values of its variable."""

    node: For
    ranges: Ranges
    rows: Rows
    irregular: frozenset[str] | None

    def unsure(self, value: int) -> tuple[bool, ...]:
        """For each of `_checks` of an iteration, whether it is not known to hold."""
        limits = self.node.limits
        first = self.node.runs and self.node.lower == Const(value)
        if first and (limits is None or limits[1] - limits[0] < FEWEST_ROWS):
            return False, False
        return tuple(not surely(c, self.ranges) for c in _checks(self.node, Const(value)))

    def of(self, body: LoopNode, values: list[int]) -> list[tuple[int, LoopNode]]:
        """The copies of a body, each with its value, or one loop that the C compiler unrolls."""
        rolled = self._rolled(body, values)
        if rolled is not None:
            return [(values[0], rolled)]
        return [(value, self._at(body, value)) for value in values]

    def runs(self, runs: list[tuple[list[int], tuple[bool, ...]]]) -> list[LoopNode]:
        """Copies for several values, each with which of the conditions are not sure: one loop, if
        some condition is not sure for any of them, and the C compiler may unroll it.
        """
        values = [value for run, _ in runs for value in run]
        some = len(runs) > 1 and all(any(unsure) for _, unsure in runs)
        if some and values == [*range(values[0], values[-1] + 1)]:
            unsure = tuple(map(any, zip(*(u for _, u in runs), strict=True)))
            rolled = self._rolled(If(self._condition(values, unsure), self.node.body), values)
            if rolled is not None:
                return [rolled]
        return [n for run, unsure in runs for n in self.under(run, unsure)]

    def under(self, values: list[int], unsure: tuple[bool, ...]) -> list[LoopNode]:
        """The copies of the body, under the conditions for an iteration that are not sure."""
        if any(unsure):
            when = self._condition(values, unsure)
            rolled = self._rolled(If(when, self.node.body), values)
            if rolled is not None:
                return [rolled]
            return [self._conditional(value, unsure) for value in values]
        return [body for _, body in self.of(self.node.body, values)]

    def _conditional(self, value: int, unsure: tuple[bool, ...]) -> LoopNode:
        body = self._at(self.node.body, value)
        for c in self._conditions(Const(value), unsure):
            body = If(c, body)
        return body

    def _conditions(self, value: Expr, unsure: tuple[bool, ...]) -> list[Expr]:
        """Those of `_checks` of an iteration that are not known to hold."""
        checks = zip(_checks(self.node, value), unsure, strict=True)
        # In tiles in cases conditions become masks: an extremum is better than a branch for these.
        written = simplify if self.irregular is None else tidied
        return [written(c) for c, is_open in checks if is_open]

    def _condition(self, values: list[int], unsure: tuple[bool, ...]) -> Expr:
        """The condition for each of several iterations."""
        ranges = {**self.ranges, self.node.var: (values[0], values[-1])}
        found = self._conditions(Index(self.node.var), unsure)
        parts = [p for c in found for p in parts_of(c) if not surely(p, ranges)]
        return all_of(parts or found)

    def masked(self, body: LoopNode, values: list[int]) -> list[tuple[int, LoopNode]]:
        """The copies of a body, in which no lane is active if there is no such iteration."""
        unsure = [self.unsure(value) for value in values]
        if len(set(unsure)) == 1:
            when = self._condition(values, unsure[0])
            rolled = self._rolled(If(when, body, masked=True), values)
            if rolled is not None:
                return [(values[0], rolled)]
        made: list[tuple[int, LoopNode]] = []
        for value, is_open in zip(values, unsure, strict=True):
            when = all_of(self._conditions(Const(value), is_open))
            made.append((value, If(when, self._at(body, value), masked=True)))
        return made

    def can_roll(self, body: LoopNode, values: list[int]) -> bool:
        """Whether the copies of a body may be one loop."""
        return self._rolled(body, values) is not None

    def _at(self, body: LoopNode, value: int) -> LoopNode:
        copy = fold_conditions(substitute_var(body, self.node.var, Const(value)))
        return _unroll(copy, self.ranges, self.rows, self.irregular)

    def _rolled(self, body: LoopNode, values: list[int]) -> For | None:
        """The copies as one loop, if the C compiler may unroll it."""
        if self.irregular is None or len(values) < 2 or not may_roll(self.node.var, body):
            return None
        first, last = values[0], values[-1]
        body = _unroll(
            body, {**self.ranges, self.node.var: (first, last)}, self.rows, self.irregular
        )
        rolled = replace(self.node, lower=Const(first), upper=Const(last + 1), body=body)
        return rolled if can_roll(rolled, self.irregular) else None


def _checks(node: For, value: Expr) -> tuple[Expr, Expr]:
    """The conditions under which a loop has an iteration."""
    return Op("le", (node.lower, value)), Op("lt", (value, node.upper))


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
        sure = surely(some, ranges) or (node.runs and least == node.lower)
        if part:
            made.append(block(part) if sure else If(tidied(some), block(part)))
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
