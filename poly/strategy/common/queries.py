"""Queries about the loops of a schedule: extents, ranges, sharing, and what can be tiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Concatenate, ParamSpec

import islpy as isl

from poly.buffers.promotion import PromotionPlan, plan_promotion
from poly.deps.legality import coincident_members
from poly.deps.scop import Role, Scop, ScopStatement
from poly.errors import ScheduleError
from poly.ir.accesses import lane_value, tile_value
from poly.ir.expr import Cast, Index, Op, Read, substitute, walk
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark
from poly.tree.nodes import Band, Promote, joint, loops_of, path_to, statements_below

P = ParamSpec("P")

#: How much better the balance must be for another loop to be shared, or one more.
BETTER_BALANCED = 0.1


def static_extents(s: ScopStatement) -> dict[str, int | None]:
    """For each dimension of a statement, its constant extent over the domain, else None.

    In a block, this is about one step: the step has the extent 1, although there is a loop over the
    steps; see `loop_extents`.
    """
    own = _own_constraints(s.domain)
    return {name: 1 if name == s.step else _extent(own, k) for k, name in enumerate(s.loops)}


def loop_extents(schedule: Schedule, statement: str) -> dict[str, int | None]:
    """For each loop around a statement, its constant extent, else None."""
    domain = _own_constraints(schedule.scop.statement(statement).domain)
    union = isl.UnionSet.from_set(domain)
    result: dict[str, int | None] = {}
    for m in loops_of(schedule.tree, statement):
        f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule.intersect_domain_union_set(union))
        sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
        result[m.name] = _extent(sets.get_at(0), 0) if sets.n_set() else 0
    return result


def _own_constraints(domain: isl.Set) -> isl.Set:
    """A domain without the constraints on sizes alone.

    A size that is at most 2**31, say, or even 100, still counts as unknown.
    """
    loops = domain.dim(isl.dim_type.set)
    return domain.drop_constraints_not_involving_dims(isl.dim_type.set, 0, loops)


def _extent(values: isl.Set, dimension: int) -> int | None:
    """The number of values of a dimension, None if it depends on sizes."""
    low, high = values.dim_min_val(dimension), values.dim_max_val(dimension)
    known = low.is_int() and high.is_int()
    return int(high.to_python()) - int(low.to_python()) + 1 if known else None


def fused_around(schedule: Schedule, names: tuple[str, ...], s: str) -> tuple[str, ...]:
    """The statements of the group that share the free loops with `s`."""
    own = inner_loops(schedule, s)[:1]
    return tuple(n for n in names if own and inner_loops(schedule, n)[:1] == own)


def inner_loops(schedule: Schedule, statement: str) -> tuple[str, ...]:
    """The loops around a statement; in a block, those inside a step."""
    step, loops = schedule.scop.statement(statement).step, schedule.loops(statement)
    return loops[loops.index(step) + 1 :] if step in loops else loops


def on_threads(schedule: Schedule, statement: str) -> bool:
    """Whether a loop around a statement already runs on threads."""
    return any(m.mark == Mark.PARALLEL for m in loops_of(schedule.tree, statement))


def has_lane_epilogue(schedule: Schedule, together: tuple[str, ...], s: str) -> bool:
    """Whether a statement fused with an update, other than its initialisation, runs in lanes."""
    own = schedule.scop.statement(s).source
    epilogue = [x for n in together if (x := schedule.scop.statement(n)).source != own]
    return all(lane_value(x.value) for x in epilogue)


def tile_operands(scop: Scop, s: ScopStatement) -> list[Read]:
    """The operands of an update that can have a register tile; none if it cannot."""
    dtypes = scop.program.dtypes
    dtype = dtypes[s.target.tensor]
    if not s.is_reduction or s.may_reads or dtype.name not in ("float32", "float64", "int32"):
        return []
    # Numbers of fewer bits are converted where they are read.
    converted = {e.arg for e in walk(s.value) if isinstance(e, Cast) and e.dtype == dtype}
    if any(dtypes[r.tensor].compute != dtype and r not in converted for r in s.source.reads):
        return []
    return [r for r in s.source.reads if r.indices] if tile_value(s.value) else []


def result_of(scop: Scop, s: ScopStatement) -> Read:
    """The element that leaves the tile of a statement, over the statement's loops.

    It is the target; or, if that is a temporary of which the next statement to read it reads the
    same element, the target of this statement; and so on.
    """
    result, temporary = s.target, {t.name for t in scop.program.temps}
    names = [t.name for t in scop.statements]
    for t in scop.statements[names.index(s.name) + 1 :]:
        reads = [r for r in t.source.reads if r.tensor == result.tensor]
        if not reads or t.role == Role.INIT:
            continue
        places = zip(reads[0].indices, result.indices, strict=True)
        at = {i.name: e for i, e in places if isinstance(i, Index)}
        same = len(at) == len(result.indices) and {*at} == {*t.loops}
        if result.tensor not in temporary or t.is_reduction or len(reads) > 1 or not same:
            break
        result = Read(t.target.tensor, tuple(substitute(e, at) for e in t.target.indices))
    return result


def shared_loop(
    schedule: Schedule,
    s: str,
    outer: list[str],
    machine: Machine,
    work: Mapping[str, float] | None = None,
) -> str:
    """The loop to share among threads: the outermost that balances them well.

    work : for loops with a smaller last iteration, how many full ones they are worth
    """
    extents = loop_extents(schedule, s)
    flags = coincident_members(schedule.tree, s, schedule.dependences)
    best, choice = 0.0, ""
    for loop in outer:
        extent = extents[loop]
        if not flags.get(loop) or (extent is not None and extent < 2):
            continue
        # An outer loop keeps packed operands within one thread: it need only be nearly balanced.
        quality = balance(extent, machine.cores, (work or {}).get(loop))
        if quality > best + BETTER_BALANCED:
            best, choice = quality, loop
    return choice


def balance(extent: int | None, cores: int, work: float | None = None) -> float:
    """The fraction of their time that threads are busy if they share this many iterations.

    work : their worth in full iterations, if the last one is smaller; that one runs after the
        others, as a nest of its own
    """
    if not extent:
        return 1.0
    whole = extent if work is None else int(work)
    rest = 0.0 if work is None else work - whole
    return (whole + rest) / ((-(-whole // cores) + rest) * cores)


def shares_ranges(
    schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...], depth: int
) -> bool:
    """Whether the outer `depth` loops of two groups take the same values, in order.

    Sizes at which one group has no instances at all are ignored.
    """
    a, b = (_outer_values(schedule, names[-1], depth) for names in (first, second))
    if a is None or b is None:
        return False
    return bool(a.intersect_params(b.params()).is_equal(b.intersect_params(a.params())))


def _outer_values(schedule: Schedule, statement: str, depth: int) -> isl.Set | None:
    members = loops_of(schedule.tree, statement)[:depth]
    if len(members) < depth:
        return None
    domain = schedule.scop.statement(statement).domain
    union = isl.UnionSet.from_set(domain)
    f = joint([m.schedule.intersect_domain_union_set(union) for m in members])
    sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
    return sets.get_at(0) if sets.n_set() else None


def is_determined(s: ScopStatement, loop: str) -> bool:
    """Whether the other loops of a statement fix a loop that has several iterations."""
    at = s.loops.index(loop)
    values = isl.Map.from_range(s.domain.reset_tuple_id())  # { [] -> [x] }
    values = values.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, at)
    rest = len(s.loops) - at - 1
    values = values.move_dims(isl.dim_type.in_, at, isl.dim_type.out, 1, rest)
    alone = values.range()
    return bool(values.is_single_valued()) and not alone.is_singleton()


def is_rectangular(s: ScopStatement, loop: str, against: tuple[str, ...] | None = None) -> bool:
    """Whether the values of `loop` do not depend on the statement's other loops.

    against : only these other loops are considered (all if None).
    """
    if s.is_box:
        return True
    position = s.loops.index(loop)
    domain = s.domain
    others = [
        k for k, name in enumerate(s.loops)
        if k != position and (against is None or name in against)
    ]  # fmt: skip
    if against is not None:
        dropped = [k for k in range(len(s.loops)) if k != position and k not in others]
        for k in reversed(dropped):
            domain = domain.project_out(isl.dim_type.set, k, 1)
            position -= int(k < position)
    dims = domain.dim(isl.dim_type.set)
    alone = domain
    rest = domain.project_out(isl.dim_type.set, position, 1).insert_dims(
        isl.dim_type.set, position, 1
    )
    for k in reversed(range(dims)):
        if k != position:
            alone = alone.project_out(isl.dim_type.set, k, 1)
    spread = alone.insert_dims(isl.dim_type.set, 0, position)
    spread = spread.add_dims(isl.dim_type.set, dims - position - 1)
    spread = spread.reset_tuple_id() if spread.has_tuple_name() else spread
    rest = rest.reset_tuple_id() if rest.has_tuple_name() else rest
    domain = domain.reset_tuple_id() if domain.has_tuple_name() else domain
    return bool(spread.intersect(rest).is_subset(domain))


def nest(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The loops that all statements of a group share."""
    shared = loops_of(schedule.tree, names[0])
    for name in names[1:]:
        other = loops_of(schedule.tree, name)
        shared = tuple(a for a, b in zip(shared, other, strict=False) if a is b)
    return tuple(m.name for m in shared)


def attempt(
    schedule: Schedule,
    change: Callable[Concatenate[Schedule, P], Schedule],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Schedule:
    """The schedule after an optional change, or unchanged if a step of it is refused.

    >>> schedule = attempt(schedule, Schedule.vectorize, "S0", "j")
    """
    try:
        return change(schedule, *args, **kwargs)
    except ScheduleError:
        return schedule


def dimension_at(schedule: Schedule, name: str, loop: str) -> str:
    """The index of a statement that a loop around it runs; "" if it is not a plain index."""
    member = next((m for m in loops_of(schedule.tree, name) if m.name == loop), None)
    if member is None:
        return ""
    s = schedule.scop.statement(name)
    domain = isl.UnionSet.from_set(s.domain)
    own = isl.UnionMap.from_union_pw_aff(member.schedule.intersect_domain_union_set(domain))
    params = ", ".join(s.domain.get_var_names(isl.dim_type.param))
    for index in s.loops:
        text = f"[{params}] -> {{ {s.name}[{', '.join(s.loops)}] -> [{index}] }}"
        if own.is_equal(isl.UnionMap(text).intersect_domain(domain)):
            return index
    return ""


def dimensions_at(schedule: Schedule, name: str, loop: str) -> frozenset[str]:
    """The indices of a statement on which the value of a loop around it depends."""
    member = next(m for m in loops_of(schedule.tree, name) if m.name == loop)
    s = schedule.scop.statement(name)
    own = member.schedule.intersect_domain_union_set(isl.UnionSet.from_set(s.domain))
    functions = own.get_pw_aff_list()
    pieces = [p for n in range(own.n_pw_aff()) for p in functions.get_at(n).get_pieces()]
    return frozenset(
        index
        for k, index in enumerate(s.loops)
        if any(value.involves_dims(isl.dim_type.in_, k, 1) for _, value in pieces)
    )


def accesses(s: ScopStatement) -> tuple[Read, ...]:
    """Every element that a statement accesses, its target first."""
    return (s.target, *(s.source.reads if s.role != Role.INIT else ()))


def work_of(s: ScopStatement) -> int | None:
    """The approximate work of a statement: elements moved and operations; None if it depends on
    sizes.
    """
    extents = static_extents(s)
    if any(x is None for x in extents.values()):
        return None
    operators = sum(isinstance(e, Op) for e in walk(s.value))
    return prod(x or 1 for x in extents.values()) * (len(accesses(s)) + operators)


def buffers_around(schedule: Schedule, name: str, tensor: str) -> list[Promote]:
    """The promotions of a tensor around a statement, outermost first."""
    path = path_to(schedule.tree, name)
    return [n for n in path if isinstance(n, Promote) and n.tensor == tensor]


def plan_around(schedule: Schedule, name: str, node: Promote) -> PromotionPlan:
    """The copies of a promotion by a thread, for one of those around a statement."""
    path = path_to(schedule.tree, name)
    above = path[: next(k for k, n in enumerate(path) if n is node)]
    outer = [m for n in above if isinstance(n, Band) for m in n.members]
    below = statements_below(schedule.tree, node, schedule.statements)
    return plan_promotion(node, schedule.scop, outer, below)
