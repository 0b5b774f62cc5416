"""Tree rewriting: what each schedule primitive does to the tree, before anyone asks if it may.

Every function here takes a tree and a `Step` and returns a new tree, or raises `ScheduleError`
when the step makes no sense on it.  Legality is not judged here: `poly.schedule` applies a
rewriting and then checks the whole new tree against the dependences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import takewhile
from operator import index

import islpy as isl

from poly.errors import ScheduleError
from poly.instances import end_value, restrict_to
from poly.layout import layout_of
from poly.promotion import plan_promotion
from poly.scop import Scop
from poly.tree import (
    Band,
    Filter,
    Member,
    Node,
    Promote,
    Sequence,
    band,
    loops_of,
    path_to,
    replace_node,
    sequence,
    statements_below,
    walk_tree,
)


@dataclass(frozen=True)
class Step:
    """One step of a schedule, as it stands in a script: ``tile C: i, j by 64, 64``."""

    primitive: str
    statements: tuple[str, ...]
    loops: tuple[str, ...] = ()
    by: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.primitive
        if self.statements:
            text += f" {', '.join(self.statements)}"
        if self.loops:
            text += f": {', '.join(self.loops)}"
        if self.by:
            text += f" by {', '.join(map(str, self.by))}"
        if self.words:
            text += f" as {', '.join(self.words)}"
        return text


#: What a step may have beside its statements: ``l`` loops, ``b`` numbers, ``w`` words.
_PARTS = {
    "tile": "lbw", "split": "lbw", "vectorize": "lbw", "unroll": "lbw", "skew": "lb", "shift": "lb",
    "promote": "lw", "reschedule": "",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORD = re.compile(r"[A-Za-z0-9_]+\Z")
#: Bound on the numbers of steps, of either sign.
LARGEST = 1 << 30


def check_step(step: Step) -> Step:
    """The step with its numbers as plain integers, if it could stand in a script.

    Raises
    ------
    ScheduleError : for names that are none, numbers out of bounds, and parts that would be ignored.
    """
    for name in (*step.statements, *step.loops):
        if not isinstance(name, str) or not _NAME.match(name):
            raise ScheduleError(f"{step.primitive}: {name!r} is no name of a statement or loop")
    words = _WORD if step.primitive == "promote" else _NAME
    for name in step.words:
        if not isinstance(name, str) or not words.match(name):
            raise ScheduleError(f"{step.primitive}: {name!r} is no name; use letters, digits and _")
    numbers = []
    for number in step.by:
        try:
            numbers.append(index(number))
        except TypeError:
            raise ScheduleError(f"{step.primitive}: {number!r} is no whole number") from None
        if abs(numbers[-1]) > LARGEST:
            raise ScheduleError(f"{step.primitive}: {number} is too large")
    parts = _PARTS.get(step.primitive, "l")
    needed = {"reschedule": 0, "fuse": 2}.get(step.primitive, 1)
    if len(step.statements) != needed:
        what = {0: "no statement", 1: "one statement", 2: "two statements"}[needed]
        raise ScheduleError(f"{step.primitive} takes {what}, as in `{EXAMPLES[step.primitive]}`")
    for part, given, what in (
        ("l", step.loops, "loops"),
        ("b", step.by, "numbers (`by`)"),
        ("w", step.words, "words (`as`)"),
    ):
        if given and part not in parts:
            raise ScheduleError(f"{step}: {step.primitive} takes no {what}")
    if step.primitive in ("vectorize", "unroll") and step.words and not step.by:
        raise ScheduleError(f"{step}: only with a number are there new loops to name")
    return replace(step, by=tuple(numbers))


#: One step of each primitive, for messages and the documentation.
EXAMPLES = {
    "tile": "tile C: i, j by 32, 32",
    "split": "split C: i by 32",
    "interchange": "interchange C: i, j",
    "reorder": "reorder C: k, i, j",
    "fuse": "fuse S, T: i",
    "distribute": "distribute S: i",
    "sink": "sink C: k",
    "skew": "skew S: j, i by 1",
    "shift": "shift S: i by 1",
    "reverse": "reverse S: i",
    "parallelize": "parallelize C: i",
    "vectorize": "vectorize C: j by 16",
    "unroll": "unroll C: k by 4",
    "isolate": "isolate C: i_o",
    "promote": "promote C: k_o as A, local",
    "reschedule": "reschedule",
}


def no_primitive(name: str) -> str:
    """What to say of a step of no known kind."""
    near = get_close_matches(name, EXAMPLES, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no primitive {name!r}; {meant}there are {', '.join(EXAMPLES)}"


@dataclass(frozen=True)
class _Place:
    """A loop found in a tree: the band that holds it and its position there."""

    band: Band
    position: int

    @property
    def member(self) -> Member:
        return self.band.members[self.position]


def find_loop(tree: Node, statement: str, loop: str) -> _Place:
    """Where the loop named `loop` around `statement` is.

    Raises
    ------
    ScheduleError : listing the loops that there are.
    """
    for node in path_to(tree, statement):
        if isinstance(node, Band):
            for position, m in enumerate(node.members):
                if m.name == loop:
                    return _Place(node, position)
    names = ", ".join(m.name for m in loops_of(tree, statement))
    raise ScheduleError(f"there is no loop {loop} around {statement}; there are: {names or 'none'}")


def _same_band(tree: Node, step: Step, at_least: int) -> tuple[Band, list[int]]:
    """The one band that holds all loops of the step, and their positions."""
    if len(step.loops) < at_least:
        raise ScheduleError(f"{step.primitive} needs at least {at_least} loops")
    if len(set(step.loops)) != len(step.loops):
        raise ScheduleError(f"{step}: a loop is named twice")
    places = [find_loop(tree, step.statements[0], loop) for loop in step.loops]
    for place, loop in zip(places, step.loops, strict=True):
        if place.band is not places[0].band:
            raise ScheduleError(
                f"{step}: {step.loops[0]} and {loop} are not in one perfect nest; "
                "something stands between them (see `distribute` and `fuse`)"
            )
    return places[0].band, [p.position for p in places]


def _fresh(tree: Node, statement: str, nest: Band, *names: str) -> None:
    """Refuse new loop names, for loops of `nest`, that a statement below it would have twice."""
    used = {m.name for m in loops_of(tree, statement)}
    used |= {m.name for n in walk_tree(nest) if isinstance(n, Band) for m in n.members}
    for name in names:
        if name in used:
            raise ScheduleError(f"there is already a loop {name}; choose other names with `as`")
    if len(set(names)) != len(names):
        raise ScheduleError(f"the new loops need different names, not {', '.join(names)}")


def _factors(step: Step, count: int) -> tuple[int, ...]:
    if len(step.by) != count:
        raise ScheduleError(f"{step}: {count} factors are needed, {len(step.by)} are given")
    for factor in step.by:
        if factor < 1:
            raise ScheduleError(f"{step}: {factor} is no usable factor; it must be 1 or more")
    return step.by


def _split(member: Member, factor: int, outer: str, inner: str) -> tuple[Member, Member]:
    """f becomes (floor(f / factor), f mod factor): the same order in two loops."""
    value = isl.Val(factor)
    return (
        Member(outer, member.schedule.scale_down_val(value).floor()),
        Member(inner, member.schedule.mod_val(value)),
    )


def _names(step: Step) -> list[tuple[str, str]]:
    """New names of split loops: i gives i_o and i_i unless the step says otherwise."""
    if not step.words:
        return [(f"{loop}_o", f"{loop}_i") for loop in step.loops]
    if len(step.words) != 2 * len(step.loops):
        raise ScheduleError(f"{step}: `as` needs two names for each loop, outer loops first")
    half = len(step.loops)
    return list(zip(step.words[:half], step.words[half:], strict=True))


def _plain(step: Step, *members: Member) -> None:
    for m in members:
        if m.mark != "seq":
            raise ScheduleError(f"{step}: {m.name} is already marked {m.mark}")


def split(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 1:
        raise ScheduleError(f"{step}: {step.primitive} takes one loop; tile takes several")
    nest, (position,) = _same_band(tree, step, 1)
    (factor,) = _factors(step, 1)
    member = nest.members[position]
    _plain(step, member)
    ((outer, inner),) = _names(step)
    _fresh(tree, step.statements[0], nest, outer, inner)
    members = (
        *nest.members[:position],
        *_split(member, factor, outer, inner),
        *nest.members[position + 1 :],
    )
    return replace_node(tree, nest, band(members, nest.child))


def tile(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = _same_band(tree, step, 1)
    factors = _factors(step, len(positions))
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise ScheduleError(
            f"{step}: the loops must be neighbours, from the outside in; "
            f"the nest is {', '.join(nest.names)}"
        )
    chosen = [nest.members[p] for p in positions]
    _plain(step, *chosen)
    names = _names(step)
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


def interchange(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = _same_band(tree, step, 2)
    if len(positions) != 2:
        raise ScheduleError(f"{step}: interchange takes two loops; use reorder for more")
    members = list(nest.members)
    a, b = positions
    members[a], members[b] = members[b], members[a]
    return replace_node(tree, nest, band(members, nest.child))


def reorder(tree: Node, scop: Scop, step: Step) -> Node:
    nest, positions = _same_band(tree, step, 2)
    members = list(nest.members)
    for place, position in zip(sorted(positions), positions, strict=True):
        members[place] = nest.members[position]
    return replace_node(tree, nest, band(members, nest.child))


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


def fuse_early(tree: Node, scop: Scop, step: Step) -> Node:
    """As `fuse`, but the fused nest stands where the first one stood."""
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
            f"{', '.join(one.names[:count])}, from the outside in"
        )
    _plain(step, *one.members[:count], *two.members[:count])
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


def distribute(tree: Node, scop: Scop, step: Step) -> Node:
    place = _only_loop(tree, step)
    nest, position = place.band, place.position
    if not isinstance(nest.child, Sequence):
        raise ScheduleError(f"{step}: below {nest.names[-1]} there is one statement only")
    outer, inner = nest.members[:position], nest.members[position:]
    _plain(step, *inner)
    children = []
    for f in nest.child.children:
        domain = restrict_to(scop, f.statements)
        own = [replace(m, schedule=m.schedule.intersect_domain_union_set(domain)) for m in inner]
        children.append(replace(f, child=band(own, f.child)))
    return replace_node(tree, nest, band(outer, sequence(children)))


def sink(tree: Node, scop: Scop, step: Step) -> Node:
    place = _only_loop(tree, step)
    _plain(step, place.member)
    parent = next(
        (
            n
            for n in path_to(tree, step.statements[0])
            if isinstance(n, Sequence) and any(f.child is place.band for f in n.children)
        ),
        None,
    )
    if parent is None or place.position:
        raise ScheduleError(
            f"{step}: {place.member.name} has to be the outermost loop of a nest that runs between "
            "others (see `reorder` and `distribute`)"
        )
    at = next(k for k, f in enumerate(parent.children) if f.child is place.band)
    function, children = place.member.schedule, []
    for k, f in enumerate(parent.children):
        if k == at:
            children.append(replace(f, child=band(place.band.members[1:], place.band.child)))
            continue
        for name in f.statements:
            if place.member.name in {m.name for m in loops_of(tree, name)}:
                raise ScheduleError(
                    f"{step}: {name} has a loop {place.member.name}, too; "
                    "give this one another name, with `as` of `split`"
                )
        end = end_value(scop, place.member, parent.children[at].statements, last=k > at)
        domain = restrict_to(scop, f.statements)
        function = function.union_add(isl.UnionPwAff.pw_aff_on_domain(domain, end))
        children.append(f)
    shared = replace(place.member, schedule=function)
    return replace_node(tree, parent, band([shared], sequence(children)))


def skew(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 2 or len(step.by) != 1:
        raise ScheduleError(f"{step}: write `skew S: j, i by 2` to run j + 2*i in place of j")
    place = find_loop(tree, step.statements[0], step.loops[0])
    by = find_loop(tree, step.statements[0], step.loops[1])
    if place.member is by.member:
        raise ScheduleError(f"{step}: a loop cannot be skewed by itself")
    _plain(step, place.member)
    _same_band(tree, step, 2)
    skewed = place.member.schedule.add(by.member.schedule.scale_val(isl.Val(step.by[0])))
    return _with_member(tree, place, replace(place.member, schedule=skewed))


def shift(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 1 or len(step.by) != 1:
        raise ScheduleError(f"{step}: write `shift S: i by 1`")
    place = find_loop(tree, step.statements[0], step.loops[0])
    _plain(step, place.member)
    own = restrict_to(scop, step.statements[:1])
    amount = isl.UnionPwAff.val_on_domain(own, isl.Val(step.by[0]))
    moved = place.member.schedule.intersect_domain_union_set(own).add(amount)
    rest = place.member.schedule.subtract_domain_union_set(own.universe())
    return _with_member(tree, place, replace(place.member, schedule=rest.union_add(moved)))


def reverse(tree: Node, scop: Scop, step: Step) -> Node:
    place = _only_loop(tree, step)
    _plain(step, place.member)
    return _with_member(tree, place, replace(place.member, schedule=place.member.schedule.neg()))


def parallelize(tree: Node, scop: Scop, step: Step) -> Node:
    place = _only_loop(tree, step)
    _plain(step, place.member)
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
    return _with_member(tree, place, replace(place.member, mark="parallel"))


def _parallel_around(place: _Place) -> list[Member]:
    """A member, and the parallel ones of its band with nothing else between."""
    members = place.band.members
    outside = takewhile(lambda m: m.mark == "parallel", reversed(members[: place.position]))
    inside = takewhile(lambda m: m.mark == "parallel", members[place.position + 1 :])
    return [*outside, place.member, *inside]


def vectorize(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(_names(step)[0][1],), by=(), words=())
    place = _only_loop(tree, step)
    _plain(step, place.member)
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
    return _with_member(tree, place, replace(place.member, mark="vector"))


def unroll(tree: Node, scop: Scop, step: Step) -> Node:
    if step.by:
        tree = split(tree, scop, step)
        step = replace(step, loops=(_names(step)[0][1],), by=(), words=())
    place = _only_loop(tree, step)
    _plain(step, place.member)
    return _with_member(tree, place, replace(place.member, mark="unroll"))


def isolate(tree: Node, scop: Scop, step: Step) -> Node:
    place = _only_loop(tree, step)
    return _with_member(tree, place, replace(place.member, isolate=True))


def promote(tree: Node, scop: Scop, step: Step) -> Node:
    if len(step.loops) != 1 or len(step.words) < 2:
        raise ScheduleError(f"{step}: write `promote S: loop as tensor, register`")
    tensor, scope, *dims = step.words
    if tensor not in scop.program.tensors:
        raise ScheduleError(f"{step}: there is no tensor {tensor}")
    if scope not in ("register", "local"):
        raise ScheduleError(f"{step}: the scope is `register` or `local`, not {scope}")
    try:
        layout = layout_of(dims, tensor, scop.program.tensors[tensor].rank)
    except ValueError as error:
        raise ScheduleError(f"{step}: {error}") from None
    place = find_loop(tree, step.statements[0], step.loops[0])
    outer = place.band.members[: place.position + 1]
    inner = band(place.band.members[place.position + 1 :], place.band.child)
    for node in walk_tree(inner):
        if isinstance(node, Band) and any(m.mark == "parallel" for m in node.members):
            raise ScheduleError(
                f"{step}: a buffer belongs to one thread, but loops inside run on several"
            )
        if isinstance(node, Promote) and node.tensor == tensor and scope == "local":
            raise ScheduleError(f"{step}: {tensor} is already promoted further in")
    used = {n.buffer for n in walk_tree(tree) if isinstance(n, Promote)}
    used |= set(scop.program.tensors) | set(scop.by_name)
    buffer, count = f"{tensor}_{'r' if scope == 'register' else 'p'}", 2
    while buffer in used:
        buffer, count = f"{buffer.rstrip('0123456789')}{count}", count + 1
    below = Promote(tensor, buffer, scope, layout, inner)
    above = [m for n in path_to(tree, step.statements[0]) if isinstance(n, Band)
             for m in n.members]  # fmt: skip
    prefix = above[: [m.name for m in above].index(step.loops[0]) + 1]
    names = statements_below(tree, place.band, [s.name for s in scop.statements])
    plan_promotion(below, scop, prefix, names)
    return replace_node(tree, place.band, band(outer, below))


def _only_loop(tree: Node, step: Step) -> _Place:
    if len(step.loops) != 1:
        raise ScheduleError(f"{step}: {step.primitive} takes one loop")
    return find_loop(tree, step.statements[0], step.loops[0])


def _with_member(tree: Node, place: _Place, member: Member) -> Node:
    members = list(place.band.members)
    members[place.position] = member
    return replace_node(tree, place.band, band(members, place.band.child))


#: Every primitive by name.
PRIMITIVES: dict[str, Callable[[Node, Scop, Step], Node]] = {
    "tile": tile,
    "split": split,
    "interchange": interchange,
    "reorder": reorder,
    "fuse": fuse,
    "distribute": distribute,
    "sink": sink,
    "skew": skew,
    "shift": shift,
    "reverse": reverse,
    "parallelize": parallelize,
    "vectorize": vectorize,
    "unroll": unroll,
    "isolate": isolate,
    "promote": promote,
}
