"""Texts that differ in their numbers alone: one is parsed, the others are given their numbers.

The operators of a network write many such texts, and parsing is the slowest part of reading them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from frontends.language.syntax import Node, Number, Source
from poly.errors import Span

#: Stands for a number in the text of a `Form`; no token has this character.
_GAP = "\0"


@dataclass(frozen=True)
class Form:
    """A text without its numbers, and where in it these are."""

    text: str
    numbers: tuple[Span, ...]


def form_of(text: str, token: re.Pattern[str]) -> Form | None:
    """The form of a text; None if it has comments, which may have anything in them.

    token : matches a name, or a number as the group of that name
    """
    if "#" in text:
        return None
    numbers = []

    def gap(found: re.Match[str]) -> str:
        if found["number"] is None:
            return found.group()
        numbers.append(Span(*found.span()))
        return _GAP

    return Form(token.sub(gap, text), tuple(numbers))


@dataclass(frozen=True)
class Template:
    """A text and its form, and what the parser found in it."""

    source: Source
    form: Form

    def fits(self, form: Form) -> bool:
        """Whether texts of another form have the same tokens, but for the values of numbers."""
        return self.form.text == form.text and len(self.form.numbers) == len(form.numbers)

    def source_of(
        self, text: str, form: Form, value_of: Callable[[str, Span], int | float]
    ) -> Source:
        """What the parser finds in a text of a form that fits.

        value_of : reads a literal; it raises an error if that is invalid
        """
        old = self.form.numbers
        ends = [span.end for span in old]
        shifts = [0, *(n.end - o.end for o, n in zip(old, form.numbers, strict=True))]
        values = [value_of(text[n.start : n.end], n) for n in form.numbers]

        def moved(at: int) -> int:
            return at + shifts[bisect_right(ends, at)]

        def number(node: Number) -> int | float | bool:
            """A literal, whose signs belong to the node."""
            last = bisect_right(ends, node.span.end) - 1
            if last < 0 or old[last].start < node.span.start:
                return node.value  # a word: true, inf, nan
            signs = self.source.text.count("-", node.span.start, old[last].start)
            return -values[last] if signs % 2 else values[last]

        def visit(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple([visit(p) for p in part])
            if not isinstance(part, Node):
                return part
            span = Span(moved(part.span.start), moved(part.span.end))
            if isinstance(part, Number):
                return Number(span, number(part))
            return type(part)(span, *rest(part))

        def rest(part: Node | Source) -> list[Any]:
            """The fields after the first: the span, or the text."""
            return [visit(getattr(part, f.name)) for f in fields(part)[1:]]

        return Source(text, *rest(self.source))
