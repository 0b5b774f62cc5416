"""Build an optimised graph into a cached library: layouts, schedules, C, one shared object."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from codegen.c.function import CFunction
from codegen.c.network_unit import Slot, argument_slots, network_unit
from poly.deps.scop import build_scop
from poly.ir.expr import Const, Expr, Op, Size, substitute
from poly.ir.graph import Call, Graph
from poly.ir.instruction_tables import declared_intrinsics
from poly.ir.layout import Layout, Mapper, relayout
from poly.ir.program import Program, Tensor
from poly.machine.cpu import Machine
from poly.rewrites.group_operands import group_operands
from poly.strategy.cpu.packing import preferred_layouts
from runtime.common.arguments import ALIGNMENT, aligned
from runtime.common.cache import Cache, Entry, digest
from runtime.common.compile_report import Progress
from runtime.common.fingerprint import code_digest
from runtime.common.workers import Workers
from runtime.cpu.compile_c import Compilation
from runtime.cpu.shared_library import LIBRARY
from runtime.cpu.toolchain import Toolchain
from runtime.intrinsics.check import require
from runtime.network.built import Built, Scratch, scratch_bytes
from runtime.network.generate_kernels import GeneratedKernel, generate_kernels
from runtime.network.kernel_units import KernelUnits
from runtime.network.memory_plan import MemoryPlan, Sharing
from runtime.network.plan_memory import plan_memory
from runtime.network.pointer_order import Temporaries, pointer_order
from runtime.network.share_storage import share, views_only

_FORMAT = "6"


class Clock:
    """Seconds spent in each stage; those of workers count as well, although they work at once."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.add(stage, now - self._last)
        self._last = now

    def add(self, stage: str, seconds: float) -> None:
        """Add the seconds of a worker."""
        self.laps[stage] = self.laps.get(stage, 0.0) + seconds

    def restart(self) -> None:
        """Leave out the time since the last lap: it was added otherwise."""
        self._last = time.perf_counter()


def build_graph(
    graph: Graph,
    machine: Machine,
    toolchain: Toolchain,
    cache: Cache,
    tell: Progress,
    clock: Clock,
    workers: Workers,
) -> Built:
    """The graph, compiled or from the cache.

    workers : see `runtime.network.generate_kernels.kernel_workers`

    Raises
    ------
    ToolchainError : the compiler failed, or a worker was killed.
    CacheError : the library cannot be stored.
    """
    key = digest(
        "model",
        _FORMAT,
        code_digest("poly", "codegen"),
        toolchain.identity,
        str(machine),
        *(i.text for i in declared_intrinsics()),
        _graph_text(graph),
    )
    entry = cache.get(key)
    found = entry is not None
    if entry is None:
        layouts = _choose_layouts(graph, machine, tell)
        graph = _apply_layouts(graph, layouts)
        clock.lap("layouts")
        entry = _build(graph, layouts, machine, toolchain, cache, key, tell, clock, workers)
    meta = json.loads(entry.read("meta.json"))
    tell("load", 0, 1, "library and constants")
    if found:
        graph = _apply_layouts(graph, [(n, _read_layouts(x)) for n, x in meta["layouts"]])
    scratch = {
        call: {t: (width, tuple(map(read_expr, shape))) for t, (width, shape) in own.items()}
        for call, own in meta["scratch"].items()
    }
    sizes = tuple(map(read_expr, meta["sizes"]))
    sharing = sharing_of(graph)
    plan = _fixed_plan(graph, scratch, sharing)
    return Built(graph, entry, sharing, scratch, sizes, meta["kernels"], found, plan)


def _fixed_plan(graph: Graph, scratch: Scratch, sharing: Sharing) -> MemoryPlan | None:
    """The memory plan of a graph of fixed sizes."""
    return None if graph.sizes else plan_memory(graph, scratch_bytes(scratch, {}), sharing)


def sharing_of(graph: Graph, grain: int = 1) -> Sharing:
    """Which values share storage; for open sizes only what is valid for all of them.

    grain : see `runtime.network.share_storage.share`
    """
    return views_only(graph) if graph.sizes else share(graph, grain)


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
        own = node.program.digest if isinstance(node, Call) else "view"
        lines.append(f"{own} {','.join(node.inputs)} {','.join(node.outputs)} {node.origin}")
        lines += [str(graph.values[o]) for o in node.outputs]
    return "\n".join(lines)


# --- building ------------------------------------------------------------------------------


def _build(
    graph: Graph,
    layouts: list[tuple[str, dict[str, Layout]]],
    machine: Machine,
    toolchain: Toolchain,
    cache: Cache,
    key: str,
    tell: Progress,
    clock: Clock,
    workers: Workers,
) -> Entry:
    sharing = sharing_of(graph)
    needed = [n for n in graph.nodes if isinstance(n, Call) and sharing.runs(n)]
    with (
        cache.workspace() as folder,
        Compilation(toolchain, (), folder / LIBRARY) as work,
    ):
        made = _generated(needed, machine, work, tell, clock, workers)
        require([i for _, k in made for i in k.function.instructions], toolchain, cache)
        functions = {c.name: kernel.function for calls, kernel in made for c in calls}
        sizes = _Sizes(graph, {c.name: _sizes_of(c, calls[0]) for calls, _ in made for c in calls})
        scratch = _scratch(needed, functions, sizes)
        plan = _fixed_plan(graph, scratch, sharing)
        slots, workspaces = _slots(graph, sharing, scratch, plan)
        passed = {n.name: sizes.passed(n, functions[n.name]) for n in needed}
        work.add("network.c", network_unit(needed, functions, slots, workspaces, passed))
        tell("compile", 0, 1, f"the rest of {len(made)} kernels with {toolchain.kind}")
        calls = [
            _described(n, functions[n.name], passed[n.name], slots, workspaces) for n in needed
        ]
        warnings = work.finish()
        library = (folder / LIBRARY).read_bytes()
    tell("compile", 1, 1, "")
    clock.lap("compile")
    meta = {
        "layouts": [[n, {t: asdict(x) for t, x in chosen.items()}] for n, chosen in layouts],
        "scratch": {
            call: {t: (width, list(map(write_expr, shape))) for t, (width, shape) in own.items()}
            for call, own in scratch.items()
        },
        "sizes": list(map(write_expr, sizes.exprs)),
        "calls": calls,
        "kernels": len(made),
        "warnings": warnings,
        "toolchain": str(toolchain),
        "schedules": {g.function.symbol: g.function.made_from.script for _, g in made},
        "fallbacks": {g.function.symbol: g.fallbacks for _, g in made if g.fallbacks},
    }
    files = {name: text.encode() for name, text in work.sources.items()}
    return cache.put(
        key, {**files, LIBRARY: library, "meta.json": json.dumps(meta, indent=1).encode()}
    )


def _generated(
    calls: Sequence[Call],
    machine: Machine,
    work: Compilation,
    tell: Progress,
    clock: Clock,
    workers: Workers,
) -> list[tuple[list[Call], GeneratedKernel]]:
    """The kernels, each with the calls that it serves; they are compiled meanwhile.

    The programs of these calls are the same but for the names of their sizes.
    """
    stage = "schedule and generate"
    alike: dict[str, list[Call]] = {}
    for call in calls:
        alike.setdefault(call.program.form.digest, []).append(call)
    programs = [
        (same[0].program, f"fk_k{k}_{same[0].program.name}", same[0].origin)
        for k, same in enumerate(alike.values())
    ]
    made: dict[int, GeneratedKernel] = {}
    groups = [*alike.values()]
    units = KernelUnits(work)
    tell(stage, 0, len(programs), "")
    for number, kernel in generate_kernels(programs, machine, workers):
        made[number] = kernel
        units.add(number, kernel.function, [c.origin for c in groups[number]])
        for name, seconds in kernel.seconds:
            clock.add(name, seconds)
        tell(stage, len(made), len(programs), programs[number][2])
    units.finish()
    clock.restart()
    return [(group, made[number]) for number, group in enumerate(groups)]


def _scratch(
    calls: Sequence[Call], functions: Mapping[str, CFunction], sizes: _Sizes
) -> dict[str, dict[str, tuple[int, tuple[Expr, ...]]]]:
    """The width in bytes and the shape of each call's own temporaries.

    functions : by the name of the call
    """
    found = {}
    for call in calls:
        function = functions[call.name]
        if function.workspace:
            found[call.name] = {
                t.name: (t.dtype.bytes, sizes.extents(call, function, t))
                for t in function.workspace
            }
    return found


def _described(
    call: Call,
    function: CFunction,
    sizes: Sequence[int],
    slots: Mapping[str, Slot],
    workspaces: Mapping[str, Mapping[str, Slot]],
) -> list[object]:
    """A call as `runtime.network.profile` reads it.

    That is its origin, its function, and the slots of its sizes and tensors.
    """
    tensors = argument_slots(call, function, slots, workspaces)
    return [
        call.origin or call.name, function.symbol, [*sizes], [[p.index, p.offset] for p in tensors]
    ]  # fmt: skip


def _sizes_of(call: Call, first: Call) -> dict[str, Expr]:
    """The sizes of a call by the names that they have in another, whose program is alike."""
    names = zip(first.program.form.sizes, call.program.form.sizes, strict=True)
    return {there: Size(here) for there, here in names}


class _Sizes:
    """The expressions over a graph's sizes that its entry point is passed, each once.

    names : for each call, the sizes of the graph by the names that its function has for them
    """

    def __init__(self, graph: Graph, names: Mapping[str, Mapping[str, Expr]]) -> None:
        self.graph, self._names = graph, names
        self.exprs: list[Expr] = []

    def passed(self, call: Call, function: CFunction) -> list[int]:
        """What a function is passed for its sizes, by number."""
        found = []
        for name in function.sizes:
            e = substitute(self._over_graph(call, function, Size(name)), sizes=self.graph.derived)
            if e not in self.exprs:
                self.exprs.append(e)
            found.append(self.exprs.index(e))
        return found

    def extents(self, call: Call, function: CFunction, tensor: Tensor) -> tuple[Expr, ...]:
        """The extents of a function's temporary over the sizes of the graph."""
        return tuple(self._over_graph(call, function, e) for e in tensor.shape)

    def _over_graph(self, call: Call, function: CFunction, e: Expr) -> Expr:
        """An expression over the sizes of a function, over those of the graph."""
        products = function.made_from.program.products
        return substitute(substitute(e, sizes=products), sizes=self._names[call.name])


def _choose_layouts(
    graph: Graph, machine: Machine, tell: Progress
) -> list[tuple[str, dict[str, Layout]]]:
    """For each call with constant inputs, the layouts that its kernel prefers."""
    wanted: dict[tuple[str, ...], dict[str, Layout]] = {}
    result: list[tuple[str, dict[str, Layout]]] = []
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


def _read_layouts(found: dict[str, dict[str, Any]]) -> dict[str, Layout]:
    return {
        tensor: Layout(tuple(x["order"]), tuple(map(tuple, x["blocks"])))
        for tensor, x in found.items()
    }


def _apply_layouts(graph: Graph, layouts: list[tuple[str, dict[str, Layout]]]) -> Graph:
    """The graph in which these calls read rearranged copies of their constants."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _with_layouts(graph, layouts, pool.map)


def _with_layouts(
    graph: Graph, layouts: list[tuple[str, dict[str, Layout]]], each: Mapper
) -> Graph:
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


def _slots(
    graph: Graph, sharing: Sharing, scratch: Temporaries, plan: MemoryPlan | None
) -> tuple[dict[str, Slot], dict[str, dict[str, Slot]]]:
    """The slots of values and of calls' temporaries: a pointer, and an offset in bytes.

    plan : of memory, for a graph of fixed sizes
    """
    order = pointer_order(graph, sharing, scratch)
    starts, roots = sharing.starts, sharing.roots.items()
    if plan is None:
        own = order.positions
        return (
            {name: Slot(own[root], starts[name]) for name, root in roots if root in own},
            {call: {t: Slot(own[f"{call}/{t}"]) for t in ts} for call, ts in scratch.items()},
        )
    assert order.arena is not None
    outputs = {name: n for n, name in enumerate(graph.outputs, len(graph.inputs))}
    values: dict[str, Slot] = {}
    for name, root in roots:
        if root in plan.direct:
            values[name] = Slot(outputs[plan.direct[root]], starts[name])
        elif root in order.positions:
            values[name] = Slot(order.positions[root], starts[name])
        elif root in plan.offsets:
            values[name] = Slot(order.arena, plan.offsets[root] + starts[name])
    return values, {
        call: {t: Slot(order.arena, plan.offsets[f"{call}/{t}"]) for t in ts}
        for call, ts in scratch.items()
    }
