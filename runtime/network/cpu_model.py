"""`Model`: a graph of fixed shapes, compiled into one library, and called on numpy arrays."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from poly.errors import ArgumentError
from poly.ir.cost import WORTH_SHARING, work_of_program
from poly.ir.dtypes import UINT8
from poly.ir.graph import Call, Graph
from poly.ir.program import Tensor
from poly.ir.size_values import by_name
from runtime.common.arguments import (
    ALIGNMENT,
    READABLE,
    WRITEABLE,
    Array,
    address,
    aligned_copy,
    allocate,
    check_input,
    check_names,
    check_output,
    check_threads,
    clash,
    fits,
)
from runtime.common.cache import Cache, Entry
from runtime.common.compile_report import CompileReport, Port
from runtime.cpu.fast_call import Quick, never, plan_bytes, quick_calls
from runtime.cpu.shared_library import load_network
from runtime.cpu.toolchain import Toolchain
from runtime.network.memory_plan import MemoryPlan, fill_copied
from runtime.network.profile import Timing, check_repeat, time_calls


class Model:
    """A compiled graph.

    Attributes: `graph` (as compiled), `plan` (memory), `report`, `threads`, `inputs`, `outputs`,
    and the names of the latter two.
    Runs of one model from several threads take turns: they share the arena.
    """

    report: CompileReport

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
        self.input_names = tuple(port.name for port in self.inputs)
        self.output_names = tuple(port.name for port in self.outputs)
        #: What the arrays of a call need to be, to be passed as they are.
        self._reads = tuple((p.name, p.dtype.numpy, p.shape) for p in self.inputs)
        self._writes = tuple((p.name, p.dtype.numpy, p.shape) for p in self.outputs)
        self._library, self._function = load_network(entry)
        self._constants = [
            aligned_copy(graph.constants[n], ALIGNMENT) for n in sorted(graph.constants)
        ]
        self._arena = allocate(Tensor("the arena", UINT8, ()), (plan.arena + ALIGNMENT,))
        start = -(-address(self._arena) // ALIGNMENT) * ALIGNMENT
        fixed = [*map(address, self._constants), start]
        count = len(self.inputs) + len(self.outputs)
        #: The arrays of a call; inputs and outputs are filled in each time.
        self._pointers = (ctypes.c_void_p * (count + len(fixed)))(*([None] * count), *fixed)
        self._lock = threading.Lock()
        calls = [n for n in graph.nodes if isinstance(n, Call) and plan.sharing.runs(n)]
        self._little = sum(work_of_program(n.program, {}) for n in calls) < WORTH_SHARING
        #: Makes a run in one step, see `runtime.cpu.fast_call`.
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

    @property
    def fallbacks(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """For kernels whose first schedules could not be generated, these and why, by symbol."""
        found = json.loads(self.entry.read("meta.json"))["fallbacks"]
        return {symbol: tuple(map(tuple, tried)) for symbol, tried in found.items()}

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
        out = by_name("outputs", out)
        results = self._at_once(inputs, threads, out)
        if results is not None:
            return results
        inputs = by_name("inputs", inputs)
        count = self._usual_threads if threads is None else check_threads(threads)
        given = self._given(inputs)
        outputs = self._outputs(out)
        places = [address(array) for array in (*given, *outputs)]
        # Shapes are fixed, so what was apart at these places is apart again.
        if out and places != self._apart:
            found = clash((*given, *outputs), places, len(given))
            if found is not None:
                name = self.output_names[found[1] - len(given)]
                raise ArgumentError(f"out: {name} shares memory with another array")
            self._apart = places
        with self._lock:
            for position, place in enumerate(places):
                self._pointers[position] = place
            self._function(count, None, self._pointers)
            if self.plan.copied:
                fill_copied(self.graph, self.plan, given, outputs)
        return dict(zip(self.output_names, outputs, strict=True))

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each call, one after the other, with one thread."""
        check_repeat(repeat)
        given, outputs = self._given(by_name("inputs", inputs)), self._outputs({})
        with self._lock:
            for position, array in enumerate((*given, *outputs)):
                self._pointers[position] = address(array)
            return time_calls(self._library, self.entry, list(self._pointers), (), repeat)

    def _at_once(
        self, inputs: Mapping[str, Any], threads: Any, out: Mapping[str, Any] | None
    ) -> dict[str, Array] | None:
        """A run whose arguments are as they should be; None leaves it to the careful path."""
        if type(inputs) is not dict or len(inputs) != len(self.input_names):
            return None
        given = tuple(map(inputs.get, self.input_names))
        places = None
        if out:
            if type(out) is not dict or len(out) != len(self.output_names):
                return None
            places = tuple(map(out.get, self.output_names))
        with self._lock:
            made = self._quick(given, places, threads, None)
            if made is NotImplemented:
                return None
            results = (made,) if len(self.output_names) == 1 else made
            if self.plan.copied:
                fill_copied(self.graph, self.plan, given, results)
        return dict(zip(self.output_names, results, strict=True))

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
        check_names("input", inputs, self.input_names)
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
        check_names("output", out, self.output_names)
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
