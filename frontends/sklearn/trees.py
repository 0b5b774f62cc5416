"""Trees, forests and boosted trees: questions in float32 or float64 as fitted, sums in float64.

scikit-learn's trees round features to float32 and compare these with thresholds of float64.  For
x of float32, x <= t is x <= t', where t' is the greatest float32 that is not greater than t.
Likewise for features that a scaler made: it is increasing, so that there is a greatest number that
it does not lift above t, and the question is asked of the numbers before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frontends.onnx.core.own_models import DOMAIN
from frontends.sklearn.decisions import classified, column, largest, probabilities
from frontends.sklearn.emitter import Emitter, Features, Steps, Unsupported
from frontends.sklearn.registry import Output, Results, predictor

#: scikit-learn refuses numbers beyond those of float32.
_LIMIT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class _Tree:
    """One tree; leaves have `yes` = -1.

    weights : [node, targets], which is used at leaves; first : the target of the first column
    """

    features: np.ndarray
    thresholds: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: np.ndarray
    first: int = 0


def _sums(e: Emitter, x: Features, trees: Sequence[_Tree], targets: int) -> str:
    """The weights of the leaves that rows reach, summed over trees: [N, targets] of float64."""
    starts = np.cumsum([0, *(len(t.yes) for t in trees)])
    yes, no = (
        np.concatenate([
            np.where(side < 0, -1, side.astype(np.int64) + start)
            for side, start in zip(sides, starts, strict=False)
        ])
        for sides in ([t.yes for t in trees], [t.no for t in trees])
    )  # fmt: skip
    leaves, targets_of, weights = [], [], []
    for tree, start in zip(trees, starts, strict=False):
        ends, width = np.flatnonzero(tree.yes < 0), tree.weights.shape[1]
        leaves.append(np.repeat(ends + start, width))
        targets_of.append(np.tile(np.arange(width) + tree.first, len(ends)))
        weights.append(tree.weights[ends].ravel())
    e.has_trees = True
    return e.op(
        "TreeSums",
        x.name,
        e.constant(np.concatenate([np.maximum(t.features, 0) for t in trees])),
        e.constant(np.concatenate([t.thresholds for t in trees]), x.dtype),
        e.constant(yes),
        e.constant(no),
        e.constant(np.concatenate([t.missing for t in trees])),
        e.constant(starts[:-1]),
        e.constant(np.concatenate(leaves)),
        e.constant(np.concatenate(targets_of)),
        e.constant(np.concatenate(weights), "float64"),
        domain=DOMAIN,
        width=targets,
    )


@dataclass(frozen=True, eq=False)
class _Questions:
    """What trees ask: features, and thresholds for them."""

    x: Features
    kind: type

    def thresholds(self, features: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """The greatest numbers, in the type of the features, that are not above a threshold.

        A number is, if what scikit-learn makes of it, rounded to `kind`, is.
        """
        if self.x.steps is None:
            return _below(thresholds) if self.x.dtype == "float32" else thresholds
        return _last_below(self.x, self.kind, np.maximum(features, 0), thresholds)


def _asked(e: Emitter, x: Features, model: Any, kind: type) -> _Questions:
    """The features that trees ask for; raises `Unsupported` if rounding could change an answer.

    kind : the type in which scikit-learn compares
    """
    name = type(model).__name__
    if kind is np.float32:
        e.limit = min(e.limit, _LIMIT)
    x = e.read(x)
    if x.exact:
        return _Questions(replace(e.in_type(x, np.dtype(kind).name), steps=None), kind)
    if x.raw is None or x.steps is None:
        raise Unsupported(f"{name} after arithmetic whose order differs")
    if kind is np.float32:
        e.limit = min(e.limit, _limit_before(x.raw, x.steps))
    return _Questions(replace(x.raw, steps=x.steps), kind)


def _limit_before(raw: Features, steps: Steps) -> float:
    """A magnitude of numbers of which the functions fit into float32."""
    at, limit = np.arange(raw.width), min(_LIMIT, float(np.finfo(raw.dtype).max))
    with np.errstate(all="ignore"):
        while limit > 1:
            ends = (steps(np.full(raw.width, s * limit, raw.dtype), at) for s in (-1, 1))
            if all((np.abs(end) <= _LIMIT).all() for end in ends):
                break
            limit /= 2
    return limit


def _below(thresholds: np.ndarray) -> np.ndarray:
    """The greatest numbers of float32 that are not greater."""
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
        down = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.float64) > thresholds, down, near)


def _last_below(
    x: Features, kind: type, features: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """The greatest numbers whose functions, rounded to `kind`, are not above thresholds.

    Floats are halved by their positions among all floats, until one is left.
    """
    assert x.steps is not None
    steps, whole = x.steps, np.dtype(x.dtype.replace("float", "int"))
    top = int(np.array(np.finfo(x.dtype).max).view(whole))

    def number(position: np.ndarray) -> np.ndarray:
        size: Any = np.abs(position).view(x.dtype)
        signed: np.ndarray = np.where(position < 0, np.negative(size), size)
        return signed

    def is_below(position: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            found: Any = steps(number(position), features).astype(kind)
        below: np.ndarray = np.less_equal(found.astype(np.float64), thresholds)
        return below

    low: np.ndarray = np.full(thresholds.shape, -top, whole)
    high: np.ndarray = np.full(thresholds.shape, top, whole)
    none, every = ~is_below(low), is_below(high)
    while (high > low + 1).any():
        middle = low // 2 + high // 2 + (low % 2 + high % 2) // 2
        below = is_below(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found: np.ndarray = np.where(every, np.finfo(x.dtype).max, number(low))
    return np.where(none, -np.inf, found).astype(x.dtype)


def _tree(asked: _Questions, model: Any, weights: np.ndarray, first: int = 0) -> _Tree:
    """A fitted tree, with weights [node, targets]."""
    tree = model.tree_
    missing = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count, np.int64))
    thresholds = asked.thresholds(tree.feature, tree.threshold)
    return _Tree(
        tree.feature, thresholds, tree.children_left, tree.children_right,
        np.asarray(missing).astype(np.int64), weights, first,
    )  # fmt: skip


def _values(model: Any) -> np.ndarray:
    """[node, targets]: numbers of a regressor, fractions of a classifier."""
    values = np.asarray(model.tree_.value)
    if hasattr(model, "classes_"):
        if values.shape[1] != 1:
            raise Unsupported(f"{type(model).__name__} of several outputs")
        return values[:, 0, :]
    return values[:, :, 0]


def _at_leaves(model: Any) -> np.ndarray:
    """[leaf, targets]"""
    return _values(model)[np.asarray(model.tree_.children_left) < 0]


def _missing_in(e: Emitter, x: Features, models: Sequence[Any]) -> None:
    """scikit-learn's trees take NaN if they say so."""
    takes = models[0].__sklearn_tags__().input_tags.allow_nan
    if x.may_miss and not (takes and models[0].monotonic_cst is None):
        e.takes_missing = False


@predictor(
    "DecisionTreeRegressor", "ExtraTreeRegressor", "RandomForestRegressor", "ExtraTreesRegressor",
)  # fmt: skip
def forest_regressor(e: Emitter, model: Any, x: Features) -> Results:
    """The mean of the leaves."""
    made, _ = _mean(e, model, x)
    flat = model.n_outputs_ == 1
    return Results({"predict": Output(column(e, made) if flat else made, "float64", 2 - flat)})


@predictor(
    "DecisionTreeClassifier", "ExtraTreeClassifier", "RandomForestClassifier",
    "ExtraTreesClassifier",
)  # fmt: skip
def forest_classifier(e: Emitter, model: Any, x: Features) -> Results:
    """The class with the greatest mean of the fractions in leaves."""
    made, width = _mean(e, model, x)
    if width == 1:
        raise Unsupported("a forest of one class")
    # Sums of whole numbers, or of one, have the bits of scikit-learn's, which takes the first of
    # equal ones, too.
    models = getattr(model, "estimators_", [model])
    same = len(models) == 1 or all(np.isin(_at_leaves(m), (0.0, 1.0)).all() for m in models)
    eps = float(np.finfo(np.float64).eps)
    bound = e.constant(-1.0 if same else 4 * len(models) * eps, "float64")
    labels = largest(e, made, width, bound)
    return Results({"predict_proba": Output(made, "float64")}, labels, np.asarray(model.classes_))


def _mean(e: Emitter, model: Any, x: Features) -> tuple[str, int]:
    asked = _asked(e, x, model, np.float32)
    models = list(getattr(model, "estimators_", [model]))
    _missing_in(e, x, models)
    values = [_values(m) for m in models]
    width = values[0].shape[1]
    trees = [_tree(asked, m, v) for m, v in zip(models, values, strict=True)]
    made = _sums(e, asked.x, trees, width)
    if len(models) > 1:
        made = e.op("Div", made, e.constant(float(len(models)), "float64"))
    return made, width


# --- boosting -------------------------------------------------------------------------------------


def _boosted(e: Emitter, trees: list[_Tree], x: Features, base: np.ndarray) -> tuple[str, str]:
    """The scores [N,k], and by how much their sums may differ."""
    made = e.op("Add", _sums(e, x, trees, len(base)), e.constant(base, "float64"))
    most = sum(float(np.abs(t.weights[t.yes < 0]).max(initial=0)) for t in trees)
    most += float(np.abs(base).max(initial=0))
    bound = 4 * (len(trees) + 8) * float(np.finfo(np.float64).eps) * most
    return made, e.constant(bound, "float64")


def _staged(e: Emitter, model: Any, x: Features) -> tuple[str, str, int]:
    """The scores of GradientBoosting, by how much they may differ, and how many there are."""
    asked = _asked(e, e.numbers_of(x), model, np.float32)
    if not (isinstance(model.init_, str) or "Dummy" in type(model.init_).__name__):
        raise Unsupported("boosting of another estimator")
    base = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))[0]
    trees = [
        _tree(asked, tree, model.learning_rate * tree.tree_.value[:, 0, :], k)
        for stage in model.estimators_
        for k, tree in enumerate(stage)
    ]
    made, bound = _boosted(e, trees, asked.x, base)
    return made, bound, len(base)


@predictor("GradientBoostingRegressor")
def boosting_regressor(e: Emitter, model: Any, x: Features) -> Results:
    """The sum of the leaves, scaled by the learning rate."""
    made, _, _ = _staged(e, model, x)
    return Results({"predict": Output(column(e, made), "float64", 1)})


@predictor("GradientBoostingClassifier")
def boosting_classifier(e: Emitter, model: Any, x: Features) -> Results:
    """The sign of the sum of the leaves, or the largest of several."""
    made, bound, count = _staged(e, model, x)
    loss = type(model._loss).__name__
    if loss == "ExponentialLoss":
        found = classified(e, model, made, "float64", count, bound, None)
        twice = e.op("Mul", made, e.constant(2.0, "float64"))
        shares = probabilities(e, twice, "float64", count, "sigmoid")
        found.values["predict_proba"] = Output(shares, "float64")
        return found
    return classified(e, model, made, "float64", count, bound, _link(loss))


def _link(loss: str) -> str:
    links = {"HalfBinomialLoss": "sigmoid", "HalfMultinomialLoss": "softmax"}
    if loss not in links:
        raise Unsupported(f"boosting with {loss}")
    return links[loss]


def _binned(e: Emitter, model: Any, x: Features) -> tuple[str, str, int]:
    """The scores of HistGradientBoosting, by how much they may differ, how many there are."""
    asked = _asked(e, x, model, np.float64)
    if getattr(model, "is_categorical_", None) is not None:
        raise Unsupported("boosting with categories")
    trees = []
    for stage in model._predictors:
        for k, predictor_ in enumerate(stage):
            nodes = predictor_.nodes
            is_leaf = nodes["is_leaf"].astype(bool)
            yes, no = (
                np.where(is_leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right")
            )
            features = np.where(is_leaf, 0, nodes["feature_idx"])
            trees.append(_Tree(
                features, asked.thresholds(features, nodes["num_threshold"]), yes, no,
                nodes["missing_go_to_left"].astype(np.int64), nodes["value"][:, None], k,
            ))  # fmt: skip
    base = np.ravel(model._baseline_prediction)
    made, bound = _boosted(e, trees, asked.x, base)
    return made, bound, len(base)


@predictor("HistGradientBoostingRegressor")
def binned_regressor(e: Emitter, model: Any, x: Features) -> Results:
    """The sum of the leaves, or its exponential."""
    made, _, _ = _binned(e, model, x)
    link = type(model._loss.link).__name__
    if link not in ("IdentityLink", "LogLink"):
        raise Unsupported(f"boosting with {link}")
    made = column(e, made)
    return Results(
        {"predict": Output(e.op("Exp", made) if link == "LogLink" else made, "float64", 1)}
    )


@predictor("HistGradientBoostingClassifier")
def binned_classifier(e: Emitter, model: Any, x: Features) -> Results:
    """The sign of the sum of the leaves, or the largest of several."""
    made, bound, count = _binned(e, model, x)
    return classified(e, model, made, "float64", count, bound, _link(type(model._loss).__name__))
