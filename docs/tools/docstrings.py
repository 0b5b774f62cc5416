"""Docstrings as Markdown: an extension of griffe, which reads them for the API reference.

Sections are written as numpy's, but with what a parameter means behind its name, where numpy has
its type:

    Parameters
    ----------
    text : a definition, or …
    sizes : values for sizes
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w.,* ]*?)(?: ?: ?|  +)", re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Turns every docstring into Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    head, *rest = _SECTION.split(examples(text))
    # A paragraph may explain parameters, too.
    paragraphs = head.rstrip().split("\n\n")
    parts = [entries(p) if re.match(r"[a-z]\w*(, \w+)* : ", p) else p for p in paragraphs]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        if title in ("Returns", "Yields"):
            parts.append(f"**{title}** — {' '.join(body.split())}")
        else:
            parts.append(f"**{title}**\n\n{entries(body)}")
    return "\n\n".join(parts)


def entries(body: str) -> str:
    """``name : meaning`` as a list; a line further in goes on with the one before."""
    items: list[str] = []
    for line in body.strip("\n").splitlines():
        if line.startswith((" ", "\t")) and items:
            items[-1] += " " + line.strip()
        elif match := _ENTRY.match(line):
            names = ", ".join(f"`{n.strip()}`" for n in match[1].split(","))
            kind, _, meaning = line[match.end() :].strip().rpartition("   ")
            names += f" ({kind.strip()})" if kind else ""
            items.append(f"* {names}: {meaning.strip()}")
        elif line.strip():
            items.append(line.strip())
    return "\n".join(items)


def examples(text: str) -> str:
    """Lines at a prompt become a block of code."""
    return re.sub(
        r"(?m)(?:^>>> .*\n?|^\.\.\. .*\n?)+(?:^(?!>>>)\S.*\n?)*",
        lambda m: "```pycon\n" + m[0].rstrip("\n") + "\n```\n",
        text,
    )
