"""Rows as estimators are given them, as a matrix of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray

#: Integers that float64 holds.
_WHOLE = 1 << 53
#: The most rows on which compiled methods are compared with the original's.
SAMPLE = 200


def matrix_of(x: Any, names: Array | None, categories: Mapping[int, Array]) -> Array | None:
    """The rows as a matrix of float32 or float64; None if scikit-learn has to look at them.

    names : of the features, if the estimator was fitted to a data frame; it is then given data
    frames with these columns
    categories : for columns of text, what they may be; the matrix has their positions, or -1
    """
    if type(x) is np.ndarray:
        return None if names is not None or categories else _numbers(x)
    if names is None or not _is_frame(x) or not np.array_equal(x.columns, names):
        return None
    types = {*x.dtypes}
    if categories or (len(types) > 1 and not all(map(_is_double, types))):
        return _with_positions(x, categories)
    return _numbers(x.to_numpy()) if all(map(_is_plain, types)) else None


def _is_frame(x: Any) -> bool:
    return type(x).__name__ == "DataFrame" and type(x).__module__.partition(".")[0] == "pandas"


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"


def _is_double(dtype: Any) -> bool:
    """Whether numbers of a type are computed in float64, and that holds them all."""
    return _is_plain(dtype) and (dtype == np.float64 or (dtype.itemsize <= 4 and dtype.kind != "f"))


def _numbers(x: Array) -> Array | None:
    """An array of float32 or float64, with the numbers that scikit-learn would compute with."""
    if x.dtype == np.float64 or x.dtype == np.float32:
        return x
    if x.dtype.kind not in "iu" or not x.size:
        return None
    if x.dtype.itemsize > 4 and not -_WHOLE <= int(x.min()) <= int(x.max()) <= _WHOLE:
        return None
    return x.astype(np.float64)


def _with_positions(frame: Any, categories: Mapping[int, Array]) -> Array | None:
    """A data frame as float64, with positions of categories in place of text.

    None if there is float32, too: transformers of such columns would compute in it.
    """
    made = np.empty(frame.shape)
    for place, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, place]
        if place in categories:
            if _is_plain(dtype):
                return None
            made[:, place] = _positions(categories[place], column.to_numpy(object))
        elif _is_plain(dtype) and (dtype == np.float64 or dtype.kind != "f"):
            numbers = _numbers(column.to_numpy())
            if numbers is None:
                return None
            made[:, place] = numbers
        else:
            return None
    return made


def _positions(categories: Array, texts: Array) -> list[int]:
    """The position of each text among the categories, -1 for others."""
    places = {text: place for place, text in enumerate(categories.tolist())}
    return [places.get(t, -1) if isinstance(t, str) else -1 for t in texts.tolist()]


def key_of(x: Any) -> Any:
    """What rows have to have in common to be computed alike: their types; None if unknown."""
    if type(x) is np.ndarray:
        return x.dtype
    return tuple(x.dtypes) if _is_frame(x) else None


def sample_of(x: Any) -> Any:
    """A copy of rows from all over, at most `SAMPLE`; None if they cannot be chosen."""
    if not hasattr(x, "shape") or len(x.shape) != 2 or hasattr(x, "indptr"):
        return None
    step = max(1, -(-x.shape[0] // SAMPLE))
    if type(x) is np.ndarray:
        return x[::step].copy()
    return x.iloc[::step].copy() if _is_frame(x) else None
