"""The programs of calls, rewritten one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.ir.graph import Call, Graph
from poly.ir.program import Program
from poly.passes import Pass


def rewrite_calls(graph: Graph, rewrites: Sequence[Pass[Program]]) -> Graph:
    """Rewrite the program of each call."""

    def changed(program: Program) -> Program:
        for rewrite in rewrites:
            program = rewrite(program)
        return program

    nodes = [replace(n, program=changed(n.program)) if isinstance(n, Call) else n
             for n in graph.nodes]  # fmt: skip
    return replace(graph, nodes=tuple(nodes))
