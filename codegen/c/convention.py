"""How generated functions share their loops among threads, and where their large arrays are.

In libraries that Farkas loads, pragmas of OpenMP share loops, and arrays that are too large for the
stack are thread-local (`codegen.c.thread_memory`).  Exported C has no state: its caller passes this
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cgen

from codegen.c.printer import CPrinter
from codegen.c.thread_memory import NAME
from codegen.c.type_names import LANES


class SerialPrinter(CPrinter):
    """C without pragmas of OpenMP, which compilers do not know by default.

    All arrays are in memory that is passed: threads may have little stack, on which gcc 12 puts
    arrays of different scopes into the same place although one is still in use (the flag
    -fstack-reuse=none prevents that, but a text cannot ask for it).
    """

    stack_limit = 0

    def parallel_for(self, loop: cgen.Generable, depth: int) -> cgen.Generable:
        return loop

    def lanes_for(self, loop: cgen.Generable) -> cgen.Generable:
        return cgen.Collection([cgen.Line(LANES), loop])

    def single(self, body: cgen.Generable) -> cgen.Generable:
        return body


@dataclass(frozen=True)
class Convention:
    """How the functions of a program are written.

    passes_memory : whether callers pass the memory of large arrays
    """

    name: str
    printer: type[CPrinter]
    passes_memory: bool

    def passed(self, memory: int) -> Mapping[str, str]:
        """What a function that uses so many bytes of memory is passed for it: its declaration, by
        name.
        """
        if not memory or not self.passes_memory:
            return {}
        return {NAME: f"unsigned char *restrict {NAME}"}


LIBRARY = Convention("library", CPrinter, passes_memory=False)
SERIAL = Convention("serial", SerialPrinter, passes_memory=True)
