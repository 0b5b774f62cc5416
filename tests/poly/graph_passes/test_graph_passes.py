"""Passes over the graphs of networks: what becomes of their calls, and that results stay."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from codegen.pipeline import CPU, CUDA
from frontends.onnx import import_model
from poly.graph_passes.fuse_calls import joined_origin, merge_calls
from poly.graph_passes.simplify_graph import eliminate_common_calls, simplify_views
from poly.ir.graph import Call, Graph, View, verify_graph
from poly.machine.gpu import ANY
from runtime.reference.evaluate import evaluate
from tests.frontends.onnx.onnx_support import PAIRS, close, floats, model_of, ort_run, run_graph

Arrays = dict[str, np.ndarray]
node = helper.make_node


def optimised(
    nodes: list[onnx.NodeProto],
    inputs: Arrays,
    outputs: list[str],
    constants: Arrays | None = None,
    rtol: float = 2e-5,
) -> Graph:
    """The graph of a model after all passes, checked against ONNX Runtime."""
    model = model_of(nodes, inputs, outputs, constants)
    graph = CUDA.optimise(import_model(model), ANY, evaluate)
    close(run_graph(graph, inputs), ort_run(model, inputs), rtol)
    return graph


def origins(graph: Graph) -> list[str]:
    return [n.origin for n in graph.nodes if isinstance(n, Call)]


def image() -> Arrays:
    return {"x": floats(1, 4, 6, 6)}


def weights(**more: np.ndarray) -> Arrays:
    positive = floats(8, low=0.5)
    return {
        "w": floats(8, 4, 3, 3), "b": floats(8), "s": floats(8), "m": floats(8), "v": positive,
        "u": floats(8, 8, 1, 1), "d": floats(8, 1, 3, 3), **more,
    }  # fmt: skip


CONV = node("Conv", ["x", "w", "b"], ["c"], name="c", pads=[1, 1, 1, 1])
NORM = node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="n")


def test_a_block_of_a_network_is_two_calls() -> None:
    nodes = [
        CONV, NORM, node("Relu", ["n"], ["r"], name="r"),
        node("Conv", ["r", "u"], ["c2"], name="c2"),
        node("BatchNormalization", ["c2", "s", "b", "m", "v"], ["n2"], name="n2"),
        node("Add", ["r", "n2"], ["a"], name="a"),
        node("Relu", ["a"], ["y"], name="y"),
    ]  # fmt: skip
    graph = optimised(nodes, image(), ["y"], weights())
    assert origins(graph) == [
        "Conv 'c' + BatchNormalization 'n' + Relu 'r'",
        "Conv 'c2' + BatchNormalization 'n2' + Add 'a' + Relu 'y'",
    ]
    first, second = (n for n in graph.nodes if isinstance(n, Call))
    assert len(first.inputs) == 3  # an image, weights, a term
    assert len(second.inputs) == 3  # the image is added, too
    assert not {"s", "m", "v", "w", "u"} & set(graph.constants)


def test_the_last_of_two_convolutions_takes_the_sum() -> None:
    nodes = [
        CONV, NORM,
        node("Conv", ["x", "w"], ["e"], name="e", pads=[1, 1, 1, 1]),
        node("Add", ["e", "n"], ["a"], name="a"), node("Relu", ["a"], ["y"], name="y"),
    ]  # fmt: skip
    graph = optimised(nodes, image(), ["y"], weights())
    assert origins(graph) == [
        "Conv 'c' + BatchNormalization 'n'", "Conv 'e' + Add 'a' + Relu 'y'"
    ]  # fmt: skip


def test_a_value_used_twice_by_one_group() -> None:
    nodes = [CONV, node("Neg", ["c"], ["t"]), node("Mul", ["c", "t"], ["y"])]
    assert len(origins(optimised(nodes, image(), ["y"], weights()))) == 1


@pytest.mark.parametrize("outputs", [["y", "c"], ["y", "z"]])
def test_values_that_others_need_are_kept(outputs: list[str]) -> None:
    nodes = [CONV, node("Relu", ["c"], ["y"]), node("MaxPool", ["c"], ["z"], kernel_shape=[2, 2])]
    graph = optimised(nodes, image(), outputs, weights())
    assert origins(graph)[0].startswith("Conv 'c' (opset")


def test_depthwise_and_grouped_convolutions() -> None:
    nodes = [
        CONV,
        node("Conv", ["c", "d"], ["g"], group=8),
        node("BatchNormalization", ["g", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "h"], ["k"], group=2),
        node("BatchNormalization", ["k", "s", "b", "m", "v"], ["l"]),
        node("Relu", ["l"], ["y"]),
    ]
    graph = optimised(nodes, image(), ["y"], weights(h=floats(8, 4, 1, 1)))
    assert len(origins(graph)) == 3
    assert all(len(n.program.statements) == 2 for n in graph.nodes[1:] if isinstance(n, Call))


def test_a_normalisation_after_a_matrix_product() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"]),
    ]
    graph = optimised(nodes, {"x": floats(5, 4)}, ["y"], weights(w=floats(4, 8)))
    (call,) = graph.nodes
    assert isinstance(call, Call) and len(call.inputs) == 3


def test_half_precision() -> None:
    """Threads of a GPU round as separate nodes do; CPUs round once what leaves a call."""
    half = {k: a.astype(np.float16) for k, a in weights().items()}
    inputs = {"x": floats(1, 4, 6, 6).astype(np.float16)}
    nodes = [CONV, NORM, node("Relu", ["n"], ["y"])]
    graph = import_model(model_of(nodes, inputs, ["y"], half))
    merged = CUDA.optimise(graph, ANY, evaluate)
    on_lanes = CPU.optimise(graph, PAIRS, evaluate)
    whole = ["Conv 'c' + BatchNormalization 'n' + Relu 'y'"]
    assert origins(merged) == whole and origins(on_lanes) == whole
    (call,) = on_lanes.nodes
    assert isinstance(call, Call) and call.program.temps[0].dtype.name == "float32"
    (expected,) = run_graph(graph, inputs).values()
    (found,), (wide,) = (run_graph(g, inputs).values() for g in (merged, on_lanes))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(wide.astype(float), expected.astype(float), rtol=1e-2, atol=1e-2)


def test_transposes() -> None:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        node("Neg", ["b"], ["c"]),
        node("Transpose", ["c"], ["d"], perm=[0, 2, 3, 1]),
        node("Transpose", ["d"], ["e"], perm=[2, 1, 0, 3]),
        node("Transpose", ["k"], ["t"], perm=[1, 0]),
        node("MatMul", ["e", "t"], ["y"]),
    ]
    graph = optimised(nodes, image(), ["y"], {"k": floats(3, 4)})
    assert [n.program.name for n in graph.nodes if isinstance(n, Call)][-1] == "matmul"
    calls = [n for n in graph.nodes if isinstance(n, Call)]
    assert len(calls) == 2 and len(graph.constants) == 1


def test_equal_calls_are_made_once() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]), node("Exp", ["x"], ["b"]), node("Add", ["a", "b"], ["y"]),
        node("Reshape", ["x", "flat"], ["f"]), node("Reshape", ["x", "flat"], ["g"]),
        node("Sub", ["f", "g"], ["z"]), node("Exp", ["x"], ["same"]),
    ]  # fmt: skip
    inputs = image()
    graph = optimised(nodes, inputs, ["y", "z", "b", "same"], {"flat": np.array([-1])})
    assert Counter(n.program.name for n in graph.nodes if isinstance(n, Call))["exp"] == 1


def test_views_of_views() -> None:
    nodes = [
        node("Reshape", ["x", "tall"], ["a"]), node("Reshape", ["a", "flat"], ["b"]),
        node("Reshape", ["b", "tall"], ["c"]), node("Neg", ["c"], ["y"]),
    ]  # fmt: skip
    shapes = {"flat": np.array([-1]), "tall": np.array([12, 12])}
    graph = optimised(nodes, image(), ["y", "b"], shapes)
    # b, what is negated, and y: both are flat there
    assert sum(isinstance(n, View) for n in graph.nodes) == 3


def test_constants_are_folded_in_bounds() -> None:
    nodes = [
        node("MatMul", ["k", "k"], ["a"]), node("Add", ["a", "x"], ["y"]),
        node("Expand", ["one", "large"], ["e"]), node("Mul", ["e", "e"], ["z"]),
    ]  # fmt: skip
    constants = {"k": floats(4, 4), "one": floats(1, 1), "large": np.array([300, 300])}
    graph = optimised(nodes, {"x": floats(4, 4)}, ["y", "z"], constants)
    assert max(a.size for a in graph.constants.values()) < 300 * 300
    assert "matmul" not in {n.program.name for n in graph.nodes if isinstance(n, Call)}


def test_the_trace_is_bounded() -> None:
    text = ""
    for n in range(99):
        text = joined_origin(text, f"Relu 'r{n}' (opset 17)")
    assert text.startswith("Relu 'r0' + Relu 'r1'") and text.endswith("Relu 'r98'")
    assert len(text) < 400


def test_a_compiled_model_shows_what_was_merged() -> None:
    inputs = image()
    model = fk.compile_onnx(model_of([CONV, NORM], inputs, ["n"], weights()))
    assert "/* Conv 'c' + BatchNormalization 'n' */" in model.source["network.c"]
    assert model.report.calls == 1


# --- random networks -----------------------------------------------------------------------


def random_network(seed: int, dtype: type) -> tuple[onnx.ModelProto, Arrays]:
    """Convolutions, pools, elementwise operators and moves in a random wiring."""
    draw = random.Random(seed)
    constants: Arrays = {"w": floats(4, 4, 3, 3), "g": floats(4, 2, 1, 1), "d": floats(4, 1, 3, 3)}
    constants |= {k: floats(4) for k in "sbm"} | {"v": floats(4, low=0.5)}
    constants |= {"k": floats(4, 1, 1), "whole": floats(1, 4, 6, 6)}
    constants = {k: a.astype(dtype) for k, a in constants.items()}
    constants["flat"], constants["back"] = np.array([1, -1]), np.array([1, 4, 6, 6])
    known, nodes = ["x"], []
    for n in range(draw.randint(3, 9)):
        a, b, y = draw.choice(known[-2:]), draw.choice(known), f"y{n}"
        second = draw.choice([b, "k", "whole"])
        pads = {"pads": [1, 1, 1, 1]}
        nodes += draw.choice(
            [
                [node("Conv", [a, "w", *draw.choice([[], ["b"]])], [y], **pads)],
                [node("Conv", [a, "g"], [y], group=2)],
                [node("Conv", [a, "d"], [y], group=4, **pads)],
                [node("BatchNormalization", [a, *"sbmv"], [y])],
                [node(draw.choice(["Relu", "Neg", "Sigmoid", "Abs"]), [a], [y])],
                [node(draw.choice(["Add", "Sub", "Mul"]), [a, second], [y])],
                [node("MaxPool", [a], [y], kernel_shape=[3, 3], **pads)],
                [node("Transpose", [a], [y], perm=[0, 1, 3, 2])],
                [node("Softmax", [a], [y], axis=1)],
                [node("Reshape", [a, "flat"], [f"f{n}"]), node("Reshape", [f"f{n}", "back"], [y])],
                [node("Concat", [a, a], [f"f{n}"], axis=1),
                 node("Slice", [f"f{n}", "two", "six", "one"], [y])],
            ]
        )  # fmt: skip
        known.append(y)
    constants |= {"two": np.array([2]), "six": np.array([6]), "one": np.array([1])}
    outputs = list(dict.fromkeys([known[-1], draw.choice(known[1:])]))
    inputs = {"x": floats(1, 4, 6, 6).astype(dtype)}
    return model_of(nodes, inputs, outputs, constants), inputs


def test_products_of_three_tensors_are_split() -> None:
    nodes = [
        node("Einsum", ["x", "w", "z"], ["e"], equation="bi,oij,bj->bo"),
        node("Relu", ["e"], ["y"]),
    ]
    inputs = {"x": floats(32, 20), "z": floats(32, 100)}
    graph = optimised(nodes, inputs, ["y"], {"w": floats(36, 20, 100)})
    (call,) = graph.nodes
    assert isinstance(call, Call) and len(call.program.statements) == 3
    assert len(call.program.temps) == 2
    # A part of constants alone is computed once.
    nodes = [node("Einsum", ["x", "u", "v"], ["y"], equation="ij,jk,kl->il")]
    constants = {"u": floats(50, 60), "v": floats(60, 40)}
    graph = optimised(nodes, {"x": floats(90, 50)}, ["y"], constants)
    (call,) = graph.nodes
    assert isinstance(call, Call) and len(call.inputs) == 2


@pytest.mark.parametrize("seed", range(60))
def test_merging_changes_no_bit(seed: int) -> None:
    half = bool(seed % 2)
    model, inputs = random_network(seed, np.float16 if half else np.float32)
    graph = import_model(model)
    # In lanes, 16-bit floats are not rounded inside of a call.
    merged = verify_graph(merge_calls(eliminate_common_calls(simplify_views(graph)), not half))
    expected, found = run_graph(graph, inputs), run_graph(merged, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("seed", range(60, 90))
def test_random_networks_agree(seed: int) -> None:
    model, inputs = random_network(seed, np.float32)
    graph = CPU.optimise(import_model(model), PAIRS, evaluate)
    close(run_graph(graph, inputs), ort_run(model, inputs), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_random_networks_compiled(seed: int) -> None:
    model, inputs = random_network(seed, np.float32)
    close(fk.compile_onnx(model).run(inputs), ort_run(model, inputs), 1e-4)
