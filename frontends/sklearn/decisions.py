"""Classes from scores, where rounding cannot change them, and probabilities from scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.sklearn.emitter import Emitter, Features
from frontends.sklearn.registry import Output, Results


def largest(e: Emitter, scores: str, count: int, bound: str) -> str:
    """The position of the largest of `count` scores of float64, [N].

    Rows whose best two scores are closer than `bound` (one number, or [N]) stay with scikit-learn:
    there, rounding decides.
    """
    axes = e.constant([1])
    index = e.op("ArgMax", scores, axis=1, keepdims=0)
    own = e.op("Equal", e.op("Unsqueeze", index, axes), e.constant(np.arange(count)[None]))
    rest = e.op("Where", own, e.constant(-np.inf, "float64"), scores)
    best = e.op("ReduceMax", scores, axes, keepdims=0)
    gap = e.op("Sub", best, e.op("ReduceMax", rest, axes, keepdims=0))
    e.sure.append(e.op("Sub", gap, bound))
    return index


def positive(e: Emitter, score: str, bound: str) -> str:
    """1 where a score [N] of float64 is positive, else 0; those below `bound` are left out."""
    e.sure.append(e.op("Sub", e.op("Abs", score), bound))
    return e.op("Cast", e.op("Greater", score, e.constant(0, "float64")), to=7)


def column(e: Emitter, matrix: str, place: int = 0) -> str:
    """One column [N] of a matrix."""
    return e.op("Gather", matrix, e.constant(place), axis=1)


def of_two(e: Emitter, second: str, dtype: str) -> str:
    """Probabilities [N,2] from those of the second class [N,1]."""
    return e.op("Concat", e.op("Sub", e.constant(1, dtype), second), second, axis=1)


def product_bound(
    e: Emitter, x: Features, weights: np.ndarray, plus: np.ndarray, eps: float
) -> str:
    """By how much x @ weights.T + plus may differ from scikit-learn's, for each row [N].

    A sum of n products differs by at most n roundings of the product of both lengths, in whatever
    order it is computed.
    """
    most = float(np.linalg.norm(weights, axis=1).max(initial=0))
    own = 4 * (x.width + 8) * eps
    by = most * (own + x.relative * np.sqrt(x.width))
    more = most * x.absolute * np.sqrt(x.width) + own * float(np.abs(plus).max(initial=0))
    return e.scaled(e.length(x), by, more)


def classified(
    e: Emitter, model: Any, scores: str, dtype: str, count: int, bound: str, link: str | None
) -> Results:
    """What a classifier returns whose decision is the sign of its score, or the largest of several.

    scores : [N,count], of `dtype`; link : "sigmoid" or "softmax" makes probabilities of them
    """
    values: dict[str, Output] = {}
    wide = e.cast(scores, dtype, "float64")
    if count == 1:
        single = column(e, scores)
        labels = positive(e, column(e, wide), bound)
        values["decision_function"] = Output(single, dtype, 1)
    else:
        labels = largest(e, wide, count, bound)
        values["decision_function"] = Output(scores, dtype)
    if link is not None:
        values["predict_proba"] = Output(probabilities(e, scores, dtype, count, link), dtype)
    return Results(values, labels, np.asarray(model.classes_))


def probabilities(e: Emitter, scores: str, dtype: str, count: int, link: str) -> str:
    """[N, classes] from scores [N,count]."""
    if link == "softmax":
        return e.op("Softmax", scores, axis=1)
    each = e.op("Sigmoid", scores)
    if count == 1:
        return of_two(e, each, dtype)
    total = e.op("ReduceSum", each, e.constant([1]), keepdims=1)
    return e.op("Div", each, total)
