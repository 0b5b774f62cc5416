"""The flow of values between elements of tensors, drawn over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farkas.views.grids import INK, MARGIN, MOST, arrows, label, on_paper
from farkas.views.iteration_space import shown_sizes
from farkas.views.page import View
from poly.deps.instances import Point, element_flow, instance_text
from poly.deps.scop import Scop, build_scop
from poly.errors import ArgumentError
from poly.ir.expr import evaluate_int
from poly.ir.program import Program, Tensor
from poly.show.markup import Markup, colour, element

#: An element that is read, and one that is computed from it.
Pair = tuple[Point, Point]
#: Between neighbouring elements, in pixels.
_PITCH = 58
#: Arrows of each tensor that the text lists.
_MOST_PAIRS = 6


def dataflow_view(program: Program, tensors: Sequence[str], sizes: Mapping[str, int]) -> View:
    """See `farkas.views.dataflow`."""
    scop = build_scop(program)
    chosen = _chosen(scop, tensors)
    every = shown_sizes(program, sizes)
    shapes = [tuple(evaluate_int(e, every) for e in t.shape) for t in chosen]
    extents = tuple(map(max, zip(*shapes, strict=True)))
    shown = tuple(min(e, MOST) for e in extents)
    found = {t.name: element_flow(scop, t.name, every, shown) for t in chosen}
    colours = {t.name: colour(n) for n, t in enumerate(chosen)}
    caption = f"elements of {' and '.join(found)}"
    if every:
        caption += f" at {', '.join(f'{n}={v}' for n, v in every.items())}"
    if shown != extents:
        caption += f"; of each dimension at most {MOST} are shown"
    svg = _drawn(_points(shapes, shown), found, colours)
    html = element("div", svg, element("div", caption, style="font-size:85%"))
    return View(html, "\n".join([*_words(found), caption]), f"Flow of {' and '.join(found)}")


def _chosen(scop: Scop, names: Sequence[str]) -> list[Tensor]:
    """The named tensors.

    Raises
    ------
    ArgumentError : none is named, one is not written, or they cannot be drawn over each other.
    """
    written = scop.written_tensors
    for name in names:
        if name not in written:
            raise ArgumentError(
                f"{scop.program.name} computes no tensor {name!r}; it computes {', '.join(written)}"
            )
    found = [scop.program.tensors[n] for n in dict.fromkeys(names)]
    if not found:
        raise ArgumentError("no tensor is named")
    for t in found:
        if t.rank not in (1, 2):
            raise ArgumentError(f"{t.name} has {t.rank} dimensions; a picture has one or two")
        if t.rank != found[0].rank:
            raise ArgumentError(f"{found[0].name} and {t.name} have different ranks")
    return found


def _points(shapes: Sequence[Point], shown: Sequence[int]) -> list[tuple[int, int]]:
    """The row and the column of every element of a tensor."""
    rows, columns = range(shown[0] if len(shown) == 2 else 1), range(shown[-1])
    return [
        (r, c)
        for r in rows
        for c in columns
        if any(c < shape[-1] and (len(shape) == 1 or r < shape[0]) for shape in shapes)
    ]


def _drawn(
    points: Sequence[tuple[int, int]],
    found: Mapping[str, Sequence[Pair]],
    colours: Mapping[str, str],
) -> Markup:
    """Dots, arrows, the numbers of rows and columns, and below them what the colours mean."""
    rows, columns = (len({p[k] for p in points}) for k in (0, 1))
    bottom = MARGIN + rows * _PITCH

    def centre(point: Point) -> tuple[float, float]:
        row, column = (point[0] if len(point) == 2 else 0), point[-1]
        return MARGIN + (column + 0.5) * _PITCH, MARGIN + (row + 0.5) * _PITCH

    dots = [element("circle", cx=x, cy=y, r=4) for x, y in map(centre, points)]
    lines = [
        arrows([(centre(a), centre(b)) for a, b in pairs], colours[name], 1.4, name)
        for name, pairs in found.items()
    ]
    labels = [label(str(c), centre((c,))[0], MARGIN - 6) for c in range(columns)]
    if rows > 1:
        labels += [label(str(r), MARGIN - 12, centre((r, 0))[1] + 4) for r in range(rows)]
    key = [
        element("tspan", f"→ {name}", fill=ink, dx=14 if n else None)
        for n, (name, ink) in enumerate(colours.items())
    ]
    labels.append(element("text", *key, x=MARGIN, y=bottom + 12, font_weight="bold"))
    return on_paper(2 * MARGIN + columns * _PITCH, bottom + 26, [
        element("g", *dots, fill=INK), *lines, *labels,
    ])  # fmt: skip


def _words(found: Mapping[str, Sequence[Pair]]) -> list[str]:
    """The arrows of each tensor, of which only some are listed."""
    lines = []
    for name, pairs in found.items():
        ends = [f"{instance_text((name, a))} -> {instance_text((name, b))}" for a, b in pairs]
        more = f", … ({len(ends)} in all)" if len(ends) > _MOST_PAIRS else ""
        none = f"no element of {name} is computed from another directly"
        lines.append(f"{', '.join(ends[:_MOST_PAIRS])}{more}" if ends else none)
    return lines
