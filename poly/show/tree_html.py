"""A schedule tree as HTML: nested loops with badges for their marks and properties."""

from __future__ import annotations

from collections.abc import Iterator

from poly.deps.band_properties import BandProperties
from poly.deps.scop import Role, Scop, ScopStatement
from poly.show.markup import LINE, Markup, badge, colour, element, faint, joined
from poly.tree.kinds import CONCURRENT, LoopMark, Mark, Tensorized
from poly.tree.nodes import Band, Filter, Node, Promote, Sequence, short_schedule

_MARKS: dict[Mark, tuple[str, str]] = {
    Mark.PARALLEL: ("#d95050", "its iterations run on several threads"),
    Mark.VECTOR: ("#8a63d2", "its iterations run in vector lanes"),
    Mark.BLOCK: ("#2e9aa8", "its iterations run on blocks of a GPU"),
    Mark.THREAD: ("#d9822b", "its iterations run on threads of a block of a GPU"),
    Mark.REDUCE: ("#d9822b", "threads of a block of a GPU each sum up a part"),
    Mark.UNROLL: ("#b59a1f", "it is unrolled"),
}


def tree_html(tree: Node, scop: Scop, properties: tuple[BandProperties, ...] = ()) -> Markup:
    """The tree, outermost first.

    properties : those of its bands, in order; without them loops have no badges for these
    """
    everything = tuple(s.name for s in scop.statements)
    body = _Writer(scop, iter(properties)).node(tree, everything)
    return element("div", body, style="font-family:monospace;line-height:1.55;font-size:90%")


def statement_colours(scop: Scop) -> dict[str, str]:
    """A colour for each statement, by name."""
    return {s.name: colour(n) for n, s in enumerate(scop.statements)}


def statement_text(s: ScopStatement) -> str:
    """The computation of one instance: ``C[i, j] += A[i, k] * B[k, j]``."""
    op = s.source.op if s.role == Role.UPDATE else "="
    return f"{s.target} {op} {s.value}"


class _Writer:
    def __init__(self, scop: Scop, properties: Iterator[BandProperties]) -> None:
        self.scop, self.properties = scop, properties
        self.colours = statement_colours(scop)

    def node(self, node: Node, names: tuple[str, ...]) -> Markup:
        if isinstance(node, Band):
            return self.band(node, names)
        if isinstance(node, Sequence):
            return joined(*(self.filter(f) for f in node.children))
        if isinstance(node, Promote):
            what = element("b", f"{node.served} → {node.buffer}")
            words = node.scope if node.dtype is None else f"{node.scope}, {node.dtype}"
            kept = badge(words, title="where the part that is touched below is kept")
            head = _row(joined("keep ", what, kept))
            return joined(head, _inside(self.node(node.child, names)))
        return joined(*(self.leaf(name) for name in names))

    def band(self, node: Band, names: tuple[str, ...]) -> Markup:
        found = next(self.properties, None)
        body = self.node(node.child, names)
        for n in reversed(range(len(node.members))):
            m = node.members[n]
            parts = [joined("for ", element("b", m.name))]
            if m.mark != Mark.SEQ:
                parts.append(badge(str(m.mark), *_mark(m.mark)))
            if m.isolate:
                parts.append(badge("full tiles apart", title="code of their own for full tiles"))
            if found is not None and found.coincident[n] and m.mark not in CONCURRENT:
                parts.append(
                    badge("coincident", "#3da35d", "carries no dependence: may be parallel")
                )
            parts.append(joined(" ", faint(short_schedule(m))))
            body = joined(_row(joined(*parts)), _inside(body))
        if len(node.members) < 2:
            return body
        free = found is not None and found.permutable
        label = badge("permutable", "#3d7fd9", "its loops may be interchanged and tiled")
        title = joined(faint(f"band of {len(node.members)}"), label if free else "")
        style = f"border:1px solid {LINE};border-radius:.5em;padding:.1em .5em .3em;margin:.15em 0"
        return element("div", element("div", title, style="font-size:85%"), body, style=style)

    def filter(self, f: Filter) -> Markup:
        names = joined(*(self.name(name) for name in f.statements))
        return joined(_row(joined("- ", names)), _inside(self.node(f.child, f.statements)))

    def leaf(self, name: str) -> Markup:
        text = statement_text(self.scop.statement(name))
        return _row(joined(self.name(name), " ", text))

    def name(self, name: str) -> Markup:
        return element(
            "span",
            name,
            style=f"background:{self.colours[name]}40;border-radius:.3em;padding:0 .3em;"
            "margin-right:.3em",
        )


def _mark(mark: LoopMark) -> tuple[str, str]:
    """The colour and the explanation of a mark."""
    if isinstance(mark, Tensorized):
        meaning = mark.intrinsic.meaning.statements[0]
        return "#8a63d2", f"part of an instruction: {meaning}"
    return _MARKS[mark]


def _row(content: Markup) -> Markup:
    return element("div", content, style="white-space:nowrap")


def _inside(content: Markup) -> Markup:
    style = f"margin-left:.45em;padding-left:1em;border-left:1px solid {LINE}"
    return element("div", content, style=style)
