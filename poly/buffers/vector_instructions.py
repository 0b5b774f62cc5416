"""Statements that are instructions of a CPU.

With p the loops outside and t the chosen ones, a statement is the instruction in each iteration p
if

* its value is that of the meaning, up to the order of factors and terms, and it is stored or
  combined in the same way;
* each access moves with t as that of the meaning does: for each dimension of the meaning's array
  there is one of the tensor that moves by the same distances, and no other one moves;
* every tile is full: where a tile has an instance, it has all of those of the instruction.

A tile at the edge may be run as if it were full.  With D the domain of S, that is

    D' = { S[x] : p(x) in p(D), t(x) within the extents of the instruction }

if the target is in registers, no statement accesses an element that S writes on D' - D, and each
element that it reads there exists: in the tensor, or in a buffer that is *padded*, which has room
for it.  So what it computes there is never used.

Undecided cases are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from poly.buffers.full_tiles import are_full, other_extent, with_loops
from poly.deps.access_strides import movement, unbounded
from poly.deps.footprint import prefix_map
from poly.deps.instances import member_limits
from poly.deps.scop import Role, Scop, ScopStatement, with_domain
from poly.errors import ScheduleError
from poly.ir.dtypes import identity
from poly.ir.expr import Const, Index, Read
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.linear_form import linear_form
from poly.ir.match_values import ways_to_store
from poly.sets.isl_names import dims
from poly.sets.to_isl import parameters
from poly.tree.kinds import Scope, Tensorized
from poly.tree.nodes import Band, Member, Node, Promote, path_to


@dataclass(frozen=True)
class VectorMatch:
    """A statement matched with an instruction.

    operands : the element of the statement for each tensor of the meaning
    dimensions : the dimension of that element's tensor for each one of the meaning's
    """

    intrinsic: VectorIntrinsic
    operands: Mapping[str, Read]
    dimensions: Mapping[str, tuple[int, ...]]


def match_vector(
    scop: Scop,
    s: ScopStatement,
    around: Sequence[Member],
    chosen: Sequence[Member],
    intrinsic: VectorIntrinsic,
    what: str,
) -> VectorMatch:
    """Match a statement with an instruction; `chosen` are its loops in the order of the meaning's.

    s : with the instances that are run

    Raises
    ------
    ScheduleError : it does not match; the message begins with `what`.
    """
    meaning = intrinsic.statement
    if len(chosen) != len(meaning.indices):
        raise ScheduleError(
            f"{what}: {intrinsic.name} takes {len(meaning.indices)} loops, in the order of "
            f"{', '.join(meaning.indices)} in `{meaning}`"
        )
    _check_full(scop, s, around, chosen, intrinsic, what)
    times = prefix_map(s, [*around, *chosen]).intersect_params(scop.context)
    if s.may_reads:
        raise ScheduleError(f"{what}: which elements {s.name} reads depends on data")
    relations = {**dict(_own(s)), s.target: s.write}
    moves = {
        read: [
            movement(times.reverse().apply_range(relation), len(around) + n)
            for n in range(len(chosen))
        ]
        for read, relation in relations.items()
    }
    found = _assignments(s, scop, intrinsic, what)
    loops = dict(zip(meaning.indices, (m.name for m in chosen), strict=True))
    wrong: list[tuple[Read, Read]] = []
    for operands in found:
        dimensions: dict[str, tuple[int, ...]] = {}
        for pattern, read in operands.items():
            dims_of = _unified(pattern, moves[read], meaning.indices)
            if dims_of is None:
                wrong.append((pattern, read))
                break
            dimensions[pattern.tensor] = dims_of
        else:
            return VectorMatch(intrinsic, {p.tensor: r for p, r in operands.items()}, dimensions)
    pattern, read = wrong[0]
    own = " and ".join(f"{loops[x]} as {x}" for x in loops)
    raise ScheduleError(
        f"{what}: {read} does not move as {pattern} of `{meaning}` does, with {own}"
    )


def _own(s: ScopStatement) -> list[tuple[Read, isl.Map]]:
    """The reads in the value of a statement, each with its relation."""
    if s.role == Role.INIT:
        return []
    relations = s.reads[1:] if s.role == Role.UPDATE else s.reads
    return [*zip(s.source.reads, relations, strict=True)]


def _computed(s: ScopStatement) -> str:
    op = s.source.op if s.role == Role.UPDATE else "="
    return f"{s.target} {op} {s.value}"


# --- values ----------------------------------------------------------------------------------


def _assignments(
    s: ScopStatement, scop: Scop, intrinsic: VectorIntrinsic, what: str
) -> list[dict[Read, Read]]:
    """The ways in which a statement computes what the meaning does: the element for each one of
    the meaning's.

    Raises
    ------
    ScheduleError : there is none; the message begins with `what`.
    """
    meaning = intrinsic.statement
    ways = list(_ways(s, scop, intrinsic))
    if not ways:
        raise ScheduleError(
            f"{what}: {s.name} computes `{_computed(s)}`, which is not `{meaning}` of "
            f"{intrinsic.name}"
        )
    found = [w for w in ways if _apart(w, meaning.target)]
    if not found:
        raise ScheduleError(
            f"{what}: {s.name} reads {s.target.tensor} beside the element that it sets, which "
            f"{intrinsic.name} may have overwritten by then"
        )
    return found


def _ways(s: ScopStatement, scop: Scop, intrinsic: VectorIntrinsic) -> Iterator[dict[Read, Read]]:
    meaning = intrinsic.statement
    op = s.source.op if s.role == Role.UPDATE else "="
    if meaning.op != op or s.may_reads:
        return
    own = scop.program.dtypes
    value = s.value
    if s.role == Role.INIT:
        value = Const(identity(s.source.op, own[s.target.tensor]))
    yield from ways_to_store(intrinsic.meaning, s.target, value, own)


def _apart(operands: Mapping[Read, Read], target: Read) -> bool:
    """Whether an instruction only writes to a tensor that it reads nothing else of."""
    return all(r.tensor != operands[target].tensor for p, r in operands.items() if p != target)


# --- accesses --------------------------------------------------------------------------------


def _unified(
    pattern: Read, moves: Sequence[tuple[int, ...] | None], indices: Sequence[str]
) -> tuple[int, ...] | None:
    """The dimension of a tensor for each one of the meaning's; None if there is no match."""
    if any(m is None for m in moves):
        return None
    by = [m for m in moves if m is not None]
    forms = [linear_form(i) for i in pattern.indices]
    wanted = [tuple(f.coefficient(Index(x)) for x in indices) for f in forms]
    rank = len(by[0]) if by else 0
    actual = [tuple(m[d] for m in by) for d in range(rank)]
    dims_of: list[int] = []
    for columns in wanted:
        d = next((d for d in range(rank) if d not in dims_of and actual[d] == columns), None)
        if d is None:
            return None
        dims_of.append(d)
    still = all(not any(actual[d]) for d in range(rank) if d not in dims_of)
    return tuple(dims_of) if still else None


def _check_full(
    scop: Scop,
    s: ScopStatement,
    around: Sequence[Member],
    chosen: Sequence[Member],
    intrinsic: VectorIntrinsic,
    what: str,
) -> None:
    """Refuse tiles of other extents, partial ones, and several instances at one time."""
    for m, extent in zip(chosen, intrinsic.extents, strict=True):
        limits = member_limits(m, scop)
        if limits is None or limits[0] < 0 or limits[1] >= extent:
            raise other_extent(m, limits, extent, intrinsic, what)
    if not are_full(scop, s, around, chosen, intrinsic.extents, what):
        sizes = ", ".join(map(str, intrinsic.extents))
        raise ScheduleError(
            f"{what}: not every tile is known to be full; fix the sizes to multiples of {sizes}, "
            f"or promote {s.target.tensor} to registers and its operands as `local, padded` before"
        )


# --- tiles at an edge ------------------------------------------------------------------------


def whole_vectors(tree: Node, scop: Scop, s: ScopStatement, intrinsic: VectorIntrinsic) -> isl.Set:
    """D' of a statement that is an instruction; D where it may not be run beyond."""
    path = path_to(tree, s.name)
    loops = [m for n in path if isinstance(n, Band) for m in n.members]
    chosen = [m for m in loops if m.mark == Tensorized(intrinsic)]
    around = [m for m in loops if m.mark != Tensorized(intrinsic)]
    buffers = [n for n in path if isinstance(n, Promote) and n.tensor == s.target.tensor]
    # The innermost buffer is the one that it writes to.
    kept = bool(buffers) and buffers[-1].scope == Scope.REGISTER
    if s.may_reads or not kept or len(chosen) != len(intrinsic.extents):
        return s.domain
    box = with_loops(prefix_map(s, around).range(), [(0, n - 1) for n in intrinsic.extents])
    everywhere = prefix_map(unbounded(scop, s), [*around, *chosen])
    domain = everywhere.intersect_range(box).domain().intersect_params(scop.context).coalesce()
    extra = domain.subtract(s.domain)
    if extra.is_empty():
        return s.domain
    beyond = with_domain(scop.program, s, extra)
    if _is_used(scop, beyond.write.range()):
        return s.domain
    for (read, own), (_, others) in zip(_own(s), _own(beyond), strict=True):
        if not _exists(scop, path, read, (s, own), (beyond, others)):
            return s.domain
    return domain


def _is_used(scop: Scop, elements: isl.Set) -> bool:
    """Whether any statement accesses one of these elements."""
    for s in scop.statements:
        for access in (s.write, *s.all_reads):
            if access.get_tuple_name(isl.dim_type.out) != elements.get_tuple_name():
                continue
            if not access.range().intersect(elements).is_empty():
                return True
    return False


_Access = tuple[ScopStatement, isl.Map]


def _exists(scop: Scop, path: Sequence[Node], read: Read, own: _Access, beyond: _Access) -> bool:
    """Whether memory has all elements that a statement reads beyond its domain.

    own, beyond : its instances there, and in its domain, each with the relation of the read
    """
    tiles = [k for k, n in enumerate(path) if isinstance(n, Promote) and n.tensor == read.tensor]
    if tiles:
        tile = path[tiles[-1]]
        assert isinstance(tile, Promote)
        above = [m for n in path[: tiles[-1]] if isinstance(n, Band) for m in n.members]
        held, reached = (
            prefix_map(s, above).reverse().apply_range(relation).intersect_params(scop.context)
            for s, relation in (own, beyond)
        )
        return tile.padded or bool(reached.is_subset(held))
    elements = beyond[1].range()
    tensor = scop.program.tensors[read.tensor]
    y = dims("y", tensor.rank)
    box = " and ".join(f"0 <= {d} < {e}" for d, e in zip(y, tensor.shape, strict=True)) or "true"
    whole = isl.Set(f"{parameters(scop.program)} {{ {read.tensor}[{', '.join(y)}] : {box} }}")
    return bool(elements.intersect_params(scop.context).is_subset(whole))
