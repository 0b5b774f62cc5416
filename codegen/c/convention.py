"""How generated functions share their loops among threads, and where their large arrays are.

In libraries that Farkas loads, pragmas of OpenMP share loops, and arrays that are too large for the
stack are thread-local (`codegen.c.thread_memory`).  Exported C has no state: its caller passes this
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import cgen

from codegen.c.cgen_blocks import as_block
from codegen.c.expr_text import index_text
from codegen.c.printer import CPrinter
from codegen.c.thread_memory import NAME
from codegen.c.type_names import LANES
from codegen.loops.nodes import For
from codegen.loops.workshare import sequential
from poly.ir.expr import Const
from poly.machine.cpu import Machine


class SerialPrinter(CPrinter):
    """C without pragmas of OpenMP, which compilers do not know by default.

    All arrays are in memory that is passed: threads may have little stack, on which gcc 12 puts
    arrays of different scopes into the same place although one is still in use (the flag
    -fstack-reuse=none prevents that, but a text cannot ask for it).
    """

    stack_limit = 0

    def shared_loops(self, node: For, depth: int) -> cgen.Generable:
        return self.loop(node, sequential(node.body))

    def lanes_for(self, loop: cgen.Generable) -> cgen.Generable:
        return cgen.Collection([cgen.Line(LANES), loop])

    def single(self, body: cgen.Generable) -> cgen.Generable:
        return body


class TeamPrinter(SerialPrinter):
    """C whose shared loops are cut into parts by the text itself: see `codegen.c.team_text`."""

    def shared_loops(self, node: For, depth: int) -> cgen.Generable:
        loops = [node]
        while len(loops) < depth:
            assert isinstance(loops[-1].body, For)
            loops.append(loops[-1].body)
        with ExitStack() as stack:
            for loop in loops:
                stack.enter_context(self.running(loop))
            body = self.statement(sequential(loops[-1].body))
        lines, numbers = self._counted(loops)
        place, end = self.fresh(), self.fresh()
        part = f"{TEAM}, {' * '.join(numbers)}"
        text = cgen.For(
            f"int64_t {place} = fk_part({part}, 0), {end} = fk_part({part}, 1)",
            f"{place} < {end}",
            f"{place}++",
            cgen.Block([*self._placed(loops, numbers, place), body]),
        )
        return cgen.Block([*map(cgen.Line, lines), text, cgen.Line(f"fk_wait({TEAM});")])

    def _counted(self, loops: Sequence[For]) -> tuple[list[str], list[str]]:
        """Lines that count the iterations of each loop, and the names of these numbers."""
        lines, numbers = [], []
        for loop in loops:
            number = self.fresh()
            ends = f"{index_text(loop.lower, self.names)}, {index_text(loop.upper, self.names)}"
            lines.append(f"const int64_t {number} = fk_count({ends}, {loop.step});")
            numbers.append(number)
        return lines, numbers

    def _placed(self, loops: Sequence[For], numbers: Sequence[str], place: str) -> list[cgen.Line]:
        """Lines that define the variables of the loops in an iteration of all of them."""
        lines: list[cgen.Line] = []
        for n, (loop, number) in enumerate(zip(loops, numbers, strict=True)):
            after = " / ".join([place, *numbers[n + 1 :]])
            own = f"{after} % {number}" if n else after
            step = f" * {loop.step}" if loop.step != 1 else ""
            lower = "" if loop.lower == Const(0) else f"{index_text(loop.lower, self.names)} + "
            var = self.names.loops[loop.var]
            lines.append(cgen.Line(f"const int64_t {var} = {lower}{own}{step};"))
        return lines

    def single(self, body: cgen.Generable) -> cgen.Generable:
        return cgen.Collection(
            [cgen.If(f"{TEAM}->number == 0", as_block(body)), cgen.Line(f"fk_wait({TEAM});")]
        )


@dataclass(frozen=True)
class Convention:
    """How the functions of a program are written.

    passes_memory : whether callers pass the memory of large arrays
    has_team : whether callers pass the thread's place in its team
    has_openmp : whether OpenMP starts the threads of a team, see `codegen.c.openmp_text`
    vector_bytes : of the vectors of the machine that it is for; 0: of this one
    """

    name: str
    printer: type[CPrinter]
    passes_memory: bool = False
    has_team: bool = False
    has_openmp: bool = False
    vector_bytes: int = 0

    def on(self, machine: Machine) -> Convention:
        """The convention on a machine."""
        return replace(self, vector_bytes=machine.vector_bytes)

    def passed(self, memory: int, is_shared: bool) -> Mapping[str, str]:
        """What a function is passed in addition: declarations, by name.

        memory : its bytes of memory; is_shared : whether all threads of a team run it
        """
        found: dict[str, str] = {}
        if memory and self.passes_memory:
            found[NAME] = f"unsigned char *restrict {NAME}"
        if is_shared and self.has_team:
            found[TEAM] = f"const fk_thread *{TEAM}"
        return found


#: The C name of what a thread knows about itself and its team.
TEAM = "fk_me"

LIBRARY = Convention("library", CPrinter)
SERIAL = Convention("serial", SerialPrinter, passes_memory=True)
TEAMS = Convention("teams", TeamPrinter, passes_memory=True, has_team=True)
OPENMP = replace(TEAMS, name="openmp", has_openmp=True)

#: How exported C uses threads, by the name of the choice.
THREADS: Mapping[str, Convention] = {"none": SERIAL, "pthread": TEAMS, "openmp": OPENMP}
