"""Promotion: the contents of a buffer, and the copies that fill it and write it back.

For a `Promote` node below the loops p, with statements S below it, and A_S the accesses to the
tensor T:

* footprint  F, see `poly.deps.footprint`
* copied in  the part of F that is read before it is written below
* copied out the part of F that is written below; of a temporary, if any of it is read outside

The buffer has the size of the footprint's box, which must be constant; element e is stored at
``e mod size``, which is injective on any box of that size and needs no origin.  In a padded buffer
matrices must be contiguous, so where its box does not begin at a multiple of the size, e is stored
at ``(e - o(p)) mod size`` with o(p) the beginning.  A blocked dimension is rounded up to whole
blocks.  Elements that instructions access beyond the domains of their statements (see
`poly.buffers.pad_tiles`) count for the size of a fragment and of a padded buffer, and are neither
copied in nor out: a padded buffer has zeros there.
The copies are statements ``in[p, e]`` with loops of their own over e.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import islpy as isl

from poly.buffers.copies import Copy, copy_of, in_matrices, lanes_below
from poly.buffers.tensorize import fragment_of
from poly.deps.dependences import flow_of_read, flow_of_tensor, written_once
from poly.deps.footprint import box_extent, prefix_map, prefix_relation
from poly.deps.scop import Role, Scop, ScopStatement
from poly.errors import CapacityError, ScheduleError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Size, add, mul
from poly.ir.intrinsics import ACCUMULATOR, MatrixIntrinsic
from poly.ir.program import Tensor
from poly.machine.gpu import SHARED_BYTES
from poly.sets.isl_names import dims
from poly.sets.same import Same
from poly.tree.kinds import ON_THREADS, Mark, Scope
from poly.tree.nodes import Accesses, Member, Promote

#: A promoted buffer belongs to one thread; beyond this many bytes it is refused.
BUFFER_LIMIT = 1 << 20
#: The most bytes that a warp may keep in fragments: half of its threads' registers.
FRAGMENT_LIMIT = 16 << 10


@dataclass(frozen=True)
class PromotionPlan:
    """Box sizes of the buffer, by tensor dimension, and its copies.

    origins : the beginning of the box in the iteration ``p0', p1', …``, up to multiples of its
        size, if elements count from there; else None
    """

    sizes: tuple[int, ...]
    copy_in: Copy | None
    copy_out: Copy | None
    origins: tuple[Expr | None, ...] = ()


def prefix_of(node: Promote, outer: list[Member]) -> list[Member]:
    """The loops each iteration of which has a buffer of its own: threads share a shared one."""
    if node.scope != Scope.SHARED:
        return outer
    return [m for m in outer if m.mark not in ON_THREADS]


@dataclass(frozen=True)
class _Part:
    """The elements that a buffer stands for.

    reads, writes : ``{ [p] -> T[e] }``, those that an iteration of the loops around reads and
        writes; None if there are none
    footprint : those that the buffer has room for: those accessed, and those instructions reach
    extents : of its box
    """

    reads: isl.Map | None
    writes: isl.Map | None
    footprint: isl.Map
    extents: tuple[int, ...]


@lru_cache(maxsize=64)  # a promotion is planned when it is made, and when loops are generated
def _part(
    scop: Scop,
    tensor: str,
    accesses: Accesses,
    is_padded: bool,
    prefix: tuple[Same, ...],
    statements: tuple[str, ...],
) -> _Part:
    """The elements that a promotion moves.

    accesses : see `poly.tree.nodes.Promote`; is_padded : whether instructions reach beyond
    """
    outer, below = [Member("", f.value) for f in prefix], [scop.statement(n) for n in statements]
    for s in below:
        if any(m.get_tuple_name(isl.dim_type.out) == tensor for m in s.may_reads):
            raise ScheduleError(
                f"{tensor} cannot be promoted: {s.name} reads it at an index that depends on data"
            )
    for s in scop.statements:
        if s.scatters and s.target.tensor == tensor:
            raise ScheduleError(
                f"{tensor} cannot be promoted: {s.name} writes it at an index that depends on data"
            )
    reads = prefix_relation(((s, m) for s in below for m in _reads(accesses, s)), outer, tensor)
    writes = prefix_relation(((s, s.write) for s in below), outer, tensor)
    footprint = writes if reads is None else reads if writes is None else reads.union(writes)
    if footprint is None:
        names = ", ".join(s.name for s in below)
        raise ScheduleError(f"{tensor} is not accessed by {names}; nothing to promote")
    if is_padded:
        padded = [scop.padded[n] for n in statements if n in scop.padded]
        reached = ((s, m) for s in padded for m in (s.write, *_reads(accesses, s)))
        beyond = prefix_relation(reached, outer, tensor)
        footprint = footprint if beyond is None else footprint.union(beyond)
    footprint = footprint.intersect_params(scop.context).coalesce()
    rank = scop.program.tensors[tensor].rank
    extents = tuple(_constant_extent(footprint, k, tensor) for k in range(rank))
    return _Part(reads, writes, footprint, extents)


def _check_capacity(node: Promote, dtype: DType, sizes: tuple[int, ...]) -> None:
    """Refuse a buffer that is too large for its scope."""
    count = dtype.bytes * prod(sizes) * (2 if node.ahead else 1)
    limits = {Scope.SHARED: SHARED_BYTES, Scope.FRAGMENT: FRAGMENT_LIMIT}
    limit = limits.get(node.scope, BUFFER_LIMIT)
    if count > limit:
        raise CapacityError(
            f"the part of {node.tensor} to promote takes {count} bytes, over {limit}; "
            "promote below an inner loop or use smaller tiles"
        )


def _check_unwritten(node: Promote, tensor: Tensor, below: list[ScopStatement]) -> None:
    """Refuse a buffer of a wider type than that of the tensor if anything below writes to it."""
    for s in below:
        if s.target.tensor == tensor.name:
            raise ScheduleError(
                f"{tensor.name} cannot be promoted as {node.dtype}: {s.name} writes it below, and "
                f"what it writes would not be rounded to {tensor.dtype}"
            )


def plan_promotion(
    node: Promote, scop: Scop, outer: list[Member], statements: tuple[str, ...]
) -> PromotionPlan:
    """Plan the copies of a promotion; it has a buffer for each iteration of `outer`.

    Raises
    ------
    ScheduleError : the tensor is not accessed below, or at an index that is not affine, or its
        footprint is not bounded by a constant, or the buffer is too large.
    """
    if node.scope == Scope.PARTIAL:
        return _partial(node, scop, outer, statements)
    tensor = scop.program.tensors[node.tensor]
    reaching = node.padded or node.scope == Scope.FRAGMENT or _is_overrun(node, scop, statements)
    part = _part(scop, node.tensor, node.accesses, reaching, _key(outer), statements)
    reads, writes, footprint = part.reads, part.writes, part.footprint
    if node.dtype is not None:
        _check_unwritten(node, tensor, [scop.statement(n) for n in statements])
    sizes = node.layout.whole_blocks(part.extents)
    if node.scope == Scope.REGISTER and sizes:
        sizes = _whole_vectors(node, scop, footprint, sizes)
    fragment = fragment_of(node, scop, outer, statements) if node.scope == Scope.FRAGMENT else None
    _check_capacity(node, ACCUMULATOR if fragment else node.dtype or tensor.dtype, sizes)
    inward, outward = reads, writes
    if writes is not None:
        inward = _exposed(scop, node.tensor, _key(outer), statements)
        if node.tensor in {t.name for t in scop.program.temps}:
            outward = _leaving(scop, node.tensor, _key(outer), statements)
    if inward is None and node.padded:
        # Only what is written below is in the buffer, besides zeros.
        padded = [scop.padded[n] for n in statements if n in scop.padded]
        operands = {r.tensor for s in padded for r in s.source.reads}
        inward = footprint.subtract(footprint) if node.tensor in operands else None
    aligned = tuple(_is_aligned(Same(footprint), k, size) for k, size in enumerate(sizes))
    mapped = any(m.mark in (Mark.BLOCK, *ON_THREADS) for m in outer) or node.scope in (
        Scope.SHARED, Scope.FRAGMENT)  # fmt: skip
    if node.scope in (Scope.REGISTER, Scope.FRAGMENT) and not all(aligned):
        raise ScheduleError(
            f"{node.tensor} cannot be promoted to registers here: its tiles do not begin at "
            "multiples of their size, so that no element has a register of its own"
        )
    origins: tuple[Expr | None, ...] = ()
    if node.padded and not node.layout.blocks:
        origins = tuple(
            None if whole else _origin(footprint, k, sizes[k]) for k, whole in enumerate(aligned)
        )
    made = [
        copy_of(
            node, scop, elements, inwards, outer, sizes, aligned, not mapped, footprint, origins
        )
        for elements, inwards in ((inward, True), (outward, False))
    ]
    if fragment is not None:
        made = [c if c is None else in_matrices(c, fragment, sizes) for c in made]
        if made[0] is not None and tensor.dtype != ACCUMULATOR:
            raise ScheduleError(
                f"{node.tensor} cannot be kept in a fragment here: the partial sum so far would "
                f"have been rounded to {tensor.dtype}; promote around the whole sum and its start"
            )
    return PromotionPlan(sizes, made[0], made[1], origins)


def _is_overrun(node: Promote, scop: Scop, statements: tuple[str, ...]) -> bool:
    """Whether instructions write registers beyond the elements of the tensor."""
    run = (scop.padded[n] for n in statements if n in scop.padded)
    return node.scope == Scope.REGISTER and any(s.target.tensor == node.tensor for s in run)


def _reads(accesses: Accesses, s: ScopStatement) -> tuple[isl.Map, ...]:
    """The reads of a statement that go to the buffer, if they are of its tensor."""
    if accesses is None:
        return s.reads
    return tuple(m for read, m in s.affine_reads if (s.name, read) in accesses)


def check_parts(plan: PromotionPlan, intrinsic: MatrixIntrinsic, what: str) -> None:
    """Refuse a fragment unless the copied part of each matrix is its first rows and columns.

    With r and c the indices of an element in its matrix t, the copied elements must be a relation
    ``{ t -> [r, c] }`` that is the product of its rows and its columns, and contains the elements
    before each of its elements.

    Raises
    ------
    ScheduleError : beginning with `what`.
    """
    for c in (plan.copy_in, plan.copy_out):
        if c is None:
            continue
        x = dims("x", c.depth + c.rank)
        at = dict(zip((x[c.depth + d] for d in c.matrix), intrinsic.extents, strict=False))
        tile = ", ".join(f"floor({e}/{at[e]})" if e in at else e for e in x)
        inside = ", ".join(f"{e} mod {n}" for e, n in at.items())
        in_matrix = isl.Map(f"{{ {c.tuple_text} -> [[{tile}] -> [{inside}]] }}")
        moved = isl.Map(c.extension).range().apply(in_matrix).unwrap()
        rows, columns = (
            moved.apply_range(isl.Map(f"{{ [r, c] -> [{one}] }}")) for one in ("r", "c")
        )
        earlier = isl.Map("{ [r, c] -> [r - 1, c] : r > 0; [r, c] -> [r, c - 1] : c > 0 }")
        whole = rows.flat_range_product(columns).union(moved.apply_range(earlier))
        if not whole.is_subset(moved):
            raise ScheduleError(
                f"{what}: sums would be stored beyond the edge, or be loaded from there: the "
                f"elements of {c.name} are not known to be the first rows and columns of a "
                "matrix"
            )


def _partial(
    node: Promote, scop: Scop, outer: list[Member], statements: tuple[str, ...]
) -> PromotionPlan:
    """Each thread's part of one element: the identity at first, combined with it at the end."""
    s = scop.statement(statements[0])
    if len(statements) > 1 or s.role != Role.UPDATE or s.target.tensor != node.tensor:
        raise ScheduleError(
            f"{', '.join(statements)} cannot sum up {node.tensor} in parts: parts are made of the "
            "updates of a single reduction"
        )
    if any(r.tensor == node.tensor for r in s.source.reads):
        raise ScheduleError(
            f"{s.name} reads {node.tensor}, to which it adds, and cannot be split into parts"
        )
    elements = prefix_relation([(s, s.write)], outer, node.tensor)
    assert elements is not None
    elements = elements.intersect_params(scop.context).coalesce()
    rank = scop.program.tensors[node.tensor].rank
    if not elements.is_single_valued():
        raise ScheduleError(
            f"a thread would have parts of several elements of {node.tensor}; reduce inside "
            "the loops that move it"
        )
    ones, aligned = (1,) * rank, (True,) * rank
    made = [
        replace(copy, op=s.source.op)
        for inward in (True, False)
        if (copy := copy_of(node, scop, elements, inward, outer, ones, aligned, False, elements))
    ]
    return PromotionPlan(ones, made[0], made[1])


def check_double_buffer(
    node: Promote, scop: Scop, loop: Member, statements: tuple[str, ...], what: str = ""
) -> None:
    """Refuse double buffering where filling early would read elements not yet written.

    loop : that above the node; statements : all those in it

    Raises
    ------
    ScheduleError : something in the loop writes the tensor, or the loop is not sequential.
    """
    if node.scope != Scope.SHARED:
        raise ScheduleError(
            f"{what}`ahead` needs a shared buffer, which all threads of a block fill"
        )
    if loop.mark != Mark.SEQ:
        raise ScheduleError(
            f"{what}{loop.name} is marked {loop.mark}; `ahead` needs a loop whose "
            "iterations run one after the other"
        )
    for name in statements:
        if scop.statement(name).target.tensor == node.tensor:
            raise ScheduleError(
                f"{what}{name} writes {node.tensor} in {loop.name}, so that it cannot be read an "
                "iteration ahead"
            )


def _constant_extent(footprint: isl.Map, dim: int, tensor: str) -> int:
    extent = box_extent(footprint, dim)
    if extent is None:
        raise ScheduleError(
            f"{tensor} cannot be promoted here: its footprint has no constant bound in "
            f"dimension {dim}; tile the loops that it depends on first"
        )
    return max(extent, 1)  # an empty footprint, which is never filled


def _whole_vectors(
    node: Promote, scop: Scop, footprint: isl.Map, sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Round the last dimension in buffer order up to whole vectors: of 56 elements in lanes of 16,
    the last 8 have a register of 16.
    """
    lanes, last = lanes_below(node, scop), node.layout.order[-1]
    if (
        bool(node.layout.blocks)
        or lanes is None
        or sizes[last] % lanes == 0
        or lanes.bit_count() != 1
    ):
        return sizes
    whole = -(-sizes[last] // lanes) * lanes
    if not _is_aligned(Same(footprint), last, whole):
        return sizes
    return (*sizes[:last], whole, *sizes[last + 1 :])


@lru_cache(maxsize=256)
def _is_aligned(footprint: Same, dim: int, size: int) -> bool:
    """Whether the footprint's box begins at a multiple of its size for every prefix."""
    elements: isl.Map = footprint.value
    if elements.is_empty():
        return True
    # As a set: isl does not compute the least value of a function with divisions.
    rest = isl.Map.from_pw_aff(elements.dim_min(dim).mod_val(isl.Val(size))).range()
    low, high = rest.dim_min_val(0), rest.dim_max_val(0)
    return bool(low.is_zero() and high.is_zero())


def _origin(footprint: isl.Map, dim: int, size: int) -> Expr | None:
    """The least element along a dimension, as a sum of multiples of ``p0', p1', …`` and of sizes,
    without multiples of `size`; None if it is not such a sum.
    """
    least = footprint.dim_min(dim).gist(footprint.domain()).coalesce()
    if least.n_piece() != 1:
        return None
    ((_, value),) = least.get_pieces()
    sizes = [Size(n) for n in value.get_domain_space().get_var_names(isl.dim_type.param)]
    prefix = [Index(p) for p in dims("p", value.dim(isl.dim_type.in_))]
    parts: list[tuple[Expr, isl.Val]] = [(Const(1), value.get_constant_val())]
    parts += [
        (e, value.get_coefficient_val(kind, n))
        for kind, found in ((isl.dim_type.in_, prefix), (isl.dim_type.param, sizes))
        for n, e in enumerate(found)
    ]
    if value.dim(isl.dim_type.div) or not all(v.is_int() for _, v in parts):
        return None
    result: Expr = Const(0)
    for e, v in parts:
        factor = int(v.to_python())
        result = add(result, mul(Const(factor), e)) if factor % size else result
    return result


def _inside(scop: Scop, outer: list[Member], statements: tuple[str, ...]) -> isl.UnionMap:
    """Pairs of instances below the node with the same prefix."""
    maps = [prefix_map(scop.statement(s), outer) for s in statements]
    union = isl.UnionMap.from_map(maps[0])
    for m in maps[1:]:
        union = union.union(isl.UnionMap.from_map(m))
    return union.apply_range(union.reverse())


def _key(outer: list[Member]) -> tuple[Same, ...]:
    """The functions of the loops around a promotion, whatever their marks are."""
    return tuple(Same(m.schedule) for m in outer)


@lru_cache(maxsize=64)  # a promotion is planned when it is made, and when loops are generated
def _exposed(
    scop: Scop, tensor: str, prefix: tuple[Same, ...], statements: tuple[str, ...]
) -> isl.Map | None:
    """``{ [p] -> T[e] }``: elements read below whose value was not written in the same prefix.

    If elements are written once, those are read that are not written for the first time below:
    any update below follows that write, or else reads the element from outside itself.
    """
    outer = [Member("", f.value) for f in prefix]
    if (once := written_once(scop, tensor)) is not None:
        below = [scop.statement(n) for n in statements]
        read = prefix_relation(((s, m) for s in below for m in s.reads), outer, tensor)
        first = [(s, s.write) for s in below if s.name == once.first.name]
        made = prefix_relation(first, outer, tensor)
        rest = read if read is None or made is None else read.subtract(made)
        return None if rest is None or rest.is_empty() else rest
    inside = _inside(scop, outer, statements)
    result: isl.Map | None = None
    for name in statements:
        s = scop.statement(name)
        for number, access in enumerate(s.reads):
            if access.get_tuple_name(isl.dim_type.out) != tensor:
                continue
            flow = flow_of_read(scop, name, number)
            served = flow.intersect(inside).range().extract_set(s.domain.get_space())
            rest = access.subtract_domain(served)
            if rest.is_empty():
                continue
            one = prefix_map(s, outer).reverse().apply_range(rest)
            result = one if result is None else result.union(one)
    return result


@lru_cache(maxsize=64)
def _leaving(
    scop: Scop, tensor: str, prefix: tuple[Same, ...], statements: tuple[str, ...]
) -> isl.Map | None:
    """``{ [p] -> T[e] }``: elements written below, for prefixes some of whose elements are read in
    another prefix or by another statement.
    """
    outer = [Member("", f.value) for f in prefix]
    own = [s for s in map(scop.statement, statements) if s.target.tensor == tensor]
    if written_once(scop, tensor) is not None:
        return _shared_beyond(scop, tensor, outer, statements, own)
    flow = flow_of_tensor(scop, tensor)
    written = isl.UnionSet.empty(scop.context.get_space())
    for s in own:
        written = written.union(isl.UnionSet.from_set(s.domain))
    inside = _inside(scop, outer, statements)
    sources = flow.intersect_domain(written).subtract(inside).domain()
    needed = [(s, sources.extract_set(s.domain.get_space())) for s in own]
    accesses = [(s, s.write.intersect_domain(d)) for s, d in needed if not d.is_empty()]
    leaving = prefix_relation(accesses, outer, tensor)
    everything = prefix_relation(((s, s.write) for s in own), outer, tensor)
    if leaving is None or everything is None:
        return None
    return everything.intersect_domain(leaving.domain())


def _shared_beyond(
    scop: Scop,
    tensor: str,
    outer: list[Member],
    statements: tuple[str, ...],
    own: list[ScopStatement],
) -> isl.Map | None:
    """`_leaving` of a tensor that is written once, by elements alone.

    With the elements W(p) written and R(p) read in a prefix, and those read by all other
    statements: ``{ p -> W(p) : W(p) meets the latter, or R(q), q != p }``.
    """
    written = prefix_relation(((s, s.write) for s in own), outer, tensor)
    if written is None:
        return None
    below = [scop.statement(n) for n in statements]
    read = prefix_relation(((s, m) for s in below for m in s.reads), outer, tensor)
    others = [m for s in scop.statements if s not in below for m in s.all_reads]
    leaving = isl.Set.empty(written.domain().get_space())
    for m in others:
        if m.get_tuple_name(isl.dim_type.out) == tensor:
            leaving = leaving.union(written.intersect_range(m.range()).domain())
    if read is not None:
        pairs = written.apply_range(read.reverse())
        leaving = leaving.union(pairs.subtract(isl.Map.identity(pairs.get_space())).domain())
    return None if leaving.is_empty() else written.intersect_domain(leaving.coalesce())
