"""Padding of partial tiles: instructions that run on full tiles at the edge of a domain.

An instruction multiplies matrices of fixed extents.  Where a tile of a statement S has instances,
but not one for each of the instruction's, S is run on all of the tile if its operands come through
shared buffers that are *padded*: filled with zeros beyond the part of the tensor that is read.

With D the domain of S, p the loops outside of the buffers and q those inside, which run from l to
h,

    D' = { S[x] : p(x) in p(D) and l <= q(x) <= h }

is run, where for the loops of the instruction l and h are its own, and for the others those that
they have on D.  Loops on threads count as q, so that all warps of a block do the same.
With C, A and B the elements that an instance accesses and p_A the loops around the buffer of A,

    F(p)   = C(D at p)               G(p)   = C(D' at p)
    F_A(p) = the elements of A read below its buffer on the domains of statements, and those written

a buffer holds ``A[e]`` for e in F_A(p), and 0 for all other e in A(D' at p).  Then the result is
that of S on D, if

    (1) G(p) - F(p) has no element that a statement below a buffer of C accesses on its domain
    (2) x in D' - D and C(x) in F(p(x))  imply  A(x) not in F_A(p_A(x)), B(x) not in F_B(p_B(x))

since an instance that is not in D either adds to an element that is never read, by (1), or adds
0 * 0 to one of its own, by (2), which changes at most the sign of a zero.  One zero would not do:
the other factor may be infinite or NaN.  The sums are in a fragment, from which only F is copied;
nor does anything read what is in G alone.  An initialisation runs on D' in the same way, with its
fragment in place of the buffers; it adds nothing, and only (1) is needed, for all elements of
D' - D.

Undecided cases are refused: then S is run on D, and its partial tiles are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from poly.buffers.full_tiles import with_loops
from poly.buffers.vector_instructions import whole_vectors
from poly.deps.access_strides import in_order_of_target, unbounded
from poly.deps.footprint import prefix_map
from poly.deps.instances import instance_text
from poly.deps.scop import Role, Scop, ScopStatement, with_domain
from poly.errors import ScheduleError
from poly.ir.intrinsics import MatrixIntrinsic, VectorIntrinsic
from poly.tree.kinds import ON_THREADS, Scope, Tensorized
from poly.tree.nodes import Band, Member, Node, Promote, loops_of, path_to, statements_below


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """The loops and buffers around a statement that is an instruction.

    outer : the loops p; inner : those that count as q, with l and h
    tiles : the operands' buffers by tensor, with the loops each iteration of which has its own
    """

    outer: tuple[Member, ...]
    inner: tuple[tuple[Member, int, int], ...]
    tiles: Mapping[str, tuple[Promote, tuple[Member, ...]]]


def with_padding(
    tree: Node, scop: Scop, statements: Sequence[str] = (), host: Sequence[Member] = ()
) -> Scop:
    """The scop with the instances that are run of each statement with padded operands.

    statements : those below the tree, if not all
    host : the loops around the tree
    """
    found: dict[str, ScopStatement] = {}
    for name in statements or scop.by_name:
        s = scop.statement(name)
        vectors = _vector_instruction(tree, name)
        if vectors is not None:
            domain = whole_vectors(tree, scop, s, vectors)
        else:
            around = _surroundings(tree, scop, s, host)
            domain = None if around is None else _whole_tiles(scop, s, around)
        if domain is not None and not domain.is_subset(s.domain):
            found[name] = with_domain(scop.program, s, domain)
    return replace(scop, padded=found) if found else scop


def _vector_instruction(tree: Node, statement: str) -> VectorIntrinsic | None:
    """The instruction of a CPU that a statement is."""
    marks = (m.mark for m in loops_of(tree, statement))
    found = (mark.intrinsic for mark in marks if isinstance(mark, Tensorized))
    return next((i for i in found if isinstance(i, VectorIntrinsic)), None)


def unpadded_operands(tree: Node, s: ScopStatement) -> tuple[str, ...]:
    """The operands of a statement that do not come through padded buffers of all threads."""
    path = path_to(tree, s.name)
    found: list[str] = []
    for tensor in dict.fromkeys(r.tensor for r in s.source.reads):
        at = _innermost(path, tensor)
        tile = None if at is None else path[at]
        shared = isinstance(tile, Promote) and tile.scope == Scope.SHARED
        if not isinstance(tile, Promote) or not (tile.padded and shared):
            found.append(tensor)
    return tuple(found)


def check_padding(
    tree: Node, scop: Scop, name: str, statements: Sequence[str], host: Sequence[Member], what: str
) -> None:
    """Refuse to run a statement beyond its domain where that might change a result.

    scop : from `with_padding`, with the same arguments

    Raises
    ------
    ScheduleError : beginning with `what`, with an instance.
    """
    own, run = scop.statement(name), scop.as_run(name)
    around = _surroundings(tree, scop, own, host)
    if run is own or around is None:
        return
    extra = run.domain.subtract(own.domain)
    used = _used(tree, scop, own, statements)
    if own.role == Role.INIT:
        wrong = run.write.intersect_range(used).intersect_domain(extra).domain()
        _refuse_onto(wrong, own, what)
        return
    threads = [m for m, _, _ in around.inner if m.mark in ON_THREADS]
    here = [*around.outer, *threads]
    # { S[x] -> [[p] -> C[e]] } on D and on D'
    on_own, on_all = (prefix_map(s, here).range_product(s.write) for s in (own, run))
    beyond = on_all.range().subtract(on_own.range())
    onto_used = beyond.unwrap().intersect_range(used).wrap()
    _refuse_onto(on_all.intersect_range(onto_used).domain(), own, what)
    added = on_all.intersect_domain(extra).intersect_range(on_own.range()).domain()
    for read, relation in zip(run.source.reads, run.reads[1:], strict=True):
        tile, loops = around.tiles[read.tensor]
        held: isl.Set | None = None
        for other in statements_below(tree, tile, statements):
            s = scop.statement(other)
            for by, access in ((scop.as_run(other), scop.as_run(other).write),
                               *((s, r) for r in s.all_reads)):  # fmt: skip
                if access.get_tuple_name(isl.dim_type.out) == read.tensor:
                    one = prefix_map(by, loops).range_product(access).range()
                    held = one if held is None else held.union(one)
        assert held is not None
        at = prefix_map(run, loops).range_product(relation).intersect_domain(added)
        wrong = at.intersect_range(held).domain()
        if not wrong.is_empty():
            raise ScheduleError(
                f"{what}: beyond the edge both operands must be zero, but {tile.buffer} has "
                f"an element of {read.tensor} for {_some(wrong)}; fix the sizes to multiples of "
                "the instruction's, or pad the arrays with zeros"
            )


def _refuse_onto(wrong: isl.Set, s: ScopStatement, what: str) -> None:
    if not wrong.is_empty():
        raise ScheduleError(
            f"{what}: a matrix of sums would reach beyond the edge of what {s.name} writes, onto "
            f"elements of {s.target.tensor} that are used otherwise, in {_some(wrong)}"
        )


def _some(instances: isl.Set) -> str:
    """An instance of a set, and the sizes at which it exists."""
    point = instances.sample_point()
    sizes, point_values = (
        [int(point.get_coordinate_val(kind, n).to_python()) for n in range(instances.dim(kind))]
        for kind in (isl.dim_type.param, isl.dim_type.set)
    )
    names = instances.get_var_names(isl.dim_type.param)
    given = ", ".join(f"{n}={v}" for n, v in zip(names, sizes, strict=True))
    text = instance_text((instances.get_tuple_name(), tuple(point_values)))
    return f"{text} with {given}" if given else text


def _used(tree: Node, scop: Scop, s: ScopStatement, statements: Sequence[str]) -> isl.Set:
    """The elements of its target that statements below its buffer access on their domains.

    Elements of such a buffer beyond these are never read.
    """
    tensor = s.target.tensor
    found = s.write.range()
    for node in path_to(tree, s.name):
        if isinstance(node, Promote) and node.tensor == tensor:
            for name in statements_below(tree, node, statements):
                other = scop.statement(name)
                for access in (other.write, *other.all_reads):
                    if access.get_tuple_name(isl.dim_type.out) == tensor:
                        found = found.union(access.range())
            break
    return found.coalesce()


# --- instances that are run ------------------------------------------------------------------


def _innermost(path: Sequence[Node], tensor: str, scope: str = "") -> int | None:
    """The position on a path of the buffer that an access to a tensor uses."""
    found = (
        n for n, node in enumerate(path)
        if isinstance(node, Promote) and node.tensor == tensor and scope in ("", node.scope)
    )  # fmt: skip
    return max(found, default=None)


def _surroundings(
    tree: Node, scop: Scop, s: ScopStatement, host: Sequence[Member]
) -> _Surroundings | None:
    """None for a statement that is not an instruction, or has an operand that is not padded."""
    path = path_to(tree, s.name)
    loops = [m for n in path if isinstance(n, Band) for m in n.members]
    intrinsic = next((m.mark.intrinsic for m in loops if isinstance(m.mark, Tensorized)), None)
    if not isinstance(intrinsic, MatrixIntrinsic) or s.may_reads:
        return None
    tiles: dict[str, tuple[Promote, tuple[Member, ...]]] = {}
    inside = _innermost(path, s.target.tensor, Scope.FRAGMENT)
    for tensor in dict.fromkeys(r.tensor for r in s.source.reads) if s.role == Role.UPDATE else ():
        at = _innermost(path, tensor)
        tile = None if at is None else path[at]
        if not isinstance(tile, Promote) or not tile.padded or at is None:
            return None
        above = [m for n in path[:at] if isinstance(n, Band) for m in n.members]
        tiles[tensor] = tile, (*host, *(m for m in above if m.mark not in ON_THREADS))
        inside = at if inside is None else max(inside, at)
    chosen = [m for m in loops if m.mark == Tensorized(intrinsic)]
    around = [m for m in loops if m.mark != Tensorized(intrinsic)]
    within = [] if inside is None else path[inside:]
    below = [m for n in within if isinstance(n, Band) for m in n.members]
    outer = list(host)
    inner: list[tuple[Member, int, int]] = []
    for m in around:
        limits = None
        if any(m is x for x in below) or m.mark in ON_THREADS:
            limits = limits_of(m, s)
        if limits is None:
            outer.append(m)
        else:
            inner.append((m, *limits))
    order = in_order_of_target(scop, s, [*host, *around], chosen)
    inner += [(m, 0, n - 1) for m, n in zip(order, intrinsic.extents, strict=False)]
    return _Surroundings(tuple(outer), tuple(inner), tiles)


def limits_of(m: Member, s: ScopStatement) -> tuple[int, int] | None:
    """The least and the greatest value of a loop over the instances of a statement."""
    values = prefix_map(s, [m]).range()
    if values.is_empty():
        return None
    low, high = values.dim_min_val(0), values.dim_max_val(0)
    if not low.is_int() or not high.is_int():
        return None
    return int(low.to_python()), int(high.to_python())


def _whole_tiles(scop: Scop, s: ScopStatement, around: _Surroundings) -> isl.Set:
    """D' of the statement."""
    inner = [m for m, _, _ in around.inner]
    limits = [(low, high) for _, low, high in around.inner]
    box = with_loops(prefix_map(s, around.outer).range(), limits)
    everywhere = prefix_map(unbounded(scop, s), [*around.outer, *inner])
    domain = everywhere.intersect_range(box).domain()
    return domain.intersect_params(scop.context).coalesce()
