"""Build an optimised graph into a cached library: layouts, schedules, C, one shared object."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from codegen.c.network_unit import RoutineCall, argument_slots, network_unit
from poly.ir.expr import Const, Expr, Op, Size
from poly.ir.graph import Call, Graph, Routine
from poly.ir.instruction_tables import declared_intrinsics
from poly.machine.cpu import Machine
from runtime.common.cache import Cache, Entry, digest
from runtime.common.compile_report import Progress
from runtime.common.fingerprint import code_digest
from runtime.common.workers import Workers
from runtime.cpu.compile_c import Compilation
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.remembered import at_hand
from runtime.cpu.shared_library import LIBRARY
from runtime.cpu.toolchain import Toolchain
from runtime.intrinsics.check import require
from runtime.network.built import Built
from runtime.network.clock import Clock
from runtime.network.generate_graph import GeneratedGraph, fixed_plan, generate_graph, sharing_of
from runtime.network.kernel_units import KernelUnits
from runtime.network.layouts import Layouts, apply_layouts, choose_layouts, read_layouts
from runtime.network.network_steps import steps_of
from runtime.network.pointer_order import pointer_order
from runtime.tuned.record_file import TunedSchedules

_FORMAT = "8"


def build_graph(
    graph: Graph,
    machine: Machine,
    toolchain: Toolchain,
    cache: Cache,
    tell: Progress,
    clock: Clock,
    workers: Workers,
    tuned: TunedSchedules | None = None,
) -> Built:
    """The graph, compiled or from the cache.

    workers : see `runtime.network.generate_kernels.kernel_workers`
    tuned : the schedules of kernels that were tuned

    Raises
    ------
    ToolchainError : the compiler failed, or a worker was killed.
    CacheError : the library cannot be stored.
    """
    text = _graph_text(graph)
    key = _key(text, machine, toolchain, tuned)
    entry = cache.get(key)
    if entry is None and toolchain.remembered is not None:
        toolchain = with_team(at_hand(toolchain), cache)
        key = _key(text, machine, toolchain, tuned)
        entry = cache.get(key)
    found = entry is not None
    if entry is None:
        layouts = choose_layouts(graph, machine, tell)
        graph = apply_layouts(graph, layouts)
        clock.lap("layouts")
        entry = _build(graph, layouts, machine, toolchain, cache, key, tell, clock, workers, tuned)
    meta = json.loads(entry.read("meta.json"))
    tell("load", 0, 1, "library and constants")
    if found:
        graph = apply_layouts(graph, [(n, read_layouts(x)) for n, x in meta["layouts"]])
    scratch = {
        call: {t: (width, tuple(map(read_expr, shape))) for t, (width, shape) in own.items()}
        for call, own in meta["scratch"].items()
    }
    sizes = tuple(map(read_expr, meta["sizes"]))
    sharing = sharing_of(graph)
    plan = fixed_plan(graph, scratch, sharing)
    return Built(graph, entry, sharing, scratch, sizes, meta["kernels"], found, plan)


def _key(
    graph_text: str, machine: Machine, toolchain: Toolchain, tuned: TunedSchedules | None
) -> str:
    """The cache key of a graph's library."""
    declared = (i.text for i in declared_intrinsics())
    code = code_digest("poly", "codegen", "runtime")  # which places values in memory
    where = (toolchain.identity, str(machine), tuned.identity if tuned else "")
    return digest("model", _FORMAT, code, *where, *declared, graph_text)


def write_expr(e: Expr) -> object:
    """An expression over sizes as JSON data."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Size):
        return e.name
    assert isinstance(e, Op), e
    return [e.fn, *map(write_expr, e.args)]


def read_expr(data: Any) -> Expr:
    """The expression that `write_expr` wrote."""
    if isinstance(data, int):
        return Const(data)
    if isinstance(data, str):
        return Size(data)
    return Op(data[0], tuple(map(read_expr, data[1:])))


def _graph_text(graph: Graph) -> str:
    """What determines the generated code: nodes, programs, sizes and which values are constant.

    Sizes count even if no program has one: with open sizes, each storage has a pointer.
    """
    lines = [",".join(graph.inputs), ",".join(graph.outputs), ",".join(sorted(graph.constants))]
    lines += [",".join(graph.sizes), *(f"{n} = {e}" for n, e in graph.derived.items())]
    for node in graph.nodes:
        own = "view"
        if isinstance(node, Call):
            own = node.program.digest
        elif isinstance(node, Routine):
            types = [str(graph.values[v].dtype) for v in node.inputs]
            own = f"{node.kind}:{node.mode} {types} {node.arguments} {node.scratch}"
        lines.append(f"{own} {','.join(node.inputs)} {','.join(node.outputs)} {node.origin}")
        lines += [str(graph.values[o]) for o in node.outputs]
    return "\n".join(lines)


# --- building ------------------------------------------------------------------------------


def _build(
    graph: Graph,
    layouts: Layouts,
    machine: Machine,
    toolchain: Toolchain,
    cache: Cache,
    key: str,
    tell: Progress,
    clock: Clock,
    workers: Workers,
    tuned: TunedSchedules | None,
) -> Entry:
    with (
        cache.workspace() as folder,
        Compilation(toolchain, (), folder / LIBRARY) as work,
    ):
        units = KernelUnits(work)
        made = generate_graph(graph, machine, tell, clock, workers, units.add, tuned=tuned)
        units.finish()
        require([i for _, k in made.kernels for i in k.function.instructions], toolchain, cache)
        steps, sizes = steps_of(made)
        failed = pointer_order(made.graph, made.sharing, made.scratch).count
        work.add(
            "network.c",
            network_unit(steps, made.functions, made.slots, made.workspaces, made.passed, failed),
        )
        tell("compile", 0, 1, f"the rest of {len(made.kernels)} kernels with {toolchain.kind}")
        described = [_described(made, step) for step in steps]
        warnings = work.finish()
        library = (folder / LIBRARY).read_bytes()
    tell("compile", 1, 1, "")
    clock.lap("compile")
    meta = {
        "layouts": [[n, {t: asdict(x) for t, x in chosen.items()}] for n, chosen in layouts],
        "scratch": {
            call: {t: (width, list(map(write_expr, shape))) for t, (width, shape) in own.items()}
            for call, own in made.scratch.items()
        },
        "sizes": list(map(write_expr, sizes)),
        "calls": described,
        "kernels": len(made.kernels),
        "warnings": warnings,
        "toolchain": str(toolchain),
        "schedules": {g.function.symbol: g.function.made_from.script for _, g in made.kernels},
        "fallbacks": {g.function.symbol: g.fallbacks for _, g in made.kernels if g.fallbacks},
    }
    files = {name: text.encode() for name, text in work.sources.items()}
    return cache.put(
        key, {**files, LIBRARY: library, "meta.json": json.dumps(meta, indent=1).encode()}
    )


def _described(made: GeneratedGraph, call: Call | RoutineCall) -> list[object]:
    """A call as `runtime.network.profile` reads it.

    That is its origin and its function, and the slots of its sizes and tensors; a `RoutineCall` is
    passed all of them.
    """
    if isinstance(call, RoutineCall):
        return [call.origin, call.symbol, None, None]
    function = made.functions[call.name]
    tensors = argument_slots(call, function, made.slots, made.workspaces)
    slots = [[p.index, p.offset] for p in tensors]
    return [call.origin or call.name, function.symbol, [*made.passed[call.name]], slots]
