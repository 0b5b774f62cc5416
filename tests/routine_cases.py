"""Models of one operator without a comprehension, and what numpy computes for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import farkas as fk
from farkas.targets.cpu import CpuRunner
from frontends.onnx import Routines

DRAW = np.random.default_rng(11)
Array = np.ndarray[Any, np.dtype[Any]]


def model_of(
    operator: str, inputs: Mapping[str, Array], outputs: int, opset: int = 18, **attributes: Any
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
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


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


def ties(*shape: int) -> Array:
    """Equal elements, both zeros, infinities and NaN."""
    return DRAW.choice(np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2], np.float32), shape)


def top_k(x: Array, k: int, **attributes: Any) -> ModelProto:
    """A model of the k greatest elements of x, whose number is a constant."""
    model = model_of("TopK", {"x": x, "k": np.array([k])}, 2, **attributes)
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array([k]), "k"))
    return model


def by_numpy(model: ModelProto, inputs: Mapping[str, Array], cache: Path) -> Mapping[str, Array]:
    """What a network computes if numpy runs its operators without comprehensions."""
    with patch.object(CpuRunner, "routines", Routines.NONE):
        network = fk.compile_onnx(model, cache=cache)
        found = network.run(inputs)
    assert network.opaque_operators, "it has such an operator"
    return found
