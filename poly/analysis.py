"""What accesses say about loops: extents, strides, blocks, and whether loops are rectangular."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import islpy as isl

from poly.expr import Cast, Const, Expr, Index, Op, Read, Size, indices_of, walk
from poly.legality import coincident_members
from poly.linear import linear_form
from poly.machine import Machine
from poly.schedule import Schedule
from poly.scop import Scop, ScopStatement
from poly.tree import joint, loops_of

#: Operators of which a register tile may be made: one or a few instructions each.
TILE_OPS = frozenset(("add", "sub", "mul", "div", "neg", "min", "max", "abs", "dot2"))


#: How much better balanced threads have to be for another loop to be shared, or one more.
BETTER_BALANCED = 0.1


def static_extents(s: ScopStatement) -> dict[str, int | None]:
    """For each dimension of a statement, its constant extent over the domain, else None.

    In a block, what is asked about is one step.
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
    """A domain without what is required of sizes alone.

    A size that is at most 2**31, say, or even 100, is still one that is not known.
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
    """The loops around a statement, in a block those inside of a step."""
    step, loops = schedule.scop.statement(statement).step, schedule.loops(statement)
    return loops[loops.index(step) + 1 :] if step in loops else loops


def on_threads(schedule: Schedule, statement: str) -> bool:
    """Whether a loop around a statement is shared among threads already."""
    return any(m.mark == "parallel" for m in loops_of(schedule.tree, statement))


def has_lane_epilogue(schedule: Schedule, together: tuple[str, ...], s: str) -> bool:
    """Whether what is fused with an update, beside its initialisation, runs in lanes."""
    own = schedule.scop.statement(s).source
    epilogue = [x for n in together if (x := schedule.scop.statement(n)).source != own]
    return all(lane_value(x.value) for x in epilogue)


def tile_operands(scop: Scop, s: ScopStatement) -> list[Read]:
    """The operands of an update of which a register tile may be made; none if it is no such."""
    dtype = scop.program.tensors[s.target.tensor].dtype
    if not s.is_reduction or s.may_reads:
        return []
    pairs = isinstance(s.value, Op) and s.value.fn == "dot2"
    if dtype.name not in ("float32", "float64") and not pairs:
        return []
    if any(scop.program.tensors[r.tensor].dtype != dtype for r in s.source.reads):
        return []
    return [r for r in s.source.reads if r.indices] if tile_value(s.value) else []


def shared_loop(
    schedule: Schedule,
    s: str,
    outer: list[str],
    machine: Machine,
    work: Mapping[str, float] | None = None,
) -> str:
    """The loop to share among threads: the outermost that balances them well.

    work : of loops with a smaller last iteration, how many full ones they are worth
    """
    extents = loop_extents(schedule, s)
    flags = coincident_members(schedule.tree, s, schedule.dependences)
    best, choice = 0.0, ""
    for loop in outer:
        extent = extents[loop]
        if not flags.get(loop) or (extent is not None and extent < 2):
            continue
        # An outer loop keeps packed panels in one thread: it need only be nearly balanced.
        quality = balance(extent, machine.cores, (work or {}).get(loop))
        if quality > best + BETTER_BALANCED:
            best, choice = quality, loop
    return choice


def balance(extent: int | None, cores: int, work: float | None = None) -> float:
    """How much of their time threads are busy that share so many iterations.

    work : what these are worth in full iterations, if the last one is smaller; it follows the
        others, since it is a nest of its own
    """
    if not extent:
        return 1.0
    whole = extent if work is None else int(work)
    rest = 0.0 if work is None else work - whole
    return (whole + rest) / ((-(-whole // cores) + rest) * cores)


def shares_ranges(
    schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...], depth: int
) -> bool:
    """Whether the outer `depth` loops of two groups take the same values, position by position.

    At sizes where one group has no instances at all, the question does not arise.
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


def lane_value(e: Expr) -> bool:
    """Whether generated code computes an expression in vector lanes as a whole.

    It has all operators there; loops' numbers as values and places that depend on data it
    computes lane by lane.
    """
    if isinstance(e, Read):
        return not any(isinstance(x, Read) for i in e.indices for x in walk(i))
    if isinstance(e, Op):
        return all(lane_value(a) for a in e.args)
    return isinstance(e, (Const, Size)) or (isinstance(e, Cast) and lane_value(e.arg))


def tile_value(e: Expr) -> bool:
    """Whether an expression may be computed for each element of a register tile."""
    if isinstance(e, Op):
        return e.fn in TILE_OPS and all(tile_value(a) for a in e.args)
    return tile_value(e.arg) if isinstance(e, Cast) else lane_value(e)


def stride_of(read: Read, loop: str) -> int | None:
    """How many elements of its last dimension `read` moves with `loop`.

    0: not at all; n: only the last dimension moves, n times the loop; None: otherwise.
    """
    *outer, last = read.indices or (Const(0),)
    if any(loop in indices_of(i) for i in outer):
        return None
    form = linear_form(last)
    rest = form.without(Index(loop))
    if any(loop in indices_of(a) for a, _ in rest.terms):
        return None
    return form.coefficient(Index(loop))


def plain_dimension(read: Read, loop: str) -> int | None:
    """The one dimension of `read` whose index is just `loop`, if no other moves with it."""
    moving = [k for k, i in enumerate(read.indices) if loop in indices_of(i)]
    if len(moving) == 1 and read.indices[moving[0]] == Index(loop):
        return moving[0]
    return None


def loops_of_read(read: Read) -> frozenset[str]:
    """The loops with which the place of `read` moves."""
    return frozenset(i for e in read.indices for i in indices_of(e))


def elements_read(reads: Iterable[Read], extents: Mapping[str, int | None]) -> int:
    """How many elements reads touch while loops run over so many values; a loop that is not
    listed or not known stands still.  As boxes, so that windows may be counted a bit too large.
    """
    return sum(prod(_span(i, extents) + 1 for i in r.indices) for r in reads)


def _span(index: Expr, extents: Mapping[str, int | None]) -> int:
    """The greatest less the least value of an index."""
    if isinstance(index, Index):
        return (extents.get(index.name) or 1) - 1
    if isinstance(index, Op) and index.fn in ("mod", "floordiv"):
        divisor = index.args[1]
        span = _span(index.args[0], extents)
        if not isinstance(divisor, Const) or not divisor.value:
            return span
        by = int(divisor.value)
        return min(span, by - 1) if index.fn == "mod" else span // by
    form = linear_form(index)
    return sum(abs(c) * _span(a, extents) for a, c in form.terms if a != index)


def moving_dimensions(read: Read, loop: str) -> tuple[int, ...]:
    """The dimensions of `read` whose index moves with `loop`."""
    return tuple(k for k, i in enumerate(read.indices) if loop in indices_of(i))


def block_of(read: Read, loop: str) -> int | None:
    """The block size of a tensor that is kept in blocks along `loop`, as in
    ``A[c // 16, p, q, c mod 16]`` along c.
    """
    dims = moving_dimensions(read, loop)
    if len(dims) != 2 or dims[1] != len(read.indices) - 1:
        return None
    outer, inner = (read.indices[d] for d in dims)
    if not isinstance(inner, Op) or inner.fn != "mod" or inner.args[0] != Index(loop):
        return None
    size = inner.args[1]
    same = isinstance(size, Const) and outer == Op("floordiv", (Index(loop), size))
    return int(size.value) if same and isinstance(size, Const) else None


def vector_stride(read: Read, loop: str, lanes: int) -> int | None:
    """`stride_of` for a vector of `lanes` iterations that begins at a multiple of `lanes`."""
    block = block_of(read, loop)
    return 1 if block is not None and block % lanes == 0 else stride_of(read, loop)


def lane_dimension(read: Read, loop: str, lanes: int) -> int | None:
    """The dimension of `read` in which the lanes of a vector along `loop` lie, if it is one."""
    block = block_of(read, loop)
    if block is not None and block % lanes == 0:
        return len(read.indices) - 1
    return plain_dimension(read, loop)


def is_determined(s: ScopStatement, loop: str) -> bool:
    """Whether the statement's other loops leave a loop one iteration, of several that it has."""
    at = s.loops.index(loop)
    values = isl.Map.from_range(s.domain.reset_tuple_id())  # { [] -> [x] }
    values = values.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, at)
    rest = len(s.loops) - at - 1
    values = values.move_dims(isl.dim_type.in_, at, isl.dim_type.out, 1, rest)
    alone = values.range()
    return bool(values.is_single_valued()) and not alone.is_singleton()


def is_rectangular(s: ScopStatement, loop: str, against: tuple[str, ...] | None = None) -> bool:
    """Whether the values of `loop` do not depend on the statement's other loops.

    against : only those other loops are asked about (all if None).
    """
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
