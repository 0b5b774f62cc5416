"""Sets of statement instances, and the values of loops on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import islpy as isl

from poly.deps.dependences import KINDS, Dependences, flow_of_tensor, time_map
from poly.deps.scop import Scop, ScopStatement
from poly.sets.to_isl import least_point, maps_of
from poly.tree.nodes import Member, Node, order_of

Point = tuple[int, ...]
#: The name of a statement, and the values of its loops.
Instance = tuple[str, Point]


def instance_text(instance: Instance) -> str:
    """``S[0, 1]``"""
    name, point = instance
    return f"{name}[{', '.join(map(str, point))}]"


def restrict_to(scop: Scop, statements: tuple[str, ...]) -> isl.UnionSet:
    """All instances of the named statements."""
    result = isl.UnionSet.empty(scop.context.get_space())
    for name in statements:
        result = result.union(isl.UnionSet.from_set(scop.statement(name).domain))
    return result


def end_value(
    scop: Scop, member: Member, statements: tuple[str, ...], last: bool, none: int = 0
) -> isl.PwAff:
    """The first or last value of a loop over all of its instances, `none` where it has none."""
    domain = restrict_to(scop, statements)
    values = domain.apply(isl.UnionMap.from_union_pw_aff(member.schedule))
    every = isl.Set.empty(scop.context.get_space().set_from_params().add_dims(isl.dim_type.set, 1))
    for k in range(values.n_set()):
        every = every.union(values.get_set_list().get_at(k))
    every = every.intersect_params(scop.context)
    end = every.dim_max(0) if last else every.dim_min(0)
    elsewhere = end.domain().complement()
    return end.union_add(isl.PwAff.val_on_domain(elsewhere, isl.Val(none))).coalesce()


@dataclass(frozen=True)
class Timed:
    """An instance as the values of its statement's loops, and its time in a tree.

    The time has one number per element of `order_of`: instances run in lexicographic order.
    """

    point: Point
    time: tuple[int, ...]


def timed_instances(
    tree: Node, statement: ScopStatement, sizes: Mapping[str, int], box: Mapping[str, range]
) -> list[Timed]:
    """The instances of a statement at some sizes, in the order of a tree.

    box : bounds on loops of the statement, by name
    """
    order = time_map(tree, {statement.name: statement}).intersect_params(sizes_set(sizes))
    order = order.intersect_domain(isl.UnionSet.from_set(_boxed(statement, box)))
    depth = len(order_of(tree, statement.name))
    found = [Timed(point, time[:depth]) for _, point, _, time in _listed(order)]
    return sorted(found, key=lambda t: t.time)


@dataclass(frozen=True)
class Pair:
    """A dependence between two instances."""

    kind: str
    source: Instance
    sink: Instance


def dependent_pairs(
    dependences: Dependences,
    boxes: Iterable[tuple[ScopStatement, Mapping[str, range]]],
    sizes: Mapping[str, int],
) -> tuple[Pair, ...]:
    """The dependences among the instances of some statements, each in a box, at some sizes.

    For each sink only the nearest source, except for flow, which is exact: the others follow.
    """
    among = isl.UnionSet("{ }")
    for statement, box in boxes:
        among = among.union(isl.UnionSet.from_set(_boxed(statement, box)))
    found: list[Pair] = []
    for kind in KINDS:
        relation: isl.UnionMap = getattr(dependences, kind).intersect_params(sizes_set(sizes))
        relation = relation.intersect_domain(among).intersect_range(among)
        sources: dict[Instance, list[Instance]] = {}
        for name, point, other, end in _listed(relation):
            sources.setdefault((other, end), []).append((name, point))
        for sink, before in sources.items():
            chosen = before if kind == "flow" else [max(before, key=lambda i: i[1])]
            found += [Pair(kind, source, sink) for source in chosen]
    return tuple(found)


def element_flow(
    scop: Scop, tensor: str, sizes: Mapping[str, int], shown: Point
) -> tuple[tuple[Point, Point], ...]:
    """Pairs of different elements of a tensor, the first of which is read to compute the second.

    shown : how many elements along each dimension, from 0 on
    """
    writes = isl.UnionMap("{ }")
    for s in scop.statements:
        if s.target.tensor == tensor:
            writes = writes.union(isl.UnionMap.from_map(s.write))
    flow = flow_of_tensor(scop, tensor).intersect_params(sizes_set(sizes))
    among = flow.apply_domain(writes).apply_range(writes)
    box = " and ".join(f"0 <= i{n} < {most}" for n, most in enumerate(shown))
    index = ", ".join(f"i{n}" for n in range(len(shown)))
    elements = isl.UnionSet(f"{{ {tensor}[{index}] : {box} }}")
    pairs = _listed(among.intersect_domain(elements).intersect_range(elements))
    return tuple(sorted((source, sink) for _, source, _, sink in pairs if source != sink))


def least_values(
    s: ScopStatement, sizes: Mapping[str, int], at: Mapping[str, int]
) -> dict[str, int] | None:
    """The least values of a statement's loops, with some fixed by `at`; None if no instance."""
    domain = s.domain.intersect_params(sizes_set(sizes))
    for name, value in at.items():
        domain = domain.fix_val(isl.dim_type.set, s.loops.index(name), isl.Val(value))
    if domain.is_empty():
        return None
    return dict(zip(s.loops, least_point(domain), strict=True))


def span(s: ScopStatement, sizes: Mapping[str, int], box: Mapping[str, range], loop: str) -> range:
    """The range of a loop of a statement in a box; some values in it may be missing."""
    domain = _boxed(s, box).intersect_params(sizes_set(sizes))
    if domain.is_empty():
        return range(0)
    k = s.loops.index(loop)
    parts = domain.get_basic_set_list()
    found = [isl.Set.from_basic_set(parts.get_at(n)) for n in range(parts.n_basic_set())]
    found = [p for p in found if not p.is_empty()]  # which would count as 0, see `least_point`
    low = min(int(p.dim_min_val(k).to_python()) for p in found)
    return range(low, max(int(p.dim_max_val(k).to_python()) for p in found) + 1)


def _listed(relation: isl.UnionMap) -> list[tuple[str, Point, str, Point]]:
    """Every pair of a bounded relation: name and values on both sides."""
    found: list[tuple[str, Point, str, Point]] = []
    for m in maps_of(relation):
        one = m.get_tuple_name(isl.dim_type.in_) or ""
        other = m.get_tuple_name(isl.dim_type.out) or ""
        cut, count = m.dim(isl.dim_type.in_), m.dim(isl.dim_type.in_) + m.dim(isl.dim_type.out)
        points: list[isl.Point] = []
        m.wrap().foreach_point(points.append)
        for point in points:
            values = [
                int(point.get_coordinate_val(isl.dim_type.set, n).to_python()) for n in range(count)
            ]
            found.append((one, tuple(values[:cut]), other, tuple(values[cut:])))
    return found


def sizes_set(sizes: Mapping[str, int]) -> isl.Set:
    """``[N] -> { : N = 5 }``"""
    conditions = " and ".join(f"{n} = {v}" for n, v in sizes.items()) or "true"
    return isl.Set(f"[{', '.join(sizes)}] -> {{ : {conditions} }}")


def _boxed(s: ScopStatement, box: Mapping[str, range]) -> isl.Set:
    domain = s.domain
    for name, values in box.items():
        k = s.loops.index(name)
        domain = domain.lower_bound_val(isl.dim_type.set, k, isl.Val(values.start))
        domain = domain.upper_bound_val(isl.dim_type.set, k, isl.Val(values.stop - 1))
    return domain


def member_limits(member: Member, scop: Scop) -> tuple[int, int] | None:
    """The least and the greatest value of a loop over all instances, if they are constant."""
    least, greatest = [], []
    pieces = member.schedule.get_pw_aff_list()
    for k in range(pieces.n_pw_aff()):
        value = pieces.get_at(k)
        name = value.domain().get_tuple_name()
        if name in scop.by_name:
            value = value.intersect_domain(scop.statement(name).domain)
        image = isl.Map.from_pw_aff(value.intersect_params(scop.context)).range()
        if image.is_empty():
            continue
        low, high = image.dim_min_val(0), image.dim_max_val(0)
        if not low.is_int() or not high.is_int():
            return None
        least.append(int(low.to_python()))
        greatest.append(int(high.to_python()))
    return (min(least), max(greatest)) if least else None


def function_of(member: Member, statement: ScopStatement) -> isl.PwAff:
    """``{ S[x] -> [n] }``: a loop's value at the instances of a statement below it."""
    domain = isl.UnionSet.from_set(statement.domain)
    pieces = member.schedule.intersect_domain_union_set(domain).get_pw_aff_list()
    if pieces.n_pw_aff() == 0:  # no instance
        return isl.PwAff.val_on_domain(statement.domain, isl.Val(0))
    return pieces.get_at(0)
