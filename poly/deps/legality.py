"""Whether a schedule tree is legal, and if not, which two instances would swap.

A tree is walked from the root with the set D of dependences (source -> sink) not yet ordered by
anything above:

* at a loop f, ``{ s -> t in D : f(s) > f(t) }`` must be empty; ``{ f(s) < f(t) }`` is ordered
  by it and leaves D;
* at a sequence, no source may be in a later child than its sink; pairs in different children
  leave D;
* at a leaf, D must be empty: two dependent instances may not share a time;
* a loop that runs in parallel, on threads or on blocks and threads of a GPU, may not order any:
  ``{ f(s) != f(t) }`` is empty in the D of *all* dependences, those among updates of one reduction
  included;
* in a loop that runs in vector lanes, on threads that reduce together, or in an instruction of
  tensor cores, it is empty in D without these, unless reductions keep the written order (exact
  mode): each has a partial result, and all are combined after the loop, in a fixed order.

Every isl computation has a budget of operations.  One that exceeds it proves nothing, and the
schedule is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import islpy as isl

from poly.deps.dependences import Dependences
from poly.deps.instances import instance_text, sizes_set
from poly.deps.same_iteration import split_by_iteration
from poly.deps.scop import Scop
from poly.errors import IllegalScheduleError, UndecidedError
from poly.sets.same import Same
from poly.sets.to_isl import least_point, maps_of
from poly.tree.kinds import CONCURRENT, Mark, Tensorized
from poly.tree.nodes import Band, Member, Node, Promote, Sequence

#: Bound on isl's internal operations for one legality question, about ten seconds.
BUDGET = 50_000_000


@dataclass(frozen=True)
class Violation:
    """One pair of instances that a tree runs in the wrong order, or at once.

    `loop` is the offending loop, "" for a sequence or a missing order.
    """

    kind: str
    source: tuple[str, tuple[int, ...]]
    sink: tuple[str, tuple[int, ...]]
    element: tuple[str, tuple[int, ...]]
    sizes: dict[str, int]
    loop: str
    at_once: bool

    def error(self, primitive: str) -> IllegalScheduleError:
        reason = f"both would run at once in the iterations of {self.loop}" if self.at_once else ""
        return IllegalScheduleError(
            primitive, self.kind, instance_text(self.source), instance_text(self.sink),
            instance_text(self.element), self.sizes, reason, violation=self,
        )  # fmt: skip


def check_tree(tree: Node, scop: Scop, dependences: Dependences) -> Violation | None:
    """The first violation in a tree, outermost first, or None if the tree is legal.

    Raises
    ------
    ScheduleError : if isl could not decide within the budget.
    """
    with budget(scop, "legality"):
        bad = _find(tree, dependences.ordering, dependences.all, "")
        return _witness(bad, scop, dependences) if bad is not None else None


@dataclass(frozen=True)
class _Bad:
    pairs: isl.UnionMap
    loop: str
    at_once: bool


def _find(node: Node, order: isl.UnionMap, both: isl.UnionMap, loop: str) -> _Bad | None:
    if isinstance(node, Band):
        for m in node.members:
            f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule)
            if m.mark == Mark.VECTOR or m.mark in CONCURRENT or isinstance(m.mark, Tensorized):
                apart = m.mark in (Mark.VECTOR, Mark.REDUCE) or isinstance(m.mark, Tensorized)
                at_once = carried(order if apart else both, m)
                if not at_once.is_empty():
                    return _Bad(at_once, m.name, True)
            backwards = split_by_iteration(order, m.schedule)[1].lex_gt_at_multi_union_pw_aff(f)
            if not backwards.is_empty():
                return _Bad(backwards, m.name, False)
            order, both = within(order, m), within(both, m)
            loop = m.name
        return _find(node.child, order, both, loop)
    if isinstance(node, Promote):
        return _find(node.child, order, both, loop)
    if isinstance(node, Sequence):
        ordered, either = by_children(node, order), by_children(node, both)
        for source, sink in sorted(ordered):
            if source > sink and not ordered[source, sink].is_empty():
                return _Bad(ordered[source, sink], loop, False)
        for n, f in enumerate(node.children):
            found = _find(f.child, ordered[n, n], either[n, n], loop)
            if found is not None:
                return found
        return None
    return None if order.is_empty() else _Bad(order, loop, False)


def within(dependences: isl.UnionMap, member: Member) -> isl.UnionMap:
    """The dependences inside each iteration of a loop."""
    return _within(Same(dependences), Same(member.schedule))


# Each step of a schedule asks the same of the loops that it leaves as they are.
@lru_cache(maxsize=256)
def _within(dependences: Same, schedule: Same) -> isl.UnionMap:
    inside, others = split_by_iteration(dependences.value, schedule.value)
    if others.is_empty():
        return inside
    f = isl.MultiUnionPwAff.from_union_pw_aff(schedule.value)
    return inside.union(others.eq_at_multi_union_pw_aff(f))


@lru_cache(maxsize=256)
def _is_carried(dependences: Same, schedule: Same) -> bool:
    others = split_by_iteration(dependences.value, schedule.value)[1]
    f = isl.MultiUnionPwAff.from_union_pw_aff(schedule.value)
    return not (
        others.lex_lt_at_multi_union_pw_aff(f).is_empty()
        and others.lex_gt_at_multi_union_pw_aff(f).is_empty()
    )


def carried(dependences: isl.UnionMap, member: Member) -> isl.UnionMap:
    """The dependences between different iterations of a loop."""
    others = split_by_iteration(dependences, member.schedule)[1]
    f = isl.MultiUnionPwAff.from_union_pw_aff(member.schedule)
    return others.lex_lt_at_multi_union_pw_aff(f).union(others.lex_gt_at_multi_union_pw_aff(f))


def coincident_members(tree: Node, statement: str, dependences: Dependences) -> dict[str, bool]:
    """For each loop around `statement`: whether it carries no dependence."""
    result: dict[str, bool] = {}
    both = dependences.all
    node = tree
    while True:
        if isinstance(node, Band):
            for m in node.members:
                result[m.name] = not _is_carried(Same(both), Same(m.schedule))
                both = within(both, m)
            node = node.child
        elif isinstance(node, Promote):
            node = node.child
        elif isinstance(node, Sequence):
            f_in = next(f for f in node.children if statement in f.statements)
            both = between(both, f_in.statements, f_in.statements)
            node = f_in.child
        else:
            return result


def by_children(node: Sequence, pairs: isl.UnionMap) -> defaultdict[tuple[int, int], isl.UnionMap]:
    """Pairs between two children of a sequence, by their indices (source's, sink's)."""
    child = {s: n for n, f in enumerate(node.children) for s in f.statements}
    none = isl.UnionMap.empty(pairs.get_space())
    result = defaultdict[tuple[int, int], isl.UnionMap](lambda: none)
    for m in maps_of(pairs):
        source = child.get(m.get_tuple_name(isl.dim_type.in_))
        sink = child.get(m.get_tuple_name(isl.dim_type.out))
        if source is not None and sink is not None:
            result[source, sink] = result[source, sink].union(isl.UnionMap.from_map(m))
    return result


def between(pairs: isl.UnionMap, sources: tuple[str, ...], sinks: tuple[str, ...]) -> isl.UnionMap:
    """Pairs from instances of `sources` to instances of `sinks`."""
    result = isl.UnionMap.empty(pairs.get_space())
    for m in maps_of(pairs):
        if (
            m.get_tuple_name(isl.dim_type.in_) in sources
            and m.get_tuple_name(isl.dim_type.out) in sinks
        ):
            result = result.union(isl.UnionMap.from_map(m))
    return result


# --- witnesses ----------------------------------------------------------------------------


def _witness(bad: _Bad, scop: Scop, dependences: Dependences) -> Violation:
    """The lexicographically smallest violated pair, at the smallest sizes at which there is one."""
    pairs = bad.pairs.intersect_params(scop.context)
    sizes: dict[str, int] = {}
    params = pairs.params()
    if params.dim(isl.dim_type.param):
        point = _smallest(params)
        names = params.get_var_names(isl.dim_type.param)
        sizes = dict(zip(names, point, strict=True))
        pairs = pairs.intersect_params(sizes_set(sizes))
    best: tuple[str, tuple[int, ...], str, tuple[int, ...]] | None = None
    for m in maps_of(pairs):
        if m.is_empty():  # at these sizes
            continue
        values = least_point(m.wrap())
        n_in = m.dim(isl.dim_type.in_)
        candidate = (
            m.get_tuple_name(isl.dim_type.in_), tuple(values[:n_in]),
            m.get_tuple_name(isl.dim_type.out), tuple(values[n_in:]),
        )  # fmt: skip
        if best is None or (candidate[1], candidate[3]) < (best[1], best[3]):
            best = candidate
    assert best is not None
    source, sink = (
        _point_set(scop, best[0], best[1], sizes),
        _point_set(scop, best[2], best[3], sizes),
    )
    kind = dependences.kind_of(source, sink)
    element = _common_element(scop, kind, source, sink)
    return Violation(
        kind, (best[0], best[1]), (best[2], best[3]), element, sizes, bad.loop, bad.at_once
    )


def _smallest(params: isl.Set) -> list[int]:
    """The sizes with the least sum, and among those the lexicographically least."""
    n = params.dim(isl.dim_type.param)
    names = params.get_var_names(isl.dim_type.param)
    sums = isl.Set(f"[{', '.join(names)}] -> {{ [{' + '.join(names)}, {', '.join(names)}] }}")
    return least_point(sums.intersect_params(params).project_out(isl.dim_type.param, 0, n))[1:]


def _point_set(
    scop: Scop, name: str, point: tuple[int, ...], sizes: dict[str, int]
) -> isl.UnionSet:
    params = ", ".join(sizes)
    fixed = " and ".join(f"{n} = {v}" for n, v in sizes.items())
    coordinates = ", ".join(map(str, point))
    text = f"[{params}] -> {{ {name}[{coordinates}] : {fixed or 'true'} }}"
    return isl.UnionSet(text)


def _common_element(
    scop: Scop, kind: str, source: isl.UnionSet, sink: isl.UnionSet
) -> tuple[str, tuple[int, ...]]:
    first = scop.reads if kind == "anti" else scop.writes
    second = scop.reads if kind == "flow" else scop.writes
    both = source.apply(first).intersect(sink.apply(second))
    listed = both.get_set_list()
    sets = [listed.get_at(n) for n in range(listed.n_set())]
    chosen = next(s for s in sets if not s.is_empty())
    return chosen.get_tuple_name(), tuple(least_point(chosen))


@contextmanager
def budget(scop: Scop, what: str, operations: int = BUDGET) -> Iterator[None]:
    """Bound isl's work inside the block; beyond it `UndecidedError` is raised."""
    ctx = scop.context.get_ctx()
    ctx.set_max_operations(operations)
    ctx.reset_operations()
    try:
        yield
    except isl.Error as error:
        if "maximal number of operations" in str(error):
            raise UndecidedError(
                f"{what} could not be decided within {operations} isl operations, "
                "so the step is refused"
            ) from None
        raise UndecidedError(f"{what} could not be decided: {error}") from None
    finally:
        ctx.set_max_operations(0)
        ctx.reset_operations()
