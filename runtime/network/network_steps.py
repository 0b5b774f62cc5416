"""`steps_of`: what the entry point of a generated graph runs, in order."""

from __future__ import annotations

from codegen.c.network_unit import RoutineCall
from codegen.routines.call import network_call
from poly.ir.expr import Expr, substitute
from poly.ir.graph import Call, Routine
from runtime.network.generate_graph import SCRATCH, GeneratedGraph


def steps_of(made: GeneratedGraph) -> tuple[list[Call | RoutineCall], list[Expr]]:
    """The calls and routines of a graph in order, and all that its entry point is passed for sizes.

    The calls are passed the first of these.
    """
    calls = {call.name for call in made.calls}
    sizes = [*made.sizes]

    def number(e: Expr) -> int:
        e = substitute(e, sizes=made.graph.derived)
        if e not in sizes:
            sizes.append(e)
        return sizes.index(e)

    steps: list[Call | RoutineCall] = []
    for node in made.graph.nodes:
        if isinstance(node, Routine):
            scratch = made.workspaces[node.name][SCRATCH] if node.scratch is not None else None
            steps.append(network_call(node, made.graph, made.slots, scratch, number))
        elif isinstance(node, Call) and node.name in calls:
            steps.append(node)
    return steps, sizes
