"""A graph that ends badly as a smaller one that ends in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from tests.graphs.draft import reads_of
from tests.graphs.generate import Case
from tests.graphs.judge import Judge, Outcome
from tests.mutation.workers import run_reference


def minimise(outcome: Outcome, judge: Judge, attempts: int = 80) -> Outcome:
    """A smaller graph that ends alike: fewer outputs, nodes made inputs, one trial less."""
    best = outcome
    tried = 0
    shrunk = True
    while shrunk and tried < attempts:
        shrunk = False
        for smaller in smaller_cases(best.case):
            tried += 1
            found = judge(smaller)
            if alike(found, outcome):
                best, shrunk = found, True
                break
            if tried >= attempts:
                break
    return best


def alike(one: Outcome, other: Outcome) -> bool:
    """Whether two graphs end for the same reason, whatever the names and numbers in it."""
    if one.kind != other.kind:
        return False
    if one.kind == "wrong":
        return True
    first, second = (
        re.sub(r"'[^']*'|\w*\d\w*|line .*|trial", "", o.reason)[:80] for o in (one, other)
    )
    return first == second


def smaller_cases(case: Case) -> Iterator[Case]:
    """Graphs with less in them."""
    if len(case.trials) > 1:
        for left in range(len(case.trials)):
            yield replace(case, trials=tuple(t for n, t in enumerate(case.trials) if n != left))
    model = case.model
    outputs = list(model.graph.output)
    if len(outputs) > 1:
        for half in (outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]):
            yield with_outputs(case, half)
        for left in range(len(outputs)):
            yield with_outputs(case, outputs[:left] + outputs[left + 1 :])
    for position in range(len(model.graph.node)):
        made = without_node(case, position)
        if made is not None:
            yield made


def with_outputs(case: Case, outputs: list[onnx.ValueInfoProto]) -> Case:
    model = case.model
    kept = [
        helper.make_tensor_value_info(o.name, o.type.tensor_type.elem_type, None) for o in outputs
    ]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return pruned(case, model)


def without_node(case: Case, position: int) -> Case | None:
    """The results of a node become inputs, with the values that it had."""
    model = case.model
    names = list(model.graph.node[position].output)
    probe = case.model
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    found = [run_reference(probe.SerializeToString(), t) for t in case.trials]
    made = [array for a in found for array in a.arrays.values()]
    if any(a.how != "ran" for a in found) or not all(isinstance(a, np.ndarray) for a in made):
        return None
    del model.graph.node[position]
    for name in names:
        arrays = [a.arrays[name] for a in found]
        shapes = [a.shape for a in arrays]
        shape = [e[0] if len(set(e)) == 1 else None for e in zip(*shapes, strict=True)]
        kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    trials = tuple({**t, **a.arrays} for t, a in zip(case.trials, found, strict=True))
    return pruned(replace(case, trials=trials), model)


def pruned(case: Case, model: onnx.ModelProto) -> Case:
    """Without what no output needs."""
    graph = model.graph
    needed = {o.name for o in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= reads_of(node)
            kept.append(node)
    nodes = kept[::-1]
    del graph.node[:]
    graph.node.extend(nodes)
    for field in (graph.input, graph.initializer):
        left = [f for f in field if f.name in needed]
        del field[:]
        field.extend(left)
    names = {i.name for i in graph.input}
    trials = tuple({n: a for n, a in t.items() if n in names} for t in case.trials)
    return Case(case.seed, model.SerializeToString(), trials)
