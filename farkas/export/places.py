"""`Places`: where each value of an exported graph is, as C text, and the steps of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from codegen.c.convention import Convention
from codegen.c.function import CFunction
from codegen.c.module import Parameter, Step, Storage, Temporary
from codegen.c.network_unit import Slot, argument_slots
from codegen.routines.call import call_text
from farkas.export.sizes import SizeText
from poly.ir.graph import Call, Routine
from runtime.network.bind_sizes import plan_at
from runtime.network.generate_graph import SCRATCH, GeneratedGraph
from runtime.network.memory_plan import MemoryPlan
from runtime.network.pointer_order import pointer_order
from runtime.network.share_places import share_places


def plan_for(made: GeneratedGraph, examples: Sequence[int]) -> MemoryPlan:
    """The memory plan for example sizes, in the order of the graph's."""
    if made.plan is not None:
        return made.plan
    return plan_at(made.graph, examples, made.sharing, made.scratch)[2]


class Places:
    """Where values are.

    plan : for fixed sizes, or for example sizes; inputs, outputs : in the graph's order
    starts : where each constant begins in the weights
    """

    def __init__(
        self,
        made: GeneratedGraph,
        plan: MemoryPlan,
        sizes: SizeText,
        inputs: Sequence[Parameter],
        outputs: Sequence[Parameter],
        starts: Mapping[str, int],
        convention: Convention,
    ) -> None:
        self.convention = convention
        self.made, self.plan, self.sizes, self.outputs = made, plan, sizes, outputs
        self.starts = starts
        order = pointer_order(made.graph, made.sharing, made.scratch)
        self.bases: dict[int, tuple[str, int]] = {
            n: (p.name, 0) for n, p in enumerate((*inputs, *outputs))
        }
        for constant in made.graph.constants:
            if constant in order.positions:
                self.bases[order.positions[constant]] = ("weights", starts[constant])
        self.shared = () if made.plan is not None else share_places(plan.lives)
        if order.arena is not None:
            self.bases[order.arena] = ("work", 0)
        for n, storages in enumerate(self.shared):
            self.bases |= {order.positions[s]: (_place(n), 0) for s in storages}

    # --- memory ---------------------------------------------------------------------------------

    def temporaries(self) -> Iterator[Temporary]:
        """The places of storages whose sizes are known in a run, as far as a step names them."""
        named = {word for step in self.steps for word in re.findall(r"\w+", step.text)}
        for n, storages in enumerate(self.shared):
            if _place(n) not in named:
                continue
            parts = tuple(dict.fromkeys(map(self._storage, storages)))
            yield Temporary(_place(n), "unsigned char", parts)

    def _storage(self, name: str) -> Storage:
        graph = self.made.graph
        if name in graph.values:
            value = graph.values[name]
            return Storage(self.sizes.shape(value.shape), value.dtype.bytes)
        call, _, own = name.partition("/")
        width, shape = self.made.scratch[call][own]
        return Storage(self.sizes.shape(shape), width)

    def reads_weights(self) -> bool:
        """Whether a step reads any constant."""
        slots = [slot for call in self.made.calls for slot in self._slots(call)]
        routines = (n for n in self.made.graph.nodes if isinstance(n, Routine))
        slots += [self.made.slots[v] for n in routines for v in n.inputs]
        copied = self.plan.copied.values()
        return any(self.bases[slot.index][0] == "weights" for slot in slots) or any(
            root in self.made.graph.constants for root in copied
        )

    # --- steps ----------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The calls in order, then the outputs that are copies."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[Step]:
        calls = {call.name for call in self.made.calls}
        graph = self.made.graph
        for node in graph.nodes:
            about = " ".join((node.origin or node.name).split())
            if isinstance(node, Routine):
                yield Step(about, self._routine(node), may_fail=True)
            elif isinstance(node, Call) and node.name in calls:
                function = self.made.functions[node.name]
                yield Step(about, self._call(node, function), function.parallel)
        for port, name in zip(self.outputs, graph.outputs, strict=True):
            root = self.plan.copied.get(name)
            if root is not None and port.count:
                size = f"{port.count} * {port.dtype.bytes}"
                if isinstance(port.count, int):
                    size = str(port.count * port.dtype.bytes)
                yield Step("", f"memcpy({port.name}, {self._copied(root)}, {size});")

    def _slots(self, call: Call) -> list[Slot]:
        function = self.made.functions[call.name]
        return argument_slots(call, function, self.made.slots, self.made.workspaces)

    def _call(self, call: Call, function: CFunction) -> str:
        passed = [self.sizes.text(self.made.sizes[n]) for n in self.made.passed[call.name]]
        passed += [
            f"({kind} *){self._text(slot, kind)}"
            for (_, kind), slot in zip(function.tensors, self._slots(call), strict=True)
        ]
        passed += self.convention.passed(function.thread_memory, function.parallel)
        return f"{function.symbol}({', '.join(passed)});"

    def _routine(self, routine: Routine) -> str:
        scratch = None
        if routine.scratch is not None:
            slot = self.made.workspaces[routine.name][SCRATCH]
            scratch = self._text(slot, "unsigned char")

        def pointer(name: str, kind: str) -> str:
            return self._text(self.made.slots[name], kind)

        return call_text(routine, self.made.graph, pointer, scratch, self.sizes.text)

    def _text(self, slot: Slot, kind: str) -> str:
        base, start = self.bases[slot.index]
        offset = start + slot.offset
        if base in ("work", "weights"):
            pointer = "(const unsigned char *)weights" if base == "weights" else base
            return f"({pointer} + {offset})" if offset else f"({pointer})"
        char = "const char" if kind.startswith("const ") else "char"
        return f"(({char} *){base} + {offset})" if offset else base

    def _copied(self, root: str) -> str:
        graph = self.made.graph
        if root in graph.constants:
            return f"(const unsigned char *)weights + {self.starts[root]}"
        if root in graph.inputs:
            return self.bases[graph.inputs.index(root)][0]
        return self.outputs[graph.outputs.index(self.plan.direct[root])].name


def _place(number: int) -> str:
    return f"fk_place_{number}"
