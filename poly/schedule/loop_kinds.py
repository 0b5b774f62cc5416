"""Marks of loops: parallel, vectorised, unrolled, blocks and threads of a GPU.

As in `poly.schedule.loop_transforms`, legality is not judged here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import islpy as isl

from poly.buffers.promotion import plan_promotion
from poly.deps.instances import function_of
from poly.deps.scop import Role, Scop, ScopStatement
from poly.errors import CapacityError, ScheduleError
from poly.ir.intrinsics import MatrixIntrinsic
from poly.ir.layout import layout_of
from poly.lower.launches import thread_extent
from poly.machine.gpu import DIMENSIONS
from poly.schedule.loop_transforms import fresh_buffer, loop_names, split
from poly.tree.kinds import ON_THREADS, Mark, Scope, Tensorized
from poly.tree.nodes import (
    Band,
    Member,
    Node,
    Promote,
    Sequence,
    band,
    loops_of,
    path_to,
    replace_node,
    statements_below,
    walk_tree,
)
from poly.tree.primitive import primitive
from poly.tree.steps import LoopRef, Step, check_unmarked, only_loop, same_band, with_member


def only_on_gpu(tree: Node) -> str:
    """The first thing in a tree that a CPU does not have; empty if there is none."""
    for node in walk_tree(tree):
        for m in node.members if isinstance(node, Band) else ():
            if m.mark in (Mark.BLOCK, *ON_THREADS):
                step = {Mark.BLOCK: "map_blocks", Mark.THREAD: "map_threads"}.get(
                    m.mark, "reduce_threads"
                )
                return f"{step} of {m.name}: a CPU has no such blocks or threads"
            if isinstance(m.mark, Tensorized) and isinstance(m.mark.intrinsic, MatrixIntrinsic):
                return f"tensorize as {m.mark}: a CPU has none"
        if isinstance(node, Promote) and node.scope == Scope.SHARED:
            return f"{node.buffer}: there is no shared memory on a CPU; use `local`"
    return ""


@primitive("parallelize C: i")
def parallelize(tree: Node, scop: Scop, step: Step) -> Node:
    ref = only_loop(tree, step)
    check_unmarked(step, ref.member)
    for node in path_to(tree, step.statements[0]):
        if node is ref.band:
            break
        if isinstance(node, Promote):
            raise ScheduleError(
                f"{step}: {node.buffer} around {ref.member.name} belongs to one thread; "
                "parallelize first, and promote inside"
            )
    adjacent = _parallel_around(ref)
    for other in statements_below(tree, ref.band, [s.name for s in scop.statements]):
        for m in loops_of(tree, other):
            if m.mark == Mark.PARALLEL and m not in adjacent:
                raise ScheduleError(
                    f"{step}: {m.name} around {other} is already parallel; "
                    "only loops directly inside one another can share threads"
                )
        for m in loops_of(tree, other):
            if m is ref.member:
                break
            if m.mark in (Mark.VECTOR, Mark.UNROLL):
                raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    return with_member(tree, ref, replace(ref.member, mark=Mark.PARALLEL))


def _parallel_around(ref: LoopRef) -> list[Member]:
    """A member and the parallel members of its band around it, with no others in between."""
    members = ref.band.members
    outside = takewhile(lambda m: m.mark == Mark.PARALLEL, reversed(members[: ref.position]))
    inside = takewhile(lambda m: m.mark == Mark.PARALLEL, members[ref.position + 1 :])
    return [*outside, ref.member, *inside]


@primitive("vectorize C: j by 16", numbers=True, words=True, names=True)
def vectorize(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(loop_names(step)[0][1],), by=(), words=())
    ref = only_loop(tree, step)
    check_unmarked(step, ref.member)
    for m in loops_of(tree, step.statements[0]):
        if m is ref.member:
            break
        if m.mark == Mark.VECTOR:
            raise ScheduleError(f"{step}: {m.name} outside is already in lanes")
    inner = [*ref.band.members[ref.position + 1 :]]
    for node in walk_tree(ref.band.child):
        inner += node.members if isinstance(node, Band) else ()
        if isinstance(node, Promote) and node.scope != Scope.REGISTER:
            raise ScheduleError(f"{step}: {node.buffer} inside is not in registers")
    for m in inner:
        if m.mark not in (Mark.SEQ, Mark.UNROLL):
            raise ScheduleError(f"{step}: {m.name} inside is marked {m.mark}")
    return with_member(tree, ref, replace(ref.member, mark=Mark.VECTOR))


@primitive("unroll C: k by 4", numbers=True, words=True, names=True, keeps_order=True)
def unroll(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(loop_names(step)[0][1],), by=(), words=())
    ref = only_loop(tree, step)
    check_unmarked(step, ref.member)
    return with_member(tree, ref, replace(ref.member, mark=Mark.UNROLL))


@primitive("isolate C: i_o", keeps_order=True)
def isolate(tree: Node, scop: Scop, step: Step) -> Node:
    ref = only_loop(tree, step)
    return with_member(tree, ref, replace(ref.member, isolate=True))


@primitive("map_blocks C: i_o, j_o")
def map_blocks(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    chosen = [nest.members[p] for p in positions]
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise ScheduleError(f"{step}: blocks need adjacent loops, in the order of the nest")
    if len(positions) > DIMENSIONS:
        raise CapacityError(f"{step}: a grid has at most {DIMENSIONS} dimensions")
    check_unmarked(step, *chosen)
    for name in statements_below(tree, nest, [s.name for s in scop.statements]):
        for m in loops_of(tree, name):
            if m.mark in (Mark.BLOCK, Mark.PARALLEL):
                raise ScheduleError(f"{step}: {m.name} around {name} is already marked {m.mark}")
    for node in path_to(tree, step.statements[0]):
        if node is nest:
            break
        if isinstance(node, Promote):
            raise ScheduleError(
                f"{step}: {node.buffer} around {chosen[0].name} belongs to one block; "
                "map to blocks first, and promote inside"
            )
    for m in chosen:
        if _below_zero(m, scop):
            raise ScheduleError(f"{step}: {m.name} begins below 0; shift it to begin at 0")
    outside = _before(tree, step.statements[0], chosen[0])
    if any(m.mark != Mark.SEQ for m in outside):
        (m, *_) = (m for m in outside if m.mark != Mark.SEQ)
        raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    return _marked(tree, nest, positions, Mark.BLOCK)


@primitive("map_threads C: i_i, j_i")
def map_threads(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    return _on_threads(tree, scop, step, nest, positions, Mark.THREAD)


def _on_threads(
    tree: Node, scop: Scop, step: Step, nest: Band, positions: list[int], mark: Mark
) -> Node:
    """Mark some loops of a band for threads."""
    chosen = [nest.members[p] for p in positions]
    check_unmarked(step, *chosen)
    names = statements_below(tree, nest, [s.name for s in scop.statements])
    for name in names:
        around = loops_of(tree, name)
        warps = any(isinstance(m.mark, Tensorized) for m in around)  # their threads are a dimension
        if sum(m.mark in ON_THREADS for m in around) + len(chosen) + warps > DIMENSIONS:
            raise CapacityError(f"{step}: a block has at most {DIMENSIONS} dimensions")
        for m in around:
            if m.mark == Mark.PARALLEL:
                raise ScheduleError(f"{step}: {m.name} around {name} is already marked parallel")
    for m in _before(tree, step.statements[0], chosen[-1]):
        if m.mark in (Mark.VECTOR, Mark.UNROLL):
            raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    for m in nest.members[positions[0] :]:
        if m.mark == Mark.BLOCK:
            raise ScheduleError(f"{step}: blocks run threads, but {m.name} is inside")
    for node in path_to(tree, step.statements[0]):
        if node is nest:
            break
        if isinstance(node, Promote) and node.scope != Scope.SHARED:
            raise ScheduleError(
                f"{step}: {node.buffer} around {chosen[0].name} belongs to one thread; "
                "map to threads first, and promote inside"
            )
    for m in chosen:
        thread_extent(m, scop, f"{step}")
    return _marked(tree, nest, positions, mark)


@primitive("reduce_threads C: k_i")
def reduce_threads(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    chosen = [nest.members[p] for p in positions]
    s = scop.statement(step.statements[0])
    names = statements_below(tree, nest, [s.name for s in scop.statements])
    if s.role != Role.UPDATE:
        raise ScheduleError(f"{step}: {s.name} is not a reduction; use map_threads")
    if names != (s.name,):
        others = ", ".join(n for n in names if n != s.name)
        raise ScheduleError(
            f"{step}: {others} runs in the same loops, but only one reduction can; see `distribute`"
        )
    for m in chosen:
        if _moves_target(m, s):
            raise ScheduleError(
                f"{step}: {m.name} moves {s.target}, so that nothing is summed up along it; use "
                "map_threads"
            )
    target = s.target.tensor
    for node in walk_tree(nest.child):
        if isinstance(node, Promote) and node.tensor == target:
            raise ScheduleError(
                f"{step}: {node.buffer} inside holds {target}; reduce first, and promote around"
            )
    tree = _on_threads(tree, scop, step, nest, positions, Mark.REDUCE)
    return _in_parts(tree, scop, s, chosen[0].name)


def _in_parts(tree: Node, scop: Scop, s: ScopStatement, loop: str) -> Node:
    """Keep each thread's part of a reduction around all loops that leave the target unchanged."""
    around: list[LoopRef] = []
    for node in path_to(tree, s.name):
        if isinstance(node, Sequence) or (
            isinstance(node, Promote) and node.tensor == s.target.tensor
        ):
            around = []
        if isinstance(node, Band):
            around += [LoopRef(node, k) for k in range(len(node.members))]
    names = [p.member.name for p in around]
    first = names.index(loop)
    while first and around[first - 1].member.mark == Mark.SEQ and not _moves_target(
        around[first - 1].member, s
    ):  # fmt: skip
        first -= 1
    ref = around[first]
    outer, inner = ref.band.members[: ref.position], ref.band.members[ref.position :]
    tensor = s.target.tensor
    layout = layout_of([], tensor, scop.program.tensors[tensor].rank)
    below = Promote(tensor, fresh_buffer(tree, scop, tensor, Scope.PARTIAL), Scope.PARTIAL, layout,
                    band(inner, ref.band.child))  # fmt: skip
    above = loops_of(tree, s.name)
    prefix = above[: [m.name for m in above].index(ref.member.name)]
    plan_promotion(below, scop, list(prefix), (s.name,))
    return replace_node(tree, ref.band, band(outer, below))


def _moves_target(member: Member, s: ScopStatement) -> bool:
    """Whether iterations of a loop may have different targets."""
    free = [k for k, name in enumerate(s.loops) if name in s.free]
    values = [value for _, value in function_of(member, s).gist(s.domain).get_pieces()]
    return any(value.involves_dims(isl.dim_type.in_, k, 1) for value in values for k in free)


def _below_zero(member: Member, scop: Scop) -> bool:
    """Whether a loop may have values below 0."""
    values = scop.domain.apply(isl.UnionMap.from_union_pw_aff(member.schedule))
    return not values.intersect(isl.UnionSet("{ [x] : x < 0 }")).is_empty()


def _before(tree: Node, statement: str, member: Member) -> list[Member]:
    """The loops around a loop."""
    return list(takewhile(lambda m: m is not member, loops_of(tree, statement)))


def _marked(tree: Node, nest: Band, positions: list[int], mark: Mark) -> Node:
    members = list(nest.members)
    for p in positions:
        members[p] = replace(members[p], mark=mark)
    return replace_node(tree, nest, band(members, nest.child))
