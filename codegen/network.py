"""One entry point for a whole graph: every kernel called in order by one team of threads.

Each distinct program is one function in a translation unit of its own, so that they compile in
parallel; a layer costs no fork, and no barrier: see `codegen.team`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cgen

from codegen.function import CFunction, argument_order, header_comment
from codegen.prelude import prelude_for
from codegen.team import on_team, once
from poly.graph import Call

ENTRY = "fk_network"


@dataclass(frozen=True)
class Place:
    """Where a value lies: in the `index`-th array that the caller passes, from `offset` bytes."""

    index: int
    offset: int = 0

    @property
    def text(self) -> str:
        base = f"(char *)arrays[{self.index}]"
        return f"({base} + {self.offset})" if self.offset else f"({base})"


def network_unit(
    calls: Sequence[Call],
    functions: Mapping[str, CFunction],
    places: Mapping[str, Place],
    workspaces: Mapping[str, Mapping[str, Place]],
) -> str:
    """The C text that makes the calls of a graph, in order.

    functions : by digest of the program; places : of every value; workspaces : for each call
    (by name), the places of the function's temporaries.
    """
    lines = [f"{f.prototype};" for f in functions.values()]
    head = f"void {ENTRY}(int32_t threads, const int64_t *sizes, void *const *arrays)"
    lines += ["", f"{head};", head, "{", "  (void)sizes;"]
    made = [
        line
        for call in calls
        for line in _call(call, functions[call.program.digest], places, workspaces)
    ]
    lines += [*(f"  {line}" for line in on_team(made)), "}", ""]
    code = "\n".join(lines)
    return f"{prelude_for(code)}\n{code}"


def kernel_unit(f: CFunction) -> tuple[str, str]:
    """The name and text of the file of one function."""
    code = f"{f.prototype};\n{f.text}\n"
    return f"{f.symbol}.c", f"{header_comment(f.schedule)}\n{prelude_for(code)}\n{code}"


def _call(
    call: Call,
    function: CFunction,
    places: Mapping[str, Place],
    workspaces: Mapping[str, Mapping[str, Place]],
) -> list[str]:
    program = call.program
    values = {
        **dict(zip((t.name for t in program.inputs), call.inputs, strict=True)),
        **dict(zip((t.name for t in program.outputs), call.outputs, strict=True)),
    }
    own = workspaces.get(call.name, {})
    known = {t.name for t in argument_order(program, function.workspace)}
    passed = []
    for name, c in function.tensors:
        assert name in known
        place = places[values[name]] if name in values else own[name]
        passed.append(f"({c} *){place.text}")
    origin = call.origin.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")
    comment = f"/* {origin or call.name} */"
    if function.parallel:
        return [comment, f"{function.symbol}({', '.join(['team', *passed])});"]
    text = once(cgen.Line(f"{function.symbol}({', '.join(passed)});"))
    return [comment, *text.generate()]
