"""The sizes that users give for dynamic dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from poly.errors import ArgumentError
from poly.ir.size_values import by_name, whole_number


def plain_shapes(shapes: Any) -> dict[str, tuple[int, ...] | int]:
    """`shapes` with Python integers.  Raises `ArgumentError`."""
    found: dict[str, tuple[int, ...] | int] = {}
    for name, given in by_name("shapes", shapes).items():
        what = f"shapes[{name!r}]"
        if not isinstance(name, str):
            raise ArgumentError(f"{what}: inputs and dimensions have names")
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
            found[name] = tuple(whole_number(f"an extent of {what}", e) for e in given)
        else:
            found[name] = whole_number(what, given)
    return found
