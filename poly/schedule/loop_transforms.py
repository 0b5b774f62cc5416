"""Tree rewriting: what each schedule primitive does to the tree, before its legality is checked.

Every function here takes a tree and a `Step` and returns a new tree, or raises `ScheduleError`
when the step makes no sense on it.  Legality is not judged here: `poly.schedule.schedule` applies
the transformation and then checks the whole new tree against the dependences.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from poly.buffers.pad_tiles import with_padding
from poly.buffers.promotion import check_double_buffer, check_parts, plan_promotion, prefix_of
from poly.buffers.tensorize import fragment_of
from poly.deps.instances import end_value, restrict_to
from poly.deps.reference_groups import reference_groups
from poly.deps.scop import Scop
from poly.errors import ScheduleError
from poly.ir.dtypes import DTYPES, DType
from poly.ir.layout import Layout, layout_of
from poly.ir.program import Tensor
from poly.tree.kinds import CONCURRENT, Mark, Scope, Tensorized
from poly.tree.nodes import (
    Access,
    Band,
    Filter,
    Member,
    Node,
    Promote,
    Sequence,
    all_loops,
    band,
    loops_of,
    path_to,
    replace_node,
    sequence,
    statements_below,
    walk_tree,
)
from poly.tree.primitive import primitive
from poly.tree.steps import (
    LoopRef,
    Step,
    check_unmarked,
    find_loop,
    in_turn,
    only_loop,
    same_band,
    with_member,
)


def _fresh(tree: Node, statement: str, nest: Band, *names: str) -> None:
    """Refuse new loop names, for loops of `nest`, that a statement below it would have twice."""
    used = {m.name for m in loops_of(tree, statement)} | all_loops(nest)
    buffers = [n.buffer for n in walk_tree(tree) if isinstance(n, Promote)]
    for name in names:
        if name in used:
            raise ScheduleError(f"there is already a loop {name}; choose other names with `as`")
        for buffer in buffers:
            if name.startswith(f"{buffer}_"):
                raise ScheduleError(
                    f"{name} is reserved for loops that copy {buffer}; choose other names with `as`"
                )
    if len(set(names)) != len(names):
        raise ScheduleError(f"the new loops need different names, not {', '.join(names)}")


def _factors(step: Step, count: int) -> tuple[int, ...]:
    if len(step.by) != count:
        raise ScheduleError(f"{step}: {count} factors are needed, {len(step.by)} are given")
    for factor in step.by:
        if factor < 1:
            raise ScheduleError(f"{step}: {factor} is not a usable factor; it must be 1 or more")
    return step.by


def _split(member: Member, factor: int, outer: str, inner: str) -> tuple[Member, Member]:
    """f becomes (floor(f / factor), f mod factor): the same order in two loops."""
    value = isl.Val(factor)
    return (
        Member(outer, member.schedule.scale_down_val(value).floor()),
        Member(inner, member.schedule.mod_val(value)),
    )


def loop_names(step: Step) -> list[tuple[str, str]]:
    """New names of split loops: i gives i_o and i_i unless the step says otherwise."""
    if not step.words:
        return [(f"{loop}_o", f"{loop}_i") for loop in step.loops]
    if len(step.words) != 2 * len(step.loops):
        raise ScheduleError(f"{step}: `as` needs two names for each loop, outer loops first")
    half = len(step.loops)
    return list(zip(step.words[:half], step.words[half:], strict=True))


@primitive("split C: i by 32", numbers=True, words=True, names=True)
def split(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 1:
        raise ScheduleError(f"{step}: {step.primitive} takes one loop; tile takes several")
    nest, (position,) = same_band(tree, step, 1)
    (factor,) = _factors(step, 1)
    member = nest.members[position]
    check_unmarked(step, member)
    ((outer, inner),) = loop_names(step)
    _fresh(tree, step.statements[0], nest, outer, inner)
    members = (
        *nest.members[:position],
        *_split(member, factor, outer, inner),
        *nest.members[position + 1 :],
    )
    return replace_node(tree, nest, band(members, nest.child))


@primitive("tile C: i, j by 32, 32", numbers=True, words=True, names=True)
def tile(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    factors = _factors(step, len(positions))
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise ScheduleError(
            f"{step}: the loops must be adjacent, outermost first; "
            f"the nest is {', '.join(nest.names)}"
        )
    chosen = [nest.members[p] for p in positions]
    check_unmarked(step, *chosen)
    names = loop_names(step)
    _fresh(tree, step.statements[0], nest, *(n for pair in names for n in pair))
    pairs = [
        _split(m, f, outer, inner)
        for m, f, (outer, inner) in zip(chosen, factors, names, strict=True)
    ]
    members = (
        *nest.members[: positions[0]],
        *(outer for outer, _ in pairs),
        *(inner for _, inner in pairs),
        *nest.members[positions[-1] + 1 :],
    )
    return replace_node(tree, nest, band(members, nest.child))


@primitive("interchange C: i, j")
def interchange(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 2)
    if len(positions) != 2:
        raise ScheduleError(f"{step}: interchange takes two loops; use reorder for more")
    members = list(nest.members)
    a, b = positions
    members[a], members[b] = members[b], members[a]
    return replace_node(tree, nest, band(members, nest.child))


@primitive("reorder C: k, i, j")
def reorder(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 2)
    members = list(nest.members)
    for slot, position in zip(sorted(positions), positions, strict=True):
        members[slot] = nest.members[position]
    return replace_node(tree, nest, band(members, nest.child))


def fuse_early(tree: Node, scop: Scop, step: Step) -> Node:
    """`fuse`, with the fused nest in the position of the first one."""
    first, second = step.statements
    parent, a, b = _siblings(tree, first, second)
    children = list(parent.children)
    children[a] = _merge(parent.children[a], parent.children[b], step)
    del children[b]
    return replace_node(tree, parent, sequence(children))


def _siblings(tree: Node, first: str, second: str) -> tuple[Sequence, int, int]:
    for node in path_to(tree, first):
        if isinstance(node, Sequence):
            a = _child_with(node, first)
            b = _child_with(node, second)
            if a is not None and b is not None and a != b:
                return node, a, b
    raise ScheduleError(f"{first} and {second} are not in sequence; they already share all loops")


def _child_with(node: Sequence, statement: str) -> int | None:
    for position, f in enumerate(node.children):
        if statement in f.statements:
            return position
    return None


def _merge(a: Filter, b: Filter, step: Step) -> Filter:
    count = len(step.loops)
    nests: list[Band] = []
    for f in (a, b):
        if not isinstance(f.child, Band) or len(f.child.members) < count:
            have = ", ".join(f.child.names) if isinstance(f.child, Band) else "none"
            raise ScheduleError(
                f"{step}: {count} loops cannot be shared; "
                f"the outermost nest of {', '.join(f.statements)} has: {have}"
            )
        nests.append(f.child)
    one, two = nests
    if one.names[:count] != step.loops:
        raise ScheduleError(
            f"{step}: the outermost loops of {', '.join(a.statements)} are "
            f"{', '.join(one.names[:count])}, outermost first"
        )
    _check_same_marks(step, one.members[:count], two.members[:count])
    members = [
        replace(m, schedule=m.schedule.union_add(n.schedule))
        for m, n in zip(one.members[:count], two.members[:count], strict=True)
    ]
    inner = sequence(
        [
            Filter(a.statements, band(one.members[count:], one.child)),
            Filter(b.statements, band(two.members[count:], two.child)),
        ]
    )
    taken = {m.name for m in members}
    for node in walk_tree(inner):
        if isinstance(node, Band) and taken & set(node.names):
            clash = ", ".join(taken & set(node.names))
            raise ScheduleError(
                f"{step}: an inner loop is already named {clash}; "
                "`split` and `tile` give names with `as`"
            )
    return Filter((*a.statements, *b.statements), band(members, inner))


def _check_same_marks(step: Step, one: tuple[Member, ...], two: tuple[Member, ...]) -> None:
    """Loops that both run on threads share these; whether they may is checked like any order."""
    for m, n in zip(one, two, strict=True):
        if not m.mark == n.mark == Mark.PARALLEL:
            check_unmarked(step, m, n)


@primitive("fuse S, T: i", statements=2, otherwise=fuse_early)
def fuse(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.statements) != 2:
        raise ScheduleError(f"{step}: fuse takes two statements")
    if not step.loops:
        raise ScheduleError(f"{step}: say which loops to share, as in `fuse S, T: i, j`")
    first, second = step.statements
    parent, a, b = _siblings(tree, first, second)
    if a > b:
        raise ScheduleError(f"{step}: {second} runs before {first}; name the earlier one first")
    merged = _merge(parent.children[a], parent.children[b], step)
    children = list(parent.children)
    children[b] = merged
    del children[a]
    return replace_node(tree, parent, sequence(children))


@primitive("distribute S: i")
def distribute(tree: Node, scop: Scop, step: Step) -> Node:
    ref = only_loop(tree, step)
    nest, position = ref.band, ref.position
    if not isinstance(nest.child, Sequence):
        raise ScheduleError(f"{step}: there is only one statement below {nest.names[-1]}")
    outer, inner = nest.members[:position], nest.members[position:]
    check_unmarked(step, *inner)
    children = []
    for f in nest.child.children:
        # Beyond their domains, too, where instructions run, see `poly.buffers.pad_tiles`.
        domain = restrict_to(scop, f.statements).universe()
        own = [replace(m, schedule=m.schedule.intersect_domain_union_set(domain)) for m in inner]
        children.append(replace(f, child=band(own, f.child)))
    return replace_node(tree, nest, band(outer, sequence(children)))


@primitive("sink C: k")
def sink(tree: Node, scop: Scop, step: Step) -> Node:
    ref = only_loop(tree, step)
    check_unmarked(step, ref.member)
    parent = next(
        (
            n
            for n in path_to(tree, step.statements[0])
            if isinstance(n, Sequence) and any(f.child is ref.band for f in n.children)
        ),
        None,
    )
    if parent is None or ref.position:
        raise ScheduleError(
            f"{step}: {ref.member.name} must be the outermost loop of a nest that runs between "
            "others (see `reorder` and `distribute`)"
        )
    at = next(k for k, f in enumerate(parent.children) if f.child is ref.band)
    function, children = ref.member.schedule, []
    for k, f in enumerate(parent.children):
        if k == at:
            children.append(replace(f, child=band(ref.band.members[1:], ref.band.child)))
            continue
        for name in f.statements:
            if ref.member.name in {m.name for m in loops_of(tree, name)}:
                raise ScheduleError(
                    f"{step}: {name} has a loop {ref.member.name}, too; "
                    "give this one another name, with `as` of `split`"
                )
        end = end_value(scop, ref.member, parent.children[at].statements, last=k > at)
        domain = restrict_to(scop, f.statements)
        function = function.union_add(isl.UnionPwAff.pw_aff_on_domain(domain, end))
        children.append(f)
    shared = replace(ref.member, schedule=function)
    return replace_node(tree, parent, band([shared], sequence(children)))


@primitive("skew S: j, i by 1", numbers=True)
def skew(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) > 2:
        first, *others = step.loops
        numbers = step.by if len(step.by) == len(others) else (step.by or (1,))[:1] * len(others)
        one_each = [
            replace(step, loops=(first, loop), by=(n,))
            for loop, n in zip(others, numbers, strict=True)
        ]
        raise ScheduleError(f"{step}: skew adds one loop to another; {in_turn(one_each)}")
    if len(step.loops) != 2 or len(step.by) != 1:
        raise ScheduleError(f"{step}: write `skew S: j, i by 2` to run j + 2*i in place of j")
    ref = find_loop(tree, step.statements[0], step.loops[0])
    by = find_loop(tree, step.statements[0], step.loops[1])
    if ref.member is by.member:
        raise ScheduleError(f"{step}: a loop cannot be skewed by itself")
    check_unmarked(step, ref.member)
    same_band(tree, step, 2)
    skewed = ref.member.schedule.add(by.member.schedule.scale_val(isl.Val(step.by[0])))
    return with_member(tree, ref, replace(ref.member, schedule=skewed))


@primitive("shift S: i by 1", numbers=True)
def shift(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 1 or len(step.by) != 1:
        raise ScheduleError(f"{step}: write `shift S: i by 1`")
    ref = find_loop(tree, step.statements[0], step.loops[0])
    check_unmarked(step, ref.member)
    own = restrict_to(scop, step.statements[:1]).universe()
    amount = isl.UnionPwAff.val_on_domain(own, isl.Val(step.by[0]))
    moved = ref.member.schedule.intersect_domain_union_set(own).add(amount)
    rest = ref.member.schedule.subtract_domain_union_set(own)
    return with_member(tree, ref, replace(ref.member, schedule=rest.union_add(moved)))


@primitive("reverse S: i")
def reverse(tree: Node, scop: Scop, step: Step) -> Node:
    ref = only_loop(tree, step)
    check_unmarked(step, ref.member)
    return with_member(tree, ref, replace(ref.member, schedule=ref.member.schedule.neg()))


#: Suffixes of the names of buffers of each scope.
_BUFFER_ENDS = {
    Scope.REGISTER: "r",
    Scope.LOCAL: "p",
    Scope.SHARED: "s",
    Scope.FRAGMENT: "f",
    Scope.PARTIAL: "part",
}


@primitive("promote C: k_o as A, local", words=True, keeps_order=True)
def promote(tree: Node, scop: Scop, step: Step) -> Node:
    """Promote part of a tensor around the body of a loop, to a buffer.

    There is one for each group of accesses that are far apart, if a single one would be shared, or
    is refused.
    """
    tensor, scope, layout, dtype, ways = _buffer_of(step, scop)
    ref = find_loop(tree, step.statements[0], step.loops[0])
    outer = ref.band.members[: ref.position + 1]
    inner = band(ref.band.members[ref.position + 1 :], ref.band.child)
    _check_inside(step, inner, tensor, scope)
    _check_around(step, tree, ref, tensor, scope)
    above = loops_of(tree, step.statements[0])
    prefix = list(above[: [m.name for m in above].index(step.loops[0]) + 1])
    for m in prefix:
        if isinstance(m.mark, Tensorized):
            raise ScheduleError(
                f"{step}: {m.name} is a loop of {m.mark}, an instruction that has no buffers "
                "inside; promote around it"
            )
    names = statements_below(tree, ref.band, [s.name for s in scop.statements])
    ahead, padded = "ahead" in ways, "padded" in ways
    wanted = Promote(tensor, fresh_buffer(tree, scop, tensor, scope), scope, layout, inner, ahead,
                     padded, dtype=dtype)  # fmt: skip
    if ahead:
        check_double_buffer(wanted, scop, ref.member, names, f"{step}: ")

    around = [n for n in path_to(tree, step.statements[0]) if isinstance(n, Promote)]
    has_padding = any(n.tensor == tensor and n.padded for n in around)

    def promoted(below: Promote) -> Node:
        return replace_node(tree, ref.band, band(outer, below))

    def refused(below: Promote) -> ScheduleError | None:
        try:
            own = with_padding(promoted(below), scop)
            plan = plan_promotion(below, own, prefix_of(below, prefix), names)
            if scope == Scope.FRAGMENT and not has_padding:
                check_parts(plan, fragment_of(below, own, prefix, names).intrinsic, f"{step}")
        except ScheduleError as error:
            return error
        return None

    problem = refused(wanted)
    if not padded and (problem is not None or scope == Scope.SHARED):
        groups = reference_groups(tensor, scop, prefix_of(wanted, prefix), names)
        parts = _in_groups(wanted, groups) if len(groups) > 1 else ()
        if parts and not any(map(refused, parts)):
            return promoted(parts[0])
    if problem is not None:
        raise problem
    return promoted(wanted)


def _buffer_of(step: Step, scop: Scop) -> tuple[str, Scope, Layout, DType | None, frozenset[str]]:
    """The operands of a promotion: tensor, scope, layout, type, ``ahead`` and ``padded``."""
    if len(step.loops) != 1 or len(step.words) < 2:
        raise ScheduleError(f"{step}: write `promote S: loop as tensor, register`")
    tensor, word, *dims = step.words
    ways = set[str]()
    while dims and dims[-1] in ("ahead", "padded"):
        ways.add(dims.pop())
    if tensor not in scop.program.tensors:
        raise ScheduleError(f"{step}: there is no tensor {tensor}")
    if word not in (Scope.REGISTER, Scope.LOCAL, Scope.SHARED, Scope.FRAGMENT):
        raise ScheduleError(
            f"{step}: the scope is `register`, `local`, `shared` or `fragment`, not {word}"
        )
    scope = Scope(word)
    dtype = DTYPES[dims.pop()] if dims and dims[-1] in DTYPES else None
    if dtype is not None:
        _check_wider(step, scop.program.tensors[tensor], scope, dtype)
    try:
        layout = layout_of(dims, tensor, scop.program.tensors[tensor].rank)
    except ValueError as error:
        raise ScheduleError(f"{step}: {error}") from None
    if "padded" in ways and scope not in (Scope.SHARED, Scope.LOCAL):
        raise ScheduleError(
            f"{step}: only a `shared` or `local` buffer is padded, for instructions that read it"
        )
    if scope == Scope.FRAGMENT and dims:
        raise ScheduleError(f"{step}: a fragment has no layout: the hardware decides")
    return tensor, scope, layout, dtype, frozenset(ways)


def _check_wider(step: Step, tensor: Tensor, scope: Scope, dtype: DType) -> None:
    """Refuse a buffer of another type, unless expressions of the tensor are computed in that."""
    if scope not in (Scope.REGISTER, Scope.LOCAL):
        raise ScheduleError(f"{step}: only a `register` or `local` buffer has another element type")
    own = tensor.dtype
    if not own.is_widened:
        raise ScheduleError(f"{step}: {own} is computed in {own}, so its copy is of {own}, too")
    if dtype != own.compute:
        raise ScheduleError(f"{step}: {own} is computed in {own.compute}, not in {dtype}")


def _check_inside(step: Step, inner: Node, tensor: str, scope: Scope) -> None:
    """Refuse inner loops that run on other threads, and inner promotions that must be outside."""
    for node in walk_tree(inner):
        apart = (Mark.PARALLEL, Mark.BLOCK) if scope == Scope.SHARED else CONCURRENT
        if isinstance(node, Band) and any(m.mark in apart for m in node.members):
            owner = {Scope.SHARED: "block", Scope.FRAGMENT: "warp"}.get(scope, "thread")
            raise ScheduleError(
                f"{step}: a buffer belongs to one {owner}, but loops inside run on several"
            )
        own = isinstance(node, Promote) and node.tensor == tensor
        inside = node.scope if isinstance(node, Promote) and own else Scope.PARTIAL
        if inside != Scope.PARTIAL and (scope != Scope.REGISTER or inside == Scope.SHARED):
            raise ScheduleError(f"{step}: {tensor} is already promoted further in")


def _check_around(step: Step, tree: Node, ref: LoopRef, tensor: str, scope: Scope) -> None:
    """Refuse promotions around a loop that hold a part of the tensor exclusively."""
    for node in path_to(tree, step.statements[0]):
        if node is ref.band:
            break
        if not isinstance(node, Promote) or node.tensor != tensor:
            continue
        if node.scope == Scope.PARTIAL:
            raise ScheduleError(
                f"{step}: {node.buffer} around {ref.member.name} holds what each thread sums up "
                f"of {tensor}, in a register already"
            )
        if scope == Scope.SHARED and node.scope != Scope.SHARED:
            raise ScheduleError(
                f"{step}: {node.buffer} around {ref.member.name} belongs to one thread; share "
                f"{tensor} first, and promote inside"
            )


def _in_groups(node: Promote, groups: tuple[frozenset[Access], ...]) -> tuple[Promote, ...]:
    """A promotion for each group of accesses, nested."""
    made: list[Promote] = []
    for number, accesses in reversed([*enumerate(groups, 1)]):
        below = made[-1] if made else node.child
        buffer = f"{node.buffer}_{number}"
        made.append(replace(node, buffer=buffer, accesses=accesses, child=below))
    return tuple(reversed(made))


def fresh_buffer(tree: Node, scop: Scop, tensor: str, scope: Scope) -> str:
    """An unused name for a buffer of a tensor."""
    used = {n.buffer for n in walk_tree(tree) if isinstance(n, Promote)}
    used |= {*scop.program.tensors, *scop.program.sizes, *scop.by_name, *all_loops(tree)}
    buffer, count = f"{tensor}_{_BUFFER_ENDS[scope]}", 2
    while buffer in used or any(u.startswith(f"{buffer}_") for u in used):  # see `_in_groups`
        buffer, count = f"{buffer.rstrip('0123456789')}{count}", count + 1
    return buffer
