"""One statement's iteration space as a picture with its dependences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farkas.views.grids import MOST, Grid, draw, grid, legend
from farkas.views.page import View
from poly.deps.instances import Pair, dependent_pairs, instance_text
from poly.errors import ArgumentError
from poly.ir.program import Program
from poly.ir.size_values import all_sizes
from poly.schedule.schedule import Schedule
from poly.show.markup import element

#: The value of a size for which none is given.
USUAL_SIZE = 8
#: Dependences of each kind that the text lists.
_MOST_PAIRS = 6


def space_view(
    schedule: Schedule,
    statement: str | None,
    loops: Sequence[str],
    sizes: Mapping[str, int],
    at: Mapping[str, int],
) -> View:
    """See `farkas.views.space`."""
    name = chosen_statement(schedule, statement)
    s = schedule.scop.statement(name)
    program = schedule.program
    every = shown_sizes(program, sizes)
    shown = tuple(loops) or s.loops[:2]
    if len(shown) > 2:
        raise ArgumentError(f"a picture has two loops at most, {len(shown)} are given")
    g = grid(schedule.tree, s, every, shown, at)
    if not g.points:
        where = ", ".join(f"{n}={v}" for n, v in {**every, **at}.items())
        raise ArgumentError(f"{name} has no instances there ({where or 'fixed sizes'})")
    lines = dependent_pairs(schedule.dependences, [(s, box) for box in g.boxes], every)
    others = [
        f"{loop}={value}"
        for loop, value in zip(s.loops, g.points[0].point, strict=True)
        if loop not in shown
    ]
    notes = [f"{n}={v}" for n, v in every.items()] + others
    caption = f"{name} at {', '.join(notes)}" if notes else name
    if g.cut:
        caption += f"; of {' and '.join(g.cut)} only {MOST} values"
    html = element(
        "div", draw([g], lines), legend({a.kind for a in lines}),
        element("div", caption, style="font-size:85%"),
    )  # fmt: skip
    return View(html, "\n".join([str(g), *_words(g, lines), caption]), f"Iteration space of {name}")


def _words(g: Grid, pairs: Sequence[Pair]) -> list[str]:
    """What a table of numbers does not show: parallel iterations, and the dependences."""
    found = [f"runs at once: iterations of {', '.join(g.apart)}"] if g.apart else []
    for kind in dict.fromkeys(p.kind for p in pairs):
        ends = [
            f"{instance_text(p.source)} -> {instance_text(p.sink)}" for p in pairs if p.kind == kind
        ]
        more = f", … ({len(ends)} in all)" if len(ends) > _MOST_PAIRS else ""
        found.append(f"{kind}: {', '.join(ends[:_MOST_PAIRS])}{more}")
    return found


def shown_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """A value for every size of a program, as `all_sizes`; `USUAL_SIZE` where none is given."""
    usual = {n: USUAL_SIZE for n in program.sizes if n not in program.products}
    return all_sizes(program, {**usual, **sizes})


def chosen_statement(schedule: Schedule, statement: str | None) -> str:
    """The given statement, or the last one.

    Raises
    ------
    ArgumentError : there is no statement with that name.
    """
    name = statement if statement is not None else schedule.statements[-1]
    if name not in schedule.statements:
        raise ArgumentError(
            f"there is no statement {name}; there are {', '.join(schedule.statements)}"
        )
    return name
