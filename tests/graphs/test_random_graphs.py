"""Random graphs: no wrong answer, no defect, no crash; and that the judge would see one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs.generate import Case, generate
from tests.graphs.judge import BAD, Judge, Outcome
from tests.graphs.minimise import minimise


def judged(seeds: Iterable[int], cache: Path) -> list[Outcome]:
    """The outcomes of graphs, none of which is bad."""
    with Judge(cache) as judge:
        outcomes = [judge(generate(seed)) for seed in seeds]
    assert not [str(o) for o in outcomes if o.kind in BAD]
    return outcomes


def test_a_few_dozen_graphs(cache_directory: Path) -> None:
    kinds = [o.kind for o in judged(range(40), cache_directory)]
    assert kinds.count("equal") > 30


@pytest.mark.slow
def test_two_thousand_graphs(cache_directory: Path) -> None:
    kinds = [o.kind for o in judged(range(10_000, 12_000), cache_directory)]
    assert kinds.count("refused") < 0.02 * len(kinds)
    assert kinds.count("equal") > 0.9 * len(kinds)


def test_a_seed_makes_the_same_graph_again() -> None:
    one, other = generate(5), generate(5)
    assert one.data == other.data
    for first, second in zip(one.trials, other.trials, strict=True):
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[n], second[n]) for n in first)


def test_all_kinds_of_values_are_outputs_of_some_graphs() -> None:
    found = set()
    for seed in range(100):
        graph = generate(seed).model.graph
        producers = {o: n.op_type for n in graph.node for o in n.output}
        stored, given = ({v.name for v in f} for f in (graph.initializer, graph.input))
        read = {i for n in graph.node for i in n.input}
        for output in graph.output:
            name = output.name
            kind = "stored" if name in stored else "given" if name in given else producers[name]
            found |= {kind, f"{kind} that is read"} if name in read else {kind}
    wanted = {"stored", "given", "Constant", "Identity", "Unsqueeze", "Shape", "NonZero", "If"}
    assert wanted <= found
    assert {"stored that is read", "given that is read", "Unsqueeze that is read"} <= found


# --- the judge sees it ------------------------------------------------------------------------


def case_of(nodes: list[onnx.NodeProto], names: list[str], x: np.ndarray) -> Case:
    """A graph that reads x, with outputs of these names."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes, "case", [helper.make_tensor_value_info("x", kind, x.shape)],
        [onnx.ValueInfoProto(name=n) for n in names],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Case(0, model.SerializeToString(), ({"x": x}, {"x": x + 1}))


def test_a_refused_graph_becomes_small(cache_directory: Path) -> None:
    """What is refused is one node; the others go away."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("SequenceConstruct", ["b", "x"], ["q"]),
        helper.make_node("SequenceLength", ["q"], ["n"]),
        helper.make_node("Exp", ["b"], ["c"]),
    ]
    case = case_of(nodes, ["a", "b", "n", "c"], np.ones(3, np.float32))
    with Judge(cache_directory) as judge:
        outcome = judge(case)
        assert outcome.kind == "refused" and "SequenceConstruct" in outcome.reason
        smaller = minimise(outcome, judge).case
    assert smaller.operators == ("SequenceConstruct", "SequenceLength")
    assert len(smaller.trials) == 1


def test_graphs_that_onnx_runtime_refuses_are_not_judged(cache_directory: Path) -> None:
    case = case_of([helper.make_node("NoSuchThing", ["x"], ["y"])], ["y"], np.ones(3, np.float32))
    with Judge(cache_directory) as judge:
        assert judge(case).kind == "unjudged"
