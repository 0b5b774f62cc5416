"""Operators whose operands have an open size for every axis, compared with ONNX Runtime.

A few that have attributes or stored tensors of fixed sizes beside them; for all that is tested with
`agree`: ``FARKAS_TEST_OPEN=1 python -m pytest -m "not slow" tests/frontends/onnx``.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import farkas as fk
from frontends.onnx.ops.contrib_schemas import DOMAIN
from tests.conformance.official import opened
from tests.frontends.onnx.ml_support import ml_model
from tests.frontends.onnx.onnx_support import agree_when_open, floats, model_of, single

ROWS = {"x": floats(5, 3)}
LINEAR = {"coefficients": [0.5, -1.0, 2.0, 1.0, 0.0, 3.0], "intercepts": [0.5, 1.5]}
NUMBERS = {"y": TensorProto.FLOAT}
LABELS = {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("operator", "outputs", "attributes"),
    [
        ("Scaler", NUMBERS, {"offset": [0.5, -1.0, 2.0], "scale": [2.0, 0.5, 1.5]}),
        ("Imputer", NUMBERS, {"imputed_value_floats": [1.0, 2.0, 3.0]}),
        ("LinearRegressor", NUMBERS, {**LINEAR, "targets": 2}),
        ("LinearClassifier", LABELS, {**LINEAR, "classlabels_ints": [3, 1]}),
    ],
)
def test_rows_of_features(operator: str, outputs: dict[str, int], attributes: dict) -> None:
    model = ml_model(operator, ROWS, outputs, **attributes)
    agree_when_open(model, ROWS)
    with pytest.raises(fk.FarkasError, match="features"):
        fk.compile_onnx(opened(model), threads=1).run({"x": floats(5, 4)})


def test_features_side_by_side() -> None:
    inputs = {"a": floats(3, 2), "b": floats(3, 1)}
    model = ml_model("FeatureVectorizer", inputs, NUMBERS, inputdimensions=[2, 1])
    agree_when_open(model, inputs)
    with pytest.raises(fk.FarkasError, match=r"\[2, 1\] do not fit operands of \[3, 1\] features"):
        fk.compile_onnx(opened(model)).run({"a": floats(3, 3), "b": floats(3, 1)})


def test_heads() -> None:
    inputs = {name: floats(2, rows, 8) for name, rows in (("q", 3), ("k", 6), ("v", 6))}
    model = single("MultiHeadAttention", inputs, domain=DOMAIN, num_heads=2)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    agree_when_open(model, inputs)


def test_a_part_of_stored_rows_of_8_bits() -> None:
    """As many of the positions' embeddings as there are words."""
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "scale", "zero"], ["rows"]),
        helper.make_node("Shape", ["x"], ["count"], start=1, end=2),
        helper.make_node("Slice", ["rows", "first", "count"], ["used"]),
        helper.make_node("Add", ["x", "used"], ["y"]),
    ]
    x = {"x": floats(2, 5, 8)}
    table = np.arange(160, dtype=np.uint8).reshape(20, 8)
    constants = {"table": table, "scale": np.float32(0.1), "zero": np.uint8(7)}
    constants = {n: np.asarray(a) for n, a in constants.items()} | {"first": np.array([0])}
    agree_when_open(model_of(nodes, x, ["y"], constants), x)
