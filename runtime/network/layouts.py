"""Layouts of constants: chosen for the kernels that read them, and applied to a graph."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from poly.deps.scop import build_scop
from poly.ir.expr import Const
from poly.ir.graph import Call, Graph
from poly.ir.layout import Layout, Mapper, relayout
from poly.ir.program import Program, Tensor
from poly.machine.cpu import Machine
from poly.rewrites.group_operands import group_operands
from poly.strategy.cpu.packing import preferred_layouts
from runtime.common.arguments import ALIGNMENT, aligned
from runtime.common.compile_report import Progress

#: For each call that has some, the layouts of its constant inputs.
Layouts = list[tuple[str, dict[str, Layout]]]


def choose_layouts(graph: Graph, machine: Machine, tell: Progress) -> Layouts:
    """For each call with constant inputs, the layouts that its kernel prefers."""
    wanted: dict[tuple[str, ...], dict[str, Layout]] = {}
    result: Layouts = []
    calls = [n for n in graph.nodes if isinstance(n, Call)]
    for done, call in enumerate(calls):
        constant = [
            t.name
            for t, v in zip(call.program.inputs, call.inputs, strict=True)
            if v in graph.constants and t.rank > 1
        ]
        if not constant:
            continue
        tell("layouts", done, len(calls), call.origin)
        key = (call.program.form.digest, *constant)
        if key not in wanted:
            grouped = group_operands(call.program, machine.extensions)
            wanted[key] = preferred_layouts(build_scop(grouped), machine, constant)
        if wanted[key]:
            result.append((call.name, wanted[key]))
    return result


def read_layouts(found: dict[str, dict[str, Any]]) -> dict[str, Layout]:
    """The layouts of a call from JSON data."""
    return {
        tensor: Layout(tuple(x["order"]), tuple(map(tuple, x["blocks"])))
        for tensor, x in found.items()
    }


def apply_layouts(graph: Graph, layouts: Layouts) -> Graph:
    """The graph in which these calls read rearranged copies of their constants."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _with_layouts(graph, layouts, pool.map)


def _with_layouts(graph: Graph, layouts: Layouts, each: Mapper) -> Graph:
    chosen = dict(layouts)
    values, constants = dict(graph.values), dict(graph.constants)
    nodes = []
    rewritten: dict[tuple[str, str], Program] = {}
    for node in graph.nodes:
        if not isinstance(node, Call) or node.name not in chosen:
            nodes.append(node)
            continue
        inputs = list(node.inputs)
        program = node.program
        key = (program.digest, str(sorted(chosen[node.name].items(), key=lambda x: x[0])))
        for position, tensor in enumerate(program.inputs):
            layout = chosen[node.name].get(tensor.name)
            if layout is None:
                continue
            source = inputs[position]
            name = f"{source}{layout}"
            if name not in constants:
                given = graph.constants[source]
                array = aligned(
                    layout.box(layout.whole_blocks(given.shape)), given.dtype, ALIGNMENT
                )
                constants[name] = layout.arrange(given, array, each)
                shape = tuple(Const(n) for n in array.shape)
                values[name] = Tensor(name, values[source].dtype, shape)
            inputs[position] = name
            program = relayout(program, tensor.name, layout)
        program = rewritten.setdefault(key, program)
        nodes.append(replace(node, program=program, inputs=tuple(inputs)))
    used = {name for n in nodes for name in n.inputs} | set(graph.outputs)
    return replace(
        graph,
        nodes=tuple(nodes),
        values=values,
        constants={n: a for n, a in constants.items() if n in used},
    )
