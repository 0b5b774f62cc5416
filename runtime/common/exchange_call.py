"""Calls with arrays of other libraries: inputs as numpy's, results as the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from runtime.common.exchange import (
    NUMBERS,
    given_back,
    has_changed,
    host_array,
    is_foreign,
    library_like,
    library_of,
    shared_array,
    weak_dtypes,
)

Dtypes = Mapping[str, np.dtype[Any]]


class Place(Protocol):
    """Where something runs."""

    def holds(self, value: Any) -> bool:
        """Whether an array is there already."""

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Its element type and shape."""


def is_foreign_call(
    names: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any], out: Any
) -> bool:
    """Whether any array of a call is not numpy's.

    names : of the inputs; `named` may have sizes, too
    """
    return (
        any(map(is_foreign, arrays))
        or (bool(named) and any(n in names and is_foreign(v) for n, v in named.items()))
        or (out is not None and any(map(is_foreign, _listed(out))))
    )


def is_foreign_run(inputs: Any, out: Any) -> bool:
    """Whether any array of a run, which is given by name, is not numpy's."""
    given = (*_listed(inputs), *(() if out is None else _listed(out)))
    return isinstance(inputs, Mapping) and any(map(is_foreign, given))


def given_by_name(
    names: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The inputs of a call in their order; None if some are missing, or are given twice."""
    if len(arrays) > len(names) or any(n in named for n in names[: len(arrays)]):
        return None
    values = dict(zip(names, arrays, strict=False))
    values |= {n: named[n] for n in names if n in named}
    return values if len(values) == len(names) else None


def exchange_call(
    call: Callable[[Mapping[str, Any], Any], Any],
    values: Mapping[str, Any],
    out: Any,
    like: Any,
    dtypes: Dtypes,
    place: Place | None = None,
) -> Any:
    """Call something with numpy arrays instead of those of other libraries.

    call : takes the inputs by name, and ``out=``
    like : what results are, see `runtime.common.exchange.library_like`; None: as the inputs
    dtypes : the element types that inputs are known to have
    place : whose arrays remain as they are; None: nobody's

    Raises
    ------
    ArgumentError : see `runtime.common.exchange.host_array` and `library_like`.
    """
    library = library_of(values.values()) if like is None else library_like(like)

    def ready_for(name: str, value: Any) -> Any:
        held = place is not None and is_foreign(value) and place.holds(value)
        return value if held else host_array(name, value, dtypes.get(name))

    ready = {name: ready_for(name, value) for name, value in values.items()}
    if len(dtypes) < len(values):
        numbers = {n: v for n, v in values.items() if n not in dtypes and type(v) in NUMBERS}
        described = _described({n: v for n, v in ready.items() if is_foreign(v)}, place)
        for name, dtype in weak_dtypes({**ready, **numbers}, described).items():
            ready[name] = host_array(name, values[name], dtype)
    if out is None:
        return given_back(call(ready, None), library)
    passed = _listed(out)
    there = [v is None or (place is not None and place.holds(v)) for v in passed]
    arrays = [v if t else shared_array("out", v) for v, t in zip(passed, there, strict=True)]
    made = call(ready, _arranged(out, arrays))
    for value in passed:
        has_changed(value)
    return given_back(made, library, [*zip(passed, arrays, strict=True)])


def _described(values: Mapping[str, Any], place: Place | None) -> dict[str, np.dtype[Any]]:
    """The element types of arrays that are on a device."""
    found = {n: place.describe(n, v) for n, v in values.items()} if place is not None else {}
    return {name: about[0] for name, about in found.items() if about is not None}


def _listed(out: Any) -> list[Any]:
    """The arrays of ``out=``."""
    if isinstance(out, Mapping):
        return list(out.values())
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _arranged(out: Any, arrays: list[Any]) -> Any:
    """Other arrays in place of those of ``out=``."""
    if isinstance(out, Mapping):
        return dict(zip(out, arrays, strict=True))
    return tuple(arrays) if isinstance(out, (tuple, list)) else arrays[0]
