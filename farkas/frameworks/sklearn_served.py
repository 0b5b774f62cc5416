"""`Served`: compiled methods of a fitted estimator, for rows of one element type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farkas.frameworks.sklearn_rows import matrix_of
from farkas.networks.compile_onnx import compile_onnx
from frontends.sklearn.convert import Converted

Array = np.ndarray

#: Enough rows for code that serves any number of them.
_MANY = 200
#: Arrays of more elements are not read by one thread of BLAS.
_SMALL = 4096


class Served:
    """The methods that are compiled, and the rows that they take.

    original : the fitted estimator; leading : the steps of its pipeline that scikit-learn runs
    first, None if there are none; methods : the names of those that are compiled
    """

    def __init__(self, original: Any, leading: Any, made: Converted, dtype: np.dtype) -> None:
        self.original, self.leading, self.made, self.dtype = original, leading, made, dtype
        self.methods = tuple(m for m in made.methods if hasattr(original, m))
        self._names = getattr(original, "feature_names_in_", None)
        self._is_plain = leading is None and self._names is None and not made.categories
        self._classes = made.classes
        self._checks_known = "known" in made.checks
        network = compile_onnx(made.model)
        network.prepare({"N": _MANY})
        shape = network.inputs[0].shape
        assert shape is not None
        self.width = shape[1]
        self._many = network.run
        # Trees take one row in another way than many; elsewhere, one row is as good as any number.
        one = network.specialize(N=1) if made.has_trees else network
        self._one: Callable[..., Any] = one.compiled[0].run
        largest = float(np.finfo(dtype).max)
        self._limit = min(made.limit, largest)
        # If the sum of squares is finite, each number is below the root of the largest.
        self._bound = made.limit**2 if made.limit < largest**0.5 else np.inf

    def run(self, method: str, rows: Any) -> Any:
        """What a method returns for rows; None leaves the call to the original."""
        if method not in self.methods:
            return None
        if self._is_plain and type(rows) is np.ndarray and rows.dtype == self.dtype:
            x = rows
        else:
            x = self._matrix(rows)
            if type(x) is not np.ndarray or x.dtype != self.dtype:
                return None
        if x.ndim != 2 or x.shape[1] != self.width or not len(x):
            return None
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        if (x.size <= _SMALL and np.vdot(x, x) < self._bound) or self._takes(x):
            return self._computed(method, x, rows)
        return None

    def _matrix(self, rows: Any) -> Any:
        if self.leading is not None:
            return self.leading.transform(rows.copy())  # the original may still be given them
        return matrix_of(rows, self._names, self.made.categories)

    def _takes(self, x: Array) -> bool:
        """Whether scikit-learn would take these numbers, and the model treats them likewise."""
        least, most = x.min(), x.max()
        if least >= -self._limit and most <= self._limit:
            return True
        if not self.made.takes_missing or not np.isnan(least):
            return False
        return bool((np.abs(x[~np.isnan(x)]) <= self._limit).all())

    def _computed(self, method: str, x: Array, rows: Any) -> Any:
        """What a method returns for `rows`, of which the matrix is x."""
        found = (self._one if len(x) == 1 else self._many)({"X": x})
        result = found[method]
        if self._checks_known and not _all_positive(found["known"]):
            return None
        if self._classes is None or method != "predict":
            return result
        result = self._classes[result]
        if "sure" not in found or _all_positive(found["sure"]):
            return result
        if self.leading is not None:
            return None  # its steps may give some rows alone other features
        unsure = ~(found["sure"] > 0)
        some = rows[unsure] if type(rows) is np.ndarray else rows.iloc[np.flatnonzero(unsure)]
        result[unsure] = self.original.predict(some)
        return result


def _all_positive(values: Array) -> bool:
    return bool((values.item() if len(values) == 1 else values.min()) > 0)
