"""Calls of routines as C text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from codegen.c.network_unit import RoutineCall, Slot
from codegen.c.type_names import C_TYPES
from codegen.routines.forms import c_routine
from poly.ir.expr import Const, Expr
from poly.ir.graph import Argument, Graph, Routine


def call_text(
    routine: Routine,
    graph: Graph,
    pointer: Callable[[str, str], str],
    scratch: str | None,
    number: Callable[[Expr], str],
) -> str:
    """The call, which is 0 unless it has failed.

    pointer : to a value, by its name, as an array of elements of a C type
    scratch : a pointer to the memory that it needs, if it needs some
    number : the text of a number over the graph's sizes
    """

    def argument(given: Argument) -> str:
        if isinstance(given, float):
            return repr(given) if math.isfinite(given) else _NOT_FINITE[repr(given)]
        if isinstance(given, tuple):
            return f"(const int64_t[]){{{', '.join(map(argument, given)) or '0'}}}"
        return number(given)

    passed = []
    for n, name in enumerate((*routine.inputs, *routine.outputs)):
        constant = "const " if n < len(routine.inputs) else ""
        kind = f"{constant}{C_TYPES[graph.values[name].dtype.name]}"
        passed.append(f"({kind} *){pointer(name, kind)}")
    if scratch is not None:
        passed.append(f"(void *){scratch}")
    passed += map(argument, routine.arguments)
    return f"{c_routine(routine, graph).symbol}({', '.join(passed)})"


_NOT_FINITE = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}


def network_call(
    routine: Routine,
    graph: Graph,
    slots: Mapping[str, Slot],
    scratch: Slot | None,
    number: Callable[[Expr], int],
) -> RoutineCall:
    """The call in a network's entry point.

    slots : of the graph's values; scratch : of the routine's memory, if it needs some
    number : the position among the sizes that the entry point is passed
    """

    def size(e: Expr) -> str:
        return str(e.value) if isinstance(e, Const) else f"sizes[{number(e)}]"

    memory = None if scratch is None else scratch.text
    call = call_text(routine, graph, lambda name, kind: slots[name].text, memory, size)
    symbol, text = f"fk_step_{routine.name}", c_routine(routine, graph).text
    return RoutineCall(symbol, text, call, routine.title)
