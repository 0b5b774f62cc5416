"""Version register tiles of unknown sizes: one unrolled case for each possible number of rows.

The remainder of an image has 1, 2, … rows fewer than a tile.  Where the tile is in registers, a
condition on each row, or a row computed in vain, would cost more than the rows.  So there is a case
for each number of rows, in which everything that depends on this number (such as which filter taps
are below the image) is known, too.  And where at most half the lanes of a tile are active, as in
the last vectors of narrow images, vectors of half the size are used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count

from codegen.loops.clamp_rows import is_free
from codegen.loops.conditions import all_of, needed, parts_of, parts_of_extremum, surely
from codegen.loops.index_ranges import Ranges, depends_on, extreme, replace_var, settle
from codegen.loops.lower_instances import var_range
from codegen.loops.nodes import (
    LANE_0,
    Block,
    Buffer,
    For,
    If,
    LoopNode,
    Store,
    Tile,
    VectorStore,
    block,
)
from codegen.loops.traverse import children_of, map_children, own_variables, reads_in, walk_loops
from poly.ir.cost import CASES_LIMIT
from poly.ir.expr import Const, Expr, Index, Op, Size, add, indices_of, reads_of, rewrite, sub, walk
from poly.ir.linear_form import Linear, constant, linear_form, normal, render
from poly.tree.kinds import Mark

#: Larger than any size.
FAR = 1 << 40
#: Vectors of fewer bits do not get a case of their own.
FEWEST_BITS = 256


@dataclass(frozen=True)
class Case:
    """One version of a tile.

    condition : when it applies; None: always, or there is nothing to do
    body : the tile, with its loops as they are in this case
    rests : names for unknown numbers, and their values
    ranges : of loops, and of those numbers
    """

    condition: Expr | None
    body: Buffer
    rests: Mapping[str, Expr]
    ranges: Mapping[str, tuple[int, int]]

    def resolved(self, node: LoopNode) -> LoopNode:
        """The result of transforming the body, with the names of numbers replaced by their values;
        each store gets conditions of its own, without those that follow from others.
        """
        known: dict[Expr, Expr] = {}
        kept: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}

        def fix(e: Expr) -> Expr:
            if e not in known:
                known[e] = self.fixed(e)
            return known[e]

        def visit(n: LoopNode, conditions: tuple[Expr, ...]) -> LoopNode:
            if isinstance(n, If) and n.other is None:
                return visit(n.then, (*conditions, *parts_of(n.cond)))
            if isinstance(n, Block):
                return block([visit(c, conditions) for c in n.children])
            if isinstance(n, VectorStore) and n.last is not None:
                n = replace(n, first=fix(n.first), last=fix(n.last))
            elif isinstance(n, For):
                n = replace(n, lower=fix(n.lower), upper=fix(n.upper))
            n = map_children(n, lambda c: visit(c, ()))
            if conditions not in kept:
                left = needed(conditions, self.ranges)
                kept[conditions] = tuple(_fixed_sides(c, fix) for c in left)
            return If(all_of(kept[conditions]), n) if kept[conditions] else n

        return visit(node, ())

    def fixed(self, e: Expr) -> Expr:
        """Simplify an expression as far as it is known, with names replaced by their values."""
        made = decided(e, self.ranges)
        for name, value in self.rests.items():
            made = replace_var(made, name, value)
        return normal(made)

    def inside(self, node: LoopNode) -> tuple[Expr, LoopNode] | None:
        """The transformed body with no lane and no update left out, and the condition for that."""
        conditions: dict[Expr, None] = {}
        bound = own_variables(node)

        def visit(n: LoopNode) -> LoopNode:
            if isinstance(n, If) and n.other is None:
                conditions.update(dict.fromkeys(parts_of(n.cond)))
                return visit(n.then)
            if isinstance(n, VectorStore) and n.last is not None:
                conditions[Op("le", (n.first, LANE_0))] = None
                conditions[Op("le", (Const(n.lanes), n.last))] = None
                return replace(n, first=LANE_0, last=None)
            if isinstance(n, For):
                n = replace(n, lower=self.fixed(n.lower), upper=self.fixed(n.upper))
            return map_children(n, visit)

        body = visit(node)
        if any(bound & set(indices_of(c)) for c in conditions):
            return None
        left = [_fixed_sides(c, self.fixed) for c in needed(tuple(conditions), self.ranges)]
        return (all_of(left), body) if left else None


def tile_cases(node: Buffer, ranges: Ranges) -> tuple[Case, ...]:
    """The cases of a register tile whose size is not known; none if it is.

    There is a case for each number of rows, the greatest first, unless that is too much code.
    """
    if not _has_taps(node):
        return ()
    every = Case(None, node, {}, ranges)
    rows = _row_cases(node, ranges)
    cases = tuple(_with_lanes(c) for c in rows or (every,))
    return cases if rows or cases != (every,) else ()


def _has_taps(node: Buffer) -> bool:
    """Whether filter taps reach along the lanes of a register tile: some loop moves the elements
    read, but not those computed.

    Where taps reach along rows only, the elements read do not move with lanes, and no mask could
    keep invalid ones from being read.
    """
    bound = own_variables(node)
    for n in walk_loops(node.body):
        if not isinstance(n, VectorStore) or n.store.target.tensor != node.name:
            continue
        own = set(indices_of(n.store.target))
        for read in reads_of(n.store.value):
            moving = [set(indices_of(i)) for i in read.indices if depends_on(i, n.var)]
            if any(bound & (x - own) for x in moving):
                return True
    return False


def _row_cases(node: Buffer, ranges: Ranges) -> tuple[Case, ...]:
    for upper, most in _counts(node):
        form = _solved(upper, most)
        if form is None or most < 2 or form.case(node, 0, ranges).body.body != Block(()):
            continue
        cases = tuple(form.case(node, rows, ranges) for rows in range(most, 0, -1))
        if sum(_updates(c.body, c.ranges) for c in cases) <= CASES_LIMIT:
            return cases
    return ()


def _with_lanes(case: Case) -> Case:
    """The case, with what is implied about sizes by some lane being active."""
    own = own_variables(case.body)
    ends = {n.last for n in walk_loops(case.body) if isinstance(n, VectorStore) and n.last}
    outer = [e for e in ends if not own & set(indices_of(e))]
    for last in sorted(outer, key=lambda e: (len(list(walk(e))), str(e))):
        lanes = next(n.lanes for n in walk_loops(case.body) if isinstance(n, VectorStore))
        form = _solved(last, lanes)
        if form is None or form.name in case.rests:
            continue
        if form.case(case.body, 0, case.ranges).body.body == Block(()):
            some = form.case(case.body, 1, case.ranges, more=True)
            return replace(some, condition=case.condition, rests={**case.rests, **some.rests})
    return case


def _updates(node: LoopNode, ranges: Ranges) -> int:
    """The number of vector stores after unrolling."""
    if isinstance(node, VectorStore):
        return 1
    if isinstance(node, For):
        bound = var_range(node, ranges) if node.mark == Mark.UNROLL else None
        if bound is None:
            return _updates(node.body, ranges)
        return (bound[1] - bound[0] + 1) * _updates(node.body, {**ranges, node.var: bound})
    return sum(_updates(c, ranges) for c in children_of(node))


def _counts(node: Buffer) -> list[tuple[Expr, int]]:
    """Candidates for the number of a tile's rows, each with its greatest possible value: the ends
    of loops along its registers from 0, if only the sizes in them are known.
    """
    found: dict[Expr, int] = {}
    own = own_variables(node)
    for n in walk_loops(node.body):
        if (
            isinstance(n, For)
            and not own & set(indices_of(n.upper))
            and n.mark == Mark.UNROLL
            and n.step == 1
            and n.lower == Const(0)
            and n.limits is not None
            and n.limits[0] == 0
            and any(isinstance(e, Size) for e in walk(n.upper))
            and any(
                r.tensor == node.name and depends_on(r, n.var)
                for s in walk_loops(n.body)
                if isinstance(s, Store)
                for r in (s.target,)
            )
        ):
            found.setdefault(n.upper, n.limits[1] + 1)
    # The loop with the fewest conditions is over all rows.
    return sorted(found.items(), key=lambda x: len(list(walk(x[0]))))


@dataclass(frozen=True)
class _Solved:
    """``rows = min(floor((size + rest) / divisor) + others, most)``, to be solved for `size`."""

    size: Size
    rest: Linear
    divisor: int
    others: Linear
    most: int
    upper: Expr

    @property
    def name(self) -> str:
        """The name for what remains unknown about the size once the number of rows is known."""
        return f"{self.size.name} more"

    def case(self, node: Buffer, rows: int, ranges: Ranges, more: bool = False) -> Case:
        """The tile with exactly (with `more`, at least) this many rows; 0 stands for 0 or fewer."""
        # size + rest = divisor * (rows - others) + the unknown remainder
        exact = (constant(rows) - self.others).scale(self.divisor) - self.rest
        more = more or rows == self.most
        least, greatest = (0 if rows else -FAR), (FAR if more else self.divisor - 1)
        known = {**ranges, self.name: (least, greatest)}
        size = add(render(exact), Index(self.name))
        body = _assume(node.body, self.size, size, known)
        condition = Op("le" if more else "eq", (Const(rows), self.upper))
        rests = {self.name: sub(self.size, render(exact))}
        return Case(condition, replace(node, body=body), rests, known)


def _solved(upper: Expr, most: int) -> _Solved | None:
    """How a number of rows depends on a size, if on only one quotient of it."""
    form = linear_form(upper)
    for atom, c in form.terms:
        if isinstance(atom, Op) and atom.fn == "min" and len(form.terms) == 1 and c == 1:
            bound = [a for a in atom.args if isinstance(a, Const)]
            open_ = [a for a in atom.args if not isinstance(a, Const)]
            if len(bound) == len(open_) == 1 and int(bound[0].value) + form.constant == most:
                form = linear_form(open_[0]) + form.constant
                break
    else:
        return None
    for atom, c in form.terms:
        if c != 1:
            continue
        others, rest, divisor = form.without(atom), linear_form(atom), 1
        if isinstance(atom, Op) and atom.fn in ("floordiv", "div"):
            if not isinstance(atom.args[1], Const):
                continue
            rest, divisor = linear_form(atom.args[0]), int(atom.args[1].value)
        sizes = [a for a, k in rest.terms if isinstance(a, Size) and k == 1]
        for size in sizes:
            known = (others, rest.without(size))
            if divisor > 0 and not any(size in walk(a) for f in known for a, _ in f.terms):
                return _Solved(size, rest.without(size), divisor, others, most, upper)
    return None


def _assume(node: LoopNode, size: Size, value: Expr, ranges: Ranges) -> LoopNode:
    """The loops and conditions below for this value of a size, without empty loops."""
    nothing = Block(())

    def fix(e: Expr) -> Expr:
        return decided(rewrite(e, lambda x: value if x == size else x), ranges)

    def visit(n: LoopNode) -> LoopNode:
        if isinstance(n, VectorStore) and n.last is not None:
            return replace(n, first=fix(n.first), last=fix(n.last))
        if isinstance(n, For):
            n = replace(n, lower=fix(n.lower), upper=fix(n.upper))
            if surely(Op("lt", (n.lower, n.upper)), ranges) is False:
                return nothing
        if isinstance(n, If) and n.other is None:
            parts = [_fixed_sides(c, fix) for c in parts_of(n.cond)]
            if any(surely(c, ranges) is False for c in parts):
                return nothing
            then, left = visit(n.then), [c for c in parts if not surely(c, ranges)]
            return then if then == nothing or not left else If(all_of(left), then)
        n = map_children(n, visit)
        return nothing if isinstance(n, For) and n.body == nothing else n

    return visit(node)


def _fixed_sides(condition: Expr, fix: Callable[[Expr], Expr]) -> Expr:
    if not isinstance(condition, Op):
        return condition
    return Op(condition.fn, tuple(map(fix, condition.args)))


def without_branches(node: LoopNode, registers: Collection[str]) -> LoopNode:
    """Turn conditional updates of registers into updates with all lanes inactive where they fail.

    Branches between updates would keep the processor from running them in parallel, and the C
    compiler from loading a vector once for all of them.
    """

    def visit(n: LoopNode, conditions: tuple[Expr, ...]) -> list[LoopNode]:
        if isinstance(n, Block):
            return [x for c in n.children for x in visit(c, conditions)]
        if isinstance(n, If) and n.other is None:
            return visit(n.then, (*conditions, *parts_of(n.cond)))
        if not conditions:
            return [map_children(n, lambda c: block(visit(c, ())))]
        if not isinstance(n, VectorStore) or not is_free(n, registers):
            return [If(all_of(conditions), n)]
        last = Const(n.lanes) if n.last is None else n.last
        if (some := Op("lt", (n.first, last))) in conditions:
            conditions = tuple(c for c in conditions if c != some)
            last = Op("max", (last, n.first))
        if conditions:
            last = Op("select", (all_of(conditions), last, n.first))
        return [replace(n, last=last)]

    return block(visit(node, ()))


def whole_tile(tile: LoopNode, ranges: Ranges) -> LoopNode:
    """A tile whose unrolled loops have all their iterations, and whose vectors have all lanes."""
    if isinstance(tile, VectorStore):
        return replace(tile, first=LANE_0, last=None)
    if isinstance(tile, If) and tile.other is None:
        return whole_tile(tile.then, ranges)
    if isinstance(tile, For):
        bound = var_range(tile, ranges)
        if tile.mark == Mark.UNROLL and bound is not None:
            ranges = {**ranges, tile.var: bound}
            tile = replace(tile, lower=Const(bound[0]), upper=Const(bound[1] + 1))
    return map_children(tile, lambda c: whole_tile(c, ranges))


def with_loops_of_rows(tile: Buffer) -> Buffer:
    """The tile with those filter taps in loops that are not unrolled along which neither registers
    nor masks move.
    """
    moved = {
        x
        for n in walk_loops(tile.body)
        if isinstance(n, VectorStore)
        for e in (*n.store.target.indices, n.first, *(() if n.last is None else (n.last,)))
        for x in indices_of(e)
    }

    def visit(n: LoopNode) -> LoopNode:
        n = map_children(n, visit)
        if isinstance(n, For) and n.mark == Mark.UNROLL and n.var not in moved:
            return replace(n, mark=Mark.SEQ)
        return n

    return replace(tile, body=visit(tile.body))


def with_named_ends(tile: Buffer, taken: Collection[str]) -> Tile:
    """The tile with names for the first and last active lanes of its stores, which are the same
    for all rows.
    """
    names: dict[Expr, Index] = {}
    inside = own_variables(tile)
    free = (x for k in count() if (x := f"lane_{k}") not in taken and x not in inside)

    def named(e: Expr) -> Expr:
        own = any(x in inside for x in indices_of(e))
        if not isinstance(e, Const) and not own and e not in names:
            names[e] = Index(next(free))
        return names.get(e, e)

    def visit(n: LoopNode) -> LoopNode:
        if isinstance(n, VectorStore) and n.last is not None:
            return replace(n, first=named(n.first), last=named(n.last))
        return map_children(n, visit)

    body = replace(tile, body=visit(tile.body))
    return Tile(tuple((name.name, e) for e, name in names.items()), body)


def decided(expr: Expr, ranges: Ranges) -> Expr:
    """An expression with its extrema and quotients decided where ranges allow."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Op):
            return e
        if e.fn == "div":
            return settle(Op("floordiv", e.args), ranges)
        if e.fn in ("min", "max"):
            first, second = e.args
            gap = sub(second, first)
            for a, b, low in ((first, second, gap), (second, first, sub(first, second))):
                least = extreme(low, ranges, min)
                if least is not None and least >= 0:
                    return a if e.fn == "min" else b
        return e

    return settle(rewrite(expr, visit), ranges)


def narrowed(node: Buffer) -> tuple[Expr, Buffer] | None:
    """A tile in vectors of half the lanes, and the condition under which it may be used: that no
    upper lane is active.  None if the condition is known, or if half-size vectors do not exist.
    """
    stores = [n for n in walk_loops(node.body) if isinstance(n, VectorStore)]
    lanes = {n.lanes for n in stores}
    if len(lanes) != 1 or any(n.last is None for n in stores):
        return None
    half = lanes.pop() // 2
    ends = dict.fromkeys(n.last for n in stores if n.last is not None)
    own = own_variables(node)
    if any(x in own for e in ends for x in indices_of(e)):
        return None
    unknown = any(isinstance(x, Size) for e in ends for x in walk(e))
    if half * node.dtype.compute.bits < FEWEST_BITS or not unknown:
        return None
    inside = {id(n.store): n.var for n in stores}
    dim: set[int] = set()
    for s in walk_loops(node.body):
        if isinstance(s, Store):
            for read in (r for r in reads_in(s) if r.tensor == node.name):
                var = inside.get(id(s), "")
                moved = [d for d, i in enumerate(read.indices) if depends_on(i, var)]
                if len(moved) != 1 or read.indices[moved[0]] != Index(var):
                    return None
                dim |= set(moved)
    if len(dim) != 1 or node.shape[(d := dim.pop())] != 2 * half:
        return None
    parts = {e: parts_of_extremum(e, "min") for e in ends}
    first, *rest = (e for e in ends if not any(parts[o] < parts[e] for o in ends))
    condition = all_of([Op("le", (e, Const(half))) for e in (first, *rest)])

    def visit(n: LoopNode) -> LoopNode:
        return replace(n, lanes=half) if isinstance(n, VectorStore) else map_children(n, visit)

    shape = tuple(half if k == d else x for k, x in enumerate(node.shape))
    return condition, replace(node, body=visit(node.body), shape=shape)
