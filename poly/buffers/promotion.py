"""Promotion: what a buffer holds, and the copies that fill it and write it back.

For a `Promote` node below the loops p, with statements S below it, and A_S the accesses to the
tensor T:

* footprint  F, see `poly.deps.footprint`
* copied in  the part of F that is read before it is written below
* copied out the part of F that is written below; of a temporary, if any of it is read outside

The buffer has the size of the footprint's box, which must be constant; element e lies at
``e mod size``, which is injective on any box of that size and needs no origin.  In a padded buffer
matrices are to lie in one piece, so where its box does not begin at a multiple of the size, e lies
at ``(e - o(p)) mod size`` with o(p) the beginning.  A dimension that
is kept in blocks is filled up to whole ones.  What instructions access beyond the domains of their
statements (see `poly.buffers.pad_tiles`) counts for the size of a fragment and of a padded buffer,
and is neither copied in nor out: a padded buffer has zeros there.
The copies are statements ``in[p, e]`` with loops of their own over e.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import islpy as isl

from poly.buffers.tensorize import Matched, fragment_of
from poly.deps.dependences import value_flow
from poly.deps.footprint import box_extent, prefix_map, prefix_relation
from poly.deps.scop import Scop, ScopStatement
from poly.errors import ScheduleError
from poly.ir.expr import Const, Expr, Index, Size, add, mul
from poly.ir.intrinsics import ACCUMULATOR, Intrinsic
from poly.ir.program import Tensor
from poly.sets.isl_names import dims
from poly.sets.to_isl import isl_expr
from poly.tree.nodes import ON_THREADS, Band, Member, Promote, walk_tree

#: A promoted buffer belongs to one thread; beyond this many bytes it is refused.
BUFFER_LIMIT = 1 << 20
#: What a block of threads may share on every GPU, in bytes.
SHARED_LIMIT = 48 << 10
#: What a warp may keep in fragments, in bytes: half of its threads' registers.
FRAGMENT_LIMIT = 16 << 10
#: The longest vector, in bytes, in which copies move contiguous elements.
VECTOR_BYTES = 64
#: Bytes that a thread of a GPU copies at once, at most, and at least if it copies several elements.
TOGETHER, LEAST_TOGETHER = 16, 4
#: Vectors of a row of a panel that are copied one after the other without a loop.
MOST_VECTORS = 4


@dataclass(frozen=True)
class Copy:
    """One extension statement: ``buffer[e mod size] = T[e]``, or back.

    prefix : the loops around it of which each iteration has a buffer of its own, by name
    shared : whether all threads of a block copy together
    op : of partial results, which begin as its identity and are combined with what is there
    ahead : it runs one iteration of the last of these loops before what it is for
    matrix : the dimensions of the tensor in which all threads of a warp copy together, a matrix at
        a time; the last loops run over them
    together : how many neighbours a thread copies at once; if several, the last of the loops runs
        over them
    within : ``{ name[p, e] : … }``, where it copies, if it does not everywhere: elsewhere it stores
        zeros
    """

    name: str
    tensor: str
    buffer: str
    inward: bool
    prefix: tuple[str, ...]
    rank: int
    sizes: tuple[int, ...]
    extension: str
    members: tuple[Member, ...]
    shared: bool = False
    op: str = ""
    ahead: bool = False
    matrix: tuple[int, ...] = ()
    together: int = 1
    within: str = ""

    @property
    def shared_out(self) -> tuple[Member, ...]:
        """The loops whose iterations threads share among them."""
        return self.members[:-1] if self.together > 1 else self.members

    @property
    def depth(self) -> int:
        return len(self.prefix)

    @property
    def tuple_text(self) -> str:
        return f"{self.name}[{', '.join(dims('x', self.depth + self.rank))}]"


@dataclass(frozen=True)
class PromotionPlan:
    """Box sizes of the buffer, by tensor dimension, and its copies.

    origins : where the box begins in the iteration ``p0', p1', …``, up to multiples of its size, if
        elements count from there; else None
    """

    sizes: tuple[int, ...]
    copy_in: Copy | None
    copy_out: Copy | None
    origins: tuple[Expr | None, ...] = ()


def prefix_of(node: Promote, outer: list[Member]) -> list[Member]:
    """The loops of which each iteration has a buffer of its own: threads share a shared one."""
    if node.scope != "shared":
        return outer
    return [m for m in outer if m.mark not in ON_THREADS]


def plan_promotion(
    node: Promote, scop: Scop, outer: list[Member], statements: tuple[str, ...]
) -> PromotionPlan:
    """What the promotion of `node` copies; it has a buffer for each iteration of `outer`.

    Raises
    ------
    ScheduleError : the tensor is not accessed below, or not in a place that is affine, or its
        footprint is not bounded by a constant, or the buffer is too large.
    """
    if node.scope == "partial":
        return _partial(node, scop, outer, statements)
    tensor = scop.program.tensors[node.tensor]
    below = [scop.statement(name) for name in statements]
    for s in below:
        if any(m.get_tuple_name(isl.dim_type.out) == node.tensor for m in s.may_reads):
            raise ScheduleError(
                f"{node.tensor} cannot be promoted: {s.name} reads it at a place that depends "
                "on data"
            )
    reads = prefix_relation(((s, m) for s in below for m in _reads(node, s)), outer, node.tensor)
    writes = prefix_relation(((s, s.write) for s in below), outer, node.tensor)
    footprint = writes if reads is None else reads if writes is None else reads.union(writes)
    if footprint is None:
        names = ", ".join(statements)
        raise ScheduleError(f"{node.tensor} is not accessed by {names}; nothing to promote")
    padded = [scop.padded[name] for name in statements if name in scop.padded]
    if node.padded or node.scope == "fragment":
        beyond = prefix_relation(
            ((s, m) for s in padded for m in (s.write, *_reads(node, s))), outer, node.tensor
        )
        footprint = footprint if beyond is None else footprint.union(beyond)
    footprint = footprint.intersect_params(scop.context).coalesce()
    sizes = tuple(_constant_extent(footprint, k, node.tensor) for k in range(tensor.rank))
    sizes = node.layout.whole_blocks(sizes)
    if node.scope == "register" and sizes:
        sizes = _whole_vectors(node, scop, footprint, sizes)
    fragment = fragment_of(node, scop, outer, statements) if node.scope == "fragment" else None
    count = (ACCUMULATOR if fragment else tensor.dtype).bytes
    for size in sizes:
        count *= size
    count *= 2 if node.ahead else 1
    limit = {"shared": SHARED_LIMIT, "fragment": FRAGMENT_LIMIT}.get(node.scope, BUFFER_LIMIT)
    if count > limit:
        raise ScheduleError(
            f"the part of {node.tensor} to promote takes {count} bytes, over {limit}; "
            "promote below an inner loop or use smaller tiles"
        )
    inward, outward = reads, writes
    if writes is not None:
        inward = _exposed(scop, node.tensor, outer, statements)
        if node.tensor in {t.name for t in scop.program.temps}:
            outward = _leaving(scop, node.tensor, outer, statements)
    if inward is None and node.padded:
        # What is written below is all there is, but zeros.
        operands = {r.tensor for s in padded for r in s.source.reads}
        inward = footprint.subtract(footprint) if node.tensor in operands else None
    aligned = tuple(_is_aligned(footprint, k, size) for k, size in enumerate(sizes))
    mapped = any(m.mark in ("block", *ON_THREADS) for m in outer) or node.scope in (
        "shared", "fragment")  # fmt: skip
    if node.scope in ("register", "fragment") and not all(aligned):
        raise ScheduleError(
            f"{node.tensor} cannot be promoted to registers here: its tiles do not begin at "
            "multiples of their size, so that no element has a register of its own"
        )
    origins: tuple[Expr | None, ...] = ()
    if node.padded and node.layout.block is None:
        origins = tuple(
            None if whole else _origin(footprint, k, sizes[k]) for k, whole in enumerate(aligned)
        )
    made = [
        _copy(node, scop, elements, inwards, outer, sizes, aligned, not mapped, footprint, origins)
        for elements, inwards in ((inward, True), (outward, False))
    ]
    if fragment is not None:
        made = [c if c is None else _in_matrices(c, fragment, sizes) for c in made]
        if made[0] is not None and tensor.dtype != ACCUMULATOR:
            raise ScheduleError(
                f"{node.tensor} cannot be kept in a fragment here: what is summed up already would "
                f"have been rounded to {tensor.dtype}; promote around the whole sum and its start"
            )
    return PromotionPlan(sizes, made[0], made[1], origins)


def _reads(node: Promote, s: ScopStatement) -> tuple[isl.Map, ...]:
    """The reads of a statement that go to the buffer, if they are of its tensor."""
    if node.accesses is None:
        return s.reads
    return tuple(m for read, m in s.affine_reads if (s.name, read) in node.accesses)


def check_parts(plan: PromotionPlan, intrinsic: Intrinsic, what: str) -> None:
    """Refuse a fragment of which parts are moved that are no rows and columns from the first on.

    With r and c the places of an element in its matrix t, the moved ones are to be a relation
    ``{ t -> [r, c] }`` that is the product of its rows and its columns, and has with a place those
    before.

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
        places = isl.Map(f"{{ {c.tuple_text} -> [[{tile}] -> [{inside}]] }}")
        moved = isl.Map(c.extension).range().apply(places).unwrap()
        rows, columns = (
            moved.apply_range(isl.Map(f"{{ [r, c] -> [{one}] }}")) for one in ("r", "c")
        )
        earlier = isl.Map("{ [r, c] -> [r - 1, c] : r > 0; [r, c] -> [r, c - 1] : c > 0 }")
        whole = rows.flat_range_product(columns).union(moved.apply_range(earlier))
        if not whole.is_subset(moved):
            raise ScheduleError(
                f"{what}: sums would be stored beyond the edge, or be taken from there: what "
                f"{c.name} moves are not known to be rows and columns from the first ones of a "
                "matrix on"
            )


def _in_matrices(c: Copy, fragment: Matched, sizes: tuple[int, ...]) -> Copy:
    """A copy whose innermost loops are those of a matrix of sums, marked as one instruction."""
    mark, tile = fragment.intrinsic.name, dict.fromkeys((fragment.rows, fragment.columns), 0)
    tile |= zip(tile, fragment.intrinsic.extents, strict=False)
    outer: list[Member] = []
    inner: list[Member] = []
    for d, m in enumerate(c.members):
        extent = tile.get(d)
        if extent is None:
            outer.append(replace(m, mark="unroll"))
            continue
        value = isl.Val(extent)
        over = m.schedule.scale_down_val(value).floor()
        outer.append(Member(f"{m.name}_o", over, "unroll"))
        inner.append(Member(f"{m.name}_i", m.schedule.mod_val(value), mark))
    return replace(c, members=(*outer, *inner), matrix=tuple(sorted(tile)))


def _partial(
    node: Promote, scop: Scop, outer: list[Member], statements: tuple[str, ...]
) -> PromotionPlan:
    """Each thread's part of one element: the identity at first, combined with it at the end."""
    s = scop.statement(statements[0])
    if len(statements) > 1 or s.role != "update" or s.target.tensor != node.tensor:
        raise ScheduleError(
            f"{', '.join(statements)} cannot sum up {node.tensor} in parts: parts are made of the "
            "updates of one reduction alone"
        )
    if any(r.tensor == node.tensor for r in s.source.reads):
        raise ScheduleError(f"{s.name} reads {node.tensor}, to which it adds: there are no parts")
    elements = prefix_relation([(s, s.write)], outer, node.tensor)
    assert elements is not None
    elements = elements.intersect_params(scop.context).coalesce()
    rank = scop.program.tensors[node.tensor].rank
    if not elements.is_single_valued():
        raise ScheduleError(
            f"a thread would have parts of several elements of {node.tensor}; reduce inside of "
            "the loops that move it"
        )
    ones, aligned = (1,) * rank, (True,) * rank
    made = [
        replace(copy, op=s.source.op)
        for inward in (True, False)
        if (copy := _copy(node, scop, elements, inward, outer, ones, aligned, False, elements))
    ]
    return PromotionPlan(ones, made[0], made[1])


def check_ahead(
    node: Promote, scop: Scop, loop: Member, statements: tuple[str, ...], what: str = ""
) -> None:
    """Refuse to fill a buffer one iteration ahead where that would read what is not there yet.

    loop : that above the node; statements : all those in it

    Raises
    ------
    ScheduleError : something in the loop writes the tensor, or the loop is none that runs in order.
    """
    if node.scope != "shared":
        raise ScheduleError(
            f"{what}only a shared buffer is filled ahead, by all threads of a block"
        )
    if loop.mark != "seq":
        raise ScheduleError(
            f"{what}{loop.name} is marked {loop.mark}; what is filled ahead needs a loop whose "
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
    return max(extent, 1)  # of a footprint without elements, which no code fills


def _whole_vectors(
    node: Promote, scop: Scop, footprint: isl.Map, sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Registers for whole vectors along the last dimension in buffer order: of 56 elements and
    lanes in 16, the last 8 have a register of 16.
    """
    lanes, last = _lanes_below(node, scop), node.layout.order[-1]
    if (
        node.layout.block is not None
        or lanes is None
        or sizes[last] % lanes == 0
        or lanes.bit_count() != 1
    ):
        return sizes
    whole = -(-sizes[last] // lanes) * lanes
    if not _is_aligned(footprint, last, whole):
        return sizes
    return (*sizes[:last], whole, *sizes[last + 1 :])


def _is_aligned(footprint: isl.Map, dim: int, size: int) -> bool:
    """Whether the footprint's box begins at a multiple of its size for every prefix."""
    if footprint.is_empty():
        return True
    # As a set: the least value of a function with divisions by itself is asked of it in vain.
    rest = isl.Map.from_pw_aff(footprint.dim_min(dim).mod_val(isl.Val(size))).range()
    low, high = rest.dim_min_val(0), rest.dim_max_val(0)
    return bool(low.is_zero() and high.is_zero())


def _origin(footprint: isl.Map, dim: int, size: int) -> Expr | None:
    """The least element along a dimension, as a sum of multiples of ``p0', p1', …`` and of sizes,
    without those of `size`; None if it is no such sum.
    """
    least = footprint.dim_min(dim).gist(footprint.domain()).coalesce()
    if least.n_piece() != 1:
        return None
    ((_, value),) = least.get_pieces()
    sizes = [Size(n) for n in value.get_domain_space().get_var_names(isl.dim_type.param)]
    place = [Index(p) for p in dims("p", value.dim(isl.dim_type.in_))]
    parts: list[tuple[Expr, isl.Val]] = [(Const(1), value.get_constant_val())]
    parts += [
        (e, value.get_coefficient_val(kind, n))
        for kind, found in ((isl.dim_type.in_, place), (isl.dim_type.param, sizes))
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


def _exposed(
    scop: Scop, tensor: str, outer: list[Member], statements: tuple[str, ...]
) -> isl.Map | None:
    """``{ [p] -> T[e] }``: elements read below whose value was not written in the same prefix."""
    inside = _inside(scop, outer, statements)
    result: isl.Map | None = None
    for name in statements:
        s = scop.statement(name)
        for access in s.reads:
            if access.get_tuple_name(isl.dim_type.out) != tensor:
                continue
            flow, _ = value_flow(scop, isl.UnionMap.from_map(access))
            served = flow.intersect(inside).range().extract_set(s.domain.get_space())
            rest = access.subtract_domain(served)
            if rest.is_empty():
                continue
            one = prefix_map(s, outer).reverse().apply_range(rest)
            result = one if result is None else result.union(one)
    return result


def _leaving(
    scop: Scop, tensor: str, outer: list[Member], statements: tuple[str, ...]
) -> isl.Map | None:
    """``{ [p] -> T[e] }``: elements written below, for prefixes of which some are read in another
    prefix or by another statement.
    """
    flow, _ = value_flow(scop, scop.reads_of(tensor))
    own = [
        s for s in map(scop.statement, statements)
        if s.write.get_tuple_name(isl.dim_type.out) == tensor
    ]  # fmt: skip
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


def contiguous_dimension(tensor: Tensor) -> int:
    """The dimension along which elements are neighbours in memory."""
    return max((d for d, e in enumerate(tensor.shape) if e != Const(1)), default=tensor.rank - 1)


def _lanes_below(node: Promote, scop: Scop) -> int | None:
    """The number of lanes of the vector loops below, if there is one for all of them."""
    widths: set[int] = set()
    for inner in walk_tree(node.child):
        for m in inner.members if isinstance(inner, Band) else ():
            if m.mark == "vector":
                domain = scop.domain.intersect(m.schedule.domain())
                f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule)
                image = domain.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
                if not image.n_set():
                    continue  # it runs never
                high = image.get_at(0).dim_max_val(0)
                widths.add(int(high.to_python()) + 1 if high.is_int() else 0)
    return widths.pop() if len(widths) == 1 and min(widths) > 1 else None


def _copy(
    node: Promote, scop: Scop, elements: isl.Map | None, inward: bool, outer: list[Member],
    sizes: tuple[int, ...], aligned: tuple[bool, ...], in_lanes: bool, footprint: isl.Map,
    origins: tuple[Expr | None, ...] = (),
) -> Copy | None:  # fmt: skip
    """What copies `elements`, and fills the rest of the footprint of a padded buffer."""
    if elements is None:
        return None
    depth = len(outer)
    elements = elements.intersect_params(scop.context).coalesce()
    copied, elements = elements, footprint if node.padded and inward else elements
    rank = len(sizes)
    name = f"{node.buffer}_{'in' if inward else 'out'}"
    p, e = dims("p", depth), dims("e", rank)
    params = ", ".join(elements.get_var_names(isl.dim_type.param))
    pair = isl.Map(
        f"[{params}] -> {{ [[{', '.join(p)}] -> {node.tensor}[{', '.join(e)}]]"
        f" -> {name}[{', '.join(p + e)}] }}"
    )
    # { [p] -> T[e] }  becomes  { [p] -> name[p, e] }
    extension = elements.domain_map().reverse().apply_range(pair)
    within, nothing = None, inward and bool(copied.is_empty()) and not elements.is_empty()
    if not nothing and not elements.is_subset(copied):
        within = copied.domain_map().reverse().apply_range(pair).range()
        within = within.gist(extension.range()).coalesce()
    instance = f"{name}[{', '.join(p + e)}]"

    def member(loop: str, value: str, mark: str) -> Member:
        return Member(loop, isl.UnionPwAff(f"[{params}] -> {{ {instance} -> [({value})] }}"), mark)

    mark = "unroll" if node.scope == "register" else "seq"
    dtype = scop.program.tensors[node.tensor].dtype
    lanes = _lanes_below(node, scop) or VECTOR_BYTES // dtype.bytes
    # Threads that copy together read neighbours, whatever the buffer's layout, and share out loops
    # of several iterations.
    order = [*node.layout.order]
    if node.scope == "shared":
        order = sorted(range(rank), key=lambda k: sizes[k] > 1)
    # Loops over aligned boxes run from 0, which makes places in the buffer plain.
    places = [f"({e[k]} mod {sizes[k]})" if aligned[k] else e[k] for k in range(rank)]
    for k, origin in enumerate(origins):
        places[k] = (
            places[k] if origin is None else f"(({e[k]} - {isl_expr(origin)}) mod {sizes[k]})"
        )
    loops = [(f"{node.buffer}_e{k}", places[k], sizes[k]) for k in order]
    if node.layout.block is not None:
        dim, size = node.layout.block
        at = order.index(dim)
        loop, place, _ = loops[at]
        loops[at] = (f"{loop}_b", f"floor({place}/{size})", sizes[dim] // size)
        loops.append((loop, f"({place} mod {size})", size))
    members = [member(loop, place, mark) for loop, place, _ in loops]
    if loops and in_lanes and loops[-1][2] % lanes == 0 and dtype.bits >= 32:
        loop, place, size = loops.pop()
        # Rows of neighbours in memory, which are turned around a block at a time.
        along = f"{node.buffer}_e{contiguous_dimension(scop.program.tensors[node.tensor])}"
        turned = [m for m in members[:-1] if m.name == along and loop != along]
        rest = [m for m in members[:-1] if m not in turned]
        blocks = "unroll" if not turned and size // lanes <= MOST_VECTORS else mark
        members = [
            *rest,
            member(f"{loop}_o", f"floor({place}/{lanes})", blocks),
            *turned,
            member(f"{loop}_i", f"{place} mod {lanes}", "vector"),
        ]
    together = 1 if in_lanes else _together(node, scop, inward, sizes, aligned)
    if within is not None and not _whole_groups(copied, together):
        together = 1
    if together > 1:
        loop, place, _ = loops[-1]
        members[-1:] = [
            member(f"{loop}_o", f"floor({place}/{together})", mark),
            member(f"{loop}_i", f"{place} mod {together}", "together"),
        ]
    return Copy(
        name, node.tensor, node.buffer, inward, tuple(m.name for m in outer), rank, sizes,
        str(extension), tuple(members), node.scope == "shared", ahead=node.ahead, together=together,
        within="" if within is None else str(within), op="+=" if nothing else "",
    )  # fmt: skip


def _whole_groups(elements: isl.Map, count: int) -> bool:
    """Whether each `count` neighbours from a multiple of that on are all elements, or none."""
    e = dims("e", elements.dim(isl.dim_type.out))
    *outer, last = e
    tensor = elements.get_tuple_name(isl.dim_type.out)
    group = ", ".join([*outer, f"floor({last}/{count})"])
    same = isl.Map(f"{{ {tensor}[{', '.join(e)}] -> [{group}] }}")
    return bool(elements.apply_range(same).apply_range(same.reverse()).is_subset(elements))


def _together(
    node: Promote, scop: Scop, inward: bool, sizes: tuple[int, ...], aligned: tuple[bool, ...]
) -> int:
    """How many neighbours a thread of a GPU copies at once: as many as one access moves, where rows
    are whole numbers of that, in the buffer, and in memory as far as it is known.

    To shared memory these are numbers of up to 32 bits.
    """
    tensor = scop.program.tensors[node.tensor]
    last, size = tensor.rank - 1, tensor.dtype.bytes
    if last < 0 or node.layout.block is not None or node.layout.order[-1] != last:
        return 1
    length = tensor.shape[last]
    if node.scope == "register":
        row = int(length.value) if isinstance(length, Const) and _has_rows(tensor) else TOGETHER
        count = gcd(TOGETHER // size, sizes[last], row)
        return count if count > 1 and count * size >= LEAST_TOGETHER else 1
    count = TOGETHER // size
    if node.scope != "shared" or tensor.dtype.bits not in (16, 32) or not inward:
        return 1
    whole = isinstance(length, Const) and int(length.value) % count == 0
    return count if whole and aligned[last] and sizes[last] % count == 0 else 1


def _has_rows(tensor: Tensor) -> bool:
    """Whether elements have other neighbours than those along the last dimension."""
    return any(e != Const(1) for e in tensor.shape[:-1])
