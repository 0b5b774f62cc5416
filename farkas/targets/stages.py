"""The stages of a compilation as text, from the program as written to a compiler's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farkas.targets.base import Target
    from poly.ir.program import Program
    from poly.schedule.schedule import Schedule


@dataclass(frozen=True)
class Stage:
    """One form of a program on its way.

    about : a sentence; text : of a program as written, its schedule and its target
    language : which highlighting suits it
    """

    about: str
    text: Callable[[Program, Schedule, Target], str]
    language: str = "text"


def _loops(program: Program, schedule: Schedule, target: Target) -> str:
    from codegen.loops.traverse import show_loops

    return "\n\n".join(map(show_loops, target.loops(schedule)))


#: The stages by name, in order.
STAGES: Mapping[str, Stage] = {
    "program": Stage("The program as written, with its ranges.", lambda p, s, t: str(p), "c"),
    "rewritten": Stage(
        "The program that is scheduled, after the target's rewrites.",
        lambda p, s, t: str(s.program),
        "c",
    ),
    "schedule": Stage("The schedule, as a script.", lambda p, s, t: str(s)),
    "tree": Stage("The schedule tree: loops and what is in them.", lambda p, s, t: s.show),
    "loops": Stage("The loops that are generated, after all passes.", _loops),
    "source": Stage(
        "The C text, or that of a GPU's kernels.", lambda p, s, t: str(t.emit(s, p).text), "c"
    ),
}


def stage_text(name: str, program: Program, schedule: Schedule, target: Target) -> str:
    """A stage of a program, without a final newline.

    Raises
    ------
    ScheduleError : there are no loops or no text for the schedule.
    """
    return STAGES[name].text(program, schedule, target).rstrip("\n")
