"""Graphs of training steps: the loss, its gradients, and what weights become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from farkas.training.losses import LOSSES, loss_text
from farkas.training.training import Training
from frontends.language.parse_program import parse_program
from poly.errors import ArgumentError, GradientError
from poly.gradients.apart import without_updates
from poly.gradients.graph import graph_gradient
from poly.gradients.statements import Names
from poly.gradients.tidy import numbered
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.expr import Const, Expr, Size, evaluate_int
from poly.ir.graph import Call, Graph, GraphNode, View, static_shape, verify_graph
from poly.ir.program import Program, Tensor, fresh_name, specialise


@dataclass(frozen=True)
class Part:
    """A graph of a part of a step.

    state : inputs that are kept from step to step, by their labels, each with the initializer or
        the number that it begins with
    changed : those of `state` that the outputs are new values of, after the loss if that is one
    """

    graph: Graph
    state: Mapping[str, str | float]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class StepGraph:
    """The graphs of a training step.

    first : its first output is the loss
    update : what follows after several batches, None if that is in the first graph
    sums : of gradients, in the first graph's state, that begin with 0 after each update
    passed : inputs of the loss that each step is given
    scalars : the labels of those of the optimiser, by their names
    """

    first: Part
    update: Part | None
    sums: tuple[str, ...]
    passed: tuple[str, ...]
    scalars: Mapping[str, str]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The first part, and the update if it is one of its own."""
        return (self.first, *([self.update] if self.update else []))


class Builder:
    """A graph to which nodes are added; values have concrete shapes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken = {*graph.values, *(n.name for n in graph.nodes)}
        self.values = dict(graph.values)
        self.labels = dict(graph.labels)
        self.inputs = list(graph.inputs)
        self.nodes: list[GraphNode] = list(graph.nodes)

    def value(self, name: str, like: Tensor) -> str:
        made = fresh_name(name, self.taken)
        self.values[made] = replace(like, name=made)
        return made

    def input(self, label: str, like: Tensor) -> str:
        made = self.value(label, like)
        self.inputs.append(made)
        self.labels[made] = label
        return made

    def call(self, program: Program, inputs: Sequence[str], origin: str) -> tuple[str, ...]:
        outputs = tuple(self.value(t.name, t) for t in program.outputs)
        name = fresh_name(program.name, self.taken)
        self.nodes.append(Call(name, program, tuple(inputs), outputs, origin))
        return outputs

    def view(self, value: str, shape: tuple[Expr, ...]) -> str:
        if self.values[value].shape == shape:
            return value
        made = self.value(f"{value}_view", replace(self.values[value], shape=shape))
        self.nodes.append(View(fresh_name("view", self.taken), value, made, "training"))
        return made

    def whole(self, outputs: Sequence[str]) -> Graph:
        return verify_graph(
            replace(
                self.graph, values=self.values, labels=self.labels, inputs=tuple(self.inputs),
                nodes=tuple(self.nodes), outputs=tuple(outputs),
            )
        )  # fmt: skip


def step_graph(
    graph: Graph, training: Training, weights: Mapping[str, str], running: Mapping[str, str]
) -> StepGraph:
    """The graph of a step for a network whose weights are inputs.

    weights : the values of the graph by the labels of the initializers
    running : statistics that change, by the labels of the initializers, and what they become

    Raises
    ------
    ArgumentError : a loss or a rule that does not fit the network.
    GradientError : the loss has no gradient with respect to a weight that has to change.
    """
    outputs = [o for o in graph.outputs if o not in running.values()]
    built = Builder(replace(graph, outputs=tuple(outputs)))
    loss, passed = _add_loss(built, training.loss, {*weights, *running})
    found = graph_gradient(built.whole([loss]), loss, list(weights.values()))
    for label, weight in weights.items():
        if training.of is not None and weight not in found.gradients:
            raise GradientError(f"the loss does not depend on {label}")
    if not found.gradients:
        raise GradientError("the loss depends on no initializer by floats")
    built = Builder(found.graph)
    gradients = {n: found.gradients[w] for n, w in weights.items() if w in found.gradients}
    changing = {n: weights[n] for n in gradients}
    own: dict[str, str | float] = {n: n for n in running}
    if training.accumulate == 1:
        state, results, scalars = _add_updates(built, training, changing, gradients)
        whole = built.whole([loss, *results, *running.values()])
        first = Part(whole, {**state, **own}, (*state, *own))
        return StepGraph(first, None, (), passed, scalars)
    sums = {n: f"{n}.sum" for n in gradients}
    added = [_add_to_sum(built, sums[n], g, training.accumulate) for n, g in gradients.items()]
    whole = built.whole([loss, *added, *running.values()])
    fixed: dict[str, str | float] = {n: n for n in changing}
    zeros: dict[str, str | float] = dict.fromkeys(sums.values(), 0.0)
    first = Part(whole, {**zeros, **own, **fixed}, (*sums.values(), *own))
    update, scalars = _update_graph(graph, training, changing, sums)
    return StepGraph(first, update, tuple(sums.values()), passed, scalars)


def _add_to_sum(built: Builder, label: str, gradient: str, count: int) -> str:
    """What a sum of gradients becomes: their mean, after so many."""
    tensor = built.values[gradient]
    wide = replace(tensor, dtype=tensor.dtype.compute)
    size = Const(prod(static_shape(tensor)))
    text = (
        f"def add({wide.dtype} S[{size}], {tensor.dtype} G[{size}]) -> (T) "
        f"{{ T[i] = S[i] + G[i] * {1 / count!r} }}"
    )
    arrays = [built.view(v, (size,)) for v in (built.input(label, wide), gradient)]
    (made,) = built.call(parse_program(text), arrays, "accumulate")
    return built.view(made, tensor.shape)


def _update_graph(
    graph: Graph, training: Training, weights: Mapping[str, str], sums: Mapping[str, str]
) -> tuple[Part, dict[str, str]]:
    """The graph that changes weights by sums of gradients, and the labels of scalars."""
    built = Builder(replace(graph, inputs=(), outputs=(), nodes=(), values={}, constants={},
                            labels={}))  # fmt: skip
    given = {n: built.input(n, graph.values[w]) for n, w in weights.items()}
    gradients = {}
    for n, w in weights.items():
        wide = replace(graph.values[w], dtype=graph.values[w].dtype.compute)
        gradients[n] = built.input(sums[n], wide)
    state, results, scalars = _add_updates(built, training, given, gradients)
    zeros: dict[str, str | float] = dict.fromkeys(sums.values(), 0.0)
    return Part(built.whole(results), {**state, **zeros}, tuple(state)), scalars


def _add_updates(
    built: Builder, training: Training, weights: Mapping[str, str], gradients: Mapping[str, str]
) -> tuple[dict[str, str | float], list[str], dict[str, str]]:
    """What is kept, by its labels, what it becomes, and the labels of the optimiser's scalars; both
    arguments are by labels of weights.
    """
    dtype = _computed_in(built, weights)
    if training.clip is not None:
        gradients = _clipped(built, gradients, training.clip, dtype)
    taken = {*built.labels.values(), *weights}
    labels = {n: fresh_name(n, taken) for n in training.optimiser.scalars}
    scalars = {n: built.input(label, Tensor(n, dtype, ())) for n, label in labels.items()}
    state: dict[str, str | float] = {}
    results: list[str] = []
    for label, weight in weights.items():
        kept, new = _add_update(built, training, label, weight, gradients[label], scalars)
        state |= {label: label, **kept}
        results += new
    return state, results, labels


def _computed_in(built: Builder, weights: Mapping[str, str]) -> DType:
    """The type in which all weights change."""
    types = {built.values[w].dtype.compute: n for n, w in weights.items()}
    if len(types) > 1:
        which = " and ".join(f"{n} in {d}" for d, n in types.items())
        raise ArgumentError(
            f"the optimiser computes {which}: name those of one type in Training(of=...)"
        )
    return next(iter(types))


def _add_loss(built: Builder, loss: str, stored: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """The value of the loss, and the labels of what is passed for it.

    stored : the labels of initializers, which nothing that is passed may have
    """
    program = parse_program(loss_text(loss))
    outputs = {built.graph.label(o): o for o in built.graph.outputs}
    own = [t.name for t in program.inputs if t.name in outputs]
    if not own:
        outputs = {program.inputs[0].name: built.graph.outputs[0]}
    if loss in LOSSES:
        program = _of_floats(program, built.values[outputs[(own or [program.inputs[0].name])[0]]])
    if len(program.outputs) != 1 or program.outputs[0].shape:
        raise ArgumentError(f"the loss {program.name} has to have one scalar result")
    flat = {}
    for t in program.inputs:
        if t.name in stored and t.name not in outputs:
            raise ArgumentError(
                f"the loss {program.name} takes {t.name}, which is an initializer of the network: "
                "what is passed to each step needs another name"
            )
        if t.name in outputs:
            flat[t.name] = _flattened(built, outputs[t.name], t)
    sizes = _sizes_of(program, {n: built.values[v] for n, v in flat.items()})
    fixed = specialise(program, sizes)
    passed = []
    bound = []
    for t in fixed.inputs:
        if t.name in flat:
            bound.append(flat[t.name])
        else:
            bound.append(built.input(t.name, t))
            passed.append(t.name)
    (value,) = built.call(fixed, bound, "loss")
    return value, tuple(passed)


def _of_floats(program: Program, like: Tensor) -> Program:
    """A loss of float32 for an output of other floats, computed in the type that these are."""
    dtype = like.dtype
    if not dtype.is_float:
        return program
    given = {t.name for t in program.inputs}

    def typed(t: Tensor) -> Tensor:
        own = dtype if t.name in given else dtype.compute
        return replace(t, dtype=own) if t.dtype == FLOAT32 else t

    return program.with_tensors(typed, program.statements)


def _flattened(built: Builder, value: str, tensor: Tensor) -> str:
    """A value of the network as the loss takes it: further dimensions are joined to the last."""
    shape = built.values[value].shape
    if len(shape) == tensor.rank:
        return value
    if len(shape) < tensor.rank or not tensor.rank:
        raise ArgumentError(
            f"output {built.graph.label(value)} is {built.values[value]}, but the loss takes "
            f"{tensor}"
        )
    head, rest = shape[: tensor.rank - 1], shape[tensor.rank - 1 :]
    joined = prod(evaluate_int(e, {}) for e in rest)
    return built.view(value, (*head, Const(joined)))


def _sizes_of(program: Program, known: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes of a loss, from the shapes of the outputs that it takes."""
    found: dict[str, int] = {}
    for t in program.inputs:
        if t.name in known:
            for e, value in zip(t.shape, known[t.name].shape, strict=True):
                if isinstance(e, Size):
                    found[e.name] = evaluate_int(value, {})
    open_ = [n for n in program.sizes if n not in found]
    if open_:
        raise ArgumentError(f"size {open_[0]} of the loss is not one of an output of the network")
    return found


def _clipped(
    built: Builder, gradients: Mapping[str, str], most: float, wide: DType
) -> dict[str, str]:
    """Gradients whose common length, which is computed in `wide`, is at most `most`."""

    def call(text: str, *values: str) -> str:
        (made,) = built.call(parse_program(text), list(values), "clip")
        return made

    total, flat = "", {}
    for weight, g in gradients.items():
        dtype, count = built.values[g].dtype, prod(static_shape(built.values[g]))
        flat[weight] = f"{dtype} G[{count}]", built.view(g, (Const(count),))
        given, value = flat[weight]
        text = f"def square({given}) -> ({wide} s[]) {{ s[] +=! {wide}(G[i]) * {wide}(G[i]) }}"
        square = call(text, value)
        text = f"def add({wide} a[], {wide} b[]) -> (c) {{ c[] = a[] + b[] }}"
        total = call(text, total, square) if total else square
    text = f"def scale({wide} s[]) -> (c) {{ c[] = min(1, {float(most)!r} / (sqrt(s[]) + 1e-6)) }}"
    scale = call(text, total)
    found = {}
    for weight, (given, value) in flat.items():
        like = built.values[gradients[weight]]
        out = f"{like.dtype} H[{prod(static_shape(like))}]"
        made = call(
            f"def clip({given}, {wide} c[]) -> ({out}) {{ H[i] = G[i] * c[] }}", value, scale
        )
        found[weight] = built.view(made, like.shape)
    return found


def _add_update(
    built: Builder, training: Training, label: str, weight: str, gradient: str,
    scalars: Mapping[str, str],
) -> tuple[dict[str, float], list[str]]:  # fmt: skip
    """What is kept for a weight, by its label, and what the weight and this become."""
    optimiser = training.optimiser
    tensor = built.values[weight]
    count = Const(prod(static_shape(tensor)))
    text = optimiser.text(str(tensor.dtype), str(built.values[gradient].dtype))
    program = specialise(parse_program(text), {"N": int(count.value)})
    pure, _ = without_updates(program, Names(program))
    kept = {f"{label}.{n}": first for n, first in optimiser.kept.items()}
    wide = replace(tensor, dtype=tensor.dtype.compute)
    values = [built.input(n, wide) for n in kept]
    arrays = [built.view(v, (count,)) for v in (weight, gradient, *values)]
    made = built.call(numbered(pure), [*arrays, *scalars.values()], f"update of {label}")
    return kept, [built.view(v, tensor.shape) for v in made]
