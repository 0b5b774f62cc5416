"""Unrolled loops that the C compiler can unroll: register tiles stay readable loops.

Where all iterations of an unrolled loop have the same form, and differ in constants alone, it is
printed as a loop with a pragma: the C compiler unrolls it early, before it puts arrays into
registers.  That is a tenth of the text for a person to read, for the passes that follow, and for
the compiler.  All others are unrolled here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, repeat
from math import prod
from types import MappingProxyType

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Block, Buffer, CallIntrinsic, For, If, LoopNode, Store, VectorStore
from codegen.loops.traverse import children_of, map_children
from poly.ir.expr import Const, Expr, Index, Read, computed, reads_of, simplify, substitute
from poly.ir.linear_form import linear_form, normal
from poly.tree.kinds import Mark, Scope

#: The most iterations of a loop that the C compiler is told to unroll.
MOST = 64
_NONE: Mapping[str, range] = MappingProxyType({})


def is_rolled(node: LoopNode) -> bool:
    """Whether a node is a loop that the C compiler unrolls."""
    if not isinstance(node, For) or node.mark != Mark.UNROLL:
        return False
    return node.step == 1 and node.trip is not None


def is_irregular(buffer: Buffer) -> bool:
    """Whether accesses to a buffer have to be unrolled here: its elements are accumulators of
    lanes.
    """
    return buffer.scope == Scope.LANES


def may_roll(var: str, body: LoopNode) -> bool:
    """Whether `can_roll` is possible for a loop, before what is in it is unrolled: every store goes
    to other elements in each iteration, and all loops in it may be unrolled.
    """
    if isinstance(body, For):
        return body.mark == Mark.UNROLL and body.step == 1 and may_roll(var, body.body)
    if isinstance(body, VectorStore):
        body = body.store
    if isinstance(body, Store):
        return any(depends_on(i, var) for i in body.target.indices)
    return not isinstance(body, Buffer) and all(may_roll(var, c) for c in children_of(body))


def can_roll(node: For, irregular: Collection[str]) -> bool:
    """Whether all iterations of a loop have one form, so that the C compiler may unroll it.

    Below it are stores and other such loops; each store goes to other elements in each iteration,
    and its indices are linear in the variables of these loops; lanes are adjacent in memory, every
    other element, or all the same where they are read; no element is updated twice, since updates
    of one element are rounds that `codegen.vector.register_pressure` may have to tell apart; and
    lanes are masked in all iterations or in none.

    irregular : the buffers of `is_irregular`
    """
    if node.trip is None or not 2 <= node.trip <= MOST or node.step != 1:
        return False
    updated: set[tuple[object, ...]] = set()
    return _regular(node, {}, irregular, updated)


def _regular(
    node: LoopNode,
    loops: Mapping[str, range],
    irregular: Collection[str],
    updated: set[tuple[object, ...]],
) -> bool:
    if isinstance(node, Block):
        return all(_regular(c, loops, irregular, updated) for c in node.children)
    if isinstance(node, For):
        if not is_rolled(node) or node.note:
            return False
        return _regular(node.body, {**loops, node.var: values_of(node)}, irregular, updated)
    if isinstance(node, If):
        plain = node.other is None and not reads_of(node.cond)
        return plain and _regular(node.then, loops, irregular, updated)
    if isinstance(node, VectorStore):
        if not all(_is_regular_end(e, loops) for e in (node.first, node.last) if e is not None):
            return False
        return _is_regular_store(node.store, [*loops], node.var, irregular, updated)
    if isinstance(node, CallIntrinsic):
        return _is_regular_call(node, [*loops], irregular, updated)
    if not isinstance(node, Store):
        return False
    return _is_regular_store(node, [*loops], None, irregular, updated)


def _is_regular_call(
    node: CallIntrinsic,
    loops: Sequence[str],
    irregular: Collection[str],
    updated: set[tuple[object, ...]],
) -> bool:
    targets = [r for t, r in zip(node.tensors, node.operands, strict=True) if t in node.written]
    for target in targets:
        if element(target) in updated:
            return False
        updated.add(element(target))
        if not all(any(depends_on(i, var) for i in target.indices) for var in loops):
            return False
    return all(
        r.tensor not in irregular and _is_regular_read(r, loops, None, r in targets)
        for r in node.operands
    )


def _is_regular_end(end: Expr, loops: Mapping[str, range]) -> bool:
    """Whether an end of the active lanes is known in no iteration, or is the same in all."""
    moving = {var: values for var, values in loops.items() if depends_on(end, var)}
    return not moving or not any(isinstance(e, Const) for e in at_points(end, moving))


def _is_regular_store(
    store: Store,
    loops: Sequence[str],
    lane: str | None,
    irregular: Collection[str],
    updated: set[tuple[object, ...]],
) -> bool:
    if store.op != "=":
        key = element(store.target)
        if key in updated:
            return False
        updated.add(key)
    used = computed(store.value)
    if any(Index(var) in used for var in loops):  # as a value, not in an index
        return False
    if not all(any(depends_on(i, var) for i in store.target.indices) for var in loops):
        return False
    reads = (store.target, *reads_of(store.value))
    return all(
        r.tensor not in irregular and _is_regular_read(r, loops, lane, r is store.target)
        for r in reads
    )


def _is_regular_read(read: Read, loops: Sequence[str], lane: str | None, target: bool) -> bool:
    # A target is linear in all loops, since it may be a register; elements that are read may be
    # those of a clamped row.
    own = [*(loops if target else ()), *([] if lane is None else [lane])]
    for position, index in enumerate(read.indices):
        for atom, factor in linear_form(index).terms:
            if not isinstance(atom, Index):
                if any(depends_on(atom, var) for var in own):
                    return False
            elif atom.name == lane and (position != len(read.indices) - 1 or factor not in (1, 2)):
                return False
    moves = lane is None or any(depends_on(i, lane) for i in read.indices)
    return moves or not target


def element(read: Read) -> tuple[object, ...]:
    """A key for the element of a read, however its indices are written."""
    forms = map(linear_form, read.indices)
    return (read.tensor, *((frozenset(f.terms), f.constant) for f in forms))


def at_points(e: Expr, ranges: Mapping[str, range]) -> Iterator[Expr]:
    """An index expression for all values of some variables, the last one moving fastest."""
    if not any(depends_on(e, var) for var in ranges):
        yield from repeat(normal(e), prod(map(len, ranges.values())))
        return
    for point in product(*ranges.values()):
        known = {v: Const(x) for v, x in zip(ranges, point, strict=True)}
        yield normal(simplify(substitute(e, known)))


def map_copies(
    node: LoopNode,
    change: Callable[[Copies], LoopNode],
    ranges: Mapping[str, range] = _NONE,
) -> LoopNode:
    """The tree with each vector store replaced; `change` is given the rolled loops around it."""
    if isinstance(node, VectorStore):
        return change(Copies(node, ranges))
    if isinstance(node, For) and is_rolled(node):
        ranges = {**ranges, node.var: values_of(node)}
    return map_children(node, lambda c: map_copies(c, change, ranges))


@dataclass(frozen=True)
class Copies:
    """The copies of a store in the iterations of the rolled loops around it.

    ranges : the values of each loop's variable
    """

    node: VectorStore
    ranges: Mapping[str, range]

    def elements(self, read: Read) -> Iterator[tuple[object, ...]]:
        """The element that each copy accesses by a read; see `element`."""
        forms = [linear_form(i) for i in read.indices]
        moving = [v for v in self.ranges if any(f.coefficient(Index(v)) for f in forms)]
        if not moving:
            yield element(read)
            return
        fixed = []
        for f in forms:
            rest = f
            for v in moving:
                rest = rest.without(Index(v))
            steps = [f.coefficient(Index(v)) for v in moving]
            fixed.append((frozenset(rest.terms), rest.constant, steps))
        for point in product(*(self.ranges[v] for v in moving)):
            yield (
                read.tensor,
                *(
                    (terms, c + sum(s * x for s, x in zip(steps, point, strict=True)))
                    for terms, c, steps in fixed
                ),
            )


def values_of(node: For) -> range:
    """The values of the variable of a loop of constant bounds."""
    assert isinstance(node.lower, Const) and isinstance(node.upper, Const)
    return range(int(node.lower.value), int(node.upper.value), node.step)
