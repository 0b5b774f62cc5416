"""One entry point for a whole graph: a single team of threads calls all kernels in order.

Each distinct program is one function in its own translation unit, so that units compile in
parallel; a layer then costs a barrier instead of a fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen.c.function import CFunction, argument_order, header_comment, team
from codegen.c.kernel_source import NETWORK_ENTRY
from codegen.c.prelude import BFLOAT16_NAME, BFLOAT16_TYPE, prelude_for
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
    if any(BFLOAT16_NAME in text for text in prototypes):
        lines.append(BFLOAT16_TYPE)
    lines += prototypes
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


def kernel_unit(f: CFunction, nodes: Sequence[str]) -> tuple[str, str]:
    """The file name and text of one function, which these nodes call."""
    code = "\n".join([*declaration(f.thread_memory), f"{f.prototype};", f.text, ""])
    return f"{f.symbol}.c", f"{header_comment(f.made_from, nodes)}\n{prelude_for(code)}\n{code}"


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
