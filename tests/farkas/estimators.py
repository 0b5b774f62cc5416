"""Estimators of scikit-learn, data for them, and comparisons of compiled ones with the original."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.errors import ModelWarning

#: Which methods must be compiled.
PREDICT, TRANSFORM = ("predict",), ("transform",)
SHARES, SCORES = ("predict", "predict_proba"), ("predict", "decision_function")
ALL = ("predict", "predict_proba", "decision_function")


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sklearn.{module}"), name)


def make(*steps: Any) -> Any:
    return of("pipeline", "make_pipeline")(*steps)


def scaler(**params: Any) -> Any:
    return of("preprocessing", "StandardScaler")(**params)


def logistic(**params: Any) -> Any:
    return of("linear_model", "LogisticRegression")(**params)


def forest(**params: Any) -> Any:
    given = {"n_estimators": 10, "max_depth": 5, "random_state": 0} | params
    return of("ensemble", "RandomForestClassifier")(**given)


def data(kind: str) -> tuple[np.ndarray, Any]:
    """Rows of six features, and for the kind of estimator what it is fitted to."""
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 6)) * [1, 10, 0.1, 1, 1, 1] + [0, 5, 0, 0, 0, 0]
    score = x @ random.normal(size=(6, 3)) + random.normal(size=(240, 3))
    y = {
        "regressor": score[:, 0],
        "two": score[:, 0] > 0,
        "three": np.array(["oak", "ash", "elm"])[score.argmax(1)],
        "several": score[:, :2],
        "none": None,
    }[kind]
    return x, y


def ensembles(name: str, **params: Any) -> Any:
    return of("ensemble", name)(**{"random_state": 0} | params)


def compiled(estimator: Any, x: Any, y: Any = None) -> Any:
    """The fitted estimator, compiled without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ModelWarning)
        return fk.sklearn.Compiled(estimator).fit(x, y)


def agree(model: Any, rows: Any, methods: tuple[str, ...], rtol: float = 1e-9) -> None:
    """Compare methods with those of the original, with types and shapes."""
    original = model.estimator_
    for method in methods:
        found, want = getattr(model, method)(rows), getattr(original, method)(rows)
        assert type(found) is type(want) and found.dtype == want.dtype
        assert found.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(found, want, rtol=0, atol=rtol * np.abs(want).max())
        else:
            np.testing.assert_array_equal(found, want)


def served_alone(model: Any, rows: Any, methods: tuple[str, ...]) -> None:
    """Compiled code has to serve these rows: the original is taken away."""
    original, model.estimator_ = model.estimator_, _Refuses(model.estimator_)
    try:
        for method in methods:
            assert len(getattr(model, method)(rows)) == len(rows)
    finally:
        model.estimator_ = original


class _Refuses:
    """An estimator whose methods fail."""

    def __init__(self, original: Any) -> None:
        self._sklearn_output_config = getattr(original, "_sklearn_output_config", {})

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the original was used")


def refused(model: Any, method: str, rows: Any) -> None:
    """It raises just what the original raises."""
    with pytest.raises(Exception) as want:
        getattr(model.estimator_, method)(rows)
    with pytest.raises(type(want.value)) as found:
        getattr(model, method)(rows)
    assert str(found.value) == str(want.value)
