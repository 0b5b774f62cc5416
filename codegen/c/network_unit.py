"""One entry point for a whole graph: a single team of threads calls all kernels in order.

Each distinct program is one function, in translation units that compile in parallel; a layer then
costs a barrier instead of a fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen.c.function import CFunction, argument_order, header_comment, team
from codegen.c.instruction_text import definitions
from codegen.c.kernel_source import NETWORK_ENTRY
from codegen.c.prelude import pattern_types, prelude_for
from codegen.c.thread_memory import declaration, definition
from poly.ir.graph import Call

_CALLS = "fk_calls"


@dataclass(frozen=True)
class Slot:
    """Where a value is stored: in the `index`-th array the caller passes, at `offset` bytes."""

    index: int
    offset: int = 0

    @property
    def text(self) -> str:
        base = f"(char *)arrays[{self.index}]"
        return f"({base} + {self.offset})" if self.offset else f"({base})"


def network_unit(
    calls: Sequence[Call],
    functions: Mapping[str, CFunction],
    slots: Mapping[str, Slot],
    workspaces: Mapping[str, Mapping[str, Slot]],
    sizes: Mapping[str, Sequence[int]],
) -> str:
    """The C text that makes the calls of a graph, in order.

    slots : of every value; by the name of a call, functions : what it calls, workspaces : the slots
    of that function's temporaries, and sizes : the values of the sizes that it is given
    """
    distinct = {f.symbol: f for f in functions.values()}
    prototypes = [f"{f.prototype};" for f in distinct.values()]
    lines = ["#include <stdint.h>", ""]
    lines += [*pattern_types("\n".join(prototypes)), *prototypes]
    lines += definition(max((f.thread_memory for f in distinct.values()), default=0), others=True)
    shared = any(f.parallel for f in distinct.values())
    given = "const int64_t *sizes, void *const *arrays"
    lines += ["", f"static void {_CALLS}({given})", "{"]
    for call in calls:
        function = functions[call.name]
        own = sizes[call.name]
        lines += [f"  {line}" for line in _call(call, function, slots, workspaces, own, shared)]
    lines += ["  (void)sizes;", "  (void)arrays;", "}", ""]
    head = f"void {NETWORK_ENTRY}(int32_t threads, {given})"
    lines += [f"{head};", head, "{"]
    call_all = f"{_CALLS}(sizes, arrays);"
    lines += team(call_all) if shared else ["  (void)threads;", f"  {call_all}"]
    return "\n".join([*lines, "}", ""])


def kernels_unit(kernels: Sequence[tuple[CFunction, Sequence[str]]], first: int) -> tuple[str, str]:
    """The file name and text of some functions, each with the nodes that call it.

    first : the number of the first of them
    """
    texts = ["\n".join([f"{f.prototype};", f.text, ""]) for f, _ in kernels]
    memory = declaration(max(f.thread_memory for f, _ in kernels))
    setup = definitions(i for f, _ in kernels for i in f.instructions)
    prelude = prelude_for("\n".join([*setup, *memory, *texts]))
    comments = [header_comment(f.made_from, nodes) for f, nodes in kernels]
    parts = [comments[0], prelude, *setup, *memory, texts[0]]
    for comment, text in zip(comments[1:], texts[1:], strict=True):
        parts += [comment, text]
    name = f"kernels_{first}_to_{first + len(kernels) - 1}" if kernels[1:] else kernels[0][0].symbol
    return f"{name}.c", "\n".join(parts)


def argument_slots(
    call: Call,
    function: CFunction,
    slots: Mapping[str, Slot],
    workspaces: Mapping[str, Mapping[str, Slot]],
) -> list[Slot]:
    """The slots of the tensors that a call passes to its function, in order."""
    program = call.program
    values = {
        **dict(zip((t.name for t in program.inputs), call.inputs, strict=True)),
        **dict(zip((t.name for t in program.outputs), call.outputs, strict=True)),
    }
    own = workspaces.get(call.name, {})
    known = {t.name for t in argument_order(program, function.workspace)}
    assert all(name in known for name, _ in function.tensors)
    return [slots[values[n]] if n in values else own[n] for n, _ in function.tensors]


def _call(
    call: Call,
    function: CFunction,
    slots: Mapping[str, Slot],
    workspaces: Mapping[str, Mapping[str, Slot]],
    sizes: Sequence[int],
    shared: bool,
) -> list[str]:
    """One call: by all threads, or by one of those present."""
    found = argument_slots(call, function, slots, workspaces)
    passed = [f"sizes[{n}]" for n in sizes]
    passed += [f"({c} *){p.text}" for (_, c), p in zip(function.tensors, found, strict=True)]
    origin = call.origin.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")
    lines = [f"/* {origin or call.name} */"]
    if shared and not function.parallel:
        lines.append("#pragma omp single")
    return [*lines, f"{function.symbol}({', '.join(passed)});"]
