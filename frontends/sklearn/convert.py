"""`convert`: a fitted estimator to an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import frontends.sklearn.linear
import frontends.sklearn.models
import frontends.sklearn.scalers
import frontends.sklearn.trees  # noqa: F401 - these fill the registry
from frontends.sklearn.columns import apply_transform, unwrapped
from frontends.sklearn.emitter import Emitter, Features, Unsupported
from frontends.sklearn.registry import Output, Results, class_name, find_predictor, find_transform


@dataclass(frozen=True)
class Converted:
    """A model made of an estimator.

    model : its bytes; its input is X[N, features], of the type that was asked for
    methods : those that it computes, each in an output of this name
    classes : what `predict` returns, if its output has positions in this array
    checks : outputs [N] that are there: "known" is not positive where scikit-learn has to compute
        a row, since it refuses it, warns, or rounding decides; "sure" where rounding could change
        the class of one
    limit : numbers of greater magnitude stay with scikit-learn
    takes_missing : whether NaN is treated as scikit-learn does
    categories : for columns of text, what they may be; X has their positions, and -1 for others
    has_trees : whether code for one row differs from that for many
    """

    model: bytes
    methods: tuple[str, ...]
    classes: np.ndarray | None
    checks: tuple[str, ...]
    limit: float
    takes_missing: bool
    categories: Mapping[int, np.ndarray]
    has_trees: bool


def convert(estimator: Any, width: int, dtype: str) -> Converted:
    """The model of a fitted estimator or pipeline.

    width, dtype : how many features there are, and their type, float32 or float64

    Raises
    ------
    Unsupported : an estimator that cannot be converted; it says why.
    """
    e = Emitter(width, dtype)
    x, last = e.input, unwrapped(estimator)
    while class_name(last) == "Pipeline":
        for _, step in last.steps[:-1]:
            x = apply_transform(e, step, x)
        last = unwrapped(last.steps[-1][1])
    results = _results(e, last, x)
    mixed = e.numbers & e.categories.keys()
    if mixed:
        raise Unsupported(f"column {min(mixed)}, which is read as text and as numbers")
    outputs = {m: (o.value, o.dtype, o.rank) for m, o in results.values.items()}
    if results.labels is not None:
        outputs["predict"] = (results.labels, "int64", 1)
    methods = tuple(outputs)
    for check, values in (("known", e.known), ("sure", e.sure)):
        if values:
            least = values[0] if len(values) == 1 else e.op("Min", *values)
            outputs[check] = (least, "float64", 1)
    return Converted(
        e.model(outputs),
        methods,
        results.classes,
        tuple(outputs)[len(methods) :],
        e.limit,
        e.takes_missing,
        e.categories,
        e.has_trees,
    )


def _results(e: Emitter, last: Any, x: Features) -> Results:
    """What the methods of the last step return."""
    if last is not None and not isinstance(last, str):
        predict = find_predictor(last)
        if predict is not None:
            return predict(e, last, x)
        made = find_transform(last)(e, last, x)
    else:
        made = e.read(x)
    return Results({"transform": Output(made.name, made.dtype)})


__all__ = ["Converted", "Unsupported", "convert"]
