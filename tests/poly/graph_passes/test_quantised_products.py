"""Quantised networks become integer sums: what is rewritten, what is not, and what results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import farkas as fk
from codegen.pipeline import CPU
from frontends.onnx import import_model
from poly.graph_passes.quantised_products import quantised_products, unsigned_values
from poly.graph_passes.sink_dequantisations import moves_only, sink_dequantisations
from poly.graph_passes.tabulate import tabulate
from poly.ir.dtypes import FLOAT32, INT8, UINT8
from poly.ir.expr import Op
from poly.ir.graph import Call, Graph, View
from poly.ir.quantisation import dequantisation_of, is_quantisation
from runtime.reference.evaluate import evaluate
from tests.machines import VNNI

MACHINE = replace(VNNI, extensions=(*VNNI.extensions, "avx512vbmi"))
RNG = np.random.default_rng(2)


class Model:
    """A network under construction: each value is quantised, and dequantised where it is read."""

    def __init__(self, shape: Sequence[int], kind: Any = np.int8) -> None:
        self.kind, self.shape = kind, list(shape)
        self.nodes: list[NodeProto] = []
        self.arrays: list[TensorProto] = []

    def constant(self, array: Any, dtype: Any) -> str:
        name = f"c{len(self.arrays)}"
        self.arrays.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def quantised(self, x: str, scale: float, zero: int) -> str:
        """Quantise and dequantise a value."""
        parts = [self.constant(scale, np.float32), self.constant(zero, self.kind)]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *parts]), *parts])

    def weights(self, *shape: int) -> str:
        """Weights of int8 with a scale for each filter."""
        w = self.constant(RNG.integers(-90, 90, shape), np.int8)
        scale = self.constant(RNG.uniform(0.01, 0.02, shape[0]), np.float32)
        zero = self.constant(np.zeros(shape[0]), np.int8)
        return self.node("DequantizeLinear", [w, scale, zero], axis=0)

    def graph(self, y: str) -> Graph:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)]
        made = helper.make_graph(self.nodes, "g", inputs, outputs, self.arrays)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
        return import_model(onnx.shape_inference.infer_shapes(model))


def results(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    """The outputs of a graph, by the reference."""
    known: dict[str, np.ndarray] = {**graph.constants, graph.inputs[0]: x}
    for node in graph.nodes:
        if isinstance(node, View):
            known[node.output] = known[node.input].reshape(graph.shape(node.output))
            continue
        given = {t.name: known[v] for t, v in zip(node.program.inputs, node.inputs, strict=True)}
        made = evaluate(node.program, given)
        known.update(
            {v: made[t.name] for t, v in zip(node.program.outputs, node.outputs, strict=True)}
        )
    return [known[v] for v in graph.outputs]


def calls(graph: Graph) -> list[Call]:
    return [n for n in graph.nodes if isinstance(n, Call)]


def small_network(kind: Any, zero: int, shift: int) -> tuple[Graph, np.ndarray]:
    m = Model((1, 16, 6, 6), kind)
    x = m.quantised("x", 0.05, zero + shift)
    y = m.node("Conv", [x, m.weights(32, 16, 3, 3)], pads=[1, 1, 1, 1])
    y = m.quantised(y, 0.2, zero)
    y = m.node("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = m.quantised(y, 0.2, zero)
    y = m.node("Conv", [y, m.weights(16, 32, 1, 1)])
    y = m.quantised(y, 0.3, zero + shift)
    return m.graph(y), RNG.normal(0, 2, (1, 16, 6, 6)).astype(np.float32)


@pytest.mark.parametrize(("kind", "zero"), [(np.int8, -128), (np.uint8, 0), (np.int8, 3)])
@pytest.mark.parametrize("shift", [0, 9])
def test_no_float_is_left_between(kind: Any, zero: int, shift: int) -> None:
    graph, x = small_network(kind, zero, shift)
    made = CPU.optimise(graph, MACHINE, evaluate)
    between = [made.values[v] for n in calls(made)[:-1] for v in n.outputs]
    assert {t.dtype for t in between} == {UINT8}
    assert {made.values[v].dtype for v in made.constants if made.values[v].rank > 2} == {INT8}
    # A step of the last scale, where a sum of floats was rounded to the other side.
    (wanted,), (got,) = results(graph, x), results(made, x)
    apart = np.abs(wanted - got)
    assert apart.max() <= 0.3 * 1.001 and (apart > 0.01).mean() < 0.02


def test_values_lose_their_sign() -> None:
    graph, x = small_network(np.int8, -128, 0)
    made = unsigned_values(graph, MACHINE)
    quantised = [n for n in calls(made) if is_quantisation(n.program)]
    assert {made.values[n.outputs[0]].dtype for n in quantised} == {UINT8}
    assert np.array_equal(results(graph, x)[0], results(made, x)[0])


def test_values_that_others_read_keep_their_sign() -> None:
    m = Model((4, 8))
    parts = [m.constant(0.1, np.float32), m.constant(1, np.int8)]
    q = m.node("QuantizeLinear", ["x", *parts])
    sizes = m.node("Cast", [q], to=TensorProto.FLOAT)
    graph = m.graph(m.node("Add", [sizes, m.node("DequantizeLinear", [q, *parts])]))
    assert unsigned_values(graph, MACHINE) is graph


def test_scales_along_the_sum_stay() -> None:
    """A scale for each column of the first operand, along which the second is summed."""
    m = Model((4, 8))
    x = m.quantised("x", 0.05, 0)
    w = m.constant(RNG.integers(-90, 90, (8, 5)), np.int8)
    scale = m.constant(RNG.uniform(0.01, 0.02, 8), np.float32)
    w = m.node("DequantizeLinear", [w, scale], axis=0)
    graph = m.graph(m.node("MatMul", [x, w]))
    assert quantised_products(graph) is graph


def test_dequantisations_move_behind_copies_and_maxima() -> None:
    m = Model((2, 3, 4))
    y = m.node("Transpose", [m.quantised("x", 0.1, 5)], perm=[0, 2, 1])
    y = m.node("Reshape", [y, m.constant([2, 12], np.int64)])
    graph = m.graph(m.node("Relu", [y]))
    made = sink_dequantisations(graph)
    last = [n for n in calls(made) if dequantisation_of(n.program) is not None]
    assert len(last) == 1 and made.values[last[0].outputs[0]].rank == 2
    moved = [n for n in calls(made) if moves_only(n.program, True) or "transpose" in n.program.name]
    assert all(made.values[n.outputs[0]].dtype == INT8 for n in moved)
    x = RNG.normal(0, 3, (2, 3, 4)).astype(np.float32)
    assert np.array_equal(results(graph, x)[0], results(made, x)[0])


def test_a_copy_that_is_quantised_again_is_undone() -> None:
    m = Model((2, 3))
    y = m.node("Transpose", [m.quantised("x", 0.1, 5)], perm=[1, 0])
    graph = m.graph(m.quantised(y, 0.1, 5))
    made = sink_dequantisations(graph)
    assert sum(is_quantisation(n.program) for n in calls(made)) == 1
    other = m.graph(m.quantised(y, 0.2, 5))
    assert sum(is_quantisation(n.program) for n in calls(sink_dequantisations(other))) == 2


def test_functions_of_one_value_are_tables() -> None:
    m = Model((1, 16, 4, 4), np.uint8)
    x = m.quantised("x", 0.1, 128)
    gate = m.quantised(m.node("Sigmoid", [x]), 1 / 255, 0)
    y = m.quantised(m.node("Mul", [x, gate]), 0.05, 20)
    graph = m.graph(m.node("Conv", [y, m.weights(16, 16, 1, 1)]))
    made = CPU.optimise(graph, MACHINE, evaluate)
    tables = [v for v in made.constants if made.values[v].dtype == UINT8 and made.values[v].rank]
    assert [made.shape(v) for v in tables] == [(256,)]
    x_ = RNG.normal(0, 6, (1, 16, 4, 4)).astype(np.float32)
    (wanted,), (got,) = results(graph, x_), results(made, x_)
    assert np.abs(wanted - got).max() <= 1e-4 * np.abs(wanted).max()


def test_cheap_functions_are_not_tables() -> None:
    m = Model((3, 5), np.uint8)
    graph = m.graph(m.node("Neg", [m.quantised("x", 0.1, 3)]))
    assert not any(
        isinstance(n.program.statements[0].value, Op) and n.program.inputs[-1].dtype != FLOAT32
        and n.program.inputs[-1].rank == 1
        for n in calls(tabulate(graph, evaluate))
    )  # fmt: skip


def test_sums_that_may_not_fit_an_int32_stay_sums_of_floats() -> None:
    """70,000 products of 255 and 127 are more than that."""
    node, x = helper.make_node, np.full((1, 70_000), 255, np.uint8)
    scales = [numpy_helper.from_array(np.array(1, np.float32), n) for n in ("s", "t")]
    zeros = [
        numpy_helper.from_array(np.array(0, k), n) for k, n in ((np.uint8, "z"), (np.int8, "y"))
    ]
    weights = numpy_helper.from_array(np.full((70_000, 1), 127, np.int8), "w")
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("DequantizeLinear", ["w", "t", "y"], ["b"]),
        node("MatMul", ["a", "b"], ["c"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.UINT8, [1, 70_000])],
        [info("c", TensorProto.FLOAT, [1, 1])], [*scales, *zeros, weights],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = fk.compile_onnx(model).run({"x": x})["c"]
    np.testing.assert_allclose(found, [[255 * 127 * 70_000.0]], rtol=1e-3)
