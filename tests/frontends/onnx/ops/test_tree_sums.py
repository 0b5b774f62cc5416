"""TreeSums: questions in float32 or float64, sums in float64, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk
from poly.errors import ModelError

#: x0 <= 0.5, then x1 <= -1 for yes; leaves 2, 3 and 4.
TREE: dict[str, Any] = {
    "features": [0, 1, 0, 0, 0], "thresholds": [0.5, -1.0, 0.0, 0.0, 0.0],
    "yes": [1, 2, -1, -1, -1], "no": [4, 3, -1, -1, -1], "missing": [0, 1, 0, 0, 0], "roots": [0],
    "leaves": [2, 3, 4, 4], "targets": [0, 0, 0, 1], "weights": [1 / 3, 1e-17, 2.0, 5.0],
}  # fmt: skip


def model(dtype: str, tables: dict[str, Any], width: int = 2) -> bytes:
    kinds = {"thresholds": dtype, "weights": "float64"}
    constants = [
        numpy_helper.from_array(np.array(values, kinds.get(name, "int64")), name)
        for name, values in tables.items()
    ]
    node = helper.make_node(
        "TreeSums", ["X", *tables], ["sums"], domain="farkas", width=width, name="trees"
    )
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("X", kind, ["N", 2])],
        [helper.make_tensor_value_info("sums", TensorProto.DOUBLE, ["N", width])], constants,
    )  # fmt: skip
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("farkas", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return made.SerializeToString()


def repeated(count: int) -> dict[str, Any]:
    """The tree many times, with other weights."""
    found: dict[str, list[Any]] = {name: [] for name in TREE}
    for n in range(count):
        start = 5 * n
        for name, values in TREE.items():
            moved = name in ("yes", "no", "roots", "leaves")
            added = [v + start if moved and v >= 0 else v for v in values]
            found[name] += [v * (n + 1) for v in values] if name == "weights" else added
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("trees", [1, 40])
def test_sums(dtype: str, rows: int, trees: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(dtype)
    x[0] = [0.5, np.nan]
    x[-1] = [np.nextafter(np.array(0.5, dtype), 1), 0]
    low, no = x[:, 0] <= 0.5, ~((x[:, 1] <= -1) | np.isnan(x[:, 1]))
    leaf = np.where(low, no.astype(int), 2)
    each = np.array([[1 / 3, 0], [1e-17, 0], [2, 5]])[leaf]
    want = each * sum(range(1, trees + 1))
    found = fk.compile_onnx(model(dtype, repeated(trees))).run({"X": x})["sums"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, want, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("yes", [1, 2, -1, -1], "as many features"),
        ("weights", [1.0], "as many leaves"),
        ("no", [9, 3, -1, -1, -1], "does not exist"),
        ("leaves", [2, 3, 4, 7], "does not exist"),
        ("no", [0, 3, -1, -1, -1], "cycle"),
        ("features", [0, 5, 0, 0, 0], "feature 5"),
        ("targets", [0, 0, 0, 2], "not among 2"),
    ],
)
def test_what_is_refused(name: str, value: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fk.compile_onnx(model("float32", TREE | {name: value}), shapes={"N": 3})
