"""Memory plans: what shares storage, and that no value is overwritten while it is needed."""

from __future__ import annotations

import random
import re

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from codegen.pipeline import CUDA
from frontends.language.parse_program import parse_program
from frontends.onnx import import_model
from poly.graph_passes.simplify_graph import copied_parts
from poly.ir.graph import Call, Graph
from poly.machine.gpu import ANY
from runtime.network.memory_plan import MemoryPlan
from runtime.network.plan_memory import plan_memory
from runtime.network.share_storage import share
from runtime.reference.evaluate import evaluate
from tests.frontends.onnx.onnx_support import close, floats, model_of, ort_run, run_graph

Arrays = dict[str, np.ndarray]
node = helper.make_node


def concat(inputs: list[str], output: str, axis: int = 1) -> onnx.NodeProto:
    return node("Concat", inputs, [output], name=output, axis=axis)


def simulated(graph: Graph, plan: MemoryPlan, inputs: Arrays) -> Arrays:
    """The outputs of a run in the memory of a plan, each storage where the plan puts it."""
    arena = np.full(plan.arena, 0xFF, np.uint8)
    own = {
        **{n: np.ascontiguousarray(inputs[graph.label(n)]) for n in graph.inputs},
        **{n: np.ascontiguousarray(a) for n, a in graph.constants.items()},
    }
    storage = {n: a.reshape(-1).view(np.uint8) for n, a in own.items()}
    for root in plan.direct:
        storage[root] = np.full(plan.sharing.bytes[root], 0xFF, np.uint8)
    for root, at in plan.offsets.items():
        storage[root] = arena[at : at + plan.sharing.bytes[root]]

    def at(name: str) -> np.ndarray:
        start, tensor = plan.sharing.starts[name], graph.values[name]
        shape = graph.shape(name)
        size = int(np.prod(shape)) * tensor.dtype.bytes
        part = storage[plan.sharing.roots[name]][start : start + size]
        assert part.size == size
        return part.view(tensor.dtype.numpy).reshape(shape)

    for n in graph.nodes:
        if isinstance(n, Call) and plan.sharing.runs(n):
            given = {t.name: at(v).copy() for t, v in zip(n.program.inputs, n.inputs, strict=True)}
            made = evaluate(n.program, given)
            for t, v in zip(n.program.outputs, n.outputs, strict=True):
                at(v)[...] = made[t.name]
    found = {}
    for name in graph.outputs:
        root = plan.copied.get(name)
        found[graph.label(name)] = (at(name) if root is None else at(root)).reshape(
            graph.shape(name)
        )
    return found


def planned(
    nodes: list[onnx.NodeProto], inputs: Arrays, outputs: list[str], skipped: list[str]
) -> tuple[Graph, MemoryPlan]:
    """The plan of a model, checked: results, and the concatenations that need not run."""
    model = model_of(nodes, inputs, outputs)
    graph = CUDA.optimise(import_model(model), ANY, evaluate)
    plan = plan_memory(graph, {}, share(graph))
    calls = [n.origin for n in graph.nodes if isinstance(n, Call) and not plan.sharing.runs(n)]
    assert [o.split("'")[1] for o in calls] == skipped
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(simulated(graph, plan, inputs)[name], array)
    return graph, plan


def value(plan: MemoryPlan, name: str) -> str:
    """A value as it is called in the plan: joined dimensions give it another shape, and name."""
    return next(n for n in plan.sharing.roots if re.fullmatch(rf"{name}(_[0-9x]+)?", n))


def relus(**names: str) -> list[onnx.NodeProto]:
    return [node("Relu", [source], [made], name=made) for made, source in names.items()]


X: Arrays = {"x": floats(1, 3, 4, 4), "y": floats(1, 2, 4, 4)}


def test_operands_are_made_in_their_places() -> None:
    nodes = [*relus(a="x", b="y"), concat(["a", "b"], "c"), node("Softmax", ["c"], ["z"], axis=1)]
    _, plan = planned(nodes, X, ["z"], ["c"])
    names = [value(plan, n) for n in ("a", "b", "c")]
    assert {plan.sharing.roots[n] for n in names} == {names[2]}
    assert [plan.sharing.starts[n] for n in names] == [0, 3 * 64, 0]
    assert plan.arena == plan.bound == 5 * 64


def test_a_chain_of_concatenations_is_one_array() -> None:
    nodes = relus(f0="x")
    for n in range(1, 5):
        nodes += [
            node("Softmax", [f"{'c' if n > 1 else 'f'}{n - 1}"], [f"s{n}"], axis=1),
            node("ReduceMean", [f"s{n}"], [f"f{n}"], axes=[1]),
            concat([f"{'c' if n > 1 else 'f'}{n - 1}", f"f{n}"], f"c{n}"),
        ]
    nodes.append(node("Softmax", ["c4"], ["z"], axis=2))
    planned(nodes, {"x": X["x"]}, ["z"], ["c1", "c2", "c3", "c4"])


def test_concatenations_of_all_that_went_before() -> None:
    nodes = relus(f0="x")
    for n in range(1, 4):
        source = f"c{n - 1}" if n > 1 else "f0"
        nodes += [
            node("Softmax", [source], [f"s{n}"], axis=1),
            node("ReduceMean", [f"s{n}"], [f"f{n}"], axes=[1]),
            concat([f"f{m}" for m in range(n + 1)], f"c{n}"),
        ]
    nodes.append(node("Softmax", ["c3"], ["z"], axis=2))
    _, plan = planned(nodes, {"x": X["x"]}, ["z"], ["c1", "c2", "c3"])
    assert plan.sharing.roots[value(plan, "f0")] == value(plan, "c3")


def test_a_result_that_is_an_output() -> None:
    nodes = [*relus(a="x", b="y"), concat(["a", "b"], "c"), node("Softmax", ["c"], ["z"], axis=1)]
    _, plan = planned(nodes, X, ["c", "z"], ["c"])
    assert plan.direct[plan.sharing.roots[value(plan, "c")]] == "c"
    assert not plan.copied and plan.arena == 0


def test_views_between() -> None:
    nodes = [
        *relus(a="x", b="y"),
        node("Flatten", ["a"], ["p"]),
        node("Flatten", ["b"], ["q"]),
        concat(["p", "q"], "c"),
        node("Softmax", ["c"], ["z"], axis=1),
    ]
    _, plan = planned(nodes, X, ["z"], ["c"])
    assert plan.sharing.starts[value(plan, "b")] == 3 * 64


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([*relus(b="y"), concat(["x", "b"], "c")], ["c"]),  # of the caller's array
        ([*relus(a="x"), concat(["a", "a"], "c")], ["c"]),  # twice
        ([*relus(a="x", b="y"), concat(["a", "b"], "c")], ["c", "a"]),  # an output, too
        ([*relus(a="x", b="x"), concat(["a", "b"], "c", 3)], ["c"]),  # not one after the other
    ],
)
def test_what_has_to_be_copied(nodes: list[onnx.NodeProto], outputs: list[str]) -> None:
    nodes = [*nodes, node("Softmax", ["c"], ["z"], axis=1)]
    used = {i for n in nodes for i in n.input}
    planned(nodes, {k: v for k, v in X.items() if k in used}, [*outputs, "z"], [])


def test_a_value_has_one_place_only() -> None:
    nodes = [
        *relus(a="x", b="y"),
        node("Softmax", ["x"], ["d"], axis=1),
        concat(["a", "b"], "c"),
        concat(["b", "d"], "e"),  # b lies behind a, and before d if that is put after c
        concat(["d", "a"], "f"),
        concat(["c", "b"], "g"),
        node("Softmax", ["e"], ["z"], axis=1),
        node("Softmax", ["f"], ["y1"], axis=1),
        node("Softmax", ["g"], ["y2"], axis=1),
        node("Softmax", ["c"], ["y3"], axis=1),
    ]
    planned(nodes, X, ["z", "y1", "y2", "y3"], ["c", "e"])


def test_batches_are_copied() -> None:
    inputs = {"x": floats(2, 3, 4, 4), "y": floats(2, 2, 4, 4)}
    nodes = [*relus(a="x", b="y"), concat(["a", "b"], "c"), node("Softmax", ["c"], ["z"], axis=1)]
    planned(nodes, inputs, ["z"], [])
    inputs = {"x": floats(2, 3, 4, 4), "y": floats(1, 3, 4, 4)}
    planned([*relus(a="x", b="y"), concat(["a", "b"], "c", 0)], inputs, ["c"], ["c"])


def test_memory_is_not_spent_to_save_a_copy() -> None:
    # The small operand is made first, and the whole result would lie there from then on.
    big = {"x": floats(1, 64, 8, 8), "y": floats(1, 1, 8, 8)}
    nodes = relus(a="y")
    last = "x"
    for n in range(6):
        nodes.append(node("Softmax", [last], [f"s{n}"], axis=1 + n % 2))
        last = f"s{n}"
    nodes += [concat(["a", last], "c"), node("ReduceMean", ["c"], ["z"], axes=[1])]
    planned(nodes, big, ["z"], [])


PARTS = """def f(float32 A[1,2,3], float32 B[1,4,3]) -> (float32 Y[1,6,3]) {
    Y[n,i,j] = A[n,i,j] where n in 0:1, i in 0:2, j in 0:3
    Y[n,i+2,j] = B[n,i,j] where n in 0:1, i in 0:4, j in 0:3
}"""


def test_copied_parts() -> None:
    assert copied_parts(parse_program(PARTS)) == (0, 6)
    turned = PARTS.replace("Y[n,i,j] =", "Y[n,i+4,j] =").replace("Y[n,i+2,j] =", "Y[n,i,j] =")
    assert copied_parts(parse_program(turned)) == (12, 0)
    for old, new in [
        ("A[n,i,j] where", "2*A[n,i,j] where"),
        ("Y[n,i,j] = A[n,i,j]", "Y[n,i,j] = A[n,1-i,j]"),
        ("Y[n,i,j] = A[n,i,j]", "Y[n,i,j] = A[n,i,2-j]"),
        ("Y[n,i,j] = A[n,i,j]", "Y[n,i,j] = A[n,0,j]"),
        ("= B[n,i,j] where", "+= B[n,i,j] where"),
        ("float32 B", "float64 B"),
        ("[n,i,j] where n in 0:1, i in 0:2", "[n,i,j] where i < 1, n in 0:1, i in 0:2"),
    ]:
        assert old in PARTS
        try:
            program = parse_program(PARTS.replace(old, new))
        except fk.FarkasError:
            continue
        assert copied_parts(program) is None, new
    assert copied_parts(parse_program("def f(float32 X[4]) -> (Y) { Y[i] = X[i] }")) == (0,)


def random_network(seed: int) -> tuple[list[onnx.NodeProto], Arrays, list[str]]:
    """Concatenations of anything with anything, and softmaxes of those."""
    rng = random.Random(seed)
    inputs = {"x": floats(1, 2, 3), "y": floats(1, 1, 3)}
    values, nodes = ["x", "y"], []
    for n in range(rng.randint(4, 12)):
        name = f"v{n}"
        if rng.random() < 0.5 and len(nodes) > 1:
            nodes.append(concat(rng.choices(values[2:], k=rng.randint(2, 3)), name))
        else:
            nodes.append(node("Softmax", [rng.choice(values)], [name], axis=rng.choice([1, 2])))
        values.append(name)
    used = {i for n in nodes for i in n.input}
    outputs = [v for v in values[2:] if v not in used or rng.random() < 0.1]
    return nodes, {k: v for k, v in inputs.items() if k in used}, outputs


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_in_their_memory(seed: int) -> None:
    nodes, inputs, outputs = random_network(seed)
    graph = CUDA.optimise(import_model(model_of(nodes, inputs, outputs)), ANY, evaluate)
    found = simulated(graph, plan_memory(graph, {}, share(graph)), inputs)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(found[name], array)


def test_a_compiled_network_without_concatenations() -> None:
    nodes = [
        *relus(a="x", b="y"), concat(["a", "b"], "c"), node("Softmax", ["c"], ["s"], axis=1),
        concat(["c", "s"], "d"), node("Softmax", ["d"], ["z"], axis=2),
        concat(["a", "z"], "e"),
    ]  # fmt: skip
    model = model_of(nodes, X, ["z", "e", "d"])
    compiled = fk.compile_onnx(model)
    for threads in (1, 2):
        close(compiled.run(X, threads=threads), ort_run(model, X))
    assert (
        compiled.report.calls == 5 and len(compiled.compiled[0].plan().memory.sharing.joined) == 2
    )
