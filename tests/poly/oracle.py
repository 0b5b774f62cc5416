"""Dependences and orders by enumeration, at given sizes: what the polyhedral answers must equal.

Nothing here asks isl about a dependence or a comparison of times.  Instances come from the
reference interpreter, accesses are evaluated as plain integers, and of a schedule tree only the
values of its loops at each instance are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import islpy as isl

from poly.deps.scop import Scop
from poly.ir.expr import Read, evaluate_int, reads_of
from poly.ir.program import Program
from poly.tree.kinds import CONCURRENT, LoopMark, Tensorized
from poly.tree.nodes import Band, Node, Promote, Sequence
from runtime.common.arguments import shape_of
from runtime.reference.interpret import INIT_SUFFIX, Instance, instances

Pair = tuple[Instance, Instance]
Element = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Touch:
    """What one instance touches; `final`: not an update of a reduction."""

    instance: Instance
    reads: frozenset[Element]
    writes: frozenset[Element]
    final: bool


def touches(program: Program, sizes: Mapping[str, int]) -> list[Touch]:
    """All instances in written order, with the elements that they read and write."""
    statements = {s.name: s for s in program.statements}
    found = []
    for instance in instances(program, sizes):
        s = statements.get(instance.statement)
        initialises = s is None
        if s is None:
            s = statements[instance.statement.removesuffix(INIT_SUFFIX)]
        names = s.free if initialises else s.indices
        env = {**sizes, **dict(zip(names, instance.point, strict=True))}
        written = frozenset(_elements(program, s.target, env, sizes))
        reads = set(written) if s.is_update else set()
        for read in () if initialises else s.reads:
            reads |= set(_elements(program, read, env, sizes))
        found.append(
            Touch(
                instance,
                frozenset(() if initialises else reads),
                written,
                initialises or not s.is_reduction,
            )
        )
    return found


def _elements(
    program: Program, read: Read, env: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterator[Element]:
    if any(reads_of(i) for i in read.indices):
        shape = shape_of(program.tensors[read.tensor], sizes)
        for place in product(*map(range, shape)):
            yield read.tensor, place
    else:
        yield read.tensor, tuple(evaluate_int(i, env) for i in read.indices)


def brute_dependences(program: Program, sizes: Mapping[str, int]) -> dict[str, set[Pair]]:
    """Flow, anti, output and reduction pairs as `poly.deps.dependences` defines them."""
    kinds: dict[str, set[Pair]] = {k: set() for k in ("flow", "anti", "output", "reduction")}
    by_element: dict[Element, list[Touch]] = defaultdict(list)
    for t in touches(program, sizes):
        for e in t.reads | t.writes:
            by_element[e].append(t)
    for e, touching in by_element.items():
        for position, a in enumerate(touching):
            for b in touching[position + 1 :]:
                pair = (a.instance, b.instance)
                own = a.instance.statement == b.instance.statement and not a.final
                if e in a.writes and e in b.reads:
                    kinds["reduction" if own else "flow"].add(pair)
                if e in a.reads and e in b.writes:
                    kinds["reduction" if own else "anti"].add(pair)
                if e in a.writes and e in b.writes:
                    kinds["reduction" if own else "output"].add(pair)
                if e in b.writes and b.final:
                    break
    return kinds


def conflicts(program: Program, sizes: Mapping[str, int]) -> tuple[set[Pair], set[Pair]]:
    """All pairs that touch one element, at least one writing, with nothing left out.

    Returns the pairs whose order matters, and those of two updates of one reduction.
    """
    ordered: set[Pair] = set()
    commuting: set[Pair] = set()
    by_element: dict[Element, list[Touch]] = defaultdict(list)
    for t in touches(program, sizes):
        for e in t.reads | t.writes:
            by_element[e].append(t)
    for e, touching in by_element.items():
        for position, a in enumerate(touching):
            for b in touching[position + 1 :]:
                if e in a.writes or e in b.writes:
                    own = a.instance.statement == b.instance.statement and not a.final
                    (commuting if own else ordered).add((a.instance, b.instance))
    return ordered, commuting


@dataclass(frozen=True)
class Tick:
    """One component of an instance's time: at a loop its value, at a sequence the position."""

    value: int
    mark: LoopMark


def times(tree: Node, scop: Scop, sizes: Mapping[str, int]) -> dict[Instance, tuple[Tick, ...]]:
    """The time of every instance in a tree."""
    found: dict[Instance, tuple[Tick, ...]] = {}
    values: dict[int, dict[Instance, int]] = {}

    def visit(node: Node, instance: Instance, ticks: tuple[Tick, ...]) -> None:
        if isinstance(node, Band):
            for m in node.members:
                if id(m) not in values:
                    values[id(m)] = _values(m.schedule, scop, sizes)
                ticks = (*ticks, Tick(values[id(m)][instance], m.mark))
            visit(node.child, instance, ticks)
        elif isinstance(node, Promote):
            visit(node.child, instance, ticks)
        elif isinstance(node, Sequence):
            for position, f in enumerate(node.children):
                if instance.statement in f.statements:
                    visit(f.child, instance, (*ticks, Tick(position, "sequence")))
        else:
            found[instance] = ticks

    for instance in instances(scop.program, sizes):
        visit(tree, instance, ())
    return found


def _values(f: isl.UnionPwAff, scop: Scop, sizes: Mapping[str, int]) -> dict[Instance, int]:
    graph = isl.UnionMap.from_union_pw_aff(f.intersect_domain_union_set(scop.domain))
    return {Instance(name, point): value[0] for (name, point), (_, value) in pairs_of(graph, sizes)}


def pairs_of(relation: isl.UnionMap, sizes: Mapping[str, int]) -> list[tuple[Element, Element]]:
    """All pairs of a relation at fixed sizes, as named points."""
    found: list[tuple[Element, Element]] = []
    names = ", ".join(sizes)
    fixed = " and ".join(f"{n} = {v}" for n, v in sizes.items()) or "true"
    relation = relation.intersect_params(isl.Set(f"[{names}] -> {{ : {fixed} }}"))
    maps = relation.get_map_list()
    for k in range(maps.n_map()):
        m = maps.get_at(k)
        n_in, n_out = m.dim(isl.dim_type.in_), m.dim(isl.dim_type.out)
        left = m.get_tuple_name(isl.dim_type.in_)
        right = m.get_tuple_name(isl.dim_type.out) if m.has_tuple_name(isl.dim_type.out) else ""
        points: list[isl.Point] = []
        m.wrap().foreach_point(points.append)
        for p in points:
            v = [
                int(p.get_coordinate_val(isl.dim_type.set, d).to_python())
                for d in range(n_in + n_out)
            ]
            found.append(((left, tuple(v[:n_in])), (right, tuple(v[n_in:]))))
    return found


def isl_pairs(relation: isl.UnionMap, sizes: Mapping[str, int]) -> set[Pair]:
    return {(Instance(*a), Instance(*b)) for a, b in pairs_of(relation, sizes)}


def is_broken(a: tuple[Tick, ...], b: tuple[Tick, ...], commute: bool) -> bool:
    """Whether the times `a`, `b` of two instances, of which `a` has to be first, are wrong.

    If they commute, they may swap, run in lanes, in one instruction, or on threads that reduce
    together, but may not run at once on other threads or blocks.
    """
    for x, y in zip(a, b, strict=False):
        if x.value != y.value:
            matrices = isinstance(x.mark, Tensorized)
            apart = commute and (matrices or x.mark in ("vector", "reduce"))
            if not apart and (matrices or x.mark in (*CONCURRENT, "vector")):
                return True
            return not commute and x.value > y.value
    return not commute


def broken_pairs(tree: Node, scop: Scop, sizes: Mapping[str, int], exact: bool) -> set[Pair]:
    """Every pair of instances that a tree runs in the wrong order, or at once."""
    at = times(tree, scop, sizes)
    ordered, commuting = conflicts(scop.program, sizes)
    if exact:
        ordered, commuting = ordered | commuting, set()
    return {(a, b) for a, b in ordered if is_broken(at[a], at[b], False)} | {
        (a, b) for a, b in commuting if is_broken(at[a], at[b], True)
    }


def tree_order(tree: Node, scop: Scop, sizes: Mapping[str, int]) -> list[Instance]:
    """All instances in the order of a tree; iterations that run at once run backwards."""

    def key(ticks: tuple[Tick, ...]) -> tuple[int, ...]:
        return tuple(-t.value if t.mark in (*CONCURRENT, "vector") else t.value for t in ticks)

    at = times(tree, scop, sizes)
    return sorted(at, key=lambda instance: key(at[instance]))
