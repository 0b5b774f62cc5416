"""Calls with arrays of other libraries: inputs as numpy's, results as the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from runtime.common.exchange import (
    given_back,
    host_array,
    is_foreign,
    library_like,
    library_of,
    weak_dtypes,
)

Dtypes = Mapping[str, np.dtype[Any]]


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
    held: Dtypes = MappingProxyType({}),
) -> Any:
    """Call something with numpy arrays instead of those of other libraries.

    call : takes the inputs by name, and ``out=``
    like : what results are, see `runtime.common.exchange.library_like`; None: as the inputs
    dtypes : the element types that inputs are known to have
    held : inputs that are on a device and remain as they are, with their element types

    Raises
    ------
    ArgumentError : see `runtime.common.exchange.host_array` and `library_like`.
    """
    library = library_of(values.values()) if like is None else library_like(like)
    ready = {
        name: value if name in held else host_array(name, value, dtypes.get(name))
        for name, value in values.items()
    }
    if len(dtypes) < len(values):
        numbers = {name: value for name, value in values.items() if name not in dtypes}
        for name, dtype in weak_dtypes({**ready, **numbers}, held).items():
            ready[name] = host_array(name, values[name], dtype)
    if out is None:
        return given_back(call(ready, None), library)
    passed = _listed(out)
    arrays = [host_array("out", value) for value in passed]
    made = call(ready, _arranged(out, arrays))
    return given_back(made, library, [*zip(passed, arrays, strict=True)])


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
