"""Conversion between our schedule trees and isl's.

`to_isl` prints a tree in isl's YAML form.  Names and marks of loops, which isl's trees lack, are
passed in ``mark`` nodes whose ids index `IslTree.bands`; copies of promoted tensors become
statements of their own, listed in `IslTree.copies`.  They are not extension nodes: where full tiles
are isolated, isl runs extensions in the bounding box of the rest, not only in the rest.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

import islpy as isl

from poly.buffers.copies import Copy
from poly.buffers.promotion import PromotionPlan, plan_promotion, prefix_of
from poly.deps.instances import member_limits
from poly.deps.scop import Scop
from poly.errors import ScheduleError
from poly.lower.auxiliary_statements import Fence, combination, everywhere, fences
from poly.lower.launches import Launch, lanes_of, parameter_values, reducing
from poly.sets.isl_names import dim, dims
from poly.sets.to_isl import parameters
from poly.tree.kinds import ON_THREADS, Mark, Scope, Tensorized
from poly.tree.nodes import (
    Band,
    Barrier,
    Filter,
    Leaf,
    Member,
    Node,
    Promote,
    Sequence,
    band,
    joint,
    leaf,
    loops_of,
    sequence,
    walk_tree,
)


@dataclass(frozen=True)
class IslBand:
    """The band of a mark ``band:n``: the loops, and the depth of the first of them.

    full : ``{ [outer, here] }``: the iterations in which what is below has two versions, since
        the loops there are full in these, and sizes decide which these are; None: one version
    """

    depth: int
    members: tuple[Member, ...]
    full: isl.Set | None = None


@dataclass(frozen=True)
class Around:
    """A loop around a promotion.

    apart : whether each iteration has a buffer of its own
    only : its value if it takes a single one, is apart, and buffers begin at different indices
    """

    member: Member
    apart: bool
    only: int | None


@dataclass(frozen=True)
class Share:
    """Part of a thread's index in its block: ``floor(thread / divisor) mod modulus``; 0: no mod."""

    divisor: int
    modulus: int


@dataclass(frozen=True)
class IslPromote:
    """A promotion with the loops around it, and the statements below it."""

    node: Promote
    plan: PromotionPlan
    around: tuple[Around, ...]
    statements: tuple[str, ...]

    @property
    def inside(self) -> frozenset[str]:
        """The statements and buffers below."""
        below = (n.buffer for n in walk_tree(self.node.child) if isinstance(n, Promote))
        return frozenset((*self.statements, *below))


@dataclass
class IslTree:
    """An isl schedule with the tables that its marks refer to.

    shares : parameters that select a thread's own part of a shared copy
    around : the loops around each copy, outermost first
    """

    schedule: isl.Schedule | None = None
    bands: list[IslBand] = field(default_factory=list)
    promotes: list[IslPromote] = field(default_factory=list)
    copies: dict[str, Copy | Fence] = field(default_factory=dict)
    launch: Launch | None = None
    shares: dict[str, Share] = field(default_factory=dict)
    around: dict[str, tuple[Member, ...]] = field(default_factory=dict)


def to_isl(tree: Node, scop: Scop) -> IslTree:
    """The isl schedule tree for `tree`."""
    result = IslTree()
    body = _node(tree, scop, [], tuple(s.name for s in scop.statements), result)
    domain = scop.run_domain.intersect_params(scop.context)
    for c in result.copies.values():
        domain = domain.union(isl.UnionSet.from_set(isl.Map(c.extension).range()))
    return _finished(result, domain, body, scop)


def kernel_to_isl(launch: Launch, tree: Node, scop: Scop) -> IslTree:
    """The isl schedule tree of what one thread of one block runs in a launch.

    Its instances have ``block(S) = [block_z, block_y, block_x]`` and ``thread(S) =
    [thread_z, thread_y, thread_x]``, so that loops on blocks and threads run once.  A barrier runs
    in each iteration of the loops around it in which any thread has an instance: all threads of a
    block run the same loops.  Each thread has its share of a shared copy.

    tree : the tree of the launch, with barriers; scop : with the instances run of each statement
    """
    result = IslTree(launch=launch)
    body = _node(band(launch.host, tree), scop, [], launch.statements, result)
    domain = isl.UnionSet.empty(scop.context.get_space())
    for name in launch.statements:
        s = scop.as_run(name)
        own = s.domain
        for parameter, f in parameter_values(launch, scop, name).items():
            if parameter == lanes_of(launch, name):
                continue
            own = own.intersect(f.eq_set(_parameter(parameter, own)))
        domain = domain.union(isl.UnionSet.from_set(own))
    domain = domain.intersect_params(scop.context)
    for c in result.copies.values():
        own = isl.Map(c.extension).range()
        # Loops elsewhere may have the same names.
        around = {m.name: launch.parameter_of(m) for m in result.around[c.name]}
        for k, name in enumerate(c.prefix):
            found = around[name]
            if found is not None:
                index = isl.PwAff(f"{{ {c.tuple_text} -> [({dim('x', k)})] }}")
                own = own.intersect(index.eq_set(_parameter(found, own)))
        # Each thread initialises its own part of a joint reduction; the first writes the result.
        if isinstance(c, Copy) and not c.shared and not (c.op and c.inward):
            lanes = {launch.thread_names[0]} if c.matrix else set()
            own = _by_the_first({*around.values(), *lanes}, own, launch)
        if isinstance(c, Copy) and c.shared:
            own = _shared_out(c, own, launch, result)
        domain = domain.union(isl.UnionSet.from_set(own))
    return _finished(result, domain, body, scop)


def _parameter(name: str, domain: isl.Set) -> isl.PwAff:
    """A parameter as a function on a set."""
    d = ", ".join(dims("d", domain.dim(isl.dim_type.set)))
    return isl.PwAff(f"[{name}] -> {{ {domain.get_tuple_name()}[{d}] -> [({name})] }}")


def _by_the_first(around: Set[str | None], own: isl.Set, launch: Launch) -> isl.Set:
    """The instances of the first thread along each axis without a loop `around`: the others have
    none there, or, if they reduce together, the same.
    """
    for name in launch.thread_names:
        if name not in around:
            own = own.intersect_params(isl.Set(f"[{name}] -> {{ : {name} = 0 }}"))
    return own


def _shared_out(c: Copy, own: isl.Set, launch: Launch, out: IslTree) -> isl.Set:
    """The part of a shared copy that one thread does.

    Adjacent elements along the innermost loop go to adjacent threads, w of them, and the other
    threads take the next rows: with p the indices of the two innermost loops,
    ``p[-1] mod w = column and p[-2] mod (threads/w) = row``.
    """
    column, row = f"{c.name}_column", f"{c.name}_row"
    width, rows = _row_of_threads(c, launch)
    out.shares[column], out.shares[row] = Share(1, width), Share(width, 0)
    # Threads beyond the last full row are idle.
    for parameter, at, count in ((column, 1, width), (row, 2, rows)):
        if at > len(c.shared_out):
            own = own.intersect_params(isl.Set(f"[{parameter}] -> {{ : {parameter} = 0 }}"))
            continue
        f = c.shared_out[-at].schedule.get_pw_aff_list().get_at(0)
        own = own.intersect(f.mod_val(isl.Val(count)).eq_set(_parameter(parameter, own)))
    return own


def _row_of_threads(c: Copy, launch: Launch) -> tuple[int, int]:
    """The threads for a row of a shared copy, and the rows that they copy at a time."""
    width = 1
    inner = c.shared_out[-1] if c.shared_out else None
    while inner is not None and width < loop_length(c, inner) and 2 * width <= launch.threads:
        width *= 2
    return width, launch.threads // width


def _copy_loops(c: Copy | Fence, launch: Launch | None) -> list[isl.UnionPwAff]:
    """The functions of the loops of a copy; of a shared one, the rounds of its threads.

    isl would rather enumerate a thread's own indices with a stride, but where the first of them is
    piecewise, it may generate an index that is not one of them.
    """
    functions = [m.schedule for m in c.members]
    if isinstance(c, Copy) and c.shared and launch is not None:
        for at, count in enumerate(_row_of_threads(c, launch), 1):
            own = len(c.shared_out) - at
            if own >= 0:
                functions[own] = functions[own].scale_down_val(isl.Val(count)).floor()
    return functions


def loop_length(c: Copy, member: Member) -> int:
    """The most iterations that a loop of a copy has."""
    image = isl.Map.from_pw_aff(member.schedule.get_pw_aff_list().get_at(0)).range()
    low, high = image.dim_min_val(0), image.dim_max_val(0)
    if low.is_int() and high.is_int():
        return int(high.to_python()) - int(low.to_python()) + 1
    return max(c.sizes)


def kernel_context(tree: IslTree, scop: Scop) -> isl.Set:
    """The constraints on a kernel's parameters: those of the program, and ranges of indices."""
    launch = tree.launch
    assert launch is not None
    context = scop.context
    bounds = [*zip(launch.thread_names, launch.block, strict=True)]
    bounds += [
        (name, s.modulus or -(-launch.threads // s.divisor)) for name, s in tree.shares.items()
    ]
    for name, count in bounds:
        context = context.intersect(isl.Set(f"[{name}] -> {{ : 0 <= {name} < {count} }}"))
    for name, extent in zip(launch.block_names, launch.grid, strict=True):
        value = isl.PwAff(f"[{name}] -> {{ [({name})] }}")
        context = context.intersect(isl.Set(f"[{name}] -> {{ : 0 <= {name} }}"))
        context = context.intersect(value.lt_set(extent).params())
    return context


def _finished(result: IslTree, domain: isl.UnionSet, body: str, scop: Scop) -> IslTree:
    text = f'{{ domain: "{domain}"'
    if body:
        text += f", child: {body}"
    result.schedule = isl.Schedule.read_from_str(scop.context.get_ctx(), text + " }")
    return result


def _node(
    node: Node, scop: Scop, outer: list[Member], statements: tuple[str, ...], out: IslTree
) -> str:
    """The node in isl's flow-style YAML; "" for a leaf."""
    if isinstance(node, Leaf):
        return ""
    if isinstance(node, Sequence):
        children = []
        for f in node.children:
            if isinstance(f.child, Barrier):
                barrier = _barrier(f.child, scop, outer, statements)
                out.copies[barrier.name] = barrier
                out.around[barrier.name] = tuple(outer)
                children.append(f'{{ filter: "{{ {barrier.tuple_text} }}" }}')
                continue
            before = set(out.copies)
            child = _node(f.child, scop, outer, f.statements, out)
            body = f", child: {child}" if child else ""
            children.append(f'{{ filter: "{_filter(scop, f, _since(before, out))}"{body} }}')
        return f"{{ sequence: [ {', '.join(children)} ] }}"
    if isinstance(node, Promote):
        return _promote(node, scop, outer, statements, out)
    assert isinstance(node, Band)
    cut = _end_of_band(node.members)
    here, below = node.members[:cut], band(node.members[cut:], node.child)
    number, before = len(out.bands), set(out.copies)
    out.bands.append(IslBand(len(outer), here))
    child = _node(below, scop, [*outer, *here], statements, out)
    functions = _with_copies(here, _since(before, out), scop, out.launch)
    # One loop per member: otherwise isl may split a loop by statement, with everything below it.
    atomic = "; ".join(f"atomic[{k}]" for k in range(len(here)))
    if here[-1].isolate:
        full = _full_tiles(scop, outer, here, below, statements)
        # Vectors of an isolated loop need a range of it, not a condition.
        versions = out.launch is None and here[-1].mark != Mark.VECTOR
        if full is not None and versions and _depends_on_sizes(full):
            out.bands[number] = replace(out.bands[number], full=full)
        elif full is not None:
            inside = "; ".join(f"[isolate[] -> atomic[{k}]]" for k in range(len(here)))
            isolated = str(_isolated(full, len(outer), len(here)))
            atomic = f"{atomic}; {inside}; {isolated.partition('{')[2].rpartition('}')[0]}"
    options = f', options: "{parameters(scop.program)} {{ {atomic} }}"'
    text = f'{{ schedule: "{functions}"{options}'
    text += f", child: {child} }}" if child else " }"
    return f'{{ mark: "band:{number}", child: {text} }}'


def _end_of_band(members: tuple[Member, ...]) -> int:
    """How many members are one band for isl, which separates full tiles a band at a time.

    It ends after an isolated member, and before it after those that threads share: these have full
    and partial tiles in one loop, not one after the other.
    """
    end = next((n + 1 for n, m in enumerate(members) if m.isolate), len(members))
    if not members[end - 1].isolate:
        return end
    shared = [n + 1 for n, m in enumerate(members[: end - 1]) if m.mark == Mark.PARALLEL]
    return shared[-1] if shared else end


def _since(before: set[str], out: IslTree) -> list[Copy | Fence]:
    """The copies that were added after `before`."""
    return [c for name, c in out.copies.items() if name not in before]


def _with_copies(
    members: tuple[Member, ...], copies: list[Copy | Fence], scop: Scop, launch: Launch | None
) -> isl.MultiUnionPwAff:
    """The members' functions, extended to the copies below, which name their iterations."""
    functions = []
    for m in members:
        f = m.schedule
        for c in copies:
            sizes = [*scop.program.sizes]
            if m.name in c.prefix:
                value = dim("x", c.prefix.index(m.name))
                if isinstance(c, Copy) and c.ahead and m.name == c.prefix[-1]:
                    value += " - 1"
            else:  # a loop on threads, which share the copy
                assert launch is not None
                value = launch.parameter_of(m) or ""
                sizes.append(value)
            text = f"[{', '.join(sizes)}] -> {{ {c.tuple_text} -> [({value})] }}"
            f = f.union_add(isl.UnionPwAff(text))
        functions.append(f)
    return joint(functions)


def _filter(scop: Scop, f: Filter, copies: list[Copy | Fence]) -> str:
    names = [
        f"{s.name}[{', '.join(dims('d', len(s.loops)))}]"
        for s in (scop.statement(name) for name in f.statements)
    ]
    return "{ " + "; ".join([*names, *(c.tuple_text for c in copies)]) + " }"


def _promote(
    node: Promote, scop: Scop, outer: list[Member], statements: tuple[str, ...], out: IslTree
) -> str:
    number = len(out.promotes)
    prefix = prefix_of(node, outer)
    plan = plan_promotion(node, scop, prefix, statements)
    moved = any(o is not None for o in plan.origins)
    loops = (
        Around(m, any(m is x for x in prefix), _only(m, scop) if moved else None) for m in outer
    )
    out.promotes.append(IslPromote(node, plan, tuple(loops), statements))
    before = set(out.copies)
    inner = _node(node.child, scop, outer, statements, out)
    nested = _since(before, out)
    child = f", child: {inner}" if inner else ""
    children: list[str] = []

    def copy(c: Copy | Fence) -> None:
        out.copies[c.name] = c
        out.around[c.name] = tuple(outer)
        if not c.members:  # one instance
            children.append(f'{{ filter: "{{ {c.tuple_text} }}" }}')
            return
        at = len(out.bands)
        out.bands.append(IslBand(len(outer), c.members))
        functions = joint(_copy_loops(c, out.launch))
        atomic = "; ".join(f"atomic[{k}]" for k in range(len(c.members)))
        options = f'options: "{{ {atomic} }}"'
        text = f'{{ mark: "band:{at}", child: {{ schedule: "{functions}", {options} }} }}'
        children.append(f'{{ filter: "{{ {c.tuple_text} }}", child: {text} }}')

    extensions = [c.extension for c in (plan.copy_in, plan.copy_out) if c is not None]
    around = fences(node, scop, prefix, statements, extensions)
    for c in (*around[:1], plan.copy_in):
        if c is not None:
            copy(c)
    own = _filter(scop, Filter(statements, leaf()), nested)
    children.append(f'{{ filter: "{own}"{child} }}')
    together: list[Fence] = []
    if node.scope == Scope.PARTIAL:
        assert out.launch is not None
        threads = reducing(out.launch, node)
        together.append(combination(node, scop, _without_threads(outer), statements, threads))
    for c in (*together, plan.copy_out, *around[1:]):
        if c is not None:
            copy(c)
    if len(children) == 1:
        return f'{{ mark: "promote:{number}"{child} }}' if inner else ""
    body = f"{{ sequence: [ {', '.join(children)} ] }}"
    return f'{{ mark: "promote:{number}", child: {body} }}'


def _only(member: Member, scop: Scop) -> int | None:
    limits = member_limits(member, scop)
    return limits[0] if limits is not None and limits[0] == limits[1] else None


def _barrier(node: Barrier, scop: Scop, outer: list[Member], statements: tuple[str, ...]) -> Fence:
    """``{ barrier[p] }`` for all iterations p around it, of any thread, with an instance."""
    prefix = _without_threads(outer)
    here = everywhere(node.name, scop, prefix, statements, node.early)
    return Fence(node.name, tuple(m.name for m in prefix), here, barrier=True)


def _without_threads(outer: list[Member]) -> list[Member]:
    return [m for m in outer if m.mark not in ON_THREADS]


def _full_tiles(
    scop: Scop,
    outer: list[Member],
    here: tuple[Member, ...],
    below: Node,
    statements: tuple[str, ...],
) -> isl.Set | None:
    """``{ [outer, here] }``: the tiles without missing lanes or unrolled iterations; None if there
    are none.

    For each statement below, the box is the range of its vector and unrolled loops over all tiles.
    A tile is full if no point of the box is missing: the complement of box(o, h) minus the image
    of the domain, projected on (o, h).  The deepest statements run in all full tiles; one that is
    sunk to the ends of a loop misses none where it does not run.
    """
    every: isl.Set | None = None
    missing: isl.Set | None = None
    start = len(outer) + len(here)
    deepest = max((len(loops_of(below, name)) for name in statements), default=0)
    for name in statements:
        loops, domain = loops_of(below, name), scop.as_run(name).domain
        tiles_below = [m for m in loops if not _in_registers(m)]
        still_cut = {d for m in tiles_below for d in _moving(m, domain)}
        # Missing points along a dimension that is cut further in are left to the inner tiles.
        inner = [m for m in loops if _in_registers(m) and not still_cut & _moving(m, domain)]
        image = _times([*outer, *here, *inner], domain)
        if image is None or not inner:
            continue
        image = image.intersect_params(scop.context)
        tiles = image.project_out(isl.dim_type.set, start, len(inner))
        box = tiles.add_dims(isl.dim_type.set, len(inner))
        for k in range(len(inner)):
            low, high = image.dim_min_val(start + k), image.dim_max_val(start + k)
            if low.is_int() and high.is_int():
                box = box.lower_bound_val(isl.dim_type.set, start + k, low)
                box = box.upper_bound_val(isl.dim_type.set, start + k, high)
            else:
                image = image.drop_constraints_involving_dims(isl.dim_type.set, start + k, 1)
        partial = box.subtract(image).project_out(isl.dim_type.set, start, len(inner))
        if len(loops_of(below, name)) == deepest:
            every = tiles if every is None else every.intersect(tiles)
        missing = partial if missing is None else missing.union(partial)
    if every is None or missing is None:
        return None
    full = every.subtract(missing.coalesce()).coalesce()
    return None if full.is_empty() else full


def _in_registers(member: Member) -> bool:
    """Whether the iterations of a loop become one instruction, or several one after the other."""
    return member.mark in (Mark.VECTOR, Mark.UNROLL) or isinstance(member.mark, Tensorized)


def _depends_on_sizes(full: isl.Set) -> bool:
    return bool(full.involves_dims(isl.dim_type.param, 0, full.dim(isl.dim_type.param)))


def _isolated(full: isl.Set, outer: int, here: int) -> isl.UnionSet:
    """``{ isolate[[outer] -> [here]] }``, the option of isl for these tiles."""
    params = ", ".join(full.get_var_names(isl.dim_type.param))
    o, h = ", ".join(dims("o", outer)), ", ".join(dims("h", here))
    flat = ", ".join(x for x in (o, h) if x)
    wrap = isl.Map(f"[{params}] -> {{ [{flat}] -> isolate[[{o}] -> [{h}]] }}")
    return isl.UnionSet.from_set(full.apply(wrap))


def _moving(member: Member, domain: isl.Set) -> set[int]:
    """The dimensions of a statement's domain that a member's function depends on."""
    functions = member.schedule.get_pw_aff_list()
    own = (functions.get_at(k) for k in range(functions.n_pw_aff()))
    return {
        d
        for f in own
        if f.get_tuple_id(isl.dim_type.in_).name == domain.get_tuple_name()
        for _, piece in f.get_pieces()
        for d in range(domain.dim(isl.dim_type.set))
        if piece.involves_dims(isl.dim_type.in_, d, 1)
    }


def _times(members: list[Member], domain: isl.Set) -> isl.Set | None:
    """The values of the members' functions over one statement's domain."""
    if not members:
        return None
    union = isl.UnionSet.from_set(domain)
    mupa = joint([m.schedule.intersect_domain_union_set(union) for m in members])
    image = union.apply(isl.UnionMap.from_multi_union_pw_aff(mupa))
    sets = image.get_set_list()
    return sets.get_at(0) if sets.n_set() else None


def from_isl(node: isl.ScheduleNode, scop: Scop) -> Node:
    """Our tree for the part of an isl tree below `node`; loops are named after the statements'.

    Raises
    ------
    ScheduleError : for node types that isl's scheduler does not produce.
    """
    kind = node.get_type()
    types = isl.schedule_node_type
    if kind == types.leaf:
        return leaf()
    if kind == types.domain:
        return _with_empty(_rename(from_isl(node.child(0), scop), scop, ()), scop)
    if kind == types.band:
        mupa = node.band_get_partial_schedule()
        members = [Member(f"?{k}", mupa.get_at(k)) for k in range(mupa.dim(isl.dim_type.out))]
        return band(members, from_isl(node.child(0), scop))
    if kind in (types.sequence, types.set):
        children = [_filtered(node.child(k), scop) for k in range(node.n_children())]
        return sequence([f for f in children if f.statements])
    raise ScheduleError(f"an isl schedule node of type {kind} is not understood")


def _filtered(node: isl.ScheduleNode, scop: Scop) -> Filter:
    sets = node.filter_get_filter().get_set_list()
    found = {sets.get_at(k).get_tuple_name() for k in range(sets.n_set())}
    names = tuple(s.name for s in scop.statements if s.name in found and not s.domain.is_empty())
    return Filter(names, from_isl(node.child(0), scop))


def _with_empty(tree: Node, scop: Scop) -> Node:
    """The tree with the statements without instances, which isl omits, at the end."""
    empty = [s.name for s in scop.statements if s.domain.is_empty()]
    if not empty:
        return tree
    rest = tuple(s.name for s in scop.statements if s.name not in empty)
    first = [Filter(rest, tree)] if rest else []
    return sequence([*first, *(Filter((name,), leaf()) for name in empty)])


def _rename(node: Node, scop: Scop, taken: tuple[str, ...]) -> Node:
    """Name each loop after the statement dimension that it runs, made unique on its path."""
    if isinstance(node, Sequence):
        return sequence(
            [Filter(f.statements, _rename(f.child, scop, taken)) for f in node.children]
        )
    if not isinstance(node, Band):
        return node
    members = []
    for m in node.members:
        name = _plain_dimension(m, scop) or "t"
        unique, count = name, 2
        while unique in taken:
            unique, count = f"{name}{count}", count + 1
        taken = (*taken, unique)
        members.append(Member(unique, m.schedule))
    return band(members, _rename(node.child, scop, taken))


def _plain_dimension(m: Member, scop: Scop) -> str | None:
    """The loop of some statement that the member runs exactly, the last statement's first."""
    found: str | None = None
    for s in scop.statements:
        for name in s.loops:
            params = ", ".join(s.domain.get_var_names(isl.dim_type.param))
            own = isl.UnionPwAff(
                f"[{params}] -> {{ {s.name}[{', '.join(s.loops)}] -> [({name})] }}"
            )
            domain = isl.UnionSet.from_set(s.domain)
            mine = m.schedule.intersect_domain_union_set(domain)
            if mine.plain_is_equal(own.intersect_domain_union_set(domain)) or _equal(mine, own):
                found = name
    return found


def _equal(a: isl.UnionPwAff, b: isl.UnionPwAff) -> bool:
    left = isl.UnionMap.from_union_pw_aff(a)
    if left.is_empty():
        return False
    return bool(left.is_subset(isl.UnionMap.from_union_pw_aff(b)))
