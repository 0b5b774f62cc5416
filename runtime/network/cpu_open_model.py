"""Models of open sizes: one library for all shapes, and a plan of memory for each that comes."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.cost import WORTH_SHARING, work_of_program
from poly.ir.dtypes import UINT8
from poly.ir.expr import evaluate_int
from poly.ir.graph import Call
from poly.ir.program import Tensor
from poly.ir.size_values import check_size
from runtime.common.arguments import (
    ALIGNMENT,
    Array,
    address,
    aligned_copy,
    allocate,
    check_input,
    check_threads,
)
from runtime.common.cache import Cache
from runtime.common.compile_report import CompileReport
from runtime.cpu.fast_call import plan_bytes, quick_calls
from runtime.cpu.shared_library import load_network
from runtime.cpu.toolchain import Toolchain
from runtime.network.bind_sizes import graph_at, size_places
from runtime.network.build_cpu import Built, scratch_bytes, storage_order
from runtime.network.memory_plan import MemoryPlan, fill_copied
from runtime.network.plan_memory import plan_memory
from runtime.network.profile import Timing, time_calls

#: Plans of memory that are kept, one for each combination of sizes.
KEPT = 256
#: Plans of calls that are compared with a new one in compiled code, one after the other.
AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a call with certain sizes needs.

    offsets : bytes from the arena's start, by the position of the array that is passed
    little : whether it takes less than starting threads does
    """

    shapes: Mapping[str, tuple[int, ...]]
    memory: MemoryPlan
    offsets: Mapping[int, int]
    sizes: Array
    little: bool


class OpenModel:
    """A compiled graph of open sizes, called on numpy arrays of any shapes that it is valid for.

    Attributes: `graph` (as compiled), `report`, `threads`, `input_names`, `output_names`.
    Runs from several threads take turns: they share the arena.
    """

    report: CompileReport

    def __init__(self, built: Built, threads: int, toolchain: Toolchain, cache: Cache) -> None:
        self.graph, self.entry, self.threads = built.graph, built.entry, threads
        self._built = built
        graph = built.graph
        self.input_names = tuple(map(graph.label, graph.inputs))
        self.output_names = tuple(map(graph.label, graph.outputs))
        self._library, self._function = load_network(built.entry)
        self._constants = {n: aligned_copy(a, ALIGNMENT) for n, a in graph.constants.items()}
        self._places = storage_order(graph, built.sharing, built.scratch)
        ends = len(graph.inputs) + len(graph.outputs)
        count = max(ends, 1, *(n + 1 for n in self._places.values()))
        self._pointers = (ctypes.c_void_p * count)()
        for name, array in self._constants.items():
            self._pointers[self._places[name]] = address(array)
        self._shown = size_places(graph)
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        self._arena = self._reserve(0)
        self._lock = threading.Lock()
        #: Make a run of shapes that came before in one step, see `runtime.cpu.fast_call`.
        self._quick_plans: list[bytes] = []
        self._quick = quick_calls(self._quick_plans, toolchain, cache)
        self._copied: MemoryPlan | None = None

    def __repr__(self) -> str:
        return f"<OpenModel {self.graph.name} of {', '.join(self.graph.sizes)}>"

    @property
    def source(self) -> dict[str, str]:
        """The generated C, file by file."""
        return {n: self.entry.read(n).decode() for n in self.entry.files if n.endswith(".c")}

    def run(self, inputs: Mapping[str, Any], threads: int | None = None) -> dict[str, Array]:
        """Run the model: arrays by input name in, arrays by output name out, in graph order.

        Raises
        ------
        ArgumentError : an input is missing, or of another dtype or shape.
        """
        results = self.run_again(inputs, threads)
        if results is not None:
            return results
        graph = self.graph
        given, sizes = self._given(inputs)
        with self._lock:
            plan = self._plan(sizes)
            for value, array in zip(graph.inputs, given, strict=True):
                if array.shape != plan.shapes[value]:
                    wanted = plan.shapes[value]
                    raise ArgumentError(
                        f"{graph.label(value)} has shape {array.shape}, not {wanted}"
                    )
            outputs = [allocate(graph.values[n], plan.shapes[n]) for n in graph.outputs]
            self._point(plan, given, outputs)
            usual = 1 if plan.little else self.threads
            count = usual if threads is None else check_threads(threads)
            self._function(count, plan.sizes.ctypes.data, self._pointers)
            fill_copied(graph, plan.memory, given, outputs)
            self._keep(plan)
        return dict(zip(self.output_names, outputs, strict=True))

    def run_again(
        self, inputs: Mapping[str, Any], threads: int | None = None
    ) -> dict[str, Array] | None:
        """A run whose arguments are exactly like those of an earlier one, None if they are not."""
        given = tuple(map(inputs.get, self.input_names))
        with self._lock:
            made = self._quick(given, None, threads, None)
            if made is NotImplemented:
                return None
            results = (made,) if len(self.output_names) == 1 else made
            if self._copied is not None:
                fill_copied(self.graph, self._copied, given, results)
        return dict(zip(self.output_names, results, strict=True))

    def _keep(self, plan: _Plan) -> None:
        """Remember a call that was just made, for `run_again`."""
        graph = self.graph
        ends = len(graph.inputs) + len(graph.outputs)
        made = plan_bytes(
            self._function,
            1 if plan.little else self.threads,
            plan.little,
            [(graph.values[n], plan.shapes[n], True) for n in graph.inputs],
            [(graph.values[n], plan.shapes[n], -1) for n in graph.outputs],
            sizes=plan.sizes.tolist(),
            more=[p or 0 for p in self._pointers[ends:]],
        )
        if made is not None and made not in self._quick_plans:
            self._quick_plans.insert(0, made)
            del self._quick_plans[AT_ONCE:]
        self._copied = plan.memory if plan.memory.copied else None

    def _given(self, inputs: Mapping[str, Any]) -> tuple[list[Array], tuple[int, ...]]:
        """The inputs in order, and the sizes that their shapes show."""
        given = []
        for value, name in zip(self.graph.inputs, self.input_names, strict=True):
            if name not in inputs:
                raise ArgumentError(f"input {name} is missing")
            given.append(check_input(self.graph.values[value], inputs[name]))
        return given, tuple(given[position].shape[axis] for position, axis in self._shown)

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each call, one after the other, with one thread."""
        self.run(inputs, 1)
        given, sizes = self._given(inputs)
        with self._lock:
            plan = self._plan(sizes)
            results = [allocate(self.graph.values[n], plan.shapes[n]) for n in self.graph.outputs]
            self._point(plan, given, results)
            return time_calls(
                self._library, self.entry, list(self._pointers), plan.sizes.tolist(), repeat
            )

    def _plan(self, sizes: tuple[int, ...]) -> _Plan:
        found = self._plans.get(sizes)
        if found is not None:
            self._plans.move_to_end(sizes)
            return found
        built = self._built
        env, fixed, sharing = graph_at(self.graph, sizes, built.sharing)
        memory = plan_memory(fixed, scratch_bytes(built.scratch, env), sharing)
        calls = [n for n in self.graph.nodes if isinstance(n, Call)]
        work = sum(work_of_program(n.program, env) for n in calls)
        found = self._plans[sizes] = _Plan(
            {n: fixed.shape(n) for n in (*self.graph.inputs, *self.graph.outputs)},
            memory,
            {self._places[n]: offset for n, offset in memory.offsets.items()},
            np.array(
                [check_size(f"{e}", evaluate_int(e, env)) for e in built.sizes] or [0], np.int64
            ),
            work < WORTH_SHARING,
        )
        while len(self._plans) > KEPT:
            self._plans.popitem(last=False)
        return found

    def _reserve(self, count: int) -> Array:
        return allocate(Tensor("the arena", UINT8, ()), (count + ALIGNMENT,))

    def _point(self, plan: _Plan, given: list[Array], results: list[Array]) -> None:
        """Fill in where the arrays of a call lie."""
        if plan.memory.arena + ALIGNMENT > self._arena.nbytes:
            self._arena = self._reserve(plan.memory.arena)
            self._quick_plans.clear()  # they point into the old one
        start = -(-address(self._arena) // ALIGNMENT) * ALIGNMENT
        for position, offset in plan.offsets.items():
            self._pointers[position] = start + offset
        for value, array in zip(self.graph.inputs, given, strict=True):
            self._pointers[self._places[value]] = address(array)
        outputs = dict(zip(self.graph.outputs, results, strict=True))
        for root, name in plan.memory.direct.items():
            self._pointers[self._places[root]] = address(outputs[name])
