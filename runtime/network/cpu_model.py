"""`CpuModel`: a graph of fixed or open sizes, compiled into one library, called on numpy arrays."""

from __future__ import annotations

import ctypes
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from poly.errors import ArgumentError, ModelError
from poly.ir.cost import WORTH_SHARING, work_of_program
from poly.ir.dtypes import UINT8
from poly.ir.expr import evaluate_int
from poly.ir.graph import Routine, View
from poly.ir.program import Tensor
from poly.ir.size_values import by_name, check_size
from runtime.common.arguments import (
    ALIGNMENT,
    WRITEABLE,
    Array,
    Shape,
    address,
    aligned_copy,
    allocate,
    check_input,
    check_names,
    check_no_stream,
    check_output,
    check_threads,
    clash,
    fits,
)
from runtime.common.cache import Cache
from runtime.cpu.fast_call import plan_bytes, quick_calls
from runtime.cpu.openmp_pool import check_parallel
from runtime.cpu.shared_library import load_network
from runtime.cpu.toolchain import Toolchain
from runtime.network.bind_sizes import plan_at
from runtime.network.built import Built
from runtime.network.compiled_graph import CompiledGraph
from runtime.network.memory_plan import MemoryPlan, fill_copied
from runtime.network.pointer_order import pointer_order
from runtime.network.profile import Timing, check_repeat, time_calls

#: The most memory plans that are kept, one for each combination of sizes.
KEPT = 256
#: What a routine does for an element, as `work_of_program` counts.
ROUTINE_WORK = 8
#: The most call plans that compiled code compares with a new call, one after the other.
AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class CallPlan:
    """What a call with certain sizes needs.

    shapes : of inputs and outputs; arguments : the numbers that the entry point is passed
    offsets : bytes from the arena's start, by the position of the pointer
    little : whether it does less work than starting threads takes
    """

    shapes: Mapping[str, Shape]
    memory: MemoryPlan
    arguments: tuple[int, ...]
    offsets: Mapping[int, int]
    little: bool


class CpuModel(CompiledGraph):
    """A compiled graph on this machine's processor; its runs share an arena."""

    threads: int

    def __init__(self, built: Built, threads: int, toolchain: Toolchain, cache: Cache) -> None:
        """toolchain : that of `runtime.cpu.openmp_pool.with_team`"""
        # The aligned arrays alone are kept.
        constants = {n: aligned_copy(a, ALIGNMENT) for n, a in built.graph.constants.items()}
        graph = replace(built.graph, constants=constants)
        built = replace(built, graph=graph)
        steps = [n for n in graph.nodes if not isinstance(n, View) and built.sharing.runs(n)]
        super().__init__(graph, steps, threads)
        self.built, self.entry = built, built.entry
        self._library, self._function = load_network(built.entry)
        check_parallel(toolchain, threads)
        self._order = pointer_order(graph, built.sharing, built.scratch)
        self._routines = routines = [n for n in steps if isinstance(n, Routine)]
        #: The pointers that a call passes: inputs, outputs, constants, memory in the arena, and in
        #: which array routines say whether they have failed.
        self._pointers = (ctypes.c_void_p * (self._order.count + bool(routines)))()
        #: Whether each routine has failed, and what to say then.
        self._failed = (ctypes.c_int32 * len(routines))()
        self._failures = [f"{r.origin or r.name}: {r.failure}" for r in routines]
        if routines:
            self._pointers[self._order.count] = ctypes.addressof(self._failed)
        for name, array in graph.constants.items():
            self._pointers[self._order.positions[name]] = address(array)
        self._plans: OrderedDict[tuple[int, ...], CallPlan] = OrderedDict()
        self._arena = _reserved(0)
        self._lock = threading.Lock()
        #: Plans of calls that are made in one step, see `runtime.cpu.fast_call`.
        self._quick_plans: list[bytes] = []
        self._quick = quick_calls(self._quick_plans, toolchain, cache)
        #: The plans that these were made from.
        self._kept: list[CallPlan] = []
        #: The memory plan by which outputs are filled after a call made in one step.
        self._copied: MemoryPlan | None = None
        #: The addresses of the arrays of the last call with `out`, and its sizes.
        self._apart: tuple[tuple[int, ...], list[int]] | None = None
        if not graph.sizes:
            plan = self.plan()
            self._point(plan)
            self._keep(plan)

    def __repr__(self) -> str:
        sizes = f" of {', '.join(self.graph.sizes)}" if self.graph.sizes else ""
        return f"<CpuModel {self.graph.name}{sizes}: {len(self.graph.nodes)} nodes>"

    @property
    def source(self) -> dict[str, str]:
        return {n: self.entry.read(n).decode() for n in self.entry.files if n.endswith(".c")}

    @property
    def schedules(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.entry.read("meta.json"))["schedules"]
        return found

    @property
    def fallbacks(self) -> dict[str, tuple[tuple[str, str], ...]]:
        found = json.loads(self.entry.read("meta.json"))["fallbacks"]
        return {symbol: tuple(map(tuple, tried)) for symbol, tried in found.items()}

    def launches(self) -> dict[str, list[Any]]:
        return {}

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        stream: Any = None,
    ) -> dict[str, Array]:
        check_no_stream(stream)
        results = self.run_again(inputs, threads, out)
        if results is not None:
            return results
        inputs, out = by_name("inputs", inputs), by_name("outputs", out)
        count = None if threads is None else check_threads(threads)
        given = self._given(inputs)
        shapes = [array.shape for array in given]
        sizes = self._sizes(shapes)
        with self._lock:
            plan = self.plan(sizes)
        self._check_shapes(shapes, plan.shapes)
        outputs = self._outputs(out, plan)
        addresses = [address(array) for array in (*given, *outputs)]
        if out:
            self._check_apart(sizes, given, outputs, addresses)
        with self._lock:
            self._point(plan)
            for position, at in enumerate(addresses):
                self._pointers[position] = at
            self._function(count or self._usual_threads(plan), _numbers(plan), self._pointers)
            self._check_routines()
            fill_copied(self.graph, plan.memory, given, outputs)
            self._keep(plan)
        return dict(zip(self.output_names, outputs, strict=True))

    def run_again(
        self, inputs: Mapping[str, Any], threads: Any = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Array] | None:
        if type(inputs) is not dict or len(inputs) != len(self.input_names):
            return None
        given = tuple(map(inputs.get, self.input_names))
        given_out = None
        if out is not None and (type(out) is not dict or out):
            if type(out) is not dict or len(out) != len(self.output_names):
                return None
            given_out = tuple(map(out.get, self.output_names))
        with self._lock:
            made = self._quick(given, given_out, threads, None)
            if made is NotImplemented:
                return None
            if self._failures:
                self._check_routines()
            results = (made,) if len(self.output_names) == 1 else made
            if self._copied is not None:
                fill_copied(self.graph, self._copied, given, results)
        return dict(zip(self.output_names, results))  # noqa: B905  strict takes a tenth of a call

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each call, one after the other, on one thread."""
        check_repeat(repeat)
        given = self._given(by_name("inputs", inputs))
        shapes = [array.shape for array in given]
        with self._lock:
            plan = self.plan(self._sizes(shapes))
            self._check_shapes(shapes, plan.shapes)
            self._point(plan)
            outputs = self._outputs({}, plan)
            for position, array in enumerate((*given, *outputs)):
                self._pointers[position] = address(array)
            return time_calls(
                self._library, self.entry, list(self._pointers), plan.arguments, repeat
            )

    def _check_routines(self) -> None:
        """Raise `ModelError` if a routine of the run has failed; no later one has run then."""
        for failed, what in zip(self._failed, self._failures, strict=True):
            if failed:
                raise ModelError(what)

    def _usual_threads(self, plan: CallPlan) -> int:
        """The default number of threads of a run."""
        return 1 if plan.little else self.threads

    # --- arguments ------------------------------------------------------------------------------

    def _given(self, inputs: Mapping[str, Any]) -> list[Array]:
        """The inputs in order, copied if they cannot be read as they are."""
        check_names("input", inputs, self.input_names)
        arrays: list[Array] = []
        for value, port in zip(self.graph.inputs, self.inputs, strict=True):
            tensor = replace(self.graph.values[value], name=port.name)
            if port.name not in inputs:
                raise ArgumentError(f"input {port} is missing")
            arrays.append(check_input(tensor, inputs[port.name]))
        return arrays

    def _outputs(self, out: Mapping[str, Any], plan: CallPlan) -> list[Array]:
        """The outputs in order: those of `out`, and new ones."""
        check_names("output", out, self.output_names)
        outputs: list[Array] = []
        for value, name in zip(self.graph.outputs, self.output_names, strict=True):
            tensor, shape = self.graph.values[value], plan.shapes[value]
            array = out.get(name)
            if array is None:
                array = allocate(tensor, shape)
            elif not fits(array, tensor.dtype.numpy, shape, WRITEABLE):
                array = check_output(replace(tensor, name=name), array, shape)
            outputs.append(array)
        return outputs

    def _check_apart(
        self, sizes: tuple[int, ...], given: list[Array], outputs: list[Array], at: list[int]
    ) -> None:
        """Refuse outputs that share memory; raises `ArgumentError`.  at : the address of each."""
        # Arrays that did not overlap at these addresses do not now: shapes follow from the sizes.
        if self._apart == (sizes, at):
            return
        found = clash((*given, *outputs), at, len(given))
        if found is not None:
            name = self.output_names[found[1] - len(given)]
            raise ArgumentError(f"out: {name} shares memory with another array")
        self._apart = sizes, at

    # --- plans ----------------------------------------------------------------------------------

    def plan(self, sizes: tuple[int, ...] = ()) -> CallPlan:
        """The plan for sizes, in the order of the graph's.

        Raises
        ------
        ArgumentError : the graph is not valid for these sizes.
        """
        found = self._plans.get(sizes)
        if found is not None:
            self._plans.move_to_end(sizes)
            return found
        built, graph, env, memory = self.built, self.graph, dict[str, int](), self.built.plan
        if memory is None:
            env, graph, memory = plan_at(graph, sizes, built.sharing, built.scratch)
        work = sum(work_of_program(n.program, env) for n in self.calls)
        work += ROUTINE_WORK * sum(
            prod(graph.shape(v)) for r in self._routines for v in (*r.inputs, *r.outputs)
        )
        found = self._plans[sizes] = CallPlan(
            {n: graph.shape(n) for n in (*graph.inputs, *graph.outputs)},
            memory,
            tuple(check_size(f"{e}", evaluate_int(e, env)) for e in built.sizes),
            self._order.offsets(memory),
            work < WORTH_SHARING,
        )
        while len(self._plans) > KEPT:
            self._plans.popitem(last=False)
        return found

    def _point(self, plan: CallPlan) -> None:
        """Set the pointers into the arena as a plan says."""
        if plan.memory.arena + ALIGNMENT > self._arena.nbytes:
            self._arena = _reserved(plan.memory.arena)
            self._quick_plans.clear()  # they point into the old one
            self._kept.clear()
        start = -(-address(self._arena) // ALIGNMENT) * ALIGNMENT
        for position, offset in plan.offsets.items():
            self._pointers[position] = start + offset

    def _keep(self, plan: CallPlan) -> None:
        """Make calls with this plan, which the pointers are set for, in one step."""
        if plan in self._kept:
            return
        graph, ends = self.graph, len(self.inputs) + len(self.outputs)
        made = plan_bytes(
            self._function,
            self._usual_threads(plan),
            plan.little,
            [(graph.values[n], plan.shapes[n], True) for n in graph.inputs],
            [(graph.values[n], plan.shapes[n], -1) for n in graph.outputs],
            sizes=plan.arguments,
            more=[p or 0 for p in self._pointers[ends:]],
        )
        if made is not None and made not in self._quick_plans:
            self._quick_plans.insert(0, made)
            del self._quick_plans[AT_ONCE:]
        self._kept = [plan, *self._kept][:AT_ONCE]
        self._copied = plan.memory if plan.memory.copied else None


def _reserved(count: int) -> Array:
    """Memory for an arena, with room to align it."""
    return allocate(Tensor("the arena", UINT8, ()), (count + ALIGNMENT,))


def _numbers(plan: CallPlan) -> Any:
    """The sizes as the entry point takes them."""
    return (ctypes.c_int64 * len(plan.arguments))(*plan.arguments) if plan.arguments else None
