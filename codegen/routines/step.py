"""`routine_step`: a routine of a network as a function of the network's sizes and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from codegen.c.network_unit import Slot, Step
from codegen.c.type_names import C_TYPES
from codegen.routines.forms import c_routine
from poly.ir.expr import Const, Expr
from poly.ir.graph import Argument, Graph, Routine


def routine_step(
    routine: Routine,
    graph: Graph,
    slots: Mapping[str, Slot],
    scratch: Slot | None,
    number: Callable[[Expr], int],
) -> Step:
    """The step that runs a routine.

    slots : of the graph's values; scratch : of the routine's memory, if it needs some
    number : the position among the sizes that the entry point is passed
    """

    def argument(given: Argument) -> str:
        if isinstance(given, float):
            return repr(given)
        if isinstance(given, tuple):
            return f"(const int64_t[]){{{', '.join(map(argument, given)) or '0'}}}"
        return str(given.value) if isinstance(given, Const) else f"sizes[{number(given)}]"

    function = c_routine(routine, graph)
    passed = []
    for n, name in enumerate((*routine.inputs, *routine.outputs)):
        constant = "const " if n < len(routine.inputs) else ""
        passed.append(f"({constant}{C_TYPES[graph.values[name].dtype.name]} *){slots[name].text}")
    if scratch is not None:
        passed.append(f"(void *){scratch.text}")
    passed += map(argument, routine.arguments)
    call = f"{function.symbol}({', '.join(passed)})"
    return Step(f"fk_step_{routine.name}", function.text, call, routine.origin or routine.name)
