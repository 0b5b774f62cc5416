"""Texts that differ in names and numbers alone: one is parsed, the others are given theirs.

The operators of a network write many such texts, and parsing is the slowest part of reading them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any

from frontends.language.syntax import Name, Node, Number, Source
from poly.errors import Span

#: Stand for a name and a number in the text of a `Form`; no token has these characters.
_NAME, _NUMBER = "\1", "\2"


@dataclass(frozen=True)
class Form:
    """A text without its names and numbers, and where in it these are."""

    text: str
    gaps: tuple[Span, ...]


def form_of(text: str, token: re.Pattern[str], words: Collection[str]) -> Form | None:
    """The form of a text; None if it has comments, which may have anything in them.

    token : matches a word, or a number as the group of that name; words : those that are not names
    """
    if "#" in text:
        return None
    gaps = []

    def gap(found: re.Match[str]) -> str:
        if found.group() in words:
            return found.group()
        gaps.append(Span(*found.span()))
        return _NAME if found["number"] is None else _NUMBER

    return Form(token.sub(gap, text), tuple(gaps))


@dataclass(frozen=True)
class Template:
    """A text and its form, and what the parser found in it."""

    source: Source
    form: Form

    def fits(self, form: Form) -> bool:
        """Whether texts of another form have the same tokens, but for names and numbers."""
        return self.form.text == form.text and len(self.form.gaps) == len(form.gaps)

    def source_of(
        self, text: str, form: Form, value_of: Callable[[str, Span], int | float]
    ) -> Source:
        """What the parser finds in a text of a form that fits.

        value_of : reads a literal; it raises an error if that is invalid
        """
        old, new = self.form.gaps, form.gaps
        ends = [span.end for span in old]
        shifts = [0, *(n.end - o.end for o, n in zip(old, new, strict=True))]

        def moved(at: int) -> int:
            return at + shifts[bisect_right(ends, at)]

        def number(node: Number) -> int | float | bool:
            """A literal, whose signs belong to the node."""
            last = bisect_right(ends, node.span.end) - 1
            if last < 0 or old[last].start < node.span.start:
                return node.value  # a word: true, inf, nan
            signs = self.source.text.count("-", node.span.start, old[last].start)
            value = value_of(text[new[last].start : new[last].end], new[last])
            return -value if signs % 2 else value

        def visit(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple([visit(p) for p in part])
            if not isinstance(part, Node):
                return part
            span = Span(moved(part.span.start), moved(part.span.end))
            if isinstance(part, Number):
                return Number(span, number(part))
            if isinstance(part, Name):
                return Name(span, text[span.start : span.end])
            return type(part)(span, *rest(part))

        def rest(part: Node | Source) -> list[Any]:
            """The fields after the first: the span, or the text."""
            return [visit(getattr(part, f.name)) for f in fields(part)[1:]]

        return Source(text, *rest(self.source))
