"""Steps as written in scripts, and the loops of a tree that they refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poly.errors import ScheduleError
from poly.tree.kinds import Mark
from poly.tree.nodes import Band, Member, Node, band, loops_of, path_to, replace_node


@dataclass(frozen=True)
class Step:
    """One step of a schedule, as written in a script: ``tile C: i, j by 64, 64``."""

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


def in_turn(steps: Sequence[Step]) -> str:
    """Text that suggests several steps in place of one that takes one thing at a time."""
    more = ", and so on" if len(steps) > 3 else ""
    return f"write {', then '.join(f'`{step}`' for step in steps[:3])}{more}"


@dataclass(frozen=True)
class LoopRef:
    """A loop found in a tree: the band that holds it and its position there."""

    band: Band
    position: int

    @property
    def member(self) -> Member:
        return self.band.members[self.position]


def find_loop(tree: Node, statement: str, loop: str) -> LoopRef:
    """Find the loop named `loop` around `statement`.

    Raises
    ------
    ScheduleError : there is none; the message lists the loops that there are.
    """
    for node in path_to(tree, statement):
        if isinstance(node, Band):
            for position, m in enumerate(node.members):
                if m.name == loop:
                    return LoopRef(node, position)
    names = ", ".join(m.name for m in loops_of(tree, statement))
    raise ScheduleError(f"there is no loop {loop} around {statement}; there are: {names or 'none'}")


def same_band(tree: Node, step: Step, at_least: int) -> tuple[Band, list[int]]:
    """The one band that holds all loops of the step, and their positions."""
    if len(step.loops) < at_least:
        raise ScheduleError(f"{step.primitive} needs at least {at_least} loops")
    if len(set(step.loops)) != len(step.loops):
        raise ScheduleError(f"{step}: a loop is named twice")
    refs = [find_loop(tree, step.statements[0], loop) for loop in step.loops]
    for ref, loop in zip(refs, step.loops, strict=True):
        if ref.band is not refs[0].band:
            raise ScheduleError(
                f"{step}: {step.loops[0]} and {loop} are not in one perfect nest; "
                "something is between them (see `distribute` and `fuse`)"
            )
    return refs[0].band, [p.position for p in refs]


def only_loop(tree: Node, step: Step) -> LoopRef:
    if not step.loops:
        example = replace(step, loops=("i",))
        raise ScheduleError(f"{step}: {step.primitive} takes one loop, as in `{example}`")
    if len(step.loops) > 1:
        one_each = [replace(step, loops=(loop,)) for loop in step.loops]
        raise ScheduleError(f"{step}: {step.primitive} takes one loop; {in_turn(one_each)}")
    return find_loop(tree, step.statements[0], step.loops[0])


def with_member(tree: Node, ref: LoopRef, member: Member) -> Node:
    members = list(ref.band.members)
    members[ref.position] = member
    return replace_node(tree, ref.band, band(members, ref.band.child))


def check_unmarked(step: Step, *members: Member) -> None:
    for m in members:
        if m.mark != Mark.SEQ:
            raise ScheduleError(f"{step}: {m.name} is already marked {m.mark}")
