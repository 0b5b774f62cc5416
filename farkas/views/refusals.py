"""Show why a step was refused: the pair of instances, before the step and after it."""

from __future__ import annotations

from typing import cast

from farkas.views.grids import Grid, draw, grid, legend, picture_width, together
from farkas.views.page import View, beside
from poly.deps.instances import Pair, dependent_pairs, instance_text, timed_instances
from poly.deps.legality import Violation
from poly.deps.scop import Scop
from poly.errors import ArgumentError, IllegalScheduleError
from poly.ir.expr import evaluate_int, sizes_of
from poly.schedule.schedule import Schedule
from poly.show.markup import Markup, element
from poly.tree.nodes import Node

#: A picture at the sizes of the counterexample shows little, so sizes grow to this if the pair
#: still runs in the wrong order then.
_LEAST_SIZE = 8


def refusal(error: IllegalScheduleError) -> View:
    """The pair of a refused step in the iteration space, in the order before and after the step.

    Raises
    ------
    ArgumentError : the error does not come from a step of a schedule.
    """
    if not isinstance(error.schedule, Schedule) or not isinstance(error.violation, Violation):
        raise ArgumentError("this refusal carries no schedule; it was not raised by a step of one")
    schedule, violation = error.schedule, error.violation
    tree = cast(Node, error.tree)
    sizes = _sizes(schedule.scop, tree, violation)
    before = _grids(schedule.tree, schedule.scop, violation, sizes)
    after = _grids(tree, schedule.scop, violation, sizes)
    pair = Pair(violation.kind, violation.source, violation.sink)
    lines = _pairs(schedule, before, sizes)
    message = element("p", str(error), style="max-width:60em")
    pictures = beside(
        _titled("before", draw(before, lines, pair)),
        _titled(f"after {error.primitive}", draw(after, lines, pair)),
        room=f"{picture_width(before)}px",
    )
    kinds = {a.kind for a in lines}
    fixed = {
        f"{g.statement.name}: {loop}={values.start}": None
        for g in before
        for box in g.boxes[:1]
        for loop, values in box.items()
        if loop not in (g.rows, g.columns)
    }
    at = ", ".join([*(f"{n}={v}" for n, v in sizes.items()), *fixed])
    what = "The red arrow goes from the instance that must come first to the one that needs it" + (
        f"; drawn at {at}." if at else "."
    )
    html = element("div", message, pictures, legend(kinds), element("p", what))
    runs = [_runs("before", before, pair), _runs("after", after, pair, violation.at_once)]
    text = [str(error), "", "before:", *map(str, before), "after:", *map(str, after), "", *runs]
    return View(html, "\n".join([*text, f"drawn at {at}" if at else ""]).rstrip(), "Refused")


def _runs(when: str, grids: list[Grid], pair: Pair, at_once: bool = False) -> str:
    """When the two instances run, in words."""
    order = {
        (g.statement.name, t.point): n + 1
        for g in grids
        for n, t in zip(g.numbers, g.points, strict=True)
    }
    words = [
        f"{instance_text(end)} is number {order.get(end, 'not drawn')}"
        for end in (pair.source, pair.sink)
    ]
    return f"{when}: {', '.join(words)}{', and both may run at once' if at_once else ''}"


def _pairs(schedule: Schedule, grids: list[Grid], sizes: dict[str, int]) -> tuple[Pair, ...]:
    boxes = [(g.statement, box) for g in grids for box in g.boxes]
    return dependent_pairs(schedule.dependences, boxes, sizes)


def _titled(title: str, picture: Markup) -> Markup:
    return element("div", element("div", title, style="font-weight:bold;margin:.3em 0"), picture)


def _grids(tree: Node, scop: Scop, v: Violation, sizes: dict[str, int]) -> list[Grid]:
    """The iteration space of each statement of the pair, through its instance."""
    found = []
    instances = [v.source] if v.source[0] == v.sink[0] else [v.source, v.sink]
    for name, point in instances:
        s = scop.statement(name)
        loops = _shown(s.loops, v)
        at = {loop: value for loop, value in zip(s.loops, point, strict=True) if loop not in loops}
        around = [p for n, p in (v.source, v.sink) if n == name]
        found.append(grid(tree, s, sizes, loops, at, around))
    return together(found)


def _shown(loops: tuple[str, ...], v: Violation) -> tuple[str, ...]:
    """Two of a statement's loops: those in which the pair differs, then the first others."""
    differing: tuple[str, ...] = ()
    if v.source[0] == v.sink[0]:
        differing = tuple(
            loop for loop, a, b in zip(loops, v.source[1], v.sink[1], strict=True) if a != b
        )
    chosen = (*differing, *(loop for loop in loops if loop not in differing))[:2]
    return tuple(loop for loop in loops if loop in chosen)


def _sizes(scop: Scop, tree: Node, v: Violation) -> dict[str, int]:
    """Sizes for the picture: those of the pair, or larger ones that show it as well."""
    larger = {n: max(value, _LEAST_SIZE) for n, value in v.sizes.items()}
    every = {n: larger.get(n, _LEAST_SIZE) for n in scop.program.sizes}
    allowed = all(
        evaluate_int(c, every) for c in scop.program.constraints if set(sizes_of(c)) <= set(every)
    )
    if allowed and _wrong(scop, tree, v, every):
        return every
    return {n: v.sizes.get(n, 1) for n in scop.program.sizes}


def _wrong(scop: Scop, tree: Node, v: Violation, sizes: dict[str, int]) -> bool:
    """Whether the pair runs in the wrong order, or at once, at these sizes."""
    times = []
    for name, point in (v.source, v.sink):
        s = scop.statement(name)
        box = {loop: range(x, x + 1) for loop, x in zip(s.loops, point, strict=True)}
        times.append([t.time for t in timed_instances(tree, s, sizes, box)])
    if not all(times):
        return False
    return v.at_once or times[0][0] >= times[1][0]
