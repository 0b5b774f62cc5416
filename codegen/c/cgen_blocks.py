"""C statements put together: in order, and in braces."""

from __future__ import annotations

import cgen


def in_order(lines: list[str]) -> cgen.Generable:
    """Statements of which the last may use names that the others declare."""
    made = [cgen.Line(line) for line in lines]
    return made[0] if len(made) == 1 else cgen.Block(made)


def _is_comment(line: cgen.Generable) -> bool:
    return isinstance(line, cgen.Line) and line.text.startswith("/*")


def as_block(body: cgen.Generable) -> cgen.Block:
    """The statements in braces, braces never doubled."""
    if isinstance(body, cgen.Collection):
        if not body.contents:
            return cgen.Block([])
        *before, last = body.contents
        if isinstance(last, cgen.Block) and all(map(_is_comment, before)):
            return cgen.Block([*before, *last.contents])
        return cgen.Block([*before, last]) if before else as_block(last)
    return body if isinstance(body, cgen.Block) else cgen.Block([body])
