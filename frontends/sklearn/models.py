"""Clusters, naive Bayes and perceptrons."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.sklearn.decisions import (
    classified,
    column,
    largest,
    probabilities,
    product_bound,
)
from frontends.sklearn.emitter import Emitter, Features, Unsupported
from frontends.sklearn.registry import Output, Results, predictor


@predictor("KMeans", "MiniBatchKMeans", "BisectingKMeans")
def k_means(e: Emitter, model: Any, x: Features) -> Results:
    """The nearest center, and the distances to all."""
    if type(model).__name__ == "BisectingKMeans":
        raise Unsupported("BisectingKMeans, which walks a tree of centers")
    x = e.numbers_of(x)
    if x.dtype != model.cluster_centers_.dtype:
        raise Unsupported("KMeans fitted to another element type")
    centers = np.asarray(model.cluster_centers_, np.float64)
    count = len(centers)
    wide = e.cast(x.name, x.dtype, "float64")
    # The nearest has the greatest 2 x c - c c.
    size = (centers**2).sum(1)
    scores = e.op("MatMul", wide, e.constant(2 * centers.T, "float64"))
    scores = e.op("Sub", scores, e.constant(size, "float64"))
    bound = product_bound(e, x, 2 * centers, size, x.eps)
    zero = e.constant(0, "float64")
    labels = largest(e, scores, count, bound) if count > 1 else e.op("ArgMax", scores, axis=1,
                                                                     keepdims=0)  # fmt: skip
    own = e.op("ReduceSum", e.op("Mul", wide, wide), e.constant([1]), keepdims=1)
    squares = e.op("Max", e.op("Sub", own, scores), zero)
    distances = e.cast(e.op("Sqrt", squares), "float64", x.dtype)
    classes = np.arange(count, dtype=np.int32)
    return Results({"transform": Output(distances, x.dtype)}, labels, classes)


@predictor("GaussianNB")
def gaussian(e: Emitter, model: Any, x: Features) -> Results:
    """The class of which a row is the likeliest, with features that are independent."""
    x = e.numbers_of(x)
    dtype = str(np.result_type(x.dtype, model.theta_.dtype))
    means, spread = np.asarray(model.theta_), np.asarray(model.var_)
    count = len(means)
    if count < 2:
        raise Unsupported("GaussianNB of one class")
    row = e.op("Unsqueeze", e.cast(x.name, x.dtype, dtype), e.constant([1]))
    away = e.op("Sub", row, e.constant(means[None], dtype))
    parts = e.op("Div", e.op("Mul", away, away), e.constant(spread[None], dtype))
    total = e.op("ReduceSum", parts, e.constant([2]), keepdims=0)
    plus = np.log(model.class_prior_) - 0.5 * np.log(2.0 * np.pi * spread).sum(1)
    half = e.op("Mul", total, e.constant(0.5, dtype))
    scores = e.op("Sub", e.constant(plus[None], dtype), half)
    # All parts are positive: each sum is as exact as the least exact of them.
    eps = max(x.eps, float(np.finfo(dtype).eps))
    most = e.op("ReduceMax", half, e.constant([1]), keepdims=0)
    own = 8 * (x.width + 16) * eps
    stretch = float(np.sqrt(1 / spread.min()))
    more = own * float(np.abs(plus).max()) + 4 * stretch * x.absolute
    bound = e.scaled(e.cast(most, dtype, "float64"), own + 4 * stretch * x.relative, more)
    labels = largest(e, e.cast(scores, dtype, "float64"), count, bound)
    shares = probabilities(e, scores, dtype, count, "softmax")
    return Results({"predict_proba": Output(shares, dtype)}, labels, np.asarray(model.classes_))


def _layers(e: Emitter, model: Any, x: Features) -> tuple[str, str, str]:
    """The last layer [N,k] before its activation, its type, and by how much it may differ."""
    dtype = str(np.result_type(x.dtype, *(w.dtype for w in model.coefs_)))
    made = e.cast(x.name, x.dtype, dtype)
    eps = max(x.eps, float(np.finfo(dtype).eps))
    # Rows are at most size[0] * (length of the row of X) + size[1] long, and so are their errors.
    size = np.array([1.0, 0.0])
    error = np.array([x.relative, x.absolute]) * np.sqrt(x.width)
    last = len(model.coefs_) - 1
    for place, (weights, plus) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        made = e.op("Add", e.op("MatMul", made, e.constant(weights, dtype)),
                    e.constant(plus, dtype))  # fmt: skip
        by = float(np.linalg.norm(weights, 2))
        size = by * size + np.array([0.0, float(np.linalg.norm(plus))])
        error = by * error + 4 * (len(weights) + 8) * eps * size
        if place < last and model.activation != "identity":
            kind = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}[model.activation]
            made = e.op(kind, made)
            if kind == "Sigmoid":
                size = np.array([0.0, np.sqrt(weights.shape[1])])
            error[1] += 4 * eps * np.sqrt(weights.shape[1])
    return made, dtype, e.scaled(e.length(x), float(error[0]), float(error[1]))


@predictor("MLPRegressor")
def perceptron_regressor(e: Emitter, model: Any, x: Features) -> Results:
    """Products with activations between them."""
    made, dtype, _ = _layers(e, model, e.numbers_of(x))
    if model.out_activation_ == "exp":
        made = e.op("Exp", made)
    elif model.out_activation_ != "identity":
        raise Unsupported(f"MLPRegressor with {model.out_activation_}")
    flat = model.n_outputs_ == 1
    return Results({"predict": Output(column(e, made) if flat else made, dtype, 2 - flat)})


@predictor("MLPClassifier")
def perceptron_classifier(e: Emitter, model: Any, x: Features) -> Results:
    """The sign of the last layer, or the largest of several."""
    if model._label_binarizer.y_type_.startswith("multilabel"):
        raise Unsupported("MLPClassifier of several labels")
    made, dtype, bound = _layers(e, model, e.numbers_of(x))
    link = "sigmoid" if model.n_outputs_ == 1 else "softmax"
    found = classified(e, model, made, dtype, model.n_outputs_, bound, link)
    del found.values["decision_function"]  # scikit-learn has none
    return found
