"""Random graphs by seed: the same seed makes the same graph and arrays."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, helper

from tests.graphs import bodies, contrib, elementwise, moves, others, reductions, shapes
from tests.graphs.draft import Draft, Value, element_type, model_of, reads_of
from tests.mutation.workers import Arrays

#: Attempts to add a node, for each that is wanted.
ATTEMPTS = 3

FLAT: dict[Callable[[Draft], None], int] = {
    **elementwise.ALL,
    **reductions.ALL,
    **moves.ALL,
    **shapes.ALL,
    **others.ALL,
    **contrib.ALL,
}


@dataclass(frozen=True)
class Case:
    """A model, and the inputs of each trial."""

    seed: int
    data: bytes
    trials: tuple[Arrays, ...]

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load_from_string(self.data)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, in order."""
        return tuple(n.op_type for n in self.model.graph.node)


def generate(seed: int) -> Case:
    """The graph of a seed."""
    rng = random.Random(f"graph {seed}")
    is_open = rng.random() < 0.65
    is_large = rng.random() < 0.25
    trials = 3 if is_open else 2
    sizes = {}
    if is_open:
        pool = (1, 7, 16, 17, 33, 40, 65) if is_large else (1, 2, 2, 3, 3, 4, 5, 9)
        pool += (0,) if rng.random() < 0.15 else ()
        sizes = {n: tuple(rng.choice(pool) for _ in range(trials)) for n in ("n", "m", "k")}
    draft = Draft(rng, rng.randint(13, 21), sizes, trials, is_large=is_large)
    for _ in range(rng.randint(1, 6)):
        draft.random_input()
    for _ in range(rng.randint(0, 3)):
        dtype = rng.choice(("float32", "int64", "bool"))
        draft.operand(draft.random_array(dtype, rng.choice(((), (1,), (2, 3), (3,)))))
    grow(draft, rng.choice((1, 3, 6, 10, 15, 20, 25, 30)))
    return Case(seed, finished(draft).SerializeToString(), inputs_of(draft))


def grow(draft: Draft, wanted: int) -> None:
    """Add nodes, so many or a few less or more."""
    rng = draft.rng
    target = len(draft.nodes) + wanted
    for _ in range(ATTEMPTS * wanted):
        if len(draft.nodes) >= target:
            return
        if draft.depth < 2 and rng.random() < 0.1:
            with_bodies = rng.choices([*bodies.ALL], [*bodies.ALL.values()])[0]
            with_bodies(draft, grow)
        else:
            rng.choices([*FLAT], [*FLAT.values()])[0](draft)


def finished(draft: Draft) -> onnx.ModelProto:
    """The model, with outputs drawn among all values: results, views, inputs and constants."""
    rng = draft.rng
    made = {o for n in draft.nodes for o in n.output}
    computed = [v for v in draft.values if v.name in made] or draft.values
    outputs = rng.sample(draft.values, min(len(draft.values), rng.randint(0, 4)))
    outputs += rng.sample(computed, min(len(computed), rng.randint(1, 8)))
    outputs += computed[-2:] if rng.random() < 0.7 else []
    rng.shuffle(outputs)
    stored = [v for v in draft.values if v.name in draft.given]
    graph = helper.make_graph(
        draft.nodes,
        "random",
        [declared(v, None if rng.random() < 0.04 else shown) for v, shown in draft.inputs]
        + [declared(v, list(v.shape)) for v in stored],
        [claimed(draft, v) for v in dict.fromkeys(outputs)],
        draft.initializers,
    )
    told = [v for v in computed if rng.random() < 0.15 and v not in outputs]
    graph.value_info.extend(declared(v, list(v.shape)) for v in told if v.name in made)
    if rng.random() < 0.3:
        leave_out(draft, graph)
    model = model_of(graph, draft.opset)
    if rng.random() < 0.2:
        make_functions(draft, model)
    return model


def leave_out(draft: Draft, graph: onnx.GraphProto) -> None:
    """Nodes do without some of the results that nothing reads."""
    read = {o.name for o in graph.output}.union(*(reads_of(n) for n in graph.node))
    for node in graph.node:
        for position, name in enumerate(node.output):
            if position and name not in read and node.op_type not in ("If", "Loop", "Scan"):
                node.output[position] = ""


def make_functions(draft: Draft, model: onnx.ModelProto) -> None:
    """Some nodes become calls of functions of the model, which are these nodes."""
    for node in model.graph.node:
        if (
            draft.rng.random() < 0.6
            or "" in node.output
            or any(a.type == AttributeProto.GRAPH for a in node.attribute)
        ):
            continue
        body = onnx.NodeProto()
        body.CopyFrom(node)
        body.input[:] = [n and f"in_{i}" for i, n in enumerate(node.input)]
        body.output[:] = [f"out_{i}" for i in range(len(node.output))]
        node.op_type, node.domain = f"{node.op_type}_{len(model.functions)}", "local"
        del node.attribute[:]
        model.functions.append(
            helper.make_function(
                "local", node.op_type, [f"in_{i}" for i in range(len(node.input))],
                list(body.output), [body], [*model.opset_import],
            )
        )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("local", 1))


def declared(value: Value, shown: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, element_type(value), shown)


def claimed(draft: Draft, value: Value) -> onnx.ValueInfoProto:
    """What the model says of an output: extents that are the same in all trials, or nothing."""
    if draft.rng.random() < 0.4:
        return helper.make_tensor_value_info(value.name, element_type(value), None)
    return declared(value, list(value.shape))


def inputs_of(draft: Draft) -> tuple[dict[str, np.ndarray], ...]:
    """The inputs of each trial."""
    return tuple({v.name: v.arrays[t] for v, _ in draft.inputs} for t in range(draft.trials))
