"""`graph_module`: a network that is one graph as what a C file is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count

import numpy as np

from codegen.c.convention import SERIAL, Convention
from codegen.c.function import identifier
from codegen.c.module import Module, Parameter
from codegen.c.reserved_words import CPP_RESERVED, is_reserved
from codegen.c.thread_memory import NAME as MEMORY
from codegen.pipeline import CPU
from codegen.routines.forms import c_routine
from farkas.export.constant_pool import ConstantPool
from farkas.export.places import Places, plan_for
from farkas.export.sizes import SizeText
from farkas.version import version
from poly.errors import ArgumentError
from poly.ir.dtypes import dtype_of
from poly.ir.expr import Const, Expr, Op, Size, evaluate_int, mul
from poly.ir.graph import Graph, Routine, View, verify_graph
from poly.machine.isa import Isa
from poly.sets.prove import proves
from runtime.common.compile_report import Progress
from runtime.network.clock import Clock
from runtime.network.generate_graph import GeneratedGraph, generate_graph
from runtime.network.generate_kernels import kernel_workers
from runtime.network.layouts import apply_layouts, choose_layouts
from runtime.reference.evaluate import evaluate

#: What else a run has of names.
_TAKEN = (
    "weights", "work", "workspace", "workspace_bytes", "code", "team", "threads", "given", "me",
    "argument", "most", "memcmp",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Whole:
    """A network that is one graph.

    order : the names of the inputs in the network
    fixed : the elements of those that the graph was made for, which need not be among its own
    labels : what users call each open size; examples : a value of each, in the graph's order
    conditions : on open sizes, under which the graph is the network
    """

    graph: Graph
    order: Sequence[str]
    fixed: Mapping[str, np.ndarray]
    labels: Mapping[str, str] = field(default_factory=dict)
    examples: Sequence[int] = ()
    conditions: Sequence[Expr] = ()


def graph_module(
    whole: Whole,
    name: str,
    isa: Isa,
    is_separate: bool = False,
    convention: Convention = SERIAL,
    tell: Progress | None = None,
    pool: ConstantPool | None = None,
) -> Module:
    """Generate the C of a network, whose open sizes are arguments.

    name : of the module, a C identifier; is_separate : whether the caller passes the weights
    pool : takes the weights, and has those of other instruction sets already

    Raises
    ------
    ArgumentError : `name` is no C identifier.
    ScheduleError : no code can be generated.
    ToolchainError : a worker was killed.
    """
    check_name(name)
    made = _generated(whole.graph, isa, convention, tell or (lambda stage, done, total, what: None))
    graph, labels = made.graph, whole.graph.labels
    plan = plan_for(made, whole.examples)
    sizes, inputs, outputs = _parameters(graph, name, whole)
    pool = pool or ConstantPool()
    starts, compared = pool.add(graph.constants), pool.add(whole.fixed)
    given = {p.label: p for p in inputs}
    passed = [given[labels.get(value, value)] for value in graph.inputs]
    places = Places(made, plan, sizes, passed, outputs, starts, convention)
    needed = whole.fixed or places.reads_weights()  # others were of values computed beforehand
    conditions = _conditions(graph, whole.conditions)
    return Module(
        name,
        about(name, "a network", isa.name),
        tuple(inputs),
        tuple(outputs),
        tuple((k.function, tuple(c.origin for c in calls)) for calls, k in made.kernels),
        places.steps,
        isa,
        sizes={sizes.names[s]: whole.labels[s] for s in graph.sizes},
        conditions=tuple((sizes.text(c), sizes.shown(c)) for c in conditions),
        temporaries=tuple(places.temporaries()),
        routines=_routines(graph),
        fixed={p.name: compared[p.label] for p in inputs if p.label in whole.fixed and p.count},
        arena=0 if graph.sizes else plan.arena,
        bound=plan.bound,
        weights=pool.bytes if needed else b"",
        is_separate=is_separate,
        has_team=convention.has_team,
        has_openmp=convention.has_openmp,
    )


def _generated(graph: Graph, isa: Isa, convention: Convention, tell: Progress) -> GeneratedGraph:
    machine = isa.for_threads(convention.has_team)
    with kernel_workers(len(graph.nodes)) as workers:
        graph = CPU.optimise(verify_graph(graph), machine, evaluate)
        graph = apply_layouts(graph, choose_layouts(graph, machine, tell))
        return generate_graph(graph, machine, tell, Clock(), workers, convention=convention)


def _conditions(graph: Graph, given: Sequence[Expr]) -> list[Expr]:
    """What must hold for sizes; that they are at least 1, too."""
    found: dict[Expr, None] = dict.fromkeys([Op("ge", (Size(s), Const(1))) for s in graph.sizes])
    found |= dict.fromkeys(given)
    found |= dict.fromkeys(
        Op("ge", (e, Const(0))) for e in graph.derived.values() if not _is_natural(e, graph.sizes)
    )
    draw = np.random.default_rng(0)
    tried = [
        graph.environment(dict(zip(graph.sizes, row.tolist(), strict=True)))
        for row in draw.integers(1, 1 << 10, (8, len(graph.sizes)))
    ]
    for node in graph.nodes if graph.sizes else ():
        if isinstance(node, View):
            ends = (graph.values[v].shape for v in (node.input, node.output))
            one: Expr = Const(1)
            before, after = (reduce(mul, shape, one) for shape in ends)
            if any(evaluate_int(before, e) != evaluate_int(after, e) for e in tried):
                found[Op("eq", (before, after))] = None
    return [*found]


def _is_natural(e: Expr, sizes: Sequence[str]) -> bool:
    """Whether an expression is never negative where sizes are at least 1; in doubt, it may be."""
    if isinstance(e, Op) and e.fn == "mul":
        return all(_is_natural(a, sizes) for a in e.args)
    positive = [Op("ge", (Size(s), Const(1))) for s in sizes]
    return proves(sorted(sizes), (), positive, Op("ge", (e, Const(0))))


def _routines(graph: Graph) -> tuple[str, ...]:
    """The texts of the routines of a graph, each once."""
    routines = (n for n in graph.nodes if isinstance(n, Routine))
    return tuple(dict.fromkeys(c_routine(n, graph).text for n in routines))


def check_name(name: str) -> None:
    """Check that a module may have a name.

    Raises
    ------
    ArgumentError : it is no identifier of C, or is reserved.
    """
    reserved = name == "fk" or name.startswith(("fk_", "_")) or is_reserved(name)
    if identifier(name) != name or reserved:
        raise ArgumentError(
            f"{name!r} cannot be the name of the exported functions: it has to be an identifier "
            "of C that is not reserved; pass another one as name"
        )


def about(name: str, what: str, isas: str) -> tuple[str, ...]:
    """The first lines of a module: what it is."""
    return (
        f"{name}: {what}, generated by Farkas {version()} for {isas}.",
        "",
        "It needs nothing but the C mathematics library, and has no state: any number of threads",
        "may run it at once, each with a workspace of its own.",
    )


def names_in_c(module: str, values: Sequence[str]) -> list[str]:
    """A distinct identifier for each of the inputs and outputs; a value may be both."""
    found: list[str] = []
    taken = {*_TAKEN, module, MEMORY}
    for value in values:
        base = identifier(value)
        if is_reserved(base, CPP_RESERVED) or base.startswith(("fk_", "_")):
            base = f"v_{base.lstrip('_')}"
        numbered = (base if k == 1 else f"{base}_{k}" for k in count(1))
        name = next(n for n in numbered if n not in taken)
        taken.add(name)
        found.append(name)
    return found


def _parameters(
    graph: Graph, module: str, whole: Whole
) -> tuple[SizeText, list[Parameter], list[Parameter]]:
    """The sizes, the inputs and the outputs of a run."""
    values = {graph.labels.get(value, value): value for value in graph.inputs}
    labels = [x for x in whole.order if x in values or x in whole.fixed]
    ends = [graph.labels.get(value, value) for value in graph.outputs]
    own = [whole.labels[size] for size in graph.sizes]
    names = iter(names_in_c(module, [*own, *labels, *ends]))
    sizes = SizeText(graph.derived, dict(zip(graph.sizes, names, strict=False)))

    def parameter(label: str, value: str) -> Parameter:
        tensor = graph.values[value]
        shape, shown = sizes.shape(tensor.shape), tuple(map(sizes.shown, tensor.shape))
        return Parameter(next(names), label, tensor.dtype, shape, shown)

    inputs = []
    for label in labels:
        if label in values:
            inputs.append(parameter(label, values[label]))
        else:
            array = whole.fixed[label]
            inputs.append(Parameter(next(names), label, dtype_of(array.dtype), array.shape))
    outputs = [parameter(label, value) for label, value in zip(ends, graph.outputs, strict=True)]
    return sizes, inputs, outputs
