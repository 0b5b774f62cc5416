"""Which operators of torch have a decomposition of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The functions by the operators' names, as torch prints them; `torch_decompositions` and
#: `torch_linalg` fill it.  One returns NotImplemented where the operator is to stay.
TABLE: dict[str, Callable[..., Any]] = {}


def decomposition(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decomposition of operators, by their names without ``aten.``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert f"aten.{name}" not in TABLE, name
            TABLE[f"aten.{name}"] = function
        return function

    return register
