"""Steps as they stand in scripts, and the places in a tree that they speak of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from operator import index

from poly.errors import ScheduleError
from poly.tree.nodes import Band, Member, Node, band, loops_of, path_to, replace_node


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
    "promote": "lw", "tensorize": "lw", "reschedule": "",
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
        if needed == 1 and step.statements:
            one_each = [replace(step, statements=(s,)) for s in step.statements]
            raise ScheduleError(
                f"{step}: {step.primitive} takes {what}; {in_turn(one_each)}; "
                "a loop that statements share needs one step only"
            )
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


def in_turn(steps: Sequence[Step]) -> str:
    """What to write in place of a step that takes one thing at a time."""
    more = ", and so on" if len(steps) > 3 else ""
    return f"write {', then '.join(f'`{step}`' for step in steps[:3])}{more}"


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
    "map_blocks": "map_blocks C: i_o, j_o",
    "map_threads": "map_threads C: i_i, j_i",
    "reduce_threads": "reduce_threads C: k_i",
    "tensorize": "tensorize C: i_i, j_i, k_i as wmma_f16",
    "reschedule": "reschedule",
}


def no_primitive(name: str) -> str:
    """What to say of a step of no known kind."""
    near = get_close_matches(name, EXAMPLES, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no primitive {name!r}; {meant}there are {', '.join(EXAMPLES)}"


@dataclass(frozen=True)
class Place:
    """A loop found in a tree: the band that holds it and its position there."""

    band: Band
    position: int

    @property
    def member(self) -> Member:
        return self.band.members[self.position]


def find_loop(tree: Node, statement: str, loop: str) -> Place:
    """Where the loop named `loop` around `statement` is.

    Raises
    ------
    ScheduleError : listing the loops that there are.
    """
    for node in path_to(tree, statement):
        if isinstance(node, Band):
            for position, m in enumerate(node.members):
                if m.name == loop:
                    return Place(node, position)
    names = ", ".join(m.name for m in loops_of(tree, statement))
    raise ScheduleError(f"there is no loop {loop} around {statement}; there are: {names or 'none'}")


def same_band(tree: Node, step: Step, at_least: int) -> tuple[Band, list[int]]:
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


def only_loop(tree: Node, step: Step) -> Place:
    if not step.loops:
        example = EXAMPLES[step.primitive]
        raise ScheduleError(f"{step}: {step.primitive} takes one loop, as in `{example}`")
    if len(step.loops) > 1:
        one_each = [replace(step, loops=(loop,)) for loop in step.loops]
        raise ScheduleError(f"{step}: {step.primitive} takes one loop; {in_turn(one_each)}")
    return find_loop(tree, step.statements[0], step.loops[0])


def with_member(tree: Node, place: Place, member: Member) -> Node:
    members = list(place.band.members)
    members[place.position] = member
    return replace_node(tree, place.band, band(members, place.band.child))


def check_unmarked(step: Step, *members: Member) -> None:
    for m in members:
        if m.mark != "seq":
            raise ScheduleError(f"{step}: {m.name} is already marked {m.mark}")
