"""`Steps`: functions of one element, computed in float64 in several steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontends.aten.emitter import Emitter
from frontends.aten.pointwise import Reads
from frontends.aten.registry import Arguments
from frontends.aten.values import Extent, Ref, indices
from frontends.onnx.core.comprehension_text import at

#: Everything is computed in this type: what is rounded to float32 at the end is exact to its last
#: place, and one table of coefficients serves both types.
TYPE = "float64"


class Steps:
    """Statements that compute an element of `out` from operands at the same place.

    A step is named, so that what uses it several times neither writes nor computes it again.
    """

    def __init__(self, e: Emitter, a: Arguments, out: Ref) -> None:
        # A loop needs an index.
        self.given = out
        self.e, self.out = e, Ref("", out.dtype, out.shape or (1,))
        self.reads = Reads(e, a, self.out)
        self.own = indices(self.out.rank)
        self._lines: list[str] = []
        self._temps: list[tuple[str, str, Any]] = []

    def read(self, name: str, dtype: str = TYPE) -> str:
        """An operand."""
        return self.reads.text(name, dtype)

    def size(self, extent: Extent) -> str:
        """An extent, as a number or by its name."""
        if not isinstance(extent, int):
            self.reads.more.append(extent)
        return self.e.extent(extent)

    def let(self, text: str, dtype: str = TYPE) -> str:
        """Name a value."""
        name = f"T{len(self._temps)}"
        self._temps.append((name, dtype, self.out.shape))
        self._lines.append(self._line(at(name, self.own), text))
        return at(name, self.own)

    def _line(self, place: str, text: str) -> str:
        return self.e.line(f"{place} = {text}", self.own, self.out.shape)

    def loop(self, step: str, begin: int, end: int, changes: Sequence[tuple[str, str]]) -> None:
        """Give named values others, one after the other, for each ``begin <= step < end``."""
        # The index of a block has to stand on the left, and need not make a difference there.
        where = [f"{self.own[0]} + 0*{step}", *self.own[1:]]
        body = [self._line(at(place.split("[")[0], where), text) for place, text in changes]
        self._lines += [f"for {step} in {begin}:{end} {{", *body, "}"]

    def result(self, text: str) -> Ref:
        """The tensor of such elements."""
        return self.results([text], [self.given])[0]

    def results(self, texts: Sequence[str], outs: Sequence[Ref]) -> list[Ref]:
        """Tensors, each of such elements."""
        lines = [*self._lines]
        for n, (text, out) in enumerate(zip(texts, outs, strict=True)):
            value = text if out.dtype == "bool" else f"{out.dtype}({text})"
            name = at(f"Y{n or ''}", self.own)
            lines.append(self._line(name, value))
        more = [*self.out.shape, *self.reads.more]
        outputs = [(o.dtype, self.out.shape) for o in outs]
        found = self.e.program(outputs, lines, self.reads.inputs, self._temps, more)
        return [self.e.reshape(r, o.shape) for r, o in zip(found, outs, strict=True)]


def polynomial(x: str, coefficients: Sequence[float]) -> str:
    """Horner's scheme; the coefficient of the highest power comes first."""
    text = repr(coefficients[0])
    for c in coefficients[1:]:
        sign = "-" if c < 0 else "+"
        text = f"({text} * {x} {sign} {abs(c)!r})"
    return text


def ratio(x: str, top: Sequence[float], bottom: Sequence[float]) -> str:
    """A quotient of polynomials."""
    return f"({polynomial(x, top)} / {polynomial(x, bottom)})"


def cases(*pairs: tuple[str, str], otherwise: str) -> str:
    """The value of the first condition that holds."""
    text = otherwise
    for condition, value in reversed(pairs):
        text = f"select({condition}, {value}, {text})"
    return text
