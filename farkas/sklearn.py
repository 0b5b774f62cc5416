"""Farkas in scikit-learn; see `farkas.frameworks.sklearn_estimator`.

>>> import farkas as fk
>>> model = fk.sklearn.Compiled(LogisticRegression()).fit(X, y)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poly.errors import ToolchainError

if TYPE_CHECKING:
    from farkas.frameworks.sklearn_estimator import Compiled

__all__ = ["Compiled"]


def __getattr__(name: str) -> Any:
    # The class is a subclass of scikit-learn's, so that its module needs scikit-learn.
    if name not in __all__:
        raise AttributeError(f"module 'farkas.sklearn' has no attribute {name!r}")
    try:
        import_module("sklearn.utils.validation")
    except ImportError:
        raise ToolchainError(
            "fk.sklearn needs scikit-learn: pip install '.[sklearn]' in a clone of Farkas"
        ) from None
    return getattr(import_module("farkas.frameworks.sklearn_estimator"), name)


def __dir__() -> list[str]:
    return [*__all__]
