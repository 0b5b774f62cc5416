"""`GpuModel`: a graph on a device.  Weights stay there, a run is a list of launches."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from codegen.gpu.emit import GpuKernel
from poly.errors import ArgumentError
from poly.ir.graph import Call, Graph
from poly.ir.program import Tensor
from poly.ir.size_values import by_name
from runtime.common.arguments import (
    Array,
    Shape,
    allocate,
    check_input,
    check_names,
    check_output,
    check_spans,
    shape_of,
)
from runtime.gpu.device import Device, DeviceArray, KernelLaunch, Operand
from runtime.gpu.gpu_program import Grid, bytes_of, launches_of
from runtime.gpu.memory_pool import DeviceBuffer
from runtime.gpu.operands import checked_operand, output_operand, span_on
from runtime.network.bind_sizes import graph_at
from runtime.network.build_gpu import DeviceKernels
from runtime.network.compiled_graph import CompiledGraph
from runtime.network.memory_plan import Sharing, value_bytes
from runtime.network.plan_memory import plan_memory, up_to
from runtime.network.profile import Timing, check_repeat

#: The most combinations of sizes whose plans are kept.
KEPT = 64
#: The most launches of a run that are kept as a list.
MOST_KEPT = 1 << 14

Result = Array | DeviceArray


@dataclass(frozen=True)
class Step:
    """A launch of a run.

    call : the call it belongs to; sizes : the numbers that the kernel takes
    tensors : the names of values and temporaries that it takes
    """

    call: Call
    kernel: GpuKernel
    grid: Grid
    sizes: tuple[int, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a run with certain sizes needs.

    shapes : of inputs and outputs; bytes : of the memory with everything but constants
    parts : for each value and temporary the constant or "" for the memory, the offset in bytes at
    which it begins, and its bytes; arena, bound : of intermediates, see `MemoryPlan`
    """

    env: Mapping[str, int]
    shapes: Mapping[str, Shape]
    bytes: int
    parts: Mapping[str, tuple[str, int, int]]
    arena: int
    bound: int


@dataclass(frozen=True, eq=False)
class _Bound:
    """A plan with its memory: what launches the kernels, and where inputs and outputs are."""

    replay: Callable[[Any], None]
    handles: Mapping[str, Any]


class GpuModel(CompiledGraph):
    """A compiled graph on a device; its runs share their memory.

    kernels : by the digest of the program; sharing : which values share storage
    """

    def __init__(
        self,
        graph: Graph,
        kernels: Mapping[str, DeviceKernels],
        device: Device,
        sharing: Sharing,
    ) -> None:
        calls = [n for n in graph.nodes if isinstance(n, Call) and sharing.runs(n)]
        super().__init__(graph, calls, threads=None)
        self.device, self._kernels, self.sharing = device, kernels, sharing
        self._constants: dict[str, DeviceBuffer] = {
            n: device.resident(a) for n, a in graph.constants.items()
        }
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        self._bound: dict[int, _Bound] = {}
        self._memory: DeviceBuffer | None = None
        #: The stream of the last run, if there was one.
        self._last: list[Hashable] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<GpuModel {self.graph.name} on {self.device.name}>"

    @property
    def source(self) -> dict[str, str]:
        sources = (k.source for k in self._kernels.values())
        return {s.kernels[0].symbol: s.text for s in sources if s.kernels}

    @property
    def schedules(self) -> dict[str, str]:
        stored = (k.stored for k in self._kernels.values())
        return {s.source.kernels[0].symbol: s.schedule for s in stored if s.source.kernels}

    @property
    def fallbacks(self) -> dict[str, tuple[tuple[str, str], ...]]:
        stored = (k.stored for k in self._kernels.values())
        return {
            s.source.kernels[0].symbol: s.fallbacks
            for s in stored
            if s.source.kernels and s.fallbacks
        }

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """See `CompiledGraph`.

        If all inputs are on the device, so are outputs that are not given, as `DeviceArray`, and
        the call may return before they are done; else they are numpy arrays.  For `stream`, see
        `runtime.gpu.gpu_program.GpuProgram`.

        Raises
        ------
        ToolchainError : a kernel failed.
        """
        self.device.check_threads(threads)
        inputs = by_name("inputs", inputs)
        given = {n: v for n, v in by_name("outputs", out).items() if v is not None}
        check_names("input", inputs, self.input_names)
        check_names("output", given, self.output_names)
        values = (*inputs.values(), *given.values())
        here = list(filter(self.device.holds, values))
        on = self.device.stream_of_call(stream, here)
        found, waits = list[Any](), False
        with self._lock:
            try:
                arrays = self._given(inputs, on)
                found = self._launched(arrays, given, on)
                hosted = not all(isinstance(a, Operand) for a in arrays.values())
                waits = hosted or self.device.is_apart(here, on)
            finally:
                self.device.leave(on, (*here, *found), waits)
                if self.device.may_end(on):
                    self._last = [self.device.default_stream]
        return dict(zip(self.output_names, found, strict=True))

    def _launched(
        self, arrays: Mapping[str, Array | Operand], given: Mapping[str, Any], on: Any
    ) -> list[Any]:
        """The outputs of a run on a stream, which may not be done yet."""
        shapes = [array.shape for array in arrays.values()]
        plan = self.plan(self._sizes(shapes))
        self._check_shapes(shapes, plan.shapes)
        results = self._results(given, arrays, plan, on)
        self._follow(on)
        bound = self._bind(plan, on)
        for name, array in arrays.items():
            if not isinstance(array, Operand):
                self.device.write(bound.handles[name], array, on)
            elif array.nbytes:
                self.device.copy(bound.handles[name], array.handle, array.nbytes, on)
        bound.replay(on)
        return self._fetched(results, given, bound, plan, on)

    def _given(self, inputs: Mapping[str, Any], stream: Any) -> dict[str, Array | Operand]:
        """The inputs by the names of their values, of the right types and ranks."""
        found: dict[str, Array | Operand] = {}
        for value, name in zip(self.graph.inputs, self.input_names, strict=True):
            tensor = replace(self.graph.values[value], name=name)
            if name not in inputs:
                raise ArgumentError(f"input {tensor} is missing")
            array = inputs[name]
            if self.device.holds(array):
                found[value] = checked_operand(self.device, tensor, array, name, stream)
            else:
                found[value] = check_input(tensor, array)
        return found

    def _results(
        self,
        given: Mapping[str, Any],
        arrays: Mapping[str, Array | Operand],
        plan: _Plan,
        stream: Any,
    ) -> dict[str, Array | Operand | None]:
        """The target of each output: a host array, one on the device, None for a new one."""
        device = self.device
        stay = bool(arrays) and all(isinstance(a, Operand) for a in arrays.values())
        found: dict[str, Array | Operand | None] = {}
        for value, name in zip(self.graph.outputs, self.output_names, strict=True):
            tensor, shape = replace(self.graph.values[value], name=name), plan.shapes[value]
            if name not in given:
                found[name] = None if stay else allocate(tensor, shape)
            elif device.holds(given[name]):
                found[name] = output_operand(device, tensor, given[name], shape, stream)
            else:
                found[name] = check_output(tensor, given[name], shape)
        if given:
            sources = {self.graph.label(n): span_on(device, a) for n, a in arrays.items()}
            asked = {n: found[n] for n in given}
            spans = {n: span_on(device, a) for n, a in asked.items() if a is not None}
            check_spans((), sources, spans)
        return found

    def _follow(self, stream: Any) -> None:
        """Order later work on a stream after the last run, which used the same memory."""
        if self._last and self._last[0] != stream:
            self.device.wait(self._last[0])
        self._last = [stream]
        if self._memory is not None and self._memory.stream != stream:
            self._memory.lent = True

    def _fetched(
        self,
        results: Mapping[str, Array | Operand | None],
        given: Mapping[str, Any],
        bound: _Bound,
        plan: _Plan,
        stream: Any,
    ) -> list[Any]:
        """The outputs, copied to their targets."""
        device, found = self.device, list[Any]()
        for value, name in zip(self.graph.outputs, self.output_names, strict=True):
            result, handle = results[name], bound.handles[value]
            if result is None:
                tensor, shape = self.graph.values[value], plan.shapes[value]
                buffer = device.pool.take(bytes_of(tensor, shape), stream)
                made = DeviceArray(device, buffer, shape, tensor.dtype.numpy, stream)
                device.copy(buffer.handle, handle, made.nbytes, stream)
                found.append(made)
            elif isinstance(result, Operand):
                device.copy(result.handle, handle, result.nbytes, stream)
                found.append(given[name])
            else:
                device.read(handle, result, stream)
                found.append(result)
        return found

    # --- plans ----------------------------------------------------------------------------------

    def plan(self, sizes: tuple[int, ...] = ()) -> _Plan:
        """The plan for sizes, in the order of the graph's.

        Raises
        ------
        ArgumentError : the graph is not valid for these sizes.
        """
        found = self._plans.get(sizes)
        if found is not None:
            self._plans.move_to_end(sizes)
            return found
        graph, alignment = self.graph, self.device.alignment
        env, fixed, sharing = dict[str, int](), graph, self.sharing
        if graph.sizes:
            env, fixed, sharing = graph_at(graph, sizes, sharing)
        scratch = {c.name: self._scratch(c, env) for c in self.calls}
        memory = plan_memory(fixed, scratch, sharing, alignment)
        offsets, end = dict(memory.offsets), up_to(memory.arena, alignment)
        for root in dict.fromkeys((*graph.inputs, *memory.direct)):
            offsets[root], end = end, up_to(end + max(1, sharing.bytes[root]), alignment)
        parts = {
            f"{call}/{name}": ("", offsets[f"{call}/{name}"], count)
            for call, own in scratch.items()
            for name, count in own.items()
        }
        for name, root in sharing.roots.items():
            start, count = sharing.starts[name], value_bytes(fixed, name)
            if root in graph.constants:
                parts[name] = root, start, count
            elif root in offsets:
                parts[name] = "", offsets[root] + start, count
        ends = {n: fixed.shape(n) for n in (*graph.inputs, *graph.outputs)}
        plan = _Plan(env, ends, end, parts, memory.arena, memory.bound)
        self._plans[sizes] = plan
        while len(self._plans) > KEPT:
            self._bound.pop(id(self._plans.popitem(last=False)[1]), None)
        return plan

    def _scratch(self, call: Call, env: Mapping[str, int]) -> dict[str, int]:
        """The bytes of a call's temporaries, by name."""
        source = self._kernels[call.program.digest].source
        return {t.name: bytes_of(t, shape_of(t, env)) for t in source.workspace}

    def launches(self) -> dict[str, list[tuple[GpuKernel, Grid]]]:
        if self.graph.sizes:
            return {}
        found: dict[str, list[tuple[GpuKernel, Grid]]] = {c.name: [] for c in self.calls}
        for step in self.steps(self.plan()):
            found[step.call.name].append((step.kernel, step.grid))
        return found

    def steps(self, plan: _Plan) -> Iterator[Step]:
        """The launches of a run in order.

        Raises
        ------
        ToolchainError : a grid has more blocks than a GPU allows.
        """
        for call in self.calls:
            source = self._kernels[call.program.digest].source
            tensors: list[Tensor] = [*source.program.inputs, *source.program.outputs]
            names = [t.name for t in tensors]
            names_of = dict(zip(names, (*call.inputs, *call.outputs), strict=True))
            names_of |= {t.name: f"{call.name}/{t.name}" for t in source.workspace}
            env = {s: plan.env[s] for s in source.program.sizes}
            for kernel, grid, sizes in launches_of(source, env):
                numbers = tuple(sizes[s] for s in kernel.sizes)
                yield Step(call, kernel, grid, numbers, tuple(names_of[t] for t in kernel.tensors))

    def _bind(self, plan: _Plan, stream: Any) -> _Bound:
        """A plan with memory, which is allocated now if the present one is too small."""
        if self._memory is None or plan.bytes > self._memory.count:
            self._bound.clear()
            if self._memory is not None:
                self._memory.release()
                self._memory = None
            self._memory = self.device.pool.take(plan.bytes, stream)
        found = self._bound.get(id(plan))
        if found is None:
            handles = self._handles(plan, self._memory)
            launches = list(islice(self._launches(plan, handles), MOST_KEPT + 1))
            if len(launches) <= MOST_KEPT:
                replay = self.device.record(launches)
            else:
                replay = partial(self._replay, plan, handles)
            found = self._bound[id(plan)] = _Bound(replay, handles)
        return found

    def _handles(self, plan: _Plan, memory: DeviceBuffer) -> dict[str, Any]:
        """The memory of each value and temporary."""
        handles = {}
        for name, (constant, start, count) in plan.parts.items():
            if constant and not start:
                handles[name] = self._constants[constant].handle
            else:
                whole = self._constants[constant] if constant else memory
                handles[name] = self.device.part(whole.handle, start, max(1, count))
        return handles

    def _launches(self, plan: _Plan, handles: Mapping[str, Any]) -> Iterator[KernelLaunch]:
        for step in self.steps(plan):
            module = self._kernels[step.call.program.digest].module
            tensors = tuple(handles[p] for p in step.tensors)
            yield KernelLaunch(module, step.kernel, step.grid, step.sizes, tensors)

    def _replay(self, plan: _Plan, handles: Mapping[str, Any], stream: Any) -> None:
        """A run with more launches than are kept."""
        for x in self._launches(plan, handles):
            self.device.launch(x.module, x.kernel, x.grid, x.sizes, x.handles, stream)

    # --- looking inside -------------------------------------------------------------------------

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each call, one after the other, including the host's work for it."""
        check_repeat(repeat)
        self.run(inputs)
        device = self.device
        with self._lock:
            stream = self._last[0]
            given = self._given(inputs, stream)
            plan = self.plan(self._sizes([array.shape for array in given.values()]))
            handles = self._bind(plan, stream).handles
            steps = list(zip(self.steps(plan), self._launches(plan, handles), strict=True))
            device.wait(stream)
            times: dict[str, list[float]] = {c.name: [] for c in self.calls}
            for _ in range(repeat):
                for call in self.calls:
                    start = time.perf_counter()
                    for x in (x for step, x in steps if step.call is call):
                        device.launch(x.module, x.kernel, x.grid, x.sizes, x.handles, stream)
                    device.wait(stream)
                    times[call.name].append(time.perf_counter() - start)
        symbols = {step.call.name: step.kernel.symbol for step, _ in reversed(steps)}
        return tuple(
            Timing(c.origin or c.name, symbols.get(c.name, ""), sorted(t)[len(t) // 2])
            for c, t in ((c, times[c.name]) for c in self.calls)
        )
