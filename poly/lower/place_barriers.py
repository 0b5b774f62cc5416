"""Barriers: where the threads of a block have to wait for each other, and nowhere else.

Inside a launch, with t the thread of an instance, the pairs of D, the dependences between
instances on one block, that a node orders,

    { S -> T in D : t(S) != t(T) }

need a barrier in between: at a sequence before the later child, at a loop that carries them at the
end of an iteration, unless there is one anyway.  So do the copies that fill and empty shared
buffers, which all threads of a block do together: with everything that touches the same buffer or
tensor, if one of the two writes it.  So do accesses to a shared buffer that starts over in the
next iteration.

A node is described by the accesses before its first barrier (`head`) and after its last one
(`tail`); a barrier is placed where a tail meets a head that it conflicts with, as late as possible,
which gives the fewest in a sequence.  A loop may execute zero times, so it is not a barrier.

All threads of a block run the same loops, whether they have instances there or not, so that a
barrier may be anywhere: see `poly.lower.isl_tree`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import islpy as isl

from poly.buffers.promotion import PromotionPlan, check_double_buffer, plan_promotion, prefix_of
from poly.deps.dependences import Dependences
from poly.deps.legality import between, by_children
from poly.deps.scop import Scop, ScopStatement
from poly.lower.launches import Launch, lanes_of, reduced_names, thread_function
from poly.sets.isl_names import dim
from poly.tree.kinds import Mark, Scope
from poly.tree.nodes import (
    Accesses,
    Band,
    Barrier,
    Filter,
    Member,
    Node,
    Promote,
    Sequence,
    band,
    sequence,
    serves,
    walk_tree,
)


@dataclass(frozen=True)
class _Item:
    """A statement, or a copy (`statement` is then ""), with the arrays it touches."""

    statement: str
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True)
class _Part:
    """A node with its barriers.

    separates : one of them is always passed; ahead : some buffer is filled for the next iteration
    """

    node: Node
    head: tuple[_Item, ...]
    tail: tuple[_Item, ...]
    separates: bool
    ahead: bool = False


def with_barriers(launch: Launch, scop: Scop, dependences: Dependences) -> Node:
    """The tree of a launch with a `Barrier` wherever one is needed."""
    return _Placer(launch, scop, dependences).tree()


class _Placer:
    def __init__(self, launch: Launch, scop: Scop, dependences: Dependences) -> None:
        self.launch, self.scop = launch, scop
        pairs = between(dependences.all, launch.statements, launch.statements)
        for m in launch.host:
            pairs = pairs.eq_at_multi_union_pw_aff(
                isl.MultiUnionPwAff.from_union_pw_aff(m.schedule)
            )
        #: Pairs of instances on different threads.
        self.pairs = _on_different_threads(pairs, launch, scop)
        self.count = 0
        #: Double buffers that have been checked.
        self.checked: set[str] = set()

    def tree(self) -> Node:
        return self._node(
            self.launch.tree, self.pairs, list(self.launch.host), self.launch.statements, {}
        ).node

    def _barrier(self, early: bool = False) -> Filter:
        self.count += 1
        return Filter((), Barrier(dim("barrier", self.count), early))

    def _node(
        self,
        node: Node,
        pairs: isl.UnionMap,
        outer: list[Member],
        statements: tuple[str, ...],
        buffers: dict[str, tuple[Promote, ...]],
    ) -> _Part:
        if isinstance(node, Band):
            return self._band(node, pairs, outer, statements, buffers)
        if isinstance(node, Promote):
            return self._promote(node, pairs, outer, statements, buffers)
        if isinstance(node, Sequence):
            inside = by_children(node, pairs)
            parts = [
                (f.statements, self._node(f.child, inside[n, n], outer, f.statements, buffers))
                for n, f in enumerate(node.children)
            ]
            return self._in_order(parts, pairs)
        items = tuple(self._item(name, buffers) for name in statements)
        return _Part(node, items, items, False)

    def _item(self, name: str, buffers: dict[str, tuple[Promote, ...]]) -> _Item:
        s = self.scop.statement(name)
        reads = {m.get_tuple_name(isl.dim_type.out) for m in s.all_reads}
        target = s.target.tensor
        sources = (_read_buffers(buffers.get(t, ()), t) for t in reads)
        return _Item(
            name,
            frozenset().union(*sources),
            frozenset((_buffer_of(buffers.get(target, ()), target, None),)),
        )

    def _in_order(self, parts: list[tuple[tuple[str, ...], _Part]], pairs: isl.UnionMap) -> _Part:
        """Join parts in sequence, with barriers where the later conflicts with the earlier."""
        children: list[Filter] = []
        head: list[_Item] = []
        tail: list[_Item] = []
        separated = False
        for statements, part in parts:
            if self._conflict(tail, part.head, pairs):
                children.append(self._barrier())
                tail, separated = [], True
            children.append(Filter(statements, part.node))
            if not separated:
                head += part.head
            separated |= part.separates
            tail = [*([] if part.separates else tail), *part.tail]
        ahead = any(part.ahead for _, part in parts)
        return _Part(sequence(children), tuple(head), tuple(tail), separated, ahead)

    def _band(
        self,
        node: Band,
        pairs: isl.UnionMap,
        outer: list[Member],
        statements: tuple[str, ...],
        buffers: dict[str, tuple[Promote, ...]],
    ) -> _Part:
        first, *rest = node.members
        f = isl.MultiUnionPwAff.from_union_pw_aff(first.schedule)
        inside = pairs.eq_at_multi_union_pw_aff(f)
        below = band(rest, node.child)
        part = self._node(below, inside, [*outer, first], statements, buffers)
        self._check_double_buffers(part, first, statements)
        if first.mark != Mark.SEQ and first.mark != Mark.UNROLL:
            return replace(part, node=band([first], part.node))
        carried = pairs.lex_lt_at_multi_union_pw_aff(f)
        body = part.node
        if self._conflict(part.tail, part.head, carried, _begun_in(body)):
            body = sequence([Filter(statements, body), self._barrier(part.ahead)])
            part = replace(part, tail=())
        # It may execute zero times.
        return _Part(band([first], body), part.head, part.tail, False)

    def _check_double_buffers(self, part: _Part, loop: Member, statements: tuple[str, ...]) -> None:
        """Check double buffering again: steps after the promotion may have made it illegal."""
        if part.ahead:
            for node in walk_tree(part.node):
                if isinstance(node, Promote) and node.ahead and node.buffer not in self.checked:
                    self.checked.add(node.buffer)
                    check_double_buffer(node, self.scop, loop, statements)

    def _promote(
        self,
        node: Promote,
        pairs: isl.UnionMap,
        outer: list[Member],
        statements: tuple[str, ...],
        buffers: dict[str, tuple[Promote, ...]],
    ) -> _Part:
        if node.scope == Scope.PARTIAL:  # one thread writes, once all have their parts
            part = self._node(node.child, pairs, outer, statements, buffers)
            items = tuple(self._item(name, buffers) for name in statements)
            whole = replace(node, child=part.node)
            return replace(part, node=whole, head=(*items, *part.head), tail=(*part.tail, *items))
        around = buffers.get(node.tensor, ())
        inner = {**buffers, node.tensor: (*around, node)}
        below = pairs
        if node.scope == Scope.FRAGMENT:
            below = _outside_of_fragment(node, pairs, statements, self.launch, self.scop)
        part = self._node(node.child, below, outer, statements, inner)
        plan = plan_promotion(node, self.scop, prefix_of(node, outer), statements)
        outside = _buffer_of(around, node.tensor, node.accesses)
        if node.scope != Scope.SHARED:
            return self._private(replace(node, child=part.node), part, plan, outside, statements)
        fill = _Item("", frozenset((outside,)), frozenset((node.buffer,)))
        drain = _Item("", frozenset((node.buffer,)), frozenset((outside,)))
        if node.ahead:  # the end of an iteration separates filling from use
            whole = replace(node, child=part.node)
            return _Part(whole, (fill, *part.head), (fill, *part.tail), part.separates, ahead=True)
        children: list[Filter] = []
        head = [fill] if plan.copy_in is not None else []
        tail, separated = list(head), False
        if self._conflict(tail, part.head, pairs):
            children.append(self._barrier())
            tail, separated = [], True
        children.append(Filter(statements, part.node))
        if not separated:
            head += part.head
        separated |= part.separates
        tail = [*([] if part.separates else tail), *part.tail]
        if plan.copy_out is not None:
            if self._conflict(tail, (drain,), pairs):
                children.append(self._barrier())
                tail, separated = [], True
            if not separated:
                head.append(drain)
            tail.append(drain)
        whole = replace(node, child=sequence(children))
        return _Part(whole, tuple(head), tuple(tail), separated, part.ahead)

    def _private(
        self,
        node: Promote,
        part: _Part,
        plan: PromotionPlan,
        outside: str,
        statements: tuple[str, ...],
    ) -> _Part:
        """A buffer of one thread: it is filled before everything below and written back after it.

        Reads of statements count where it is filled, their writes where it is written back.
        """
        names = [n for n in statements if _touches(self.scop.statement(n), node.tensor)]
        here = frozenset((outside,))
        fill = [_Item(n, here, frozenset()) for n in names] if plan.copy_in is not None else []
        drain = [_Item(n, frozenset(), here) for n in names] if plan.copy_out is not None else []
        head, tail = [*fill, *part.head], [*part.tail, *drain]
        if not part.separates:
            head, tail = [*head, *drain], [*fill, *tail]
        return _Part(node, tuple(head), tuple(tail), part.separates, part.ahead)

    def _conflict(
        self,
        earlier: Iterable[_Item],
        later: Iterable[_Item],
        pairs: isl.UnionMap,
        anew: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether an access of `later` on one thread has to wait for `earlier` on another.

        anew : buffers that start over in between, in which unrelated elements of the tensor share
            storage
        """
        late = list(later)
        for a in earlier:
            for b in late:
                met = a.writes & (b.reads | b.writes) | a.reads & b.writes
                if not a.statement or not b.statement:
                    if met:
                        return True
                elif met & anew or not between(pairs, (a.statement,), (b.statement,)).is_empty():
                    return True
        return False


def _begun_in(node: Node) -> frozenset[str]:
    """The shared buffers that begin in a node, and are not filled for what follows it."""
    return frozenset(
        n.buffer for n in walk_tree(node)
        if isinstance(n, Promote) and n.scope == Scope.SHARED and not n.ahead
    )  # fmt: skip


def _buffer_of(around: tuple[Promote, ...], tensor: str, accesses: Accesses) -> str:
    """The buffer that serves some accesses to a tensor, or the tensor itself."""
    fitting = (p.buffer for p in reversed(around) if serves(p.accesses, accesses))
    return next(fitting, tensor)


def _read_buffers(around: tuple[Promote, ...], tensor: str) -> set[str]:
    """The buffers from which an access to a tensor may read, and the tensor if it may, too."""
    found = set()
    for p in reversed(around):
        found.add(p.buffer)
        if p.accesses is None:
            return found
    return {*found, tensor}


def _touches(statement: ScopStatement, tensor: str) -> bool:
    accesses = (statement.write, *statement.all_reads)
    return any(m.get_tuple_name(isl.dim_type.out) == tensor for m in accesses)


def _on_different_threads(pairs: isl.UnionMap, launch: Launch, scop: Scop) -> isl.UnionMap:
    """The pairs whose instances are on different threads.

    All threads that reduce together read, but only the first writes: with t the thread of an
    instance and w the one that writes its result, a pair counts if it meets in an element in one
    of these ways, by accesses R and W:

        W(S) = W(T), w(S) != w(T)    W(S) = R(T), w(S) != t(T)    R(S) = W(T), t(S) != w(T)

    Any thread of a warp may do the accesses of its instruction: all of its pairs count.
    """
    reading = thread_function(launch, scop)
    together = tuple(n for n in launch.statements if lanes_of(launch, n) is not None)
    by_warps = between(pairs, together, launch.statements).union(
        between(pairs, launch.statements, together)
    )
    if not any(reduced_names(launch, name) for name in launch.statements):
        return pairs.subtract(pairs.eq_at_multi_union_pw_aff(reading)).union(by_warps)
    writing = isl.UnionMap.from_multi_union_pw_aff(thread_function(launch, scop, writes=True))
    threads = isl.UnionMap.from_multi_union_pw_aff(reading)
    reads = writes = isl.UnionMap.empty(scop.context.get_space())
    for name in launch.statements:
        s = scop.statement(name)
        writes = writes.union(isl.UnionMap.from_map(s.write))
        parts = bool(reduced_names(launch, name))
        for access in s.all_reads:
            if not parts or access.get_tuple_name(isl.dim_type.out) != s.target.tensor:
                reads = reads.union(isl.UnionMap.from_map(access))
    found = isl.UnionMap.empty(scop.context.get_space())
    for first, at_first, second, at_second in (
        (writes, writing, writes, writing),
        (writes, writing, reads, threads),
        (reads, threads, writes, writing),
    ):
        meeting = pairs.intersect(first.apply_range(second.reverse()))
        at_once = at_first.apply_range(at_second.reverse())
        found = found.union(meeting.subtract(at_once))
    return found.union(by_warps)


def _outside_of_fragment(
    node: Promote, pairs: isl.UnionMap, statements: tuple[str, ...], launch: Launch, scop: Scop
) -> isl.UnionMap:
    """The pairs without those of one warp that meet only in its fragment.

    Each thread keeps its own part of a fragment, which no other thread reads.
    """
    nothing = isl.UnionMap.empty(scop.context.get_space())
    writes = {True: nothing, False: nothing}
    touches = {True: nothing, False: nothing}
    for name in statements:
        s = scop.statement(name)
        for access in (s.write, *s.all_reads):
            own = access.get_tuple_name(isl.dim_type.out) == node.tensor
            one = isl.UnionMap.from_map(access)
            touches[own] = touches[own].union(one)
            writes[own] = writes[own].union(one) if access is s.write else writes[own]

    def meeting(own: bool) -> isl.UnionMap:
        w, t = writes[own], touches[own]
        return w.apply_range(t.reverse()).union(t.apply_range(w.reverse()))

    warp = pairs.eq_at_multi_union_pw_aff(thread_function(launch, scop))
    return pairs.subtract(warp.intersect(meeting(True)).subtract(meeting(False)))
