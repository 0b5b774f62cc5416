"""Operators without comprehensions in exported C compute what numpy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import farkas as fk
from farkas.networks.export_network import exported
from tests.conformance.exported import build, run

DRAW = np.random.default_rng(11)
ELEMENT_ERROR = 7
Array = np.ndarray[Any, np.dtype[Any]]


def model_of(
    operator: str, inputs: Mapping[str, Array], outputs: int, **attributes: Any
) -> ModelProto:
    """A model of one node, whose inputs have these types and shapes."""
    names = [f"y{n}" for n in range(outputs)]
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    node = helper.make_node(operator, list(inputs), names, **attributes)
    results = [helper.make_empty_tensor_value_info(n) for n in names]
    graph = helper.make_graph([node], "one", ports, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return DRAW.standard_normal(shape).astype(dtype)


def few(*shape: int, dtype: Any = np.float32) -> Array:
    """Elements many of which are equal."""
    return DRAW.integers(-2, 3, shape).astype(dtype)


def indices(end: int, *shape: int) -> Array:
    return DRAW.integers(-end, end, shape)


def scatter(
    dtype: Any, reduction: str, axis: int
) -> tuple[str, Mapping[str, Array], dict[str, Any]]:
    x, at = few(4, 5, 3, dtype=dtype), indices((4, 5, 3)[axis], 3, 4, 2)
    inputs = {"x": x, "i": at, "u": few(3, 4, 2, dtype=dtype)}
    return "ScatterElements", inputs, {"axis": axis, "reduction": reduction}


def scatter_nd(dtype: Any, reduction: str) -> tuple[str, Mapping[str, Array], dict[str, Any]]:
    at = np.stack([indices(4, 6), indices(5, 6)], -1)
    inputs = {"x": few(4, 5, 3, dtype=dtype), "i": at, "u": few(6, 3, dtype=dtype)}
    return "ScatterND", inputs, {"reduction": reduction}


CASES = [
    *(scatter(d, r, a) for d, r, a in (
        (np.float32, "none", 0), (np.float32, "add", 1), (np.float64, "mul", 2),
        (np.int32, "add", 1), (np.int64, "max", 0), (np.float32, "min", 2),
        (np.uint8, "add", 0), (np.float16, "none", 1), (np.bool_, "none", 1),
    )),
    *(scatter_nd(d, r) for d, r in (
        (np.float32, "none"), (np.float32, "max"), (np.int16, "mul"), (np.float16, "none"),
    )),
    ("MaxUnpool", {"x": floats(1, 2, 3, 2), "i": DRAW.permutation(48)[:12].reshape(1, 2, 3, 2)},
     {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Det", {"x": floats(3, 2, 4, 4)}, {}),
    ("Det", {"x": np.zeros((2, 3, 3), np.float64)}, {}),
    ("RoiAlign", {
        "x": floats(2, 3, 9, 7),
        "r": np.array([[0, 0, 6, 8], [1.5, 2, 3, 2.5], [-3, -2, 20, 20]], np.float32),
        "b": np.array([0, 1, 1]),
     }, {"output_height": 3, "output_width": 2}),
    ("MaxRoiPool", {
        "x": floats(2, 3, 9, 7), "r": np.array([[0, 0, 0, 6, 8], [1, 2, 3, 4, 5]], np.float32),
     }, {"pooled_shape": [2, 3]}),
    ("TfIdfVectorizer", {"x": DRAW.integers(0, 4, (3, 9)).astype(np.int32)}, {
        "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 2,
        "ngram_counts": [0, 3, 7], "ngram_indexes": [3, 0, 1, 2, 5, 4],
        "pool_int64s": [2, 0, 3, 0, 1, 1, 1, 2, 1, 0],
        "weights": [0.5, 2.0, 1.0, 3.0, 0.25, 1.5],
     }),
]  # fmt: skip


def checked(model: ModelProto, inputs: Mapping[str, Array], folder: Path, **options: Any) -> None:
    made = exported(model, "one", isa="generic", **options)
    library = build(made, ["gcc", "-fsanitize=undefined"], folder)
    wanted = fk.compile_onnx(model).run(inputs).values()
    passed = {n: a for n, a in inputs.items() if n in made.inputs}
    for found, want in zip(run(made, library, passed), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_it_computes_the_same(
    operator: str, inputs: Mapping[str, Array], attributes: dict[str, Any], tmp_path: Path
) -> None:
    checked(model_of(operator, inputs, 1, **attributes), inputs, tmp_path)


def ties(*shape: int) -> Array:
    """Equal elements, both zeros, infinities and NaN."""
    return DRAW.choice(np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2], np.float32), shape)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("x", "k", "axis"),
    [
        (floats(3, 40), 5, -1), (ties(2, 30, 3), 30, 1), (few(17, 2, dtype=np.int64), 4, 0),
        (ties(6, 9).astype(np.float16), 3, 1), (few(2, 5, dtype=np.uint8), 0, 1),
        (ties(200), 77, 0),
    ],
)  # fmt: skip
def test_the_greatest(x: Array, k: int, axis: int, largest: int, tmp_path: Path) -> None:
    inputs = {"x": x, "k": np.array([k])}
    model = model_of("TopK", inputs, 2, axis=axis, largest=largest)
    checked(model, inputs, tmp_path, values={"k": inputs["k"]})


@pytest.mark.parametrize("threads", ["none", "pthread"])
@pytest.mark.parametrize(
    ("operator", "change", "attributes"),
    [
        ("ScatterElements", {"i": np.array([[0], [4]])}, {"axis": 0}),
        ("ScatterElements", {"i": np.array([[0], [-5]])}, {"axis": 0}),
        ("ScatterND", {"i": np.array([[1], [4]]), "u": floats(2, 3)}, {}),
    ],
)
def test_indices_out_of_range(
    operator: str, change: Mapping[str, Array], attributes: dict[str, Any], threads: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    inputs = {"x": floats(4, 3), "i": indices(4, 2, 1), "u": floats(2, 1), **change}
    model = model_of(operator, inputs, 1, **attributes)
    made = exported(model, "one", isa="generic", threads=threads)
    library = build(made, ["gcc", "-fsanitize=undefined"], tmp_path)
    assert "On an error nothing was written, but for ONE_ELEMENT." in made.header
    run(made, library, inputs, code=ELEMENT_ERROR)
    run(made, library, {**inputs, "i": np.zeros_like(inputs["i"])})


def test_open_sizes(tmp_path: Path) -> None:
    """One text for all lengths; the number of elements is fixed."""
    inputs: dict[str, Any] = {"x": ("n", "m")}
    ports: Sequence[Any] = [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()]
    k = helper.make_tensor("k", 7, [1], [3])
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"])
    results = [helper.make_empty_tensor_value_info(n) for n in ("y", "i")]
    graph = helper.make_graph([node], "one", ports, results, [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    made = exported(model, "one", isa="generic")
    library = build(made, ["gcc"], tmp_path)
    network = fk.compile_onnx(model)
    for shape in ((2, 3), (5, 17), (1, 9)):
        x = ties(*shape)
        wanted = network.run({"x": x}).values()
        for found, want in zip(run(made, library, {"x": x}), wanted, strict=True):
            np.testing.assert_array_equal(found, want)
    run(made, library, {"x": ties(2, 2)}, code=5)
