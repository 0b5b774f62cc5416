"""Transformers that compute one feature from one, or few: scalers, imputers, selection, PCA."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.sklearn.emitter import Emitter, Features, Unsupported
from frontends.sklearn.registry import transform

#: How many times as long as its projection on components a row is taken to be at most.
_LOST = 32


@transform("StandardScaler")
def standard_scaler(e: Emitter, scaler: Any, x: Features) -> Features:
    """(X - mean) / scale, with both in the type of X."""
    x = e.read(x)
    mean = np.asarray(scaler.mean_).astype(x.dtype) if scaler.with_mean else None
    scale = np.asarray(scaler.scale_).astype(x.dtype) if scaler.with_std else None
    return _affine(e, x, mean, scale)


@transform("RobustScaler")
def robust_scaler(e: Emitter, scaler: Any, x: Features) -> Features:
    """(X - center) / scale."""
    center = scaler.center_ if scaler.with_centering else None
    return _affine(e, e.read(x), center, scaler.scale_ if scaler.with_scaling else None)


@transform("MaxAbsScaler")
def max_abs_scaler(e: Emitter, scaler: Any, x: Features) -> Features:
    """X / scale."""
    found = _affine(e, e.read(x), None, scaler.scale_)
    return _clipped(e, found, -1.0, 1.0) if getattr(scaler, "clip", False) else found


def _affine(e: Emitter, x: Features, center: Any, scale: Any) -> Features:
    """(X - center) / scale, in float64, and rounded to the type of X.

    The compiler makes one product and one sum of it.  numpy computes in place: it rounds to the
    type of X after each step.
    """
    wide = e.in_type(x, "float64")
    shift, by = np.zeros(x.width), np.ones(x.width)
    if center is not None:
        shift = np.asarray(center, np.float64)
        wide = e.each("Sub", wide, shift)
    if scale is not None:
        by = np.asarray(scale, np.float64)
        wide = e.each("Div", wide, by)
    made = x.made(e.cast(wide.name, "float64", x.dtype))
    if (by == 1).all() and (shift == 0).all():
        return made
    small, times = float(np.finfo(np.float64).eps), float((1 / np.abs(by)).max())
    made = e.bounded(made, lambda m: (x.most(m) + np.abs(shift).max()) * times)
    lost = (4 * small + x.relative) * float(np.abs(shift / by).max())
    found = made.rounded(4 * x.eps + x.relative, lost, times)

    def steps(v: np.ndarray, at: np.ndarray) -> np.ndarray:
        if center is not None:
            v = (v - np.asarray(center)[at]).astype(x.dtype)
        if scale is not None:
            v = (v / np.asarray(scale)[at]).astype(x.dtype)
        rounded: np.ndarray = v
        return rounded

    return x.scaled(found, steps) if (by > 0).all() else found


@transform("MinMaxScaler")
def min_max_scaler(e: Emitter, scaler: Any, x: Features) -> Features:
    """X * scale + min."""
    x = e.read(x)
    scale, shift = np.asarray(scaler.scale_), np.asarray(scaler.min_)
    wide = e.each("Add", e.each("Mul", e.in_type(x, "float64"), scale), shift)
    made = x.made(e.cast(wide.name, "float64", x.dtype))
    by, plus = np.abs(scale).max(), np.abs(shift).max()
    made = e.bounded(made, lambda m: x.most(m) * by + plus)
    # In float32, numpy rounds the product before it adds.
    lost = 4 * x.eps * float(np.abs(shift).max())
    found = made.rounded(4 * x.eps + x.relative, lost, float(np.abs(scale).max()))

    def steps(v: np.ndarray, at: np.ndarray) -> np.ndarray:
        v = (v * scale[at]).astype(x.dtype)
        rounded: np.ndarray = (v + shift[at]).astype(x.dtype)
        return rounded

    if (scale > 0).all():
        found = x.scaled(found, steps)
    return _clipped(e, found, *scaler.feature_range) if scaler.clip else found


def _clipped(e: Emitter, x: Features, low: float, high: float) -> Features:
    ends = (e.constant(low, x.dtype), e.constant(high, x.dtype))
    made = x.made(e.op("Min", e.op("Max", x.name, ends[0]), ends[1]))
    return x.scaled(made, lambda v, at: np.clip(v, *np.array([low, high], x.dtype)))


@transform("Normalizer")
def normalizer(e: Emitter, scaler: Any, x: Features) -> Features:
    """Rows divided by their norms, unless these are as good as 0."""
    x = e.numbers_of(x)
    axes = e.constant([1])
    kind = {"l1": "ReduceL1", "l2": "ReduceL2", "max": "ReduceMax"}[scaler.norm]
    size = e.op(kind, e.op("Abs", x.name) if scaler.norm == "max" else x.name, axes, keepdims=1)
    # Shorter rows stay as they are; where rounding decides, scikit-learn does.
    least, one = e.constant(10 * x.eps, x.dtype), e.constant(1, x.dtype)
    if not x.exact:
        gap = e.op("Abs", e.op("Sub", size, least))
        unsure = e.constant(x.width * (x.absolute + 10 * x.eps * x.relative), x.dtype)
        sure = e.op("Squeeze", e.op("Sub", gap, unsure), axes)
        e.known.append(e.cast(sure, x.dtype, "float64"))
    name = e.op("Div", x.name, e.op("Where", e.op("Less", size, least), one, size))
    # Errors are relative to the row that was divided.
    return x.made(name).rounded(8 * x.width * x.eps, x.absolute * 1e3)


@transform("SimpleImputer")
def simple_imputer(e: Emitter, imputer: Any, x: Features) -> Features:
    """NaN replaced by a number for its feature."""
    if imputer.add_indicator:
        raise Unsupported("SimpleImputer with add_indicator")
    lost = imputer.missing_values
    if not (isinstance(lost, float) and np.isnan(lost)):
        raise Unsupported("SimpleImputer of other values than NaN")
    numbers = np.asarray(imputer.statistics_)
    if numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
        raise Unsupported("SimpleImputer of features without a number")
    e.read(x)
    name = e.op("Where", e.op("IsNaN", x.name), e.constant(numbers, x.dtype), x.name)
    return x.made(name, may_miss=False)


@transform(
    "SelectKBest", "SelectPercentile", "SelectFromModel", "SelectFpr", "SelectFdr", "SelectFwe",
    "GenericUnivariateSelect", "VarianceThreshold", "RFE", "RFECV", "SequentialFeatureSelector",
)  # fmt: skip
def selector(e: Emitter, chosen: Any, x: Features) -> Features:
    """Some of the features."""
    kept = np.flatnonzero(chosen.get_support())
    if not len(kept):
        raise Unsupported(f"{type(chosen).__name__} of no feature")
    return e.columns(e.numbers_of(x), kept)


@transform("FunctionTransformer")
def identity(e: Emitter, function: Any, x: Features) -> Features:
    """The features as they are."""
    if function.func is not None or function.validate:
        raise Unsupported("FunctionTransformer with a function")
    return e.read(x)


@transform("PCA")
def pca(e: Emitter, model: Any, x: Features) -> Features:
    """The product with the components, less that of the mean."""
    x = e.numbers_of(x)
    dtype = str(np.result_type(x.dtype, model.components_.dtype))
    axes = np.asarray(model.components_, np.float64)
    shift = np.zeros(x.width) if model.mean_ is None else np.asarray(model.mean_, np.float64)
    by = np.ones(len(axes))
    if model.whiten:
        by = np.sqrt(model.explained_variance_)
        by = np.maximum(by, np.finfo(by.dtype).eps)
    made = e.each("Sub", _product(e, e.in_type(x, dtype), axes.T), shift @ axes.T)
    if model.whiten:
        product = made.most
        made = e.each("Div", made, by)
        made = e.bounded(made, lambda m: product(m) / by.min())
    most = float(np.linalg.norm(axes, 2) / by.min())
    own = 4 * (x.width + 8) * made.eps * most * (1 + float(np.linalg.norm(shift)))
    # The length of a row of X is not that of the result: what the components leave out is lost.
    return made.rounded(_LOST * own, _LOST * own, most)


@transform("TruncatedSVD")
def truncated_svd(e: Emitter, model: Any, x: Features) -> Features:
    """The product with the components."""
    x = e.numbers_of(x)
    dtype = str(np.result_type(x.dtype, model.components_.dtype))
    made = _product(e, e.in_type(x, dtype), np.asarray(model.components_, np.float64).T)
    own = 4 * _LOST * (x.width + 8) * made.eps * float(np.linalg.norm(model.components_, 2))
    return made.rounded(own, own)


def _product(e: Emitter, x: Features, weights: np.ndarray) -> Features:
    name = e.op("MatMul", x.name, e.constant(weights, x.dtype))
    by = max(1.0, float(np.abs(weights).sum(0).max()))
    return e.bounded(x.made(name, width=weights.shape[1]), lambda m: x.most(m) * by)


@transform("PolynomialFeatures")
def polynomial(e: Emitter, model: Any, x: Features) -> Features:
    """Products of features."""
    x = e.numbers_of(x)
    powers = np.asarray(model.powers_)
    degree = int(powers.sum(1).max(initial=0))
    if not 1 <= degree <= 4:
        raise Unsupported(f"PolynomialFeatures of degree {degree}")
    zero, one = e.constant([0.0], x.dtype), e.constant([1.0], x.dtype)
    first = e.op("Gather", x.name, e.constant([0]), axis=1)
    ones = e.op("Add", e.op("Mul", first, zero), one)
    wide = e.op("Concat", x.name, ones, axis=1)
    factors = np.full((degree, len(powers)), x.width)
    for column, row in enumerate(powers):
        factors[: row.sum(), column] = np.repeat(np.arange(x.width), row)
    parts = [e.op("Gather", wide, e.constant(row), axis=1) for row in factors]
    name = parts[0]
    for part in parts[1:]:
        name = e.op("Mul", name, part)
    made = e.bounded(x.made(name, width=len(powers)), lambda m: np.maximum(x.most(m), 1) ** degree)
    # An error of one factor is multiplied by the others, which are taken to be less than 1000.
    return made.rounded(8 * x.eps, 0.0, 1e3)
