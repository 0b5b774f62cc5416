"""Encoders of categories, and transformers made of others: by column, side by side, in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from frontends.sklearn.emitter import Emitter, Features, Unsupported
from frontends.sklearn.registry import class_name, find_transform, transform


@transform("OneHotEncoder")
def one_hot_encoder(e: Emitter, encoder: Any, x: Features) -> Features:
    """For each category a column that is 1 where a feature has it."""
    if encoder.handle_unknown not in ("error", "ignore"):
        raise Unsupported(f"OneHotEncoder with handle_unknown={encoder.handle_unknown!r}")
    if encoder.min_frequency is not None or encoder.max_categories is not None:
        raise Unsupported("OneHotEncoder with infrequent categories")
    dtype = _number_type(encoder)
    dropped = encoder.drop_idx_
    parts = []
    for column, found in _coded(e, encoder, x).items():
        name, keys = found
        same = _equal(e, name, keys, x.dtype)
        if encoder.handle_unknown == "error" or encoder.drop is not None:
            _must_be_known(e, same)  # scikit-learn raises, or warns that it looks like the dropped
        kept = np.arange(len(keys))
        if dropped is not None and dropped[column] is not None:
            kept = np.delete(kept, int(dropped[column]))
        if len(kept) < len(keys):
            same = e.op("Gather", same, e.constant(kept), axis=1)
        if len(kept):
            parts.append((same, len(kept)))
    if not parts:
        raise Unsupported("OneHotEncoder without columns")
    name = parts[0][0] if len(parts) == 1 else e.op("Concat", *(p for p, _ in parts), axis=1)
    return Features(e.cast(name, "float64", dtype), sum(n for _, n in parts), dtype)


@transform("OrdinalEncoder")
def ordinal_encoder(e: Emitter, encoder: Any, x: Features) -> Features:
    """The position of each feature among its categories."""
    if encoder.handle_unknown != "error":
        raise Unsupported(f"OrdinalEncoder with handle_unknown={encoder.handle_unknown!r}")
    if encoder.min_frequency is not None or encoder.max_categories is not None:
        raise Unsupported("OrdinalEncoder with infrequent categories")
    dtype = _number_type(encoder)
    parts = []
    for name, keys in _coded(e, encoder, x).values():
        same = _equal(e, name, keys, x.dtype)
        _must_be_known(e, same)
        places = e.constant(np.arange(len(keys))[:, None], "float64")
        parts.append(e.op("MatMul", same, places))
    name = parts[0] if len(parts) == 1 else e.op("Concat", *parts, axis=1)
    return Features(e.cast(name, "float64", dtype), len(parts), dtype)


def _number_type(encoder: Any) -> str:
    dtype = str(np.dtype(encoder.dtype))
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"{type(encoder).__name__} to {dtype}")
    return dtype


def _coded(e: Emitter, encoder: Any, x: Features) -> dict[int, tuple[str, np.ndarray]]:
    """For each column [N,1] its value, and the numbers that stand for its categories."""
    if not x.exact:
        raise Unsupported(f"{type(encoder).__name__} after arithmetic whose order differs")
    found = {}
    for column, categories in enumerate(encoder.categories_):
        keys = np.asarray(categories)
        name = e.op("Gather", x.name, e.constant([column]), axis=1)
        if keys.dtype.kind in "OUS":
            keys = _texts(e, x, column, keys)
        else:
            if keys.dtype.kind not in "iufb" or not np.isfinite(keys).all():
                raise Unsupported(f"categories of type {keys.dtype}, or NaN")
            if x.is_input:
                e.numbers.add(x.column(column))
            if x.may_miss:
                e.takes_missing = False
            if not (keys.astype(x.dtype) == keys).all():
                raise Unsupported(f"categories that {x.dtype} cannot hold")
        found[column] = (name, keys)
    return found


def _texts(e: Emitter, x: Features, column: int, keys: np.ndarray) -> np.ndarray:
    """Numbers for categories that are text, which the caller looks up."""
    if not x.is_input:
        raise Unsupported("categories that are text, after another transformer")
    if not all(isinstance(k, str) for k in keys):
        raise Unsupported("categories of which some are not text")
    place = x.column(column)
    known = e.categories.setdefault(place, keys)
    if not np.array_equal(known, keys):
        raise Unsupported("two lists of categories for one column")
    return np.arange(len(keys))


def _equal(e: Emitter, name: str, keys: np.ndarray, dtype: str) -> str:
    """[N,k]: 1.0 where a feature is a key."""
    same = e.op("Equal", name, e.constant(keys[None], dtype))
    return e.op("Cast", same, to=11)


def _must_be_known(e: Emitter, same: str) -> None:
    """Rows without a category are left to scikit-learn, which refuses them, or warns."""
    e.known.append(e.op("ReduceSum", same, e.constant([1]), keepdims=0))


@transform("ColumnTransformer")
def column_transformer(e: Emitter, columns: Any, x: Features) -> Features:
    """Transformers on some of the columns each, side by side."""
    parts = []
    for name, part, _ in columns.transformers_:
        places = columns._transformer_to_input_indices[name]
        if part == "drop" or len(places) == 0:
            continue
        weight = (columns.transformer_weights or {}).get(name, 1.0)
        if weight != 1.0:
            raise Unsupported("ColumnTransformer with weights")
        chosen = _chosen(e, x, places)
        made = e.read(chosen) if part == "passthrough" else find_transform(part)(e, part, chosen)
        parts.append(made)
    return side_by_side(e, parts)


def _chosen(e: Emitter, x: Features, places: Sequence[int]) -> Features:
    """Some of the columns, which may be text if they come from the input."""
    indices = [int(i) for i in places]
    name = e.op("Gather", x.name, e.constant(indices), axis=1)
    origin = tuple(x.column(i) for i in indices) if x.is_input else ()
    made = x.made(name, width=len(indices), origin=origin, is_input=x.is_input)
    if x.raw is None or x.steps is None:
        return made
    return e.columns(x, indices)


@transform("FeatureUnion")
def feature_union(e: Emitter, union: Any, x: Features) -> Features:
    """Transformers on the same features, side by side."""
    if union.transformer_weights:
        raise Unsupported("FeatureUnion with weights")
    parts = []
    for _, part in union.transformer_list:
        if part == "drop":
            continue
        made = e.read(x) if part == "passthrough" else find_transform(part)(e, part, x)
        parts.append(made)
    return side_by_side(e, parts)


def side_by_side(e: Emitter, parts: Sequence[Features]) -> Features:
    """Features after features, in the type that numpy promotes them to."""
    if not parts:
        raise Unsupported("a transformer without columns")
    dtype = str(np.result_type(*(p.dtype for p in parts)))
    parts = [e.in_type(p, dtype) for p in parts]
    if len(parts) == 1:
        return replace(parts[0], is_input=False, origin=())
    made = Features(
        e.op("Concat", *(p.name for p in parts), axis=1),
        sum(p.width for p in parts),
        dtype,
        exact=all(p.exact for p in parts),
        relative=max(p.relative for p in parts),
        absolute=max(p.absolute for p in parts),
        may_miss=any(p.may_miss for p in parts),
        most=lambda m: np.max([p.most(m) for p in parts]),
    )
    return made if made.exact else _with_raw(e, made, parts)


def _with_raw(e: Emitter, made: Features, parts: Sequence[Features]) -> Features:
    """The features with what they are functions of, if all are of numbers of one type."""
    raws = [p if p.exact else p.raw for p in parts]
    if any(r is None for r in raws) or len({r.dtype for r in raws if r is not None}) > 1:
        return made
    found = [r for r in raws if r is not None]
    raw = replace(
        made,
        name=e.op("Concat", *(r.name for r in found), axis=1),
        dtype=found[0].dtype,
        exact=True,
        may_miss=any(r.may_miss for r in found),
    )
    starts = np.cumsum([0, *(p.width for p in parts)])

    def steps(v: np.ndarray, at: np.ndarray) -> np.ndarray:
        out = np.array(v, made.dtype)
        for part, start in zip(parts, starts, strict=False):
            own = (at >= start) & (at < start + part.width)
            if part.steps is not None:
                out[own] = part.steps(v[own], at[own] - start)
        return out

    return replace(made, raw=raw, steps=steps)


@transform("Pipeline")
def pipeline(e: Emitter, steps: Any, x: Features) -> Features:
    """Transformers one after the other."""
    for _, step in steps.steps:
        x = apply_transform(e, step, x)
    return x


def apply_transform(e: Emitter, step: Any, x: Features) -> Features:
    """A step of a pipeline, which may be left out."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return e.read(x)
    return find_transform(unwrapped(step))(e, unwrapped(step), x)


def unwrapped(estimator: Any) -> Any:
    """The estimator that a frozen one, or a finished search, predicts with.

    Raises
    ------
    Unsupported : a search without a best estimator.
    """
    while True:
        name = class_name(estimator)
        if name == "FrozenEstimator":
            estimator = estimator.estimator
        elif name in ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV"):
            if not estimator.refit:
                raise Unsupported(f"{name} that has refitted no estimator")
            estimator = estimator.best_estimator_
        else:
            return estimator
