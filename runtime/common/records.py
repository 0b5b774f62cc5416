"""Values as JSON data, and back: numbers, texts, containers, arrays and listed dataclasses.

Unlike a pickle, the data can make nothing but these, so that a damaged or hostile file is an error
and not code that runs.  Values are rows of a table; each names only rows before it, and equal
immutable values are one row.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from poly.ir.dtypes import DTYPES, dtype_of

_PLAIN = (str, int, float, bool, type(None))
_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
}


def write_record(value: Any, classes: Iterable[type]) -> Any:
    """A value as JSON data.

    classes : the dataclasses that may be in it, of different names

    Raises
    ------
    TypeError : something of another type is in it.
    """
    return _Writer({c.__name__: c for c in classes}).write(value)


def read_record(data: Any, classes: Iterable[type]) -> Any:
    """The value that `write_record` was given.

    Raises
    ------
    ValueError : it is not such data, or made with other classes.
    """
    try:
        return _read(data, {c.__name__: c for c in classes})
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a record: {type(error).__name__}: {error}") from error


class _Writer:
    """rows : of the table; seen : the row of each value, by identity; same : by content"""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._rows: list[list[Any]] = []
        self._seen: dict[int, int] = {}
        self._same: dict[str, int] = {}
        self._used: dict[str, list[str]] = {}
        self._kept: list[Any] = []  # so that identities stay theirs

    def write(self, root: Any) -> Any:
        work = [root]
        while work:  # not by recursion: expressions may be deep
            value = work[-1]
            if type(value) in _PLAIN or id(value) in self._seen:
                work.pop()
                continue
            kind, parts = self._parts(value)
            missing = [p for p in parts if type(p) not in _PLAIN and id(p) not in self._seen]
            if missing:
                work += missing
                if len(work) > 1 << 24:
                    raise TypeError("a value contains itself")
                continue
            self._add(value, kind, parts)
            work.pop()
        return {"classes": self._used, "rows": self._rows, "root": self._named(root)}

    def _parts(self, value: Any) -> tuple[str, list[Any]]:
        """The kind of a value, and what it consists of."""
        name = type(value).__name__
        if self._classes.get(name) is type(value):
            names = self._used.setdefault(name, _names(type(value)))
            return f"={name}", [getattr(value, n) for n in names]
        if name in _CONTAINERS:
            return name, sorted(value, key=repr) if "set" in name else [*value]
        if isinstance(value, Mapping):
            return "dict", [x for pair in value.items() for x in pair]
        if isinstance(value, bytes):
            return "bytes", [base64.b64encode(value).decode()]
        if isinstance(value, np.ndarray) and value.dtype == object:
            return "texts", [str(list(value.shape)), *map(str, value.reshape(-1))]
        if isinstance(value, np.ndarray):
            data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
            return "array", [dtype_of(value.dtype).name, str(list(value.shape)), data]
        raise TypeError(f"a {name} cannot be stored")

    def _add(self, value: Any, kind: str, parts: Sequence[Any]) -> None:
        row = [kind, *map(self._named, parts)]
        is_shared = kind in ("tuple", "frozenset") or (
            kind.startswith("=") and type(value).__dataclass_params__.frozen
        )
        text = json.dumps(row) if is_shared else ""
        found = self._same.get(text) if text else None
        if found is None:
            found = len(self._rows)
            self._rows.append(row)
            if text:
                self._same[text] = found
        self._seen[id(value)] = found
        self._kept.append(value)

    def _named(self, value: Any) -> Any:
        """A plain value itself, any other by its row."""
        return value if type(value) in _PLAIN else [self._seen[id(value)]]


def _names(made: Any) -> list[str]:
    """What a class is made with."""
    return [f.name for f in fields(made) if f.init]


def _read(data: Any, classes: Mapping[str, type]) -> Any:
    for name, names in data["classes"].items():
        if _names(classes[name]) != names:
            raise ValueError(f"{name} has other fields")
    made: list[Any] = []

    def part(item: Any) -> Any:
        if type(item) is list:
            (row,) = item
            if type(row) is not int or not 0 <= row < len(made):
                raise ValueError("a row that is not there")
            return made[row]
        if type(item) not in _PLAIN:
            raise ValueError("not a record")
        return item

    for kind, *items in data["rows"]:
        made.append(_made(kind, [part(item) for item in items], classes))
    return part(data["root"])


def _made(kind: str, parts: list[Any], classes: Mapping[str, type]) -> Any:
    if kind.startswith("="):
        made = classes[kind[1:]]
        return made(**dict(zip(_names(made), parts, strict=True)))
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](parts)
    if kind == "dict":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if kind == "bytes":
        return base64.b64decode(parts[0], validate=True)
    if kind == "texts":
        texts = np.empty(len(parts) - 1, object)
        texts[:] = parts[1:]
        return texts.reshape(json.loads(parts[0]))
    if kind == "array":
        name, shape, text = parts
        found = np.frombuffer(bytearray(base64.b64decode(text, validate=True)), DTYPES[name].numpy)
        return found.reshape(json.loads(shape))
    raise ValueError(f"an unknown kind of value, {kind!r}")
