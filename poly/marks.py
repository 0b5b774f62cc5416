"""What loops become: run on threads, in lanes, written out, on blocks and threads of a GPU.

As in `poly.transforms`, legality is not judged here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import islpy as isl

from poly.errors import ScheduleError
from poly.instances import member_limits
from poly.scop import Scop
from poly.steps import Place, Step, check_unmarked, only_loop, same_band, with_member
from poly.transforms import loop_names, split
from poly.tree import (
    Band,
    Member,
    Node,
    Promote,
    band,
    loops_of,
    path_to,
    replace_node,
    statements_below,
    walk_tree,
)

#: Dimensions of a grid, and of a block of threads.
MOST_DIMENSIONS = 3
#: Threads of a block that every GPU has.
MOST_THREADS = 1024


def parallelize(tree: Node, scop: Scop, step: Step) -> Node:
    place = only_loop(tree, step)
    check_unmarked(step, place.member)
    for node in path_to(tree, step.statements[0]):
        if node is place.band:
            break
        if isinstance(node, Promote):
            raise ScheduleError(
                f"{step}: {node.buffer} around {place.member.name} belongs to one thread; "
                "parallelize first, and promote inside"
            )
    neighbours = _parallel_around(place)
    for other in statements_below(tree, place.band, [s.name for s in scop.statements]):
        for m in loops_of(tree, other):
            if m.mark == "parallel" and m not in neighbours:
                raise ScheduleError(
                    f"{step}: {m.name} around {other} is already parallel; "
                    "only loops directly inside one another can share threads"
                )
        for m in loops_of(tree, other):
            if m is place.member:
                break
            if m.mark in ("vector", "unroll"):
                raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    return with_member(tree, place, replace(place.member, mark="parallel"))


def _parallel_around(place: Place) -> list[Member]:
    """A member, and the parallel ones of its band with nothing else between."""
    members = place.band.members
    outside = takewhile(lambda m: m.mark == "parallel", reversed(members[: place.position]))
    inside = takewhile(lambda m: m.mark == "parallel", members[place.position + 1 :])
    return [*outside, place.member, *inside]


def vectorize(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(loop_names(step)[0][1],), by=(), words=())
    place = only_loop(tree, step)
    check_unmarked(step, place.member)
    for m in loops_of(tree, step.statements[0]):
        if m is place.member:
            break
        if m.mark == "vector":
            raise ScheduleError(f"{step}: {m.name} outside is already in lanes")
    inner = [*place.band.members[place.position + 1 :]]
    for node in walk_tree(place.band.child):
        inner += node.members if isinstance(node, Band) else ()
        if isinstance(node, Promote) and node.scope != "register":
            raise ScheduleError(f"{step}: {node.buffer} inside is no register of a lane")
    for m in inner:
        if m.mark not in ("seq", "unroll"):
            raise ScheduleError(f"{step}: {m.name} inside is marked {m.mark}")
    return with_member(tree, place, replace(place.member, mark="vector"))


def unroll(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(loop_names(step)[0][1],), by=(), words=())
    place = only_loop(tree, step)
    check_unmarked(step, place.member)
    return with_member(tree, place, replace(place.member, mark="unroll"))


def isolate(tree: Node, scop: Scop, step: Step) -> Node:
    place = only_loop(tree, step)
    return with_member(tree, place, replace(place.member, isolate=True))


def map_blocks(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    chosen = [nest.members[p] for p in positions]
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise ScheduleError(f"{step}: blocks need neighbouring loops, in the order of the nest")
    if len(positions) > MOST_DIMENSIONS:
        raise ScheduleError(f"{step}: a grid has at most {MOST_DIMENSIONS} dimensions")
    check_unmarked(step, *chosen)
    for name in statements_below(tree, nest, [s.name for s in scop.statements]):
        for m in loops_of(tree, name):
            if m.mark in ("block", "parallel"):
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
    if any(m.mark != "seq" for m in outside):
        (m, *_) = (m for m in outside if m.mark != "seq")
        raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    return _marked(tree, nest, positions, "block")


def map_threads(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = same_band(tree, step, 1)
    chosen = [nest.members[p] for p in positions]
    check_unmarked(step, *chosen)
    names = statements_below(tree, nest, [s.name for s in scop.statements])
    for name in names:
        around = loops_of(tree, name)
        if sum(m.mark == "thread" for m in around) + len(chosen) > MOST_DIMENSIONS:
            raise ScheduleError(f"{step}: a block has at most {MOST_DIMENSIONS} dimensions")
        for m in around:
            if m.mark == "parallel":
                raise ScheduleError(f"{step}: {m.name} around {name} is already marked parallel")
    for m in _before(tree, step.statements[0], chosen[-1]):
        if m.mark in ("vector", "unroll"):
            raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    for m in nest.members[positions[0] :]:
        if m.mark == "block":
            raise ScheduleError(f"{step}: blocks run threads, but {m.name} is inside")
    for node in path_to(tree, step.statements[0]):
        if node is nest:
            break
        if isinstance(node, Promote) and node.scope != "shared":
            raise ScheduleError(
                f"{step}: {node.buffer} around {chosen[0].name} belongs to one thread; "
                "map to threads first, and promote inside"
            )
    for m in chosen:
        thread_extent(m, scop, f"{step}")
    return _marked(tree, nest, positions, "thread")


def thread_extent(member: Member, scop: Scop, what: str) -> int:
    """How many threads a loop takes: one more than its greatest number.

    Raises
    ------
    ScheduleError : if that is not constant, more than a block has, or a number is below 0.
    """
    limits = member_limits(member, scop)
    if limits is None:
        raise ScheduleError(
            f"{what}: how many iterations {member.name} has is not fixed; split it by a number, "
            f"as in `split S: {member.name} by 32`, and map the inner loop"
        )
    least, greatest = limits
    if least < 0:
        raise ScheduleError(f"{what}: {member.name} begins at {least}; shift it to begin at 0")
    if greatest >= MOST_THREADS:
        raise ScheduleError(
            f"{what}: {member.name} has {greatest + 1} iterations, but a block at most "
            f"{MOST_THREADS} threads; split it first"
        )
    return greatest + 1


def _below_zero(member: Member, scop: Scop) -> bool:
    """Whether a loop may have numbers below 0."""
    values = scop.domain.apply(isl.UnionMap.from_union_pw_aff(member.schedule))
    return not values.intersect(isl.UnionSet("{ [x] : x < 0 }")).is_empty()


def _before(tree: Node, statement: str, member: Member) -> list[Member]:
    """The loops around a loop."""
    return list(takewhile(lambda m: m is not member, loops_of(tree, statement)))


def _marked(tree: Node, nest: Band, positions: list[int], mark: str) -> Node:
    members = list(nest.members)
    for p in positions:
        members[p] = replace(members[p], mark=mark)
    return replace_node(tree, nest, band(members, nest.child))
