"""Trace a line of generated C to the statements, loops and nodes that it came from.

Everything is read from comments in the text itself, so that a file generated long ago can still be
traced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: In CUDA C, the qualifiers before the name are on their own line.
_FUNCTION = re.compile(r"(?:(?:static )?void )?(\w+)\(.*\)$")
_RUNS = re.compile(r"\s*/\* (\w+(?:, \w+)*) \*/$")
_SAYS = re.compile(r"/\* (\w+): (\w+ of .*) \*/$")
_LOOP = re.compile(r"\s*for \(int64_t (\w+) = ")
_STEP = re.compile(r" \*   (\S.*)")
_NODES = re.compile(r" \* Node: (.*)")


@dataclass(frozen=True)
class Traced:
    """Where one line of generated C comes from.

    function : "" outside of functions; loops : those around it, outermost first
    statements : the statements that run in the loops around it; one if the line computes
    """

    number: int
    text: str
    function: str = ""
    loops: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """A generated translation unit, line by line.

    meanings : the comments about each statement, by function and name
    schedule : the steps in its header; nodes : of the model, in the order of the calls
    """

    lines: tuple[Traced, ...]
    meanings: dict[tuple[str, str], str] = field(default_factory=dict)
    schedule: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def trace(text: str) -> Unit:
    """Read generated C."""
    found: list[Traced] = []
    meanings: dict[tuple[str, str], str] = {}
    said: dict[str, str] = {}
    steps: list[str] = []
    nodes: list[str] = []
    function, depth = "", 0
    loops: list[tuple[int, str]] = []
    runs: list[tuple[int, tuple[str, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not function:
            if m := _NODES.match(line):
                nodes.append(m[1])
            elif m := _STEP.match(line):
                steps.append(m[1])
            elif m := _SAYS.match(line):
                said[m[1]] = m[2]
            elif m := _FUNCTION.match(line):
                function = m[1]
                meanings.update({(function, name): what for name, what in said.items()})
                said = {}
            found.append(Traced(number, line, function))
            continue
        if m := _RUNS.match(line):
            runs = [r for r in runs if r[0] < depth]
            runs.append((depth, tuple(m[1].split(", "))))
        if m := _LOOP.match(line):
            loops.append((depth, m[1]))
        inside = runs[-1][1] if runs else ()
        found.append(Traced(number, line, function, tuple(name for _, name in loops), inside))
        depth += line.count("{") - line.count("}")
        if line.strip() == "}":
            runs = [r for r in runs if r[0] <= depth]
            loops = [x for x in loops if x[0] < depth]
        if depth == 0 and "}" in line:
            function, runs, loops = "", [], []
    return Unit(tuple(found), meanings, tuple(steps), tuple(nodes))
