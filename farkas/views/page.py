"""`View`: a picture that Jupyter shows as HTML, a terminal as text, and a browser as a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from farkas.console.files import write_file
from poly.show.markup import Markup, element, joined

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; margin: 1.5em; }
"""


@dataclass(frozen=True, repr=False)
class View:
    """A picture: `html` without an enclosing page, and `text` where HTML cannot be shown."""

    html: Markup
    text: str
    title: str = "Farkas"

    def _repr_html_(self) -> str:
        return element("div", self.html, style="overflow-x:auto")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a self-contained HTML file, readable in light and dark themes."""
        head = joined(
            element("meta", charset="utf-8"),
            element("title", self.title),
            element("style", Markup(_PAGE_STYLE)),
        )
        page = element("html", element("head", head), element("body", self.html), lang="en")
        write_file(os.fspath(path), f"<!DOCTYPE html>\n{page}\n".encode())
        return Path(path)


def beside(*parts: Markup, room: str = "26em") -> Markup:
    """Pieces side by side, or below each other if the page is narrower than `room` for each."""
    style = f"flex:1 1 {room};min-width:0;overflow-x:auto"
    cells = [element("div", p, style=style) for p in parts]
    style = "display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start"
    return element("div", *cells, style=style)


def section(title: str, body: Markup, is_open: bool = True) -> Markup:
    """A section with a title that can be collapsed."""
    summary = element("summary", title, style="font-weight:bold;cursor:pointer")
    style = "margin:.4em 0"
    if is_open:
        return element("details", summary, body, style=style, open="open")
    return element("details", summary, body, style=style)
