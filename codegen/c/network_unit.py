"""One entry point for a whole graph: a single team of threads calls all kernels in order.

Each distinct program is one function, in translation units that compile in parallel; a layer then
costs a barrier instead of a fork.  A routine says whether it has failed in an array of its own, the
last one that is passed, at its number; nothing more is run then.
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
#: The parameters of the entry point, besides the number of threads.
_GIVEN = "const int64_t *sizes, void *const *arrays"


@dataclass(frozen=True)
class Slot:
    """Where a value is stored: in the `index`-th array the caller passes, at `offset` bytes."""

    index: int
    offset: int = 0

    @property
    def text(self) -> str:
        base = f"(char *)arrays[{self.index}]"
        return f"({base} + {self.offset})" if self.offset else f"({base})"


@dataclass(frozen=True)
class RoutineCall:
    """A routine that a network runs besides the functions of programs, and that may fail.

    symbol : of the function that runs it, which is passed what the entry point is
    definition : of the function that is called; call : which is 0 unless it has failed
    """

    symbol: str
    definition: str
    call: str
    origin: str

    @property
    def text(self) -> str:
        """The function that runs it."""
        head = f"int32_t {self.symbol}({_GIVEN})"
        unused = ["  (void)sizes;", "  (void)arrays;"]
        return "\n".join([f"{head};", head, "{", *unused, f"  return {self.call};", "}"])


def network_unit(
    steps: Sequence[Call | RoutineCall],
    functions: Mapping[str, CFunction],
    slots: Mapping[str, Slot],
    workspaces: Mapping[str, Mapping[str, Slot]],
    sizes: Mapping[str, Sequence[int]],
    failed: int,
) -> str:
    """The C text that runs the steps of a graph, in order.

    slots : of every value; by the name of a call, functions : what it calls, workspaces : the slots
    of that function's temporaries, and sizes : the values of the sizes that it is given
    failed : the position of the array in which each `RoutineCall` says whether it has failed
    """
    distinct = {f.symbol: f for f in functions.values()}
    prototypes = [f"{f.prototype};" for f in distinct.values()]
    own = [s for s in steps if isinstance(s, RoutineCall)]
    texts = [*dict.fromkeys(s.definition for s in own), *(s.text for s in own)]
    lines = _includes([*prototypes, *texts], bool(own)) + prototypes
    lines += definition(max((f.thread_memory for f in distinct.values()), default=0), others=True)
    shared = any(f.parallel for f in distinct.values())
    lines += [*texts, "", f"static void {_CALLS}({_GIVEN})", "{"]
    if own:
        lines.append(f"  int32_t *const failed = (int32_t *)arrays[{failed}];")
    for step in steps:
        if isinstance(step, RoutineCall):
            made = _step(step, own.index(step), shared)
        else:
            function, given = functions[step.name], sizes[step.name]
            made = _call(step, function, slots, workspaces, given, shared)
        lines += [f"  {line}" for line in made]
    lines += ["  (void)sizes;", "  (void)arrays;", "}", ""]
    head = f"void {NETWORK_ENTRY}(int32_t threads, {_GIVEN})"
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


def _includes(texts: Sequence[str], has_steps: bool) -> list[str]:
    """What precedes all other lines."""
    text = "\n".join(texts)
    return [prelude_for(text)] if has_steps else ["#include <stdint.h>", "", *pattern_types(text)]


def _step(step: RoutineCall, number: int, shared: bool) -> list[str]:
    """One step: by one of the threads present; the others see whether it has failed."""
    return [
        f"/* {_comment(step.origin)} */",
        *(["#pragma omp single"] if shared else []),
        f"failed[{number}] = {step.symbol}(sizes, arrays);",
        f"if (failed[{number}]) return;",
    ]


def _comment(origin: str) -> str:
    """Text inside of a comment."""
    return origin.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")


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
    lines = [f"/* {_comment(call.origin) or call.name} */"]
    if shared and not function.parallel:
        lines.append("#pragma omp single")
    return [*lines, f"{function.symbol}({', '.join(passed)});"]
