"""Programs that are the same but for the names of their sizes are one kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import farkas as fk
from frontends.language.parse_program import parse_program
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain


def form(text: str) -> tuple[str, tuple[str, ...]]:
    found = parse_program(text).form
    return found.digest, found.sizes


def test_names_of_sizes_do_not_count() -> None:
    one = form("def f(float32 X[N,M]) -> (Y) { Y[i,j] = X[i,j] + float32(N) }")
    two = form("def g(float32 X[M,A]) -> (Y) { Y[i,j] = X[i,j] + float32(M) }")
    assert one[0] == two[0] and (one[1], two[1]) == (("N", "M"), ("M", "A"))


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 X[N,M]) -> (Y) { Y[i,j] = X[i,j] + float32(M) }",
        "def f(float32 X[N,N]) -> (Y) { Y[i,j] = X[i,j] + float32(N) }",
        "def f(float32 X[N,4]) -> (Y) { Y[i,j] = X[i,j] + float32(N) }",
        "def f(float32 X[N,M]) -> (Y) where N <= M { Y[i,j] = X[i,j] + float32(N) }",
        "def f(float32 Z[N,M]) -> (Y) { Y[i,j] = Z[i,j] + float32(N) }",
    ],
)
def test_all_else_does(text: str) -> None:
    assert form(text)[0] != form("def f(float32 X[N,M]) -> (Y) { Y[i,j] = X[i,j] + float32(N) }")[0]


def branches() -> onnx.ModelProto:
    """The same layers for images of two sizes: a convolution of 3 x 3 and one of 1 x 1, whose
    height and width are joined, a mean, and a softmax, which has temporaries of its own."""
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.normal(size=(5, 3, 3, 3)).astype(np.float32),
        "V": rng.normal(size=(4, 5, 1, 1)).astype(np.float32),
    }
    nodes, outputs = [], []
    for name in ("A", "B"):
        nodes += [
            helper.make_node("Conv", [name, "W"], [f"{name}1"], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", [f"{name}1", "V"], [f"{name}2"]),
            helper.make_node("Softmax", [f"{name}2"], [f"{name}3"], axis=3),
            helper.make_node("GlobalAveragePool", [f"{name}3"], [f"{name}4"]),
        ]
        outputs += [f"{name}3", f"{name}4"]
    graph = helper.make_graph(
        nodes,
        "branches",
        [
            helper.make_tensor_value_info("A", TensorProto.FLOAT, [1, 3, "H", "W"]),
            helper.make_tensor_value_info("B", TensorProto.FLOAT, [1, 3, "P", "Q"]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_one_kernel_for_sizes_of_other_names(toolchain: Toolchain, tmp_path: Path) -> None:
    proto = branches()
    model = fk.compile_onnx(proto, cc=toolchain, cache=Cache(tmp_path))
    rng = np.random.default_rng(1)
    for sizes in ((9, 14, 20, 5), (6, 7, 7, 6), (31, 40, 3, 33)):
        h, w, p, q = sizes
        inputs = {
            "A": rng.normal(size=(1, 3, h, w)).astype(np.float32),
            "B": rng.normal(size=(1, 3, p, q)).astype(np.float32),
        }
        expected = ReferenceEvaluator(proto).run(None, inputs)
        for found, wanted in zip(model.run(inputs).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert model.report.kernels == len(model.schedules) == 4
    nodes = "".join(model.source.values()).count("Node: ")
    assert nodes == 8
