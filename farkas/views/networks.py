"""A compiled graph: its kernels in the order in which they run, and the nodes fused in each.

The drawing is an arc diagram (Wattenberg, "Arc Diagrams: Visualizing Structure in Strings",
INFOVIS 2002): one row per kernel, and an arc for each value, from the kernel that computes it to
each that uses it.  Rows never overlap, and a long arc is a long-lived value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from farkas.console.display import size_text
from farkas.views.page import View
from poly.ir.cost import operations_of_program
from poly.ir.graph import Call, Graph, Routine
from poly.ir.graph import View as Alias
from poly.show.markup import Markup, colour, element

ROW, _TOP, _ARCS = 24, 30, 150
_INK, _PAPER = "#2b2b2b", "#fdfdfb"
#: The most rows that are drawn; a larger graph continues as text.
MOST = 400


def networks_view(graphs: Sequence[Graph]) -> View:
    """The stages of a model, one after the other."""
    if not graphs:
        text = (
            "nothing is compiled yet: the stages of this model depend on its inputs; run it first"
        )
        return View(element("div", element("p", text)), text)
    views = [network_view(g) for g in graphs]
    html = element("div", *(v.html for v in views))
    return View(html, "\n\n".join(v.text for v in views), views[0].title)


def network_view(graph: Graph) -> View:
    """The calls and routines of a graph in order, with the nodes that each of them stands for."""
    calls = [n for n in graph.nodes if not isinstance(n, Alias)]
    alias = {n.output: n.input for n in graph.nodes if isinstance(n, Alias)}
    made: dict[str, int] = {}
    arcs: list[tuple[int, int, str]] = []
    for row, call in enumerate(calls):
        for name in call.inputs:
            while name in alias:
                name = alias[name]
            if name in made:
                arcs.append((made[name], row, graph.label(name)))
        made.update(dict.fromkeys(call.outputs, row))
    colours = {d: colour(n) for n, d in enumerate(dict.fromkeys(map(_function, calls)))}
    rows = [_row_text(graph, call) for call in calls]
    kernels = [c.program.digest for c in calls if isinstance(c, Call)]
    head = f"{graph.name}: {len(kernels)} kernel calls, {len({*kernels})} distinct kernels"
    if len(kernels) < len(calls):
        head += f", {len(calls) - len(kernels)} routines"
    lines = [head, *(f"{n:>4}  {label}  {detail}" for n, (label, detail) in enumerate(rows))]
    drawing = _draw(calls, rows, arcs, colours)
    return View(element("div", element("p", head), drawing), "\n".join(lines), graph.name)


def _function(call: Call | Routine) -> str:
    """What tells the functions that are called apart."""
    return call.program.digest if isinstance(call, Call) else f"{call.kind} {call.mode}"


def _row_text(graph: Graph, call: Call | Routine) -> tuple[str, str]:
    """The nodes of a call, and its outputs."""
    outputs = []
    for name in call.outputs:
        t = graph.values[name]
        outputs.append(f"{t.dtype}[{','.join(map(str, t.shape))}]")
    parts = [", ".join(outputs)]
    if isinstance(call, Call) and not call.program.sizes:
        shapes = [graph.shape(n) for n in (*call.inputs, *call.outputs)]
        dtypes = [graph.values[n].dtype for n in (*call.inputs, *call.outputs)]
        moved = sum(prod(s) * d.bytes for s, d in zip(shapes, dtypes, strict=True))
        parts.append(f"{operations_of_program(call.program, {}) / 1e6:.3g} M operations")
        parts.append(f"{size_text(moved)} in and out")
    return call.title, "; ".join(parts)


def _draw(
    calls: list[Call | Routine],
    rows: list[tuple[str, str]],
    arcs: list[tuple[int, int, str]],
    colours: dict[str, str],
) -> Markup:
    shown = min(len(calls), MOST)
    longest = max((len(label) for label, _ in rows[:shown]), default=0)
    detail = max((len(text) for _, text in rows[:shown]), default=0)
    text_x = _ARCS + 20
    detail_x = text_x + longest * 6.7 + 24
    width, height = detail_x + detail * 6.1 + 20, _TOP + shown * ROW + 10

    def y(row: int) -> float:
        return _TOP + (row + 0.5) * ROW

    parts = [element("rect", width=width, height=height, rx=8, fill=_PAPER, stroke="#cfcfcf")]
    for first, last, name in arcs:
        if last >= shown:
            continue
        reach = min(14 + 9 * (last - first) ** 0.6, _ARCS - 12)
        path = (
            f"M{_ARCS},{y(first):g} C{_ARCS - reach * 1.33:.1f},{y(first):g} "
            f"{_ARCS - reach * 1.33:.1f},{y(last):g} {_ARCS},{y(last):g}"
        )
        parts.append(
            element("path", element("title", f"{name}: from {first} to {last}"), d=path,
                    fill="none", stroke=_INK, stroke_opacity=0.5 if last == first + 1 else 0.8,
                    stroke_width=1.2)
        )  # fmt: skip
    for row in range(shown):
        label, more = rows[row]
        call = calls[row]
        ink = colours[_function(call)]
        name = call.program.name if isinstance(call, Call) else call.kind
        parts += [
            element("circle", element("title", name), cx=_ARCS, cy=y(row), r=6,
                    fill=ink),
            element("text", label, x=text_x, y=y(row) + 4, fill=_INK),
            element("text", more, x=detail_x, y=y(row) + 4, fill="#6a6a6a", font_size=10),
        ]  # fmt: skip
    svg = element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {width:g} {height:g}", font_family="monospace", font_size=11,
    )  # fmt: skip
    left = [] if shown == len(calls) else [element("p", f"… and {len(calls) - shown} more")]
    return element("div", svg, *left, style="overflow:auto;max-height:48em")
