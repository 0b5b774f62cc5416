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


def grown(random: np.random.Generator, count: int) -> dict[str, Any]:
    """Trees of 1,500 questions each, some of their paths long."""
    found: dict[str, list[Any]] = {name: [] for name in TREE}
    for _ in range(count):
        start, leaves = len(found["yes"]), [0]
        yes, no = [-1], [-1]
        for _ in range(1500):
            at = leaves.pop(int(random.integers(max(0, len(leaves) - 50), len(leaves))))
            yes[at], no[at] = len(yes), len(yes) + 1
            leaves += [yes[at], no[at]]
            yes += [-1, -1]
            no += [-1, -1]
        found["roots"].append(start)
        found["yes"] += [y + start if y >= 0 else -1 for y in yes]
        found["no"] += [n + start if n >= 0 else -1 for n in no]
        found["features"] += random.integers(0, 2, len(yes)).tolist()
        found["thresholds"] += random.normal(size=len(yes)).astype(np.float32).tolist()
        found["missing"] += random.integers(0, 2, len(yes)).tolist()
        for target in range(2):
            found["leaves"] += [leaf + start for leaf in leaves]
            found["targets"] += [target] * len(leaves)
            found["weights"] += random.normal(size=len(leaves)).tolist()
    return found


def walked(tables: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """The sums, row by row."""
    weights = dict(
        zip(zip(tables["leaves"], tables["targets"], strict=True), tables["weights"], strict=True)
    )
    sums = np.zeros((len(x), 2))
    for row, own in zip(x, sums, strict=True):
        for here in tables["roots"]:
            while tables["yes"][here] >= 0:
                value = row[tables["features"][here]]
                lost = np.isnan(value) and tables["missing"][here]
                side = "yes" if lost or value <= tables["thresholds"][here] else "no"
                here = tables[side][here]
            own += [weights[here, 0], weights[here, 1]]
    return sums


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 20, 200])
@pytest.mark.parametrize("trees", [1, 3, 20])
def test_grown_trees(dtype: str, rows: int, trees: int) -> None:
    """Trees that are too large for blocks: one or many of them, on few rows or many."""
    random = np.random.default_rng(1)
    tables, x = grown(random, trees), random.normal(size=(rows, 2)).astype(dtype)
    x[random.random(x.shape) < 0.1] = np.nan
    found = fk.compile_onnx(model(dtype, tables)).run({"X": x})["sums"]
    np.testing.assert_allclose(found, walked(tables, x), rtol=1e-12, atol=1e-12)


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
