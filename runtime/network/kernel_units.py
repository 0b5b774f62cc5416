"""The files in which the kernels of a network are compiled."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.c.function import CFunction
from codegen.c.network_unit import kernels_unit
from runtime.cpu.compile_c import Compilation

#: Kernels are put into one file until they have so many lines.  Starting gcc takes as long as
#: compiling some twenty.
LINES_OF_UNIT = 200


class KernelUnits:
    """Adds kernels to a compilation, adjacent small ones in one file.

    The files do not depend on the order in which kernels are ready.
    """

    def __init__(self, work: Compilation) -> None:
        self._work = work
        self._ready: dict[int, tuple[CFunction, Sequence[str]]] = {}
        self._next = 0
        self._unit: list[tuple[CFunction, Sequence[str]]] = []

    def add(self, number: int, function: CFunction, nodes: Sequence[str]) -> None:
        """Add a kernel.  Numbers begin at 0; nodes : what it is called for"""
        self._ready[number] = (function, nodes)
        while self._next in self._ready:
            self._unit.append(self._ready.pop(self._next))
            self._next += 1
            if sum(f.text.count("\n") for f, _ in self._unit) >= LINES_OF_UNIT:
                self.finish()

    def finish(self) -> None:
        """Write the last file, once all kernels are added."""
        if self._unit:
            first = self._next - len(self._unit)
            self._work.add(*kernels_unit(self._unit, first))
        self._unit = []
