"""Estimators as ONNX models: in ONNX Runtime they compute the same, and what is unsupported."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnxruntime
import pytest

from frontends.sklearn.convert import Unsupported, convert
from frontends.sklearn.registry import class_name

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sklearn.{module}"), name)


def make(*steps: Any) -> Any:
    return of("pipeline", "make_pipeline")(*steps)


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 4))
Y = (X @ RANDOM.normal(size=(4, 3))).argmax(1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_models_without_trees_are_plain_onnx(dtype: str) -> None:
    estimator = make(
        of("preprocessing", "StandardScaler")(), of("decomposition", "PCA")(3),
        of("linear_model", "LogisticRegression")(),
    ).fit(X.astype(dtype), Y)  # fmt: skip
    made = convert(estimator, 4, dtype)
    session = onnxruntime.InferenceSession(made.model, providers=["CPUExecutionProvider"])
    rows = X.astype(dtype)
    outputs = [o.name for o in session.get_outputs()]
    found = dict(zip(outputs, session.run(None, {"X": rows}), strict=True))
    assert made.methods == ("decision_function", "predict_proba", "predict")
    assert made.checks == ("sure",) and not made.has_trees and made.limit > 1e36
    rtol = 1e-10 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(found["predict_proba"], estimator.predict_proba(rows), atol=rtol)
    np.testing.assert_array_equal(made.classes[found["predict"]], estimator.predict(rows))
    assert (found["sure"] > 0).mean() > 0.95


def test_the_bound_on_rounding_is_small() -> None:
    """So that rows rarely go back to scikit-learn."""
    estimator = of("linear_model", "LogisticRegression")().fit(X, Y)
    made = convert(estimator, 4, "float64")
    session = onnxruntime.InferenceSession(made.model, providers=["CPUExecutionProvider"])
    (sure,) = session.run(["sure"], {"X": X})
    best = np.sort(estimator.decision_function(X), 1)
    gap = best[:, -1] - best[:, -2]
    assert (sure < gap).all() and (sure > gap - 1e-12).all()


def test_missing_numbers_and_limits() -> None:
    forest = of("ensemble", "RandomForestClassifier")(3).fit(X, Y)
    made = convert(forest, 4, "float64")
    assert made.takes_missing and made.has_trees and made.limit == np.finfo(np.float32).max
    made = convert(
        of("ensemble", "GradientBoostingClassifier")(n_estimators=2).fit(X, Y), 4, "float64"
    )
    assert not made.takes_missing
    made = convert(of("linear_model", "Ridge")().fit(X, Y), 4, "float64")
    assert not made.takes_missing
    imputed = make(of("impute", "SimpleImputer")(), of("linear_model", "Ridge")()).fit(X, Y)
    assert convert(imputed, 4, "float64").takes_missing


def test_what_is_unsupported() -> None:
    forest = of("ensemble", "RandomForestClassifier")(3, random_state=0)
    several = np.stack([Y, Y[::-1]], 1)
    encoder = of("preprocessing", "OneHotEncoder")
    cases = [
        (of("svm", "SVC")().fit(X, Y), "SVC has no lowering"),
        (make(of("decomposition", "PCA")(2), forest).fit(X, Y), "after arithmetic"),
        (forest.fit(X, several), "of several outputs"),
        (make(of("impute", "SimpleImputer")(add_indicator=True)).fit(X), "add_indicator"),
        (encoder(max_categories=2).fit(X.round()), "infrequent"),
        (make(of("decomposition", "PCA")(2), encoder()).fit(X), "after arithmetic"),
        (encoder(handle_unknown="infrequent_if_exist").fit(X.round()), "handle_unknown"),
        (make(of("preprocessing", "FunctionTransformer")(np.abs)).fit(X), "with a function"),
        (of("cluster", "KMeans")(2, n_init=1).fit(X.astype(np.float32)), "another element type"),
    ]
    for estimator, message in cases:
        with pytest.raises(Unsupported, match=message):
            convert(estimator, 4, "float64")


def test_columns_that_are_read_in_two_ways() -> None:
    encoder = of("preprocessing", "OneHotEncoder")().fit([["a"], ["b"]])
    scaler = of("preprocessing", "StandardScaler")().fit(X[:, :1])
    columns = of("compose", "ColumnTransformer")([("a", encoder, [0]), ("b", scaler, [0])])
    columns.fit(X)
    columns.transformers_ = [("a", encoder, [0]), ("b", scaler, [0])]
    with pytest.raises(Unsupported, match="column 0, which is read as text and as numbers"):
        convert(columns, 4, "float64")


def test_subclasses_have_no_name() -> None:
    ridge: Any = of("linear_model", "Ridge")
    assert class_name(ridge()) == "Ridge"
    assert class_name(type("Ridge", (ridge,), {"__module__": __name__})()) == ""
