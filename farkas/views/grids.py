"""Iteration spaces: instances of a statement over two of its loops, in the order of a tree.

Rows run down, columns to the right.  A tile is an area of one colour, the line through the points
is the order in which they run (broken where another thread begins), and arrows are dependences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from poly.deps.dependences import KINDS
from poly.deps.instances import Instance, Pair, Point, Timed, least_values, span, timed_instances
from poly.deps.scop import ScopStatement
from poly.errors import ArgumentError
from poly.show.markup import Markup, colour, element
from poly.tree.kinds import CONCURRENT
from poly.tree.nodes import Member, Node, order_of

#: The most points that are drawn along one dimension; the rest are omitted.
MOST = 24
#: Points on one side of an instance, where another one is far away.
_AROUND = 5
CELL = 38
MARGIN, _FOOT = 44, 26
INK, PAPER, _WRONG = "#2b2b2b", "#fdfdfb", "#d01f1f"
KIND_COLOURS = {
    "flow": "#3d7fd9", "anti": "#d9803d", "output": "#8a63d2", "reduction": "#3da35d",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """The instances of one statement over one or two of its loops.

    rows : a loop, "" for a single row; columns : a loop, "" for a single column
    points : in the order in which they run; tiles : the number of the tile of each
    numbers : of each in the order of all points of the picture, from 0
    breaks : positions in that order at which another thread or block begins
    apart : the loops around it whose iterations run in parallel
    cut : loops of which not all values are shown
    boxes : the shown values of every loop; several if two instances are far apart
    """

    statement: ScopStatement
    rows: str
    columns: str
    points: tuple[Timed, ...]
    tiles: tuple[int, ...]
    numbers: tuple[int, ...]
    breaks: frozenset[int]
    apart: tuple[str, ...]
    cut: tuple[str, ...]
    boxes: tuple[Mapping[str, range], ...]

    def cell(self, point: Point) -> tuple[int, int]:
        """Row and column of a point."""
        loops = self.statement.loops
        row = point[loops.index(self.rows)] if self.rows else 0
        return row, point[loops.index(self.columns)] if self.columns else 0

    @cached_property
    def area(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows and columns that are drawn, from the first to the last with points."""
        cells = [self.cell(t.point) for t in self.points] or [(0, 0)]
        rows, columns = zip(*cells, strict=True)
        return self._shown(self.rows, rows), self._shown(self.columns, columns)

    def _shown(self, loop: str, used: Sequence[int]) -> tuple[int, ...]:
        values = {v for box in self.boxes for v in box[loop]} if loop and self.boxes else {0}
        return tuple(v for v in sorted(values) if min(used) <= v <= max(used))

    def spot(self, point: Point) -> tuple[int, int] | None:
        """Where a point is drawn: the numbers of its row and its column, from 0."""
        (row, column), (rows, columns) = self.cell(point), self.area
        drawn = row in rows and column in columns
        return (rows.index(row), columns.index(column)) if drawn else None

    def __str__(self) -> str:
        """The number of each point in the order, as a table."""
        rows, columns = self.area
        order = {
            self.cell(t.point): str(n + 1) for n, t in zip(self.numbers, self.points, strict=True)
        }
        width = max([len(v) for v in order.values()] + [len(str(columns[-1]))])

        def line(head: str, cells: Sequence[str]) -> str:
            spread = list(cells)
            for gap in reversed(gaps(columns)):
                spread.insert(gap, "…")
            return " ".join([f"{head:>6}", *(f"{c:>{width}}" for c in spread)])

        lines = [line(f"{self.rows or ' '}\\{self.columns}", [str(c) for c in columns])]
        for n, r in enumerate(rows):
            if n in gaps(rows):
                lines.append(f"{'…':>6}")
            lines.append(line(str(r), [order.get((r, c), ".") for c in columns]))
        return "\n".join(lines)


def gaps(values: Sequence[int]) -> list[int]:
    """The positions in an ascending list of numbers before which some are omitted."""
    return [n for n in range(1, len(values)) if values[n] != values[n - 1] + 1]


def grid(
    tree: Node,
    statement: ScopStatement,
    sizes: Mapping[str, int],
    loops: Sequence[str],
    at: Mapping[str, int],
    around: Sequence[Point] = (),
) -> Grid:
    """The instances of a statement over `loops` (rows, then columns; or columns alone).

    at : values of the other loops; default is the least that exists
    around : instances to include, as far as they are near enough to each other

    Raises
    ------
    ArgumentError : a loop that the statement does not have, or one that is given twice.
    """
    for name in (*loops, *at):
        if name not in statement.loops:
            known = ", ".join(statement.loops) or "none"
            raise ArgumentError(f"{statement.name} has no index {name!r}; it has {known}")
        if name in loops and (name in at or list(loops).count(name) > 1):
            raise ArgumentError(f"{name} is given twice")
    rows, columns = (("", *loops) if len(loops) < 2 else tuple(loops))[:2] if loops else ("", "")
    others = least_values(statement, sizes, at)
    points: list[Timed] = []
    boxes: list[dict[str, range]] = []
    cut = []
    if others is not None:
        box = {n: range(v, v + 1) for n, v in others.items() if n not in loops}
        boxes = [dict(box)]
        for name in loops:
            whole = span(statement, sizes, box, name)
            shown = _windows(whole, [p[statement.loops.index(name)] for p in around])
            if shown != (whole,):
                cut.append(name)
            box[name] = range(shown[0].start, shown[-1].stop)
            boxes = [{**b, name: part} for b in boxes for part in shown]
        for part in boxes:
            points += timed_instances(tree, statement, sizes, part)
        points.sort(key=lambda t: t.time)
    axes = order_of(tree, statement.name)
    return Grid(
        statement, rows, columns, tuple(points), _tiles(statement, points, axes, loops),
        tuple(range(len(points))), _breaks(points, axes),
        tuple(a.name for a in axes if isinstance(a, Member) and a.mark in CONCURRENT),
        tuple(cut), tuple(boxes),
    )  # fmt: skip


def _windows(whole: range, wanted: Sequence[int]) -> tuple[range, ...]:
    """At most `MOST` values, including the wanted ones; if these are far apart, some near each."""
    if len(whole) <= MOST:
        return (whole,)
    low, high = min(wanted, default=whole.start), max(wanted, default=whole.start)
    if high - low >= MOST:
        first = range(max(whole.start, low - 1), low + _AROUND)
        return first, range(high - _AROUND + 1, min(whole.stop, high + 2))
    start = max(whole.start, low - max(0, MOST - (high - low + 1)) // 2)
    start = min(start, whole.stop - MOST)
    return (range(start, start + MOST),)


def together(grids: Sequence[Grid]) -> list[Grid]:
    """Grids of one tree, their points numbered in one order."""
    every = sorted(t.time for g in grids for t in g.points)
    ranks = {time: n for n, time in enumerate(every)}
    return [replace(g, numbers=tuple(ranks[t.time] for t in g.points)) for g in grids]


def _tiles(
    s: ScopStatement,
    points: Sequence[Timed],
    axes: Sequence[Member | int],
    loops: Sequence[str],
) -> tuple[int, ...]:
    """The tile of each point: those with equal values in the outer loops, as far as these leave
    more than one row and more than one column; else more than one point.
    """
    positions = [s.loops.index(name) for name in loops]

    def split(depth: int) -> dict[Point, list[Point]]:
        parts: dict[Point, list[Point]] = {}
        for t in points:
            parts.setdefault(t.time[:depth], []).append(tuple(t.point[k] for k in positions))
        return parts

    def is_wide(part: list[Point]) -> bool:
        return all(len({p[k] for p in part}) > 1 for k in range(len(positions)))

    def is_several(part: list[Point]) -> bool:
        return len(part) > 1

    chosen = split(0)
    for holds in (is_wide, is_several):
        depths = [d for d in range(1, len(axes) + 1) if any(map(holds, split(d).values()))]
        if depths and len(split(depths[-1])) > 1:
            chosen = split(depths[-1])
            break
    depth = len(next(iter(chosen), ()))
    numbers = {prefix: n for n, prefix in enumerate(chosen)}
    return tuple(numbers[t.time[:depth]] for t in points)


def _breaks(points: Sequence[Timed], axes: Sequence[Member | int]) -> frozenset[int]:
    """The positions at which another iteration of a parallel loop begins."""
    at_once = [d for d, a in enumerate(axes) if isinstance(a, Member) and a.mark in CONCURRENT]
    return frozenset(
        n
        for n in range(1, len(points))
        if any(points[n - 1].time[d] != points[n].time[d] for d in at_once)
    )


# --- drawing --------------------------------------------------------------------------------


def picture_width(grids: Sequence[Grid]) -> int:
    """The width of the picture that `draw` makes, in pixels."""
    return sum(2 * MARGIN + len(g.area[1]) * CELL for g in grids)


def draw(
    grids: Sequence[Grid], dependences: Sequence[Pair] = (), wrong: Pair | None = None
) -> Markup:
    """Grids side by side as SVG, with arrows; `wrong` is drawn over all others."""
    left, parts, origins = 0.0, [], {}
    height = 0.0
    for g in grids:
        rows, columns = g.area
        origins[g.statement.name] = (left + MARGIN, float(MARGIN))
        parts.append(_grid_svg(g, *origins[g.statement.name]))
        left += 2 * MARGIN + len(columns) * CELL
        height = max(height, MARGIN + len(rows) * CELL + (_FOOT if g.rows else 12))

    def centre(instance: Instance) -> tuple[float, float] | None:
        name, point = instance
        g = next((g for g in grids if g.statement.name == name), None)
        spot = g.spot(point) if g is not None else None
        if spot is None:
            return None
        (row, column), (x, y) = spot, origins[name]
        return x + (column + 0.5) * CELL, y + (row + 0.5) * CELL

    lines: list[Markup] = []
    for kind in KINDS:
        found = [(centre(a.source), centre(a.sink)) for a in dependences if a.kind == kind]
        lines.append(arrows([(a, b) for a, b in found if a and b], KIND_COLOURS[kind], 1.2, kind))
    if wrong is not None:
        ends = centre(wrong.source), centre(wrong.sink)
        for end in filter(None, ends):
            ring = element("circle", cx=end[0], cy=end[1], r=CELL * 0.42, fill="none",
                           stroke=_WRONG, stroke_width=2.5)  # fmt: skip
            lines.append(ring)
        if ends[0] and ends[1]:
            title = f"{wrong.kind}: must come first"
            lines.append(arrows([(ends[0], ends[1])], _WRONG, 2.5, title))
    return on_paper(left, height, [*parts, *lines])


def on_paper(width: float, height: float, parts: Sequence[Markup]) -> Markup:
    """Shapes as one SVG with a background of its own."""
    paper = element("rect", width=width, height=height, rx=8, fill=PAPER, stroke="#cfcfcf")
    return element(
        "svg", paper, *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {width:g} {height:g}", font_family="monospace", font_size=11,
        style="max-width:100%;height:auto",
    )  # fmt: skip


def legend(kinds: Iterable[str]) -> Markup:
    """A legend of the colours of arrows."""
    items = [
        element("span", "→ ", element("span", kind, style="color:inherit"),
                style=f"color:{KIND_COLOURS[kind]};margin-right:1em;font-weight:bold")
        for kind in KINDS if kind in set(kinds)
    ]  # fmt: skip
    return element("div", *items, style="font-size:85%") if items else Markup("")


def _grid_svg(g: Grid, x: float, y: float) -> Markup:
    rows, columns = g.area
    right, bottom = x + len(columns) * CELL, y + len(rows) * CELL
    title = element("text", g.statement.name, x=x, y=16, fill=INK, font_weight="bold")
    small = len(g.points) <= 200
    areas, dots, numbers = [], [], []
    for n, tile, t in zip(g.numbers, g.tiles, g.points, strict=True):
        row, column = g.spot(t.point) or (0, 0)
        left, top = x + column * CELL, y + row * CELL
        areas.append(element("rect", x=left, y=top, width=CELL, height=CELL, fill=colour(tile)))
        what = f"{g.statement.name}[{', '.join(map(str, t.point))}] runs {_nth(n + 1)}"
        cx, cy = left + CELL / 2, top + CELL / 2
        dots.append(element("circle", element("title", what), cx=cx, cy=cy, r=9 if small else 4))
        if small:
            numbers.append(element("text", str(n + 1), x=cx, y=cy + 3))
    parts = [
        title,
        element("g", *areas, fill_opacity=0.22),
        *_order_svg(g, x, y),
        element("g", *dots, fill=PAPER if small else INK, stroke=INK, stroke_width=0.8),
        element("g", *numbers, fill=INK, text_anchor="middle", font_size=8.5,
                pointer_events="none"),
    ]  # fmt: skip
    for n, c in enumerate(columns):
        parts.append(label(str(c), x + (n + 0.5) * CELL, y - 6))
    if g.columns:
        parts.append(label(f"{g.columns} →", right + 18, y - 6))
    if g.rows:
        for n, r in enumerate(rows):
            parts.append(label(str(r), x - 12, y + (n + 0.5) * CELL + 4))
        parts.append(label(f"{g.rows} ↓", x - 12, bottom + 16))
    for name in g.cut:
        if gaps(columns if name == g.columns else rows):
            continue
        where = "more columns" if name == g.columns else "more rows"
        dx, dy = (18, -CELL * 0.4) if name == g.columns else (-CELL * 0.4, 16)
        text = element("title", where)
        parts.append(element("text", text, "…", x=right + dx, y=bottom + dy, fill=INK,
                             font_size=16))  # fmt: skip
    for n in gaps(columns):
        parts.append(_gap(x + n * CELL, y - 18, x + n * CELL, bottom + 6, "columns"))
    for n in gaps(rows):
        parts.append(_gap(x - 24, y + n * CELL, right + 6, y + n * CELL, "rows"))
    return element("g", *parts)


def _gap(x1: float, y1: float, x2: float, y2: float, what: str) -> Markup:
    """A line where rows or columns are omitted."""
    title = element("title", f"some {what} are left out")
    return element("line", title, x1=x1, y1=y1, x2=x2, y2=y2, stroke=INK, stroke_width=1.6,
                   stroke_dasharray="5 4")  # fmt: skip


def _order_svg(g: Grid, x: float, y: float) -> list[Markup]:
    """The line through the points in their order."""
    runs: list[list[str]] = []
    for n, t in enumerate(g.points):
        row, column = g.spot(t.point) or (0, 0)
        if n == 0 or n in g.breaks:
            runs.append([])
        runs[-1].append(f"{x + (column + 0.5) * CELL:g},{y + (row + 0.5) * CELL:g}")
    return [
        element("polyline", points=" ".join(run), fill="none", stroke=INK, stroke_opacity=0.45,
                stroke_width=1.4)
        for run in runs if len(run) > 1
    ]  # fmt: skip


def arrows(
    ends: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    ink: str,
    width: float,
    title: str,
) -> Markup:
    """Curved arrows between points, which they do not cover."""
    lines, heads = [], []
    for (ax, ay), (bx, by) in ends:
        length = max(((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5, 1.0)
        ux, uy = (bx - ax) / length, (by - ay) / length
        gap, bend = min(10.5, length / 3), min(0.18 * length, 26.0)
        mx, my = (ax + bx) / 2 - uy * bend, (ay + by) / 2 + ux * bend
        ax, ay, bx, by = ax + ux * gap, ay + uy * gap, bx - ux * gap, by - uy * gap
        # The head is along the curve's end.
        hx, hy = bx - mx, by - my
        h = max((hx * hx + hy * hy) ** 0.5, 1.0)
        hx, hy, s = hx / h, hy / h, 3.0 + 1.6 * width
        lines.append(f"M{ax:.1f},{ay:.1f}Q{mx:.1f},{my:.1f} {bx:.1f},{by:.1f}")
        heads.append(
            f"M{bx:.1f},{by:.1f}L{bx - s * hx - s * hy / 2:.1f},{by - s * hy + s * hx / 2:.1f} "
            f"{bx - s * hx + s * hy / 2:.1f},{by - s * hy - s * hx / 2:.1f}Z"
        )
    if not ends:
        return Markup("")
    return element(
        "g",
        element("title", title),
        element("path", d="".join(lines), fill="none", stroke=ink, stroke_width=width),
        element("path", d="".join(heads), fill=ink),
    )


def label(text: str, x: float, y: float) -> Markup:
    return element("text", text, x=x, y=y, fill=INK, text_anchor="middle")


def _nth(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
