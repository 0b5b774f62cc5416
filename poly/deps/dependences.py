"""Exact dependences between statement instances.

With the initial order ``<`` and the reads R and writes W of a scop (Feautrier, "Dataflow
Analysis of Array and Scalar References", IJPP 1991, as solved by isl's access analysis):

* flow   ``{ w -> r : W(w) = R(r), w < r, no write of that element between }``
* anti   ``{ r -> w : R(r) = W(w), r < w, no write of that element between }``
* output ``{ w -> v : W(w) = W(v), w < v, no write of that element between }``

A reduction's updates commute, so dropping the order *among* them must not lose the order between
each of them and everything else: an update never hides an earlier write ("between" above counts
only writes that are not reduction updates).  The pairs of two updates of one reduction are kept
apart as `reduction`: sequential code and vector lanes may run them in any order, threads may not
run them at once.  In exact mode they order like all others, unless they are integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, reduce

import islpy as isl

from poly.deps.scop import Scop, ScopStatement
from poly.ir.expr import Index
from poly.tree.nodes import Band, Node, Sequence, child_nodes, joint, order_of

KINDS = ("flow", "anti", "output", "reduction")


@dataclass(frozen=True, eq=False)
class Dependences:
    """Dependence relations, source -> sink.

    rounded : the pairs of `reduction` whose order changes a result: those of integers wrap around,
        and have the same in any order
    exact : reductions keep the written order where it changes a result
    """

    flow: isl.UnionMap
    anti: isl.UnionMap
    output: isl.UnionMap
    reduction: isl.UnionMap
    rounded: isl.UnionMap
    exact: bool

    @cached_property
    def ordering(self) -> isl.UnionMap:
        """Pairs whose order every schedule must keep."""
        kept = self.flow.union(self.anti).union(self.output)
        return (kept.union(self.rounded) if self.exact else kept).coalesce()

    @cached_property
    def all(self) -> isl.UnionMap:
        """Pairs that must not run at the same time on different threads."""
        return self.ordering.union(self.reduction).coalesce()

    def kind_of(self, source: isl.UnionSet, sink: isl.UnionSet) -> str:
        """Why `source` and `sink` (one instance each) depend: the first kind that holds."""
        pair = isl.UnionMap.from_domain_and_range(source, sink)
        for kind in KINDS:
            if not getattr(self, kind).intersect(pair).is_empty():
                return kind
        return "flow"

    def __str__(self) -> str:
        return "\n".join(f"{kind:9} {getattr(self, kind)}" for kind in KINDS)


def compute_dependences(scop: Scop, exact: bool = False) -> Dependences:
    """Compute the dependences of a scop under its initial order."""
    once = [w for w in map(partial(written_once, scop), scop.written_tensors) if w is not None]
    parts = [_of_tensor_written_once(scop, w) for w in once]
    others = set(scop.written_tensors) - {w.tensor for w in once}
    if others:
        parts.append(_of_tensors(scop, others))
    empty = isl.UnionMap.empty(scop.context.get_space())
    flow, anti, output, reduction = (
        reduce(isl.UnionMap.union, p, empty) for p in zip(*parts, strict=True)
    )
    rounded = reduction
    for s in scop.statements:
        if scop.program.tensors[s.target.tensor].dtype.is_integer:
            rounded = rounded.subtract_domain(isl.UnionSet.from_set(s.domain))
    return Dependences(
        flow.coalesce(), anti.coalesce(), output.coalesce(), reduction, rounded, exact
    )


#: Relations of kinds `KINDS`.
_Kinds = tuple[isl.UnionMap, isl.UnionMap, isl.UnionMap, isl.UnionMap]


def _of_tensors(scop: Scop, tensors: Collection[str]) -> _Kinds:
    """The dependences by elements of some tensors, by isl's access analysis."""
    order = initial_order(scop)
    empty = isl.UnionMap.empty(scop.context.get_space())

    def collect(maps: Iterable[isl.Map]) -> isl.UnionMap:
        wanted = (m for m in maps if m.get_tuple_name(isl.dim_type.out) in tensors)
        return reduce(isl.UnionMap.union, map(isl.UnionMap.from_map, wanted), empty)

    def flow_from(sink: isl.UnionMap, must: isl.UnionMap, may: isl.UnionMap) -> isl.UnionMap:
        info = isl.UnionAccessInfo.from_sink(sink)
        info = info.set_must_source(must).set_may_source(may).set_schedule_map(order)
        return info.compute_flow().get_may_dependence()

    # Where data says which element is written, it is not known that one is.
    certain = [s for s in scop.statements if not (s.is_reduction or s.scatters)]
    final = collect(s.write for s in certain)
    update = collect(s.write for s in scop.statements if s not in certain)
    # An update reads the element that it writes.  What this read and this write depend on is the
    # same, as is what depends on them: each of these relations is computed once.
    others = collect(m for s in scop.statements for m in s.other_reads)
    updates = flow_from(update, final, update)
    flow = flow_from(others, final, update).union(updates)
    output = flow_from(final, final, update).union(updates)
    info = isl.UnionAccessInfo.from_sink(final.union(update))
    info = info.set_kill(final).set_may_source(others).set_schedule_map(order)
    anti = info.compute_flow().get_may_dependence().union(output.intersect_domain(update.domain()))
    own = reduce(
        isl.UnionMap.union,
        (
            isl.UnionMap.from_map(isl.Map.from_domain_and_range(s.domain, s.domain))
            for s in scop.statements
            if s.is_reduction
        ),
        empty,
    )
    pairs = flow.union(anti).union(output).intersect(own)
    return flow.subtract(own), anti.subtract(own), output.subtract(own), pairs.coalesce()


@dataclass(frozen=True)
class WrittenOnce:
    """A tensor whose elements get one value, before any other statement reads them.

    first : the statement that writes each element first; update : the reduction that follows it
    """

    tensor: str
    first: ScopStatement
    update: ScopStatement | None


@lru_cache(maxsize=64)  # every promotion asks again for the same scop
def written_once(scop: Scop, tensor: str) -> WrittenOnce | None:
    """A tensor as one that is written once, None if it is not seen to be."""
    writers = [n for n, s in enumerate(scop.statements) if s.target.tensor == tensor]
    first, *updates = (scop.statements[n] for n in writers)
    if (
        len(updates) > 1
        or first.is_reduction
        or first.step
        or not all(u.is_reduction and not u.step for u in updates)
        or not _writes_each_once(first)
    ):
        return None
    before = scop.statements[: writers[-1] + 1]
    if any(m.get_tuple_name(isl.dim_type.out) == tensor for s in before for m in s.other_reads):
        return None
    return WrittenOnce(tensor, first, updates[0] if updates else None)


def _writes_each_once(s: ScopStatement) -> bool:
    """Whether no two instances of a statement write the same element."""
    names = {i.name for i in s.target.indices if isinstance(i, Index)}
    return names >= set(s.loops) or bool(s.write.is_injective())


def _of_tensor_written_once(scop: Scop, written: WrittenOnce) -> _Kinds:
    """The dependences by elements of a tensor that is written once.

    No write is between two accesses of an element but updates, which hide nothing:

    * flow and output ``{ w -> u : W(w) = W(u) }`` from the first write to updates,
    * flow ``{ w -> r : W(w) = R(r) }`` from both to all reads,
    * reduction ``{ u -> v : W(u) = W(v), u << v }``.
    """
    empty = isl.UnionMap.empty(scop.context.get_space())
    first, update = written.first.write, written.update
    reads = [
        m for s in scop.statements for m in s.other_reads
        if m.get_tuple_name(isl.dim_type.out) == written.tensor
    ]  # fmt: skip
    flow = empty
    for w in (first,) if update is None else (first, update.write):
        for r in reads:
            flow = flow.union(isl.UnionMap.from_map(w.apply_range(r.reverse())))
    if update is None:
        return flow, empty, empty, empty
    to_updates = isl.UnionMap.from_map(first.apply_range(update.write.reverse()))
    later = isl.Map.lex_lt(update.domain.get_space())
    again = update.write.apply_range(update.write.reverse()).intersect(later).coalesce()
    return flow.union(to_updates), empty, to_updates, isl.UnionMap.from_map(again)


@lru_cache(maxsize=64)  # every promotion, and code generation, asks again for the same scop
def flow_of_read(scop: Scop, statement: str, number: int) -> isl.UnionMap:
    """``{ w -> r }``: the sources of the values of one of a statement's reads."""
    return value_flow(scop, isl.UnionMap.from_map(scop.statement(statement).reads[number]))[0]


@lru_cache(maxsize=64)
def flow_of_tensor(scop: Scop, tensor: str) -> isl.UnionMap:
    """``{ w -> r }``: the sources of the values of all reads of a tensor."""
    return value_flow(scop, scop.reads_of(tensor))[0]


def value_flow(scop: Scop, reads: isl.UnionMap) -> tuple[isl.UnionMap, isl.UnionMap]:
    """The source of each value of `reads`, counting every write: (flow, reads without a source).

    reads : some of the scop's, see `Scop.reads_of`.  The flow relates instances, so for one of
        several reads of an instance it must be computed from that read alone.
    """
    must = scop.writes.intersect_range(reads.range().universe())  # to these tensors alone
    order = initial_order(scop).intersect_domain(must.domain().union(reads.domain()))
    info = isl.UnionAccessInfo.from_sink(reads).set_must_source(must).set_schedule_map(order)
    flow = info.compute_flow()
    return flow.get_must_dependence(), flow.get_must_no_source()


@lru_cache(maxsize=4)  # every promotion asks again for the same scop
def initial_order(scop: Scop) -> isl.UnionMap:
    """The initial order as one map from instances to times of equal length."""
    return time_map(scop.initial_tree, {s.name: s for s in scop.statements})


def time_map(root: Node, statements: dict[str, ScopStatement]) -> isl.UnionMap:
    """The order of a tree as a map ``{ S[i] -> [t0, t1, …] }``, padded with zeros."""
    depth = _time_depth(root)
    result: isl.UnionMap | None = None
    for name, statement in statements.items():
        domain = isl.UnionSet.from_set(statement.domain)
        times = [
            isl.UnionPwAff.val_on_domain(domain, isl.Val(t))
            if isinstance(t, int)
            else t.schedule.intersect_domain_union_set(domain)
            for t in order_of(root, name)
        ]
        while len(times) < depth:
            times.append(isl.UnionPwAff.val_on_domain(domain, isl.Val(0)))
        one = _multi(times, domain)
        result = one if result is None else result.union(one)
    assert result is not None
    return result


def _multi(functions: list[isl.UnionPwAff], domain: isl.UnionSet) -> isl.UnionMap:
    if not functions:
        return isl.UnionMap.from_domain_and_range(domain, isl.UnionSet("{ [] }"))
    return isl.UnionMap.from_multi_union_pw_aff(joint(functions))


def _time_depth(node: Node) -> int:
    below = max((_time_depth(c) for c in child_nodes(node)), default=0)
    if isinstance(node, Band):
        return below + len(node.members)
    return below + (1 if isinstance(node, Sequence) else 0)
