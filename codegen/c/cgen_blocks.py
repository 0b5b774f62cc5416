"""Join C statements: in sequence, and in braces."""

from __future__ import annotations

from collections.abc import Iterator

import cgen

from codegen.c.type_names import UNROLLED, UNROLLED_BY
from codegen.loops.nodes import For
from codegen.loops.rolled import is_rolled


def in_order(lines: list[str]) -> cgen.Generable:
    """Join statements in order; later ones may use names that earlier ones declare."""
    made = [cgen.Line(line) for line in lines]
    return made[0] if len(made) == 1 else cgen.Block(made)


class Marked(cgen.Generable):  # type: ignore[misc]  # cgen has no types
    """A statement below a line that belongs to it: together they may be the body of a loop."""

    def __init__(self, mark: str, statement: cgen.Generable) -> None:
        self.mark, self.statement = mark, statement

    def generate(self) -> Iterator[str]:
        yield self.mark
        yield from self.statement.generate()


def unrolled(node: For, loop: cgen.Generable) -> cgen.Generable:
    """A loop that the C compiler is told to unroll: as a whole, or some iterations at once."""
    return Marked(UNROLLED if is_rolled(node) else f"{UNROLLED_BY}{node.at_once}", loop)


def _is_comment(line: cgen.Generable) -> bool:
    return isinstance(line, cgen.Line) and line.text.startswith("/*")


def as_block(body: cgen.Generable) -> cgen.Block:
    """Put the statements in braces, unless they already are."""
    if isinstance(body, cgen.Collection):
        if not body.contents:
            return cgen.Block([])
        *before, last = body.contents
        if isinstance(last, cgen.Block) and all(map(_is_comment, before)):
            return cgen.Block([*before, *last.contents])
        return cgen.Block([*before, last]) if before else as_block(last)
    return body if isinstance(body, cgen.Block) else cgen.Block([body])
