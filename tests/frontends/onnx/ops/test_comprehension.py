"""Comprehensions as nodes of ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk

MATMUL = "def f[N,M,K](float32 A[N,K], float32 B[K,M]) -> (Y) { Y[i,j] max=! A[i,k] + B[k,j] }"


def model(text: str, shapes: list[Any], sizes: dict[str, int] | None = None) -> Any:
    inputs = [helper.make_tensor_value_info(f"x{n}", 1, s) for n, s in enumerate(shapes)]
    names = [*(f"x{n}" for n in range(len(shapes))), *(sizes or {})]
    stored = [numpy_helper.from_array(np.int64(v), n) for n, v in (sizes or {}).items()]
    extra = {"sizes": [*sizes]} if sizes else {}
    nodes = [
        helper.make_node("Comprehension", names, ["t"], domain="farkas", text=text, **extra),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], stored)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("farkas", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


@pytest.mark.parametrize("shapes", [[(3, 4), (4, 5)], [("n", 4), (4, "m")]])
def test_a_node_is_a_program(shapes: Any) -> None:
    a, b = np.random.rand(3, 4).astype("f"), np.random.rand(4, 5).astype("f")
    found = fk.compile_onnx(model(MATMUL, shapes)).run({"x0": a, "x1": b})["y"]
    np.testing.assert_allclose(found, np.maximum((a[:, :, None] + b).max(1), 0))


def test_sizes_that_no_shape_shows() -> None:
    text = "def f[N,R](float32 X[N]) -> (float32 Y[R,N]) { Y[r,i] = X[i] * r where r in 0:R }"
    x = np.array([1, 2, 3], "f")
    found = fk.compile_onnx(model(text, [(3,)], {"R": 4})).run({"x0": x})["y"]
    np.testing.assert_array_equal(found, np.outer(np.arange(4), x))


def test_no_inputs() -> None:
    text = "def f() -> (float32 Y[3]) { Y[i] = i * 2 where i in 0:3 }"
    (found,) = fk.compile_onnx(model(text, [])).run({}).values()
    np.testing.assert_array_equal(found, [0, 2, 4])


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("def f(float32 A[N]) -> (Y) { Y[i] = A[i }", [(3,)], "the text is wrong"),
        (MATMUL, [(3, 4)], "1 tensors, but the text has 2 inputs"),
        (MATMUL, [(3, 4), (5, 6)], "K is 4"),
        (MATMUL, [(3, 4), (4,)], r"B\[K,M\] is given float32 \[4\]"),
        ("def f[N,R](float32 X[N]) -> (float32 Y[R]) { Y[r] = X[0] where r in 0:R }", [(3,)],
         "nothing says how large R is"),
    ],
)  # fmt: skip
def test_nodes_that_are_refused(text: str, shapes: Any, message: str) -> None:
    with pytest.raises(fk.ModelError, match=message):
        fk.compile_onnx(model(text, shapes))
