"""Operators of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import farkas as fk
from frontends.onnx import import_model
from poly.errors import ArgumentError, ModelError, UnsupportedModelError
from tests.frontends.onnx.ml_support import DOMAIN, forest, ml_graph, ml_model
from tests.frontends.onnx.onnx_support import agree, floats, ort_run, run_graph

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
SCORES = {"label": INT64, "scores": FLOAT}
NUMBER = {"y": FLOAT}


def rows_of(count: int, width: int, seed: int = 0, holes: bool = False) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, width)).astype(np.float32)
    if holes:
        x[random.random(x.shape) < 0.3] = np.nan
    return x


# --- trees ---

MODES = [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]


@given(
    seed=st.integers(0, 1 << 30),
    trees=st.integers(1, 5),
    depth=st.integers(1, 4),
    targets=st.integers(1, 3),
    modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=3),
    missing=st.booleans(),
    holes=st.booleans(),
    aggregate=st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]),
    post=st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]),
    base=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tree_regressors(
    seed, trees, depth, targets, modes, missing, holes, aggregate, post, base
):
    random = np.random.default_rng(seed)
    x = rows_of(5, 3, seed, holes)
    whole = any(m in ("BRANCH_EQ", "BRANCH_NEQ") for m in modes)
    x = np.round(x) if whole else x
    attributes = forest(
        random, trees=trees, depth=depth, features=3, targets=targets, modes=modes,
        missing=missing, whole=whole,
    )  # fmt: skip
    if base:
        attributes["base_values"] = random.normal(size=targets).tolist()
    model = ml_model(
        "TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=targets,
        aggregate_function=aggregate, post_transform=post, **attributes,
    )  # fmt: skip
    agree(model, {"x": x})


@given(
    seed=st.integers(0, 1 << 30),
    trees=st.integers(1, 4),
    classes=st.integers(2, 4),
    only=st.booleans(),
    positive=st.booleans(),
    post=st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]),
    bases=st.integers(0, 2),
    missing=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tree_classifiers(seed, trees, classes, only, positive, post, bases, missing):
    random = np.random.default_rng(seed)
    x = rows_of(6, 3, seed, missing)
    one = int(random.integers(classes)) if only else None
    attributes = forest(
        random, trees=trees, depth=3, features=3, targets=classes, prefix="class",
        missing=missing, only=one,
    )  # fmt: skip
    if positive:
        attributes["class_weights"] = np.abs(attributes["class_weights"]).tolist()
    size = bases if classes == 2 else classes * min(bases, 1)
    if size:
        attributes["base_values"] = random.normal(size=size).tolist()
    # ONNX Runtime names two classes 0 and 1, whatever their labels, if both have weights.
    labels = [0, 1] if classes == 2 else [int(n) for n in random.permutation(classes) * 7]
    model = ml_model(
        "TreeEnsembleClassifier", {"x": x}, SCORES, classlabels_int64s=labels,
        post_transform=post, **attributes,
    )  # fmt: skip
    agree(model, {"x": x})
