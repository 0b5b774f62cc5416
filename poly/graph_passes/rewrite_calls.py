"""Rewriting the programs of calls, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from poly.ir.graph import Call, Graph
from poly.ir.program import Program, verify_program
from poly.passes import Pass, run_passes


def rewrite_calls(graph: Graph, rewrites: Sequence[Pass[Program]], machine: Any) -> Graph:
    """Rewrite the program of each call."""
    nodes = (
        replace(n, program=run_passes(n.program, rewrites, machine, verify_program))
        if isinstance(n, Call)
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))
