"""Names from a model file, made into identifiers that every later stage can use as they are."""

from __future__ import annotations

import re

from poly.ir.program import RESERVED

#: Reserved words of C, OpenMP, CUDA and OpenCL.
C_WORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while bool complex imaginary alignas alignof atomic generic "
    "noreturn static_assert thread_local asm typeof main kernel global local private half "
    "constant".split()
)

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_LONGEST = 48


class Mangler:
    """Gives each name of one namespace a unique identifier, the same one each time.

    An identifier starts with a letter, holds ASCII letters, digits and single underscores only,
    is not a word of the language, isl or C, and has at most 60 characters.

    >>> m = Mangler()
    >>> m("gpu_0/data_0"), m("gpu_0.data_0"), m("int"), m("0;}")
    ('gpu_0_data_0', 'gpu_0_data_0_2', 'v_int', 'v_0')
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        """The identifier for `name`."""
        found = self._given.get(name)
        if found is None:
            found = self._given[name] = self.fresh(name)
        return found

    def fresh(self, hint: str) -> str:
        """A new identifier that resembles `hint`, never given out before."""
        base = _UNSAFE.sub("_", hint[: 4 * _LONGEST]).strip("_")[:_LONGEST].strip("_")
        if not base or not base[0].isalpha() or base in RESERVED or base.lower() in C_WORDS:
            base = f"v_{base}".rstrip("_")
        candidate, count = base, self._next.get(base, 2)
        while candidate in self._used:
            candidate, count = f"{base}_{count}", count + 1
        self._next[base] = count
        self._used.add(candidate)
        return candidate


def printable(name: str, longest: int = 80) -> str:
    """A name from a model file for messages and comments: one line, ASCII, no comment marks."""
    text = name[: longest + 1].encode("unicode_escape", "replace").decode("ascii")
    text = text.replace("*/", "* /").replace("/*", "/ *")
    return text if len(text) <= longest else text[: longest - 3] + "..."
