"""`Primitive`: the properties of a kind of step, declared once, where its transformation is.

    @primitive("reverse S: i")
    def reverse(tree: Node, scop: Scop, step: Step) -> Node: ...

Its public method is that of `poly.schedule.schedule.Schedule` with the same name, whose docstring
is its documentation; `poly.schedule.primitives` lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from poly.errors import ScheduleError
from poly.tree.nodes import Node
from poly.tree.steps import Step, in_turn

#: Makes a tree from a tree, its scop, a step, and for `reschedule` the dependences.
Transform = Callable[..., Node]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORD = re.compile(r"[A-Za-z0-9_]+\Z")
#: Bound on the magnitude of the numbers of steps.
LARGEST = 1 << 30


@dataclass(frozen=True)
class Primitive:
    """A kind of step.

    Attributes
    ----------
    name : its name in scripts and as a method of `Schedule`
    transform : makes the tree; whether it is legal is checked later
    example : a step as written in a script
    statements : how many it names
    loops, numbers, words : whether it names loops, has numbers (``by``), words (``as``)
    names : whether its words are names of new loops, allowed only with numbers
    keeps_order : instances run in the same order, and the same ones at once, unless the step has
        numbers, which split a loop first
    otherwise : another tree, for when the first one would be illegal
    of_dependences : whether the transformation uses the dependences
    """

    name: str
    transform: Transform
    example: str
    statements: int = 1
    loops: bool = True
    numbers: bool = False
    words: bool = False
    names: bool = False
    keeps_order: bool = False
    otherwise: Transform | None = None
    of_dependences: bool = False

    def __call__(self, tree: Node, scop: Any, step: Step, *dependences: Any) -> Node:
        """The tree after a step, legal or not."""
        return self.transform(tree, scop, step, *dependences)

    def checked(self, step: Step) -> Step:
        """The step with its numbers as plain integers, if it could appear in a script.

        Raises
        ------
        ScheduleError : invalid names, numbers out of bounds, or parts that would be ignored.
        """
        for name in (*step.statements, *step.loops):
            if not isinstance(name, str) or not _NAME.match(name):
                raise ScheduleError(f"{self.name}: {name!r} is not a name of a statement or loop")
        words = _NAME if self.names else _WORD
        for name in step.words:
            if not isinstance(name, str) or not words.match(name):
                raise ScheduleError(f"{self.name}: {name!r} is not a name: use letters, digits, _")
        if len(step.statements) != self.statements:
            what = ("no statement", "one statement", "two statements")[self.statements]
            if self.statements == 1 and step.statements:
                one_each = [replace(step, statements=(s,)) for s in step.statements]
                raise ScheduleError(
                    f"{step}: {self.name} takes {what}; {in_turn(one_each)}; "
                    "a loop that statements share needs one step only"
                )
            raise ScheduleError(f"{self.name} takes {what}, as in `{self.example}`")
        for allowed, given, what in (
            (self.loops, step.loops, "loops"),
            (self.numbers, step.by, "numbers (`by`)"),
            (self.words, step.words, "words (`as`)"),
        ):
            if given and not allowed:
                raise ScheduleError(f"{step}: {self.name} takes no {what}")
        if self.names and step.words and not step.by:
            raise ScheduleError(f"{step}: only with a number are there new loops to name")
        return replace(step, by=tuple(self._number(n) for n in step.by))

    def _number(self, given: object) -> int:
        try:
            number = index(given)  # type: ignore[arg-type]
        except TypeError:
            raise ScheduleError(f"{self.name}: {given!r} is not an integer") from None
        if abs(number) > LARGEST:
            raise ScheduleError(f"{self.name}: {given} is too large")
        return number


def primitive(example: str, **facts: Any) -> Callable[[Transform], Primitive]:
    """Declare a transformation to be a primitive; `facts` are fields of `Primitive`."""
    return lambda transform: Primitive(transform.__name__, transform, example, **facts)
