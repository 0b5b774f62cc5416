"""`Compiled`: an estimator that fits as the original, and predicts compiled.

This module needs scikit-learn; `farkas.sklearn` loads it when it is used.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from types import MethodType
from typing import Any

import numpy as np

from farkas.frameworks.sklearn_compile import OTHER_ROWS, compile_estimator
from farkas.frameworks.sklearn_rows import key_of, sample_of
from farkas.frameworks.sklearn_served import Served
from poly.errors import ArgumentError, ModelWarning

_sklearn: Any = import_module("sklearn")
_base: Any = import_module("sklearn.base")
_utils: Any = import_module("sklearn.utils")
_validation: Any = import_module("sklearn.utils.validation")
_output: Any = import_module("sklearn.utils._set_output")


class _Fit:
    """`fit` with the signature of the original's, in which others look for sample weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __get__(self, compiled: Any, owner: Any = None) -> Any:
        if compiled is None:
            return self._function
        bound: Any = partial(self._function, compiled)
        if hasattr(compiled.estimator, "fit"):
            bound.__signature__ = signature(compiled.estimator.fit)
        bound.__doc__ = self.__doc__
        return bound


class _IfOriginalHas:
    """A method that is there if the original has one of that name, as ``available_if`` does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._name = function, function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, compiled: Any, owner: Any = None) -> Any:
        if compiled is None:
            return self._function
        own = compiled.__dict__
        if self._name not in own.get("_available", ()):
            getattr(own.get("estimator_", own.get("estimator")), self._name)
        return MethodType(self._function, compiled)


class Compiled(_base.MetaEstimatorMixin, _base.BaseEstimator):  # type: ignore[misc]
    """An estimator of scikit-learn, or a pipeline, that fits as it does and predicts compiled.

    >>> model = fk.sklearn.Compiled(make_pipeline(StandardScaler(), LogisticRegression()))
    >>> model.fit(X, y).predict(X[:1])

    `fit` fits a clone of the estimator, `estimator_`, compiles `predict`, `predict_proba`,
    `decision_function` and `transform` as far as the estimator has them, and compares each with
    the original's on up to 200 of the rows.  One that cannot be compiled, or differs, stays with
    the original, and a `ModelWarning` says why.

    All other methods and attributes are those of `estimator_`.  Calls that compiled code does not
    serve are the original's, too: sparse matrices, lists, missing or infinite numbers, other
    columns than those it was fitted to, further arguments, output as data frames.  So are rows
    whose best two classes are so close that rounding decides, and errors are scikit-learn's.

    Classes are the same as the original's; numbers are computed in the same element types, and
    differ by rounding.

    An estimator that is fitted already is copied at the first call, without `fit`; that of a
    ``FrozenEstimator`` is not.  Pickles are compiled again, or found in the cache, at the first
    call.  Do not fit `estimator_` itself: what is compiled would not follow.

    Parameters
    ----------
    estimator : an estimator with ``fit``

    Attributes
    ----------
    estimator_ : the fitted estimator
    compiled_methods_ : the names of the methods that are compiled
    not_compiled_ : for the others of them, why they are not
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    # --- fitting --------------------------------------------------------------------------------

    @_Fit
    def fit(self, X: Any, y: Any = None, *args: Any, **params: Any) -> Any:  # noqa: N803
        """Fit a clone of the estimator, and compile it; raises as the original does.

        Raises
        ------
        ArgumentError : what was given has no `fit`.
        """
        if not hasattr(self.estimator, "fit"):
            what = type(self.estimator).__name__
            raise ArgumentError(
                f"fk.sklearn.Compiled takes an estimator of scikit-learn, not a {what}"
            )
        fitted = _base.clone(self.estimator).fit(X, y, *args, **params)
        self._start(fitted, X)
        return self

    @_IfOriginalHas
    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:  # noqa: N803
        """Fit as the original's method of this name, and return what that returns."""
        return self._fit_by("fit_transform", X, y, params)

    @_IfOriginalHas
    def fit_predict(self, X: Any, y: Any = None, **params: Any) -> Any:  # noqa: N803
        """Fit as the original's method of this name, and return what that returns."""
        return self._fit_by("fit_predict", X, y, params)

    @_IfOriginalHas
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> Any:  # noqa: N803
        """Go on fitting; the next call of a method compiles again."""
        is_fitted = self.__sklearn_is_fitted__()
        fitted = self._fitted() if is_fitted else _base.clone(self.estimator)
        fitted.partial_fit(X, y, **params)
        self._forget(fitted)
        return self

    def _fit_by(self, method: str, X: Any, y: Any, params: dict[str, Any]) -> Any:  # noqa: N803
        """Fit a clone by a method, compile it, and return what the method returns."""
        fitted = _base.clone(self.estimator)
        found = getattr(fitted, method)(X, y, **params)
        self._start(fitted, X)
        return found

    def _forget(self, fitted: Any) -> None:
        """Take a fitted estimator of which nothing is compiled."""
        self.estimator_ = fitted
        self._served: dict[Any, Served | None] = {}
        self._why: dict[str, str] = {}
        self._available: frozenset[str] = frozenset()

    def _start(self, fitted: Any, rows: Any) -> None:
        self._forget(fitted)
        sample = sample_of(rows)
        if sample is not None:
            self._compile(key_of(rows), sample)

    def _compile(self, key: Any, rows: Any) -> None:
        """Compile for rows of the types that the key stands for."""
        as_arrays = _sklearn.config_context(transform_output="default")
        with warnings.catch_warnings(), as_arrays:
            warnings.simplefilter("ignore")  # the original has given them
            served, why = compile_estimator(self.estimator_, rows)
        self._served[key] = served
        later = len(self._served) > 1  # such rows may be meant for the original
        new = {
            method: reason
            for method, reason in why.items()
            if method not in self._why and not (later and reason == OTHER_ROWS)
        }
        self._why.update(new)
        found = [s for s in self._served.values() if s is not None]
        self._available = frozenset(m for s in found for m in s.methods)
        if new:
            name = type(self.estimator_).__name__
            reasons: dict[str, list[str]] = {}
            for method, reason in new.items():
                reasons.setdefault(reason, []).append(method)
            lines = [f"{', '.join(ms)} of {name}: {r}" for r, ms in reasons.items()]
            warnings.warn(
                "not compiled, stays with scikit-learn: " + "; ".join(lines),
                ModelWarning,
                stacklevel=4,
            )

    # --- predicting -----------------------------------------------------------------------------

    @_IfOriginalHas
    def predict(self, X: Any, **params: Any) -> Any:  # noqa: N803
        """What the original predicts for rows X of shape (n, features)."""
        return self._call("predict", X, params)

    @_IfOriginalHas
    def predict_proba(self, X: Any, **params: Any) -> Any:  # noqa: N803
        """The original's probabilities for rows X, of shape (n, classes)."""
        return self._call("predict_proba", X, params)

    @_IfOriginalHas
    def decision_function(self, X: Any, **params: Any) -> Any:  # noqa: N803
        """The original's scores for rows X, of shape (n,) or (n, classes)."""
        return self._call("decision_function", X, params)

    @_IfOriginalHas
    def transform(self, X: Any, **params: Any) -> Any:  # noqa: N803
        """The original's features for rows X, of shape (n, new features)."""
        return self._call("transform", X, params)

    def _call(self, method: str, rows: Any, params: dict[str, Any]) -> Any:
        if params:
            return getattr(self._fitted(), method)(rows, **params)
        key = rows.dtype if type(rows) is np.ndarray else key_of(rows)
        served = self.__dict__.get("_served", {}).get(key)
        if served is not None and (method != "transform" or self._returns_arrays()):
            found = served.run(method, rows)
            if found is not None:
                return found
        fitted = self._fitted()
        found = getattr(fitted, method)(rows)
        # Some estimators transform without a fit, and are not kept then.
        known = self.__dict__.get("_served")
        if known is not None and key is not None and key not in known:
            sample = sample_of(rows)
            if sample is not None:
                self._compile(key, sample)
        return found

    def _fitted(self) -> Any:
        """The fitted estimator; one that is not fitted, whose methods say so, if there is none."""
        if "estimator_" in self.__dict__:
            if "_served" not in self.__dict__:
                self._forget(self.estimator_)  # of a pickle
            return self.estimator_
        if not _is_fitted(self.estimator):
            return self.estimator
        frozen = type(self.estimator).__name__ == "FrozenEstimator"
        self._forget(self.estimator if frozen else copy.deepcopy(self.estimator))
        return self.estimator_

    def _returns_arrays(self) -> bool:
        config: dict[str, str] = _output._get_output_config("transform", self.estimator_)
        return config["dense"] == "default"

    # --- everything else is the original's ------------------------------------------------------

    @property
    def compiled_methods_(self) -> tuple[str, ...]:
        """The names of the methods that are compiled."""
        found = [s for s in self.__dict__.get("_served", {}).values() if s is not None]
        return tuple(dict.fromkeys(m for s in found for m in s.methods))

    @property
    def not_compiled_(self) -> dict[str, str]:
        """Why other methods are not compiled."""
        return dict(self.__dict__.get("_why", {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("estimator", "estimator_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        own = self.__dict__
        return getattr(own["estimator_"] if "estimator_" in own else own["estimator"], name)

    def __getitem__(self, place: Any) -> Any:
        return self._fitted()[place]

    def __dir__(self) -> list[str]:
        own = self.__dict__
        return sorted({*super().__dir__(), *dir(own.get("estimator_", own.get("estimator")))})

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {n: v for n, v in state.items() if n not in ("_served", "_why", "_available")}

    def __sklearn_is_fitted__(self) -> bool:
        return "estimator_" in self.__dict__ or _is_fitted(self.estimator)

    def __sklearn_tags__(self) -> Any:
        return _utils.get_tags(self.estimator)

    def set_output(self, *, transform: str | None = None) -> Any:
        """Let `transform` return what the original's method of this name says."""
        self.estimator.set_output(transform=transform)
        if "estimator_" in self.__dict__:
            self.estimator_.set_output(transform=transform)
            # Pipelines do not know what their last step was told.
            if transform is not None and not hasattr(self.estimator_, "_sklearn_output_config"):
                self._forget(self.estimator_)
        return self


def _is_fitted(estimator: Any) -> bool:
    try:
        _validation.check_is_fitted(estimator)
    except (TypeError, ValueError):
        return False  # NotFittedError is a ValueError
    return True
