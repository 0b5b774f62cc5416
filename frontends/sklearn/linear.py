"""Linear models: one product with the coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.sklearn.decisions import classified, column, product_bound
from frontends.sklearn.emitter import Emitter, Features, Unsupported
from frontends.sklearn.registry import Output, Results, predictor


def _scores(e: Emitter, model: Any, x: Features) -> tuple[str, str, np.ndarray, np.ndarray]:
    """X W^T + b [N,k] and its type, with W and b."""
    weights, plus = np.atleast_2d(model.coef_), np.ravel(model.intercept_)
    if weights.ndim != 2 or weights.shape[1] != x.width:
        raise Unsupported(f"{type(model).__name__} with coefficients of shape {weights.shape}")
    dtype = str(np.result_type(x.dtype, weights.dtype))
    made = e.op("MatMul", e.cast(x.name, x.dtype, dtype), e.constant(weights.T, dtype))
    plus = np.broadcast_to(plus, (len(weights),))
    own = str(np.result_type(dtype, plus.dtype)) if np.ndim(model.intercept_) else dtype
    made = e.op("Add", e.cast(made, dtype, own), e.constant(plus, own))
    return made, own, weights.astype(np.float64), plus.astype(np.float64)


@predictor(
    "LinearRegression", "Ridge", "RidgeCV", "Lasso", "LassoCV", "LassoLars", "LassoLarsCV",
    "LassoLarsIC", "Lars", "LarsCV", "ElasticNet", "ElasticNetCV", "MultiTaskLasso",
    "MultiTaskLassoCV", "MultiTaskElasticNet", "MultiTaskElasticNetCV", "BayesianRidge",
    "ARDRegression", "HuberRegressor", "TheilSenRegressor", "OrthogonalMatchingPursuit",
    "OrthogonalMatchingPursuitCV", "SGDRegressor", "PassiveAggressiveRegressor", "LinearSVR",
    "QuantileRegressor",
)  # fmt: skip
def linear_regression(e: Emitter, model: Any, x: Features) -> Results:
    """X w + b."""
    made, dtype, _, _ = _scores(e, model, e.numbers_of(x))
    flat = np.ndim(model.coef_) == 1
    if flat:
        made = column(e, made)
    return Results({"predict": Output(made, dtype, 1 if flat else 2)})


@predictor(
    "LogisticRegression", "LogisticRegressionCV", "LinearSVC", "SGDClassifier", "Perceptron",
    "PassiveAggressiveClassifier", "RidgeClassifier", "RidgeClassifierCV",
    "LinearDiscriminantAnalysis",
)  # fmt: skip
def linear_classifier(e: Emitter, model: Any, x: Features) -> Results:
    """The sign of X w + b, or the largest of several."""
    x = e.numbers_of(x)
    made, dtype, weights, plus = _scores(e, model, x)
    count, classes = len(weights), len(model.classes_)
    if count != (1 if classes == 2 else classes):
        raise Unsupported(f"{type(model).__name__} of several outputs")
    eps = max(x.eps, float(np.finfo(dtype).eps))
    bound = product_bound(e, x, weights, plus, eps)
    found = classified(e, model, made, dtype, count, bound, _link(model, count))
    if type(model).__name__ == "LinearDiscriminantAnalysis" and hasattr(model, "scalings_"):
        found.values["transform"] = _discriminants(e, model, x)
    return found


def _discriminants(e: Emitter, model: Any, x: Features) -> Output:
    """Features along which classes differ most."""
    axes = np.asarray(model.scalings_)[:, : model._max_components]
    mean = np.asarray(model.xbar_) if model.solver == "svd" else np.zeros(x.width)
    dtype = str(np.result_type(x.dtype, axes.dtype, mean.dtype))
    away = e.op("Sub", e.cast(x.name, x.dtype, dtype), e.constant(mean, dtype))
    return Output(e.op("MatMul", away, e.constant(axes, dtype)), dtype)


def _link(model: Any, count: int) -> str | None:
    """What makes probabilities of scores, if anything does."""
    name = type(model).__name__
    if name in ("LogisticRegression", "LogisticRegressionCV", "LinearDiscriminantAnalysis"):
        return "sigmoid" if count == 1 else "softmax"
    if name == "SGDClassifier" and model.loss == "log_loss":
        return "sigmoid"
    return None
