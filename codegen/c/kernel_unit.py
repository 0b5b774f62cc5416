"""A schedule as a complete C translation unit: the function, its helpers, its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.c.expr_text import Names, index_text
from codegen.c.function import (
    CFunction,
    CNest,
    argument_order,
    emit_function,
    fuses_products,
    header_comment,
    identifier,
    team,
)
from codegen.c.instruction_text import definitions
from codegen.c.kernel_source import KernelSource
from codegen.c.loop_passes import C_LOOP_PASSES
from codegen.c.prelude import prelude_for
from codegen.c.thread_memory import definition
from codegen.loops.nodes import LoopNode
from poly.ir.expr import substitute
from poly.ir.program import Program
from poly.passes import Pass
from poly.schedule.schedule import Schedule

#: A text whose nests have twice as many lines is compiled in several units: as many as this at
#: most, of so many lines.  The headers of a unit take as long as some 150 lines.
MOST_UNITS, LINES_OF_UNIT = 4, 300


def generate(
    schedule: Schedule,
    symbol: str | None = None,
    written: Program | None = None,
    passes: Sequence[Pass[LoopNode]] = C_LOOP_PASSES,
) -> KernelSource:
    """Generate C for a schedule.

    The text carries the program and the schedule's script as comments.

    symbol : the name of the entry point; by default made from the program's name and the
        schedule's digest
    written : the program that callers see, if it differs from the schedule's.  It has the same
        inputs and outputs, possibly in other shapes with as many elements, and all sizes except
        those that are products of others.
    passes : the loop passes

    Raises
    ------
    ScheduleError : isl exceeded its budget.
    """
    program = schedule.program
    symbol = symbol or f"fk_{identifier(program.name)}_{schedule.digest}"
    written = written or program
    function = emit_function(schedule, f"{symbol}_body", passes)
    own = definition(function.thread_memory)
    entry = _entry(function, symbol, written)
    about = header_comment(function.made_from)
    setup = definitions(function.instructions)
    text = _unit(about, [*setup, *own, function.static_text, "", entry])
    made = {n: e for n, e in program.products.items() if n not in written.sizes}
    workspace = tuple(
        replace(t, shape=tuple(substitute(e, sizes=made) for e in t.shape))
        for t in function.workspace
    )
    units = _units(function, about, entry)
    return KernelSource(
        written, symbol, text, flags_for(schedule), workspace, units, function.instructions
    )


def _unit(about: str, lines: Sequence[str]) -> str:
    code = "\n".join(lines)
    return f"{about}\n{prelude_for(code)}\n{code}"


def _units(function: CFunction, about: str, entry: str) -> tuple[str, ...]:
    """The text in several units; none if it is short.

    Each has some of the loop nests, and as much text as the others as far as that is possible.
    """
    lines = sum(len(nest.body) for nest in function.nests)
    count = min(MOST_UNITS, len(function.nests), lines // LINES_OF_UNIT)
    if count < 2:
        return ()
    groups: list[list[CNest]] = [[] for _ in range(count)]
    for nest in sorted(function.nests, key=lambda nest: -len(nest.body)):
        min(groups, key=lambda group: sum(len(n.body) for n in group)).append(nest)
    hidden = '__attribute__((visibility("hidden")))'
    made = [
        # Each thread has this memory once for each unit: no nest leaves anything there.
        [
            *definitions(function.instructions),
            *definition(function.thread_memory),
            *(n.text(hidden) for n in function.nests if n in group),
        ]
        for group in groups
    ]
    declared = (f"{hidden} {nest.prototype};" for nest in function.nests)
    made[-1] += [*declared, "", *function.own_text, "", entry]
    return tuple(_unit(about, unit) for unit in made)


def flags_for(schedule: Schedule) -> tuple[str, ...]:
    """Compiler flags that a schedule needs."""
    fuses = fuses_products(schedule.program, schedule.exact)
    return () if fuses else ("-ffp-contract=off",)


def _entry(function: CFunction, symbol: str, written: Program) -> str:
    """The entry point: unpacks sizes and tensors, and calls the function on a team of threads."""
    program = function.made_from.program
    position = {t.name: n for n, t in enumerate(argument_order(program, function.workspace))}
    given = {s: f"sizes[{n}]" for n, s in enumerate(written.sizes)}
    names = Names({}, given, {}, str, str)
    made = program.products
    passed = [given.get(s) or index_text(made[s], names) for s in function.sizes]
    passed += [f"({c} *)tensors[{position[name]}]" for name, c in function.tensors]
    lines = []
    if not function.sizes:
        lines.append("  (void)sizes;")
    if not function.tensors:
        lines.append("  (void)tensors;")
    call = f"{function.symbol}({', '.join(passed)});"
    lines += team(call) if function.parallel else ["  (void)threads;", f"  {call}"]
    head = f"void {symbol}(int32_t threads, const int64_t *sizes, void *const *tensors)"
    return "\n".join([f"{head};", head, "{", *lines, "}", ""])
