"""`compile_estimator`: the methods of a fitted estimator, compiled and compared with its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from farkas.frameworks.sklearn_rows import matrix_of
from farkas.frameworks.sklearn_served import Served
from frontends.sklearn.convert import Converted, Unsupported, convert
from poly.errors import FarkasError

Array = np.ndarray

#: The methods that have lowerings.
METHODS = ("predict", "predict_proba", "decision_function", "transform")
#: Why nothing is compiled for rows that are not served.
OTHER_ROWS = "rows of such a type are not compiled"
#: By how much results may differ, relative to the largest of them.
_CLOSE = {"float64": 1e-9, "float32": 1e-4}
#: A difference of squares has lost half of the digits of a distance.
_CLOSE_DISTANCES = {"float64": 1e-6, "float32": 1e-2}


def compile_estimator(original: Any, rows: Any) -> tuple[Served | None, dict[str, str]]:
    """The compiled methods of a fitted estimator, and for the others why they are not.

    rows : some that it takes; compiled methods are compared with its own on these, and serve rows
    of the same types
    """
    wanted = [m for m in METHODS if hasattr(original, m)]
    served, why = None, ""
    for leading, last in _splits(original):
        try:
            served = _served(original, leading, last, rows)
        except (FarkasError, Unsupported) as error:
            why = why or str(error)
        except Exception as error:  # attributes that other versions of scikit-learn have
            why = why or f"{type(error).__name__}: {error}"
        if served is not None or not why:
            break
    if served is None:
        return None, dict.fromkeys(wanted, why or OTHER_ROWS)
    left = {m: "it has no lowering" for m in wanted if m not in served.methods}
    for method in served.methods:
        try:
            difference = _difference(served, original, method, rows)
        except Exception as error:  # rows of some kind that nobody thought of
            difference = f"{type(error).__name__}: {error}"
        if difference:
            left[method] = difference
    served.methods = tuple(m for m in served.methods if m not in left)
    if served.leading is not None:
        left["the first steps"] = why
    return (served if served.methods else None), left


def _splits(original: Any) -> list[tuple[Any, Any]]:
    """Steps of a pipeline that scikit-learn runs, and those after them: first none, then more."""
    found = [(None, original)]
    if type(original).__name__ == "Pipeline":
        found += [(original[:n], original[n:]) for n in range(1, len(original.steps))]
    return found


def _served(original: Any, leading: Any, last: Any, rows: Any) -> Served | None:
    """The compiled steps, None if the rows are no matrix of numbers for them.

    Raises
    ------
    Unsupported, FarkasError : they cannot be converted or compiled.
    """
    if leading is None:
        made = _converted(last, rows)
        names = getattr(original, "feature_names_in_", None)
        matrix = None if made is None else matrix_of(rows, names, made.categories)
    else:
        matrix = leading.transform(rows.copy())
        is_matrix = type(matrix) is np.ndarray and str(matrix.dtype) in _CLOSE
        if not is_matrix or matrix.ndim != 2:
            return None
        made = convert(last, matrix.shape[1], str(matrix.dtype))
    if made is None or matrix is None:
        return None
    return Served(original, leading, made, matrix.dtype)


def _converted(last: Any, rows: Any) -> Converted | None:
    types = [rows.dtype] if type(rows) is np.ndarray else list(getattr(rows, "dtypes", ()))
    if not types or len(rows.shape) != 2:
        return None
    dtype = "float32" if all(t == np.float32 for t in types) else "float64"
    return convert(last, rows.shape[1], dtype)


def _difference(served: Served, original: Any, method: str, rows: Any) -> str:
    """How a compiled method differs from the original's; "" if it does not."""
    want = getattr(original, method)(rows.copy())  # it may compute in place
    found = served.run(method, rows)
    if found is None:
        return "the model cannot compute the rows that the estimator was fitted to"
    if type(want) is not np.ndarray or want.shape != found.shape or want.dtype != found.dtype:
        return f"it returns {_described(found)}, not {_described(want)}"
    has_classes = served.made.classes is not None
    if want.dtype.kind != "f" or (has_classes and method == "predict"):
        count = int((want != found).sum())
        return f"{count} of {len(want)} predictions differ" if count else ""
    close = _CLOSE_DISTANCES if has_classes and method == "transform" else _CLOSE
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=0))
    limit = max(close[str(want.dtype)], close[str(served.dtype)]) * scale
    with np.errstate(invalid="ignore"):
        same = (want == found) | (np.abs(want - found) <= limit)
    same |= np.isnan(want) & np.isnan(found)
    return "" if same.all() else f"{int((~same).sum())} of {same.size} numbers differ"


def _described(value: Any) -> str:
    if type(value) is np.ndarray:
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"
