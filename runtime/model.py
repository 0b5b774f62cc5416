"""Models: graphs compiled into one library with one entry point, and called on numpy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache as memoised
from pathlib import Path
from typing import Any

import codegen
import poly
from codegen.function import CFunction, emit_function
from codegen.network import ENTRY, Place, kernel_unit, network_unit
from codegen.prelude import COMMON
from poly.dtypes import UINT8, DType
from poly.errors import ArgumentError, ToolchainError
from poly.expr import Const
from poly.graph import Call, Graph, static_shape, verify_graph
from poly.graph_passes import optimise_graph
from poly.layout import Layout, Mapper, relayout
from poly.machine import Machine, host_machine
from poly.panels import preferred_layouts
from poly.program import Program, Tensor
from poly.schedule import Schedule
from poly.scop import build_scop
from poly.strategy import auto_schedule
from poly.work import WORTH_SHARING, work_of_program
from runtime.arguments import (
    READABLE,
    WRITEABLE,
    Array,
    address,
    aligned,
    allocate,
    check_input,
    check_output,
    check_threads,
    clash,
    fits,
)
from runtime.cache import Cache, Entry, digest
from runtime.compilation import Compilation
from runtime.kernel import ALIGNMENT, default_threads
from runtime.library import LIBRARY
from runtime.memory import MemoryPlan, plan_memory, share
from runtime.quick import Quick, never, plan_bytes, quick_calls
from runtime.reference import evaluate
from runtime.team import with_team
from runtime.toolchain import Toolchain

#: Called with (stage, steps done, steps in all, what is being worked on).
Progress = Callable[[str, int, int, str], None]

_FORMAT = "3"


@dataclass(frozen=True)
class Port:
    """An input or output of a model, under its name in the model file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Report:
    """What compiling a model took and made.

    stages : (name, seconds); kernels : distinct compiled functions; calls : kernel calls a run;
    arena_bytes : memory for intermediates, arena_bound : the least that any plan needs.
    """

    stages: tuple[tuple[str, float], ...]
    kernels: int
    calls: int
    arena_bytes: int
    arena_bound: int
    constant_bytes: int
    from_cache: bool


def compile_graph(
    graph: Graph,
    *,
    toolchain: Toolchain,
    cache: Cache,
    threads: int | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> Model:
    """Compile a graph: merged calls, layouts, schedules, C, library, memory plan.

    Raises
    ------
    ArgumentError : `threads` is not a number from 1 to 4096.
    ToolchainError : the compiler failed.
    CacheError : the library cannot be stored.
    """
    count = default_threads() if threads is None else check_threads(threads)
    machine = machine or host_machine()
    toolchain = with_team(toolchain, cache)
    tell = progress or (lambda stage, done, total, what: None)
    clock = _Clock()
    graph = optimise_graph(verify_graph(graph), evaluate)
    clock.lap("graph")
    key = digest(
        "model", _FORMAT, code_digest(), toolchain.identity, str(machine), _graph_text(graph)
    )
    entry = cache.get(key)
    found = entry is not None
    if entry is None:
        layouts = _choose_layouts(graph, machine, tell)
        graph = _apply_layouts(graph, layouts)
        clock.lap("layouts")
        entry = _build(graph, layouts, machine, toolchain, cache, key, tell, clock)
    meta = json.loads(entry.read("meta.json"))
    tell("load", 0, 1, "library and constants")
    if found:
        graph = _apply_layouts(graph, [(n, _read_layouts(x)) for n, x in meta["layouts"]])
    scratch = meta["scratch"]
    plan = plan_memory(graph, scratch)
    model = Model(graph, plan, entry, count, toolchain, cache)
    clock.lap("load")
    tell("load", 1, 1, "library and constants")
    calls = sum(map(plan.sharing.runs, graph.nodes))
    constants = sum(a.nbytes for a in graph.constants.values())
    model.report = Report(
        tuple(clock.laps.items()), meta["kernels"], calls, plan.arena, plan.bound, constants, found
    )
    return model


class _Clock:
    """Seconds spent in each stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now


def _graph_text(graph: Graph) -> str:
    """What decides the generated code: nodes, programs and which values are constant."""
    lines = [",".join(graph.inputs), ",".join(graph.outputs), ",".join(sorted(graph.constants))]
    for node in graph.nodes:
        own = node.program.digest if isinstance(node, Call) else "view"
        lines.append(f"{own} {','.join(node.inputs)} {','.join(node.outputs)} {node.origin}")
        lines += [str(graph.values[o]) for o in node.outputs]
    return "\n".join(lines)


@memoised
def code_digest() -> str:
    """A digest of the compiler's own source files: other code may make other kernels."""
    found = hashlib.sha256()
    for package in (poly, codegen):
        for folder in package.__path__:
            for path in sorted(Path(folder).glob("*.py")):
                found.update(path.name.encode())
                found.update(path.read_bytes())
    return found.hexdigest()


# --- building ------------------------------------------------------------------------------


def _build(
    graph: Graph,
    layouts: list[tuple[str, dict[str, Layout]]],
    machine: Machine,
    toolchain: Toolchain,
    cache: Cache,
    key: str,
    tell: Progress,
    clock: _Clock,
) -> Entry:
    sharing = share(graph)
    needed = [n for n in graph.nodes if isinstance(n, Call) and sharing.runs(n)]
    programs = {n.program.digest: n for n in needed}
    schedules: dict[str, Schedule] = {}
    functions: dict[str, CFunction] = {}
    with (
        cache.workspace() as folder,
        Compilation(toolchain, (), folder / LIBRARY, common=COMMON) as work,
    ):
        for done, (name, call) in enumerate(programs.items()):
            tell("schedule and generate", done, len(programs), call.origin)
            schedules[name] = auto_schedule(Schedule.of(call.program), machine)
            clock.lap("schedule")
            functions[name] = emit_function(schedules[name], f"fk_k{done}_{call.program.name}")
            work.add(*kernel_unit(functions[name]))
            clock.lap("generate")
        tell("schedule and generate", len(programs), len(programs), "")
        scratch = {
            n.name: {t.name: _tensor_bytes(t) for t in functions[n.program.digest].workspace}
            for n in needed
            if functions[n.program.digest].workspace
        }
        plan = plan_memory(graph, scratch, sharing)
        places, workspaces = _places(graph, plan, scratch)
        work.add("network.c", network_unit(needed, functions, places, workspaces))
        tell("compile", 0, 1, f"what is left of {len(functions)} kernels with {toolchain.kind}")
        warnings = work.finish()
        library = (folder / LIBRARY).read_bytes()
    tell("compile", 1, 1, "")
    clock.lap("compile")
    meta = {
        "layouts": [[n, {t: asdict(x) for t, x in chosen.items()}] for n, chosen in layouts],
        "scratch": scratch,
        "kernels": len(functions),
        "warnings": warnings,
        "toolchain": str(toolchain),
        "schedules": {functions[n].symbol: str(s) for n, s in schedules.items()},
    }
    files = {name: text.encode() for name, text in work.sources.items()}
    return cache.put(
        key, {**files, LIBRARY: library, "meta.json": json.dumps(meta, indent=1).encode()}
    )


def _tensor_bytes(tensor: Tensor) -> int:
    count = tensor.dtype.bytes
    for extent in static_shape(tensor):
        count *= extent
    return count


def _choose_layouts(
    graph: Graph, machine: Machine, tell: Progress
) -> list[tuple[str, dict[str, Layout]]]:
    """For each call with constant inputs, the layouts that its kernel would like."""
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
        key = (call.program.digest, *constant)
        if key not in wanted:
            wanted[key] = preferred_layouts(build_scop(call.program), machine, constant)
        if wanted[key]:
            result.append((call.name, wanted[key]))
    return result


def _read_layouts(found: dict[str, dict[str, Any]]) -> dict[str, Layout]:
    return {
        tensor: Layout(tuple(x["order"]), None if x["block"] is None else tuple(x["block"]))
        for tensor, x in found.items()
    }


def _apply_layouts(graph: Graph, layouts: list[tuple[str, dict[str, Layout]]]) -> Graph:
    """The graph with these calls reading rearranged copies of their constants."""
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


def _aligned_copy(array: Array) -> Array:
    """The array itself, if it is laid out as kernels want it."""
    if array.flags.c_contiguous and address(array) % ALIGNMENT == 0:
        return array
    copy = aligned(array.shape, array.dtype, ALIGNMENT)
    copy[...] = array
    return copy


def _places(
    graph: Graph, plan: MemoryPlan, scratch: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, Place], dict[str, dict[str, Place]]]:
    """Where values and temporaries lie in the arrays of a call.

    The arrays are: inputs, outputs, constants (by name), the arena.
    """
    order = array_order(graph)
    arena = len(order)
    index = {("out " if is_out else "in ") + name: n for n, (name, is_out) in enumerate(order)}
    places: dict[str, Place] = {}
    for name, root in plan.sharing.roots.items():
        start = plan.sharing.starts[name]
        if root in plan.direct:
            places[name] = Place(index[f"out {plan.direct[root]}"], start)
        elif f"in {root}" in index:
            places[name] = Place(index[f"in {root}"], start)
        elif root in plan.offsets:
            places[name] = Place(arena, plan.offsets[root] + start)
    workspaces = {
        call: {t: Place(arena, plan.offsets[f"{call}/{t}"]) for t in temps}
        for call, temps in scratch.items()
    }
    return places, workspaces


def array_order(graph: Graph) -> list[tuple[str, bool]]:
    """The arrays that a call passes, as (value, whether it is an output); the arena comes last."""
    return [
        *((name, False) for name in graph.inputs),
        *((name, True) for name in graph.outputs),
        *((name, False) for name in sorted(graph.constants)),
    ]


# --- calling -------------------------------------------------------------------------------


class Model:
    """A compiled graph.

    Attributes: `graph` (as compiled), `plan` (memory), `report`, `threads`, `inputs`, `outputs`.
    Runs of one model from several threads take turns: they share the arena.
    """

    report: Report

    def __init__(
        self,
        graph: Graph,
        plan: MemoryPlan,
        entry: Entry,
        threads: int,
        toolchain: Toolchain,
        cache: Cache,
    ) -> None:
        self.graph, self.plan, self.entry, self.threads = graph, plan, entry, threads
        self.inputs = tuple(self._port(name) for name in graph.inputs)
        self.outputs = tuple(self._port(name) for name in graph.outputs)
        self._input_names = tuple(port.name for port in self.inputs)
        self._output_names = tuple(port.name for port in self.outputs)
        #: What the arrays of a call need to be, to be passed as they are.
        self._reads = tuple((p.name, p.dtype.numpy, p.shape) for p in self.inputs)
        self._writes = tuple((p.name, p.dtype.numpy, p.shape) for p in self.outputs)
        try:
            library = ctypes.CDLL(str(entry.file(LIBRARY)))
            self._function = library[ENTRY]
        except (OSError, AttributeError) as error:
            raise ToolchainError(f"the compiled model cannot be loaded: {error}") from error
        self._function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        self._function.restype = None
        self._constants = [_aligned_copy(graph.constants[name]) for name in sorted(graph.constants)]
        self._arena = allocate(Tensor("the arena", UINT8, ()), (plan.arena + ALIGNMENT,))
        start = -(-address(self._arena) // ALIGNMENT) * ALIGNMENT
        fixed = [*map(address, self._constants), start]
        count = len(self.inputs) + len(self.outputs)
        #: The arrays of a call; inputs and outputs are filled in each time.
        self._pointers = (ctypes.c_void_p * (count + len(fixed)))(*([None] * count), *fixed)
        self._lock = threading.Lock()
        calls = [n for n in graph.nodes if isinstance(n, Call) and plan.sharing.runs(n)]
        self._little = sum(work_of_program(n.program, {}) for n in calls) < WORTH_SHARING
        #: Makes a run in one step, see `runtime.quick`.
        self._quick = self._quick_run(fixed, toolchain, cache)
        #: Where the arrays of the last call with `out` lay.
        self._apart: list[int] = []

    def _port(self, name: str) -> Port:
        tensor = self.graph.values[name]
        return Port(self.graph.label(name), tensor.dtype, self.graph.shape(name))

    def _quick_run(self, fixed: list[int], toolchain: Toolchain, cache: Cache) -> Quick:
        inputs = [(self.graph.values[v], self.graph.shape(v), True) for v in self.graph.inputs]
        outputs = [(self.graph.values[v], self.graph.shape(v), -1) for v in self.graph.outputs]
        made = plan_bytes(
            self._function, self._usual_threads, self._little, inputs, outputs, more=fixed
        )
        return never if made is None else quick_calls([made], toolchain, cache)

    @property
    def _usual_threads(self) -> int:
        """The threads of a run that does not say."""
        return 1 if self._little else self.threads

    def __repr__(self) -> str:
        return f"<Model {self.graph.name}: {len(self.graph.nodes)} nodes>"

    @property
    def source(self) -> dict[str, str]:
        """The generated C, file by file."""
        return {n: self.entry.read(n).decode() for n in self.entry.files if n.endswith(".c")}

    @property
    def schedules(self) -> dict[str, str]:
        """The schedule script of each kernel, by its C name."""
        found: dict[str, str] = json.loads(self.entry.read("meta.json"))["schedules"]
        return found

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Run the model: arrays by input name in, arrays by output name out, in graph order.

        out : arrays to write to, for some or all outputs by name.

        Raises
        ------
        ArgumentError : an input is missing, unknown, or of another dtype or shape; an array of
            `out` is not what the output needs, or shares memory with an input.
        """
        results = self._at_once(inputs, threads, out)
        if results is not None:
            return results
        count = self._usual_threads if threads is None else check_threads(threads)
        given = self._given(inputs)
        outputs = self._outputs(out or {})
        places = [address(array) for array in (*given, *outputs)]
        # Shapes are fixed, so what was apart at these places is apart again.
        if out and places != self._apart:
            found = clash((*given, *outputs), places, len(given))
            if found is not None:
                name = self._output_names[found[1] - len(given)]
                raise ArgumentError(f"out: {name} shares memory with another array")
            self._apart = places
        with self._lock:
            for position, place in enumerate(places):
                self._pointers[position] = place
            self._function(count, None, self._pointers)
            if self.plan.copied:
                self._copy(outputs, given)
        return dict(zip(self._output_names, outputs, strict=True))

    def _at_once(
        self, inputs: Mapping[str, Any], threads: Any, out: Mapping[str, Any] | None
    ) -> dict[str, Array] | None:
        """A run whose arguments are as they should be; None leaves it to the careful path."""
        if type(inputs) is not dict or len(inputs) != len(self._input_names):
            return None
        given = tuple(map(inputs.get, self._input_names))
        places = None
        if out:
            if type(out) is not dict or len(out) != len(self._output_names):
                return None
            places = tuple(map(out.get, self._output_names))
        with self._lock:
            made = self._quick(given, places, threads, None)
            if made is NotImplemented:
                return None
            results = (made,) if len(self._output_names) == 1 else made
            if self.plan.copied:
                self._copy(results, given)
        return dict(zip(self._output_names, results, strict=True))

    def _given(self, inputs: Mapping[str, Any]) -> list[Array]:
        """The inputs in order, copied where they cannot be read as they are."""
        arrays: list[Array] = []
        for name, dtype, shape in self._reads:
            array = inputs.get(name)
            if array is None or not fits(array, dtype, shape, READABLE):
                break
            arrays.append(array)
        if len(arrays) == len(self._reads) == len(inputs):
            return arrays
        names = [p.name for p in self.inputs]
        for name in inputs:
            if name not in names:
                raise ArgumentError(f"there is no input {name!r}; there are {', '.join(names)}")
        arrays = []
        for value, port in zip(self.graph.inputs, self.inputs, strict=True):
            if port.name not in inputs:
                raise ArgumentError(f"input {port} is missing")
            tensor = replace(self.graph.values[value], name=port.name)
            array = check_input(tensor, inputs[port.name])
            if array.shape != port.shape:
                raise ArgumentError(f"{port.name} has shape {array.shape}, not {port.shape}")
            arrays.append(array)
        return arrays

    def _outputs(self, out: Mapping[str, Array]) -> list[Array]:
        """The outputs in order: those of `out`, and new ones."""
        for name in out:
            if name not in self._output_names:
                names = ", ".join(self._output_names)
                raise ArgumentError(f"there is no output {name!r}; there are {names}")
        outputs: list[Array] = []
        for name, dtype, shape in self._writes:
            array = out.get(name)
            if array is None or not fits(array, dtype, shape, WRITEABLE):
                tensor = self.graph.values[self.graph.outputs[len(outputs)]]
                if name in out:
                    array = check_output(replace(tensor, name=name), array, shape)
                else:
                    array = allocate(tensor, shape)
            outputs.append(array)
        return outputs

    def _copy(self, outputs: Sequence[Array], given: Sequence[Any]) -> None:
        """Fill the outputs that share another value's storage."""
        for position, name in enumerate(self.graph.outputs):
            root = self.plan.copied.get(name)
            if root is None:
                continue
            if root in self.graph.constants:
                source = self.graph.constants[root]
            elif root in self.graph.inputs:
                source = given[self.graph.inputs.index(root)]
            else:
                source = outputs[self.graph.outputs.index(self.plan.direct[root])]
            outputs[position][...] = source.reshape(outputs[position].shape)
