"""The lowerings, by the names of scikit-learn's classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.sklearn.emitter import Emitter, Features, Unsupported


@dataclass(frozen=True)
class Output:
    """What one method returns: a value of the model, its type and rank."""

    value: str
    dtype: str
    rank: int = 2


@dataclass(frozen=True)
class Results:
    """What the methods of a predictor return.

    values : by method; labels : the value [N] with the positions of the predicted classes, if
    `predict` returns one of `classes`
    """

    values: dict[str, Output]
    labels: str | None = None
    classes: np.ndarray | None = None


Transform = Callable[[Emitter, Any, Features], Features]
Predict = Callable[[Emitter, Any, Features], Results]

_TRANSFORMS: dict[str, Transform] = {}
_PREDICTORS: dict[str, Predict] = {}


def transform(*names: str) -> Callable[[Transform], Transform]:
    """Register the lowering of ``transform`` for classes of these names."""

    def add(function: Transform) -> Transform:
        _TRANSFORMS.update(dict.fromkeys(names, function))
        return function

    return add


def predictor(*names: str) -> Callable[[Predict], Predict]:
    """Register the lowering of ``predict`` and what goes with it for classes of these names."""

    def add(function: Predict) -> Predict:
        _PREDICTORS.update(dict.fromkeys(names, function))
        return function

    return add


def class_name(estimator: Any) -> str:
    """The name by which lowerings are found; "" for a class that is not scikit-learn's own.

    A subclass may compute something else, so that it has no lowering.
    """
    kind = type(estimator)
    return kind.__name__ if kind.__module__.partition(".")[0] == "sklearn" else ""


def find_transform(estimator: Any) -> Transform:
    """The lowering of ``transform``.  Raises `Unsupported` if there is none."""
    return _found(_TRANSFORMS, estimator)


def find_predictor(estimator: Any) -> Predict | None:
    """The lowering of ``predict``, None if there is none."""
    return _PREDICTORS.get(class_name(estimator))


def _found(table: dict[str, Transform], estimator: Any) -> Transform:
    found = table.get(class_name(estimator))
    if found is None:
        raise Unsupported(f"{type(estimator).__name__} has no lowering")
    return found
