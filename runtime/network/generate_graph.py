"""`generate_graph`: the C functions of a graph, and where what they are passed is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from codegen.c.convention import LIBRARY, Convention
from codegen.c.function import CFunction
from codegen.c.network_unit import Slot
from poly.ir.expr import Expr, Size, substitute
from poly.ir.graph import Call, Graph, Routine
from poly.ir.program import Tensor
from poly.machine.cpu import Machine
from runtime.common.compile_report import Progress
from runtime.common.workers import Workers
from runtime.network.built import Scratch, scratch_bytes
from runtime.network.clock import Clock
from runtime.network.generate_kernels import GeneratedKernel, generate_kernels
from runtime.network.memory_plan import MemoryPlan, Sharing
from runtime.network.plan_memory import plan_memory
from runtime.network.pointer_order import Temporaries, pointer_order
from runtime.network.share_storage import share, views_only
from runtime.tuned.record_file import TunedSchedules

#: Called with each kernel once it is there: its number, its function, the nodes that it is for.
Ready = Callable[[int, CFunction, Sequence[str]], None]


@dataclass(frozen=True, eq=False)
class GeneratedGraph:
    """A graph as C functions.

    kernels : of distinct programs, each with the calls that it serves
    calls : those that run, in order; functions : what they call, by name
    plan : of memory, None for a graph of open sizes
    slots : of values; workspaces : of the temporaries of calls, by their names
    sizes : the expressions over the graph's sizes that its functions are passed
    passed : for each call, the numbers of those that its function is passed
    """

    graph: Graph
    kernels: Sequence[tuple[Sequence[Call], GeneratedKernel]]
    calls: Sequence[Call]
    functions: Mapping[str, CFunction]
    sharing: Sharing
    scratch: Scratch
    plan: MemoryPlan | None
    slots: Mapping[str, Slot]
    workspaces: Mapping[str, Mapping[str, Slot]]
    sizes: Sequence[Expr]
    passed: Mapping[str, Sequence[int]]


def generate_graph(
    graph: Graph,
    machine: Machine,
    tell: Progress,
    clock: Clock,
    workers: Workers,
    ready: Ready = lambda number, function, nodes: None,
    convention: Convention = LIBRARY,
    tuned: TunedSchedules | None = None,
) -> GeneratedGraph:
    """Schedule and generate the kernels of an optimised graph, and plan its memory.

    workers : see `runtime.network.generate_kernels.kernel_workers`
    tuned : the schedules of kernels that were tuned for where they run

    Raises
    ------
    ScheduleError : no code can be generated.
    ToolchainError : a worker was killed.
    """
    sharing = sharing_of(graph)
    calls = [n for n in graph.nodes if isinstance(n, Call) and sharing.runs(n)]
    made = _generated(calls, machine, ready, tell, clock, workers, convention, tuned)
    functions = {c.name: kernel.function for group, kernel in made for c in group}
    sizes = _Sizes(graph, {c.name: _sizes_of(c, group[0]) for group, _ in made for c in group})
    scratch = _scratch(calls, functions, sizes) | _scratch_of_routines(graph)
    plan = fixed_plan(graph, scratch, sharing)
    slots, workspaces = _slots(graph, sharing, scratch, plan)
    passed = {n.name: sizes.passed(n, functions[n.name]) for n in calls}
    return GeneratedGraph(
        graph, made, calls, functions, sharing, scratch, plan, slots, workspaces, sizes.exprs,
        passed,
    )  # fmt: skip


def fixed_plan(graph: Graph, scratch: Scratch, sharing: Sharing) -> MemoryPlan | None:
    """The memory plan of a graph of fixed sizes."""
    return None if graph.sizes else plan_memory(graph, scratch_bytes(scratch, {}), sharing)


def sharing_of(graph: Graph, grain: int = 1) -> Sharing:
    """Which values share storage; for open sizes only what is valid for all of them.

    grain : see `runtime.network.share_storage.share`
    """
    return views_only(graph) if graph.sizes else share(graph, grain)


def _generated(
    calls: Sequence[Call],
    machine: Machine,
    ready: Ready,
    tell: Progress,
    clock: Clock,
    workers: Workers,
    convention: Convention,
    tuned: TunedSchedules | None,
) -> list[tuple[list[Call], GeneratedKernel]]:
    """The kernels, each with the calls that it serves.

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
    tell(stage, 0, len(programs), "")
    for number, kernel in generate_kernels(programs, machine, workers, convention, tuned):
        made[number] = kernel
        ready(number, kernel.function, [c.origin for c in groups[number]])
        for name, seconds in kernel.seconds:
            clock.add(name, seconds)
        tell(stage, len(made), len(programs), programs[number][2])
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


#: What the memory of a routine is called.
SCRATCH = "scratch"


def _scratch_of_routines(graph: Graph) -> dict[str, dict[str, tuple[int, tuple[Expr, ...]]]]:
    routines = (n for n in graph.nodes if isinstance(n, Routine))
    return {n.name: {SCRATCH: n.scratch} for n in routines if n.scratch is not None}


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
