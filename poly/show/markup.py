"""HTML and SVG as text: elements, badges, colours.

Everything is static, carries its own style in ``style`` attributes, and inherits the colour of the
surrounding text, so that it is readable on light and dark pages and without style sheets.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

#: The first is for items without a colour of their own.
PALETTE = (
    "#7f7f7f", "#3d7fd9", "#d9803d", "#3da35d", "#c0489c", "#8a63d2", "#b59a1f", "#2fa3a3",
    "#d95050",
)  # fmt: skip

LINE = "rgba(127,127,127,.45)"
_VOID = frozenset({"br", "hr", "img", "col", "meta"})


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """``<name attributes>children</name>``; children that are not `Markup` are escaped.

    Attributes: None omits one, ``_`` in names stands for ``-``, and a trailing one is dropped
    (``class_``).
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Several pieces concatenated."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c, quote=False) for c in children))


def colour(number: int) -> str:
    """The colour of the `number`-th of several items, from 0; they repeat."""
    return PALETTE[1 + number % (len(PALETTE) - 1)]


def badge(text: str, colour: str = PALETTE[0], title: str | None = None) -> Markup:
    """A small rounded label."""
    style = (
        f"border:1px solid {colour};border-radius:.6em;padding:0 .45em;margin-left:.5em;"
        f"font-size:85%;background:{colour}30;white-space:nowrap"
    )
    return element("span", text, style=style, title=title)


def faint(text: str) -> Markup:
    """De-emphasised text."""
    return element("span", text, style="opacity:.65")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Markup:
    """A table; the first `left` columns are flush left, the others right."""

    def cell(kind: str, n: int, text: str) -> Markup:
        align = "left" if n < left else "right"
        style = f"text-align:{align};padding:.1em .7em;border-bottom:1px solid {LINE}"
        return element(kind, text, style=f"{style};background:none;color:inherit")

    lines = [element("tr", *(cell("th", n, t) for n, t in enumerate(head)))] if head else []
    lines += [element("tr", *(cell("td", n, t) for n, t in enumerate(row))) for row in rows]
    return element(
        "table",
        *lines,
        style="border-collapse:collapse;margin:.3em 0;font-variant-numeric:tabular-nums",
    )


def _text(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
