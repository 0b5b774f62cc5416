"""Compilers that a cache remembers, so that what they compiled is found where there is none.

The keys of compiled code have the compiler and its flags.  So a cache keeps the description of the
last compiler whose code it holds, for each processor and each way in which it was asked for.  Where
it cannot be found any more, its description is used instead: nothing is looked for until something
must be compiled.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from poly.errors import CacheError, ToolchainError
from runtime.common.cache import Cache, digest
from runtime.cpu.toolchain import Toolchain, cpu_identity, find_toolchain

_FILE = "toolchain.json"
_lock = threading.Lock()
#: What this process has stored: directory, key and identity.
_stored: set[tuple[str, str, str]] = set()


def look_for(asked: str, cache: Cache) -> Toolchain:
    """A compiler, by path or "" for the usual one; if it is not here, the one remembered.

    Raises
    ------
    ToolchainError : see `find_toolchain`.
    """
    try:
        return find_toolchain(asked or None)
    except ToolchainError:
        found = _recall(asked, cache)
        if found is None:
            raise
        return found


def remember(toolchain: Toolchain, asked: str, cache: Cache) -> None:
    """Keep the description of a compiler whose code is in a cache."""
    if toolchain.remembered is not None:
        return
    key = _key(asked)
    what = str(cache.directory), key, toolchain.identity
    with _lock:
        if what in _stored:
            return
        _stored.add(what)
    data = json.dumps(toolchain_data(toolchain), indent=1).encode()
    entry = cache.get(key)
    if entry is None or entry.read(_FILE) != data:
        cache.replace(key, {_FILE: data})


def at_hand(toolchain: Toolchain) -> Toolchain:
    """A compiler that can be run: `toolchain`, or the one that stands in for it.

    Raises
    ------
    ToolchainError : there is none.
    """
    if toolchain.remembered is None:
        return toolchain
    try:
        found = find_toolchain(toolchain.remembered or None)
    except ToolchainError as error:
        raise ToolchainError(f"something is not compiled yet, and {error}") from error
    return replace(found, own_threads=toolchain.own_threads)


def toolchain_data(toolchain: Toolchain) -> dict[str, Any]:
    """The description of a compiler as JSON data."""
    return asdict(replace(toolchain, remembered=None, own_threads=True))


def read_toolchain(data: Any, asked: str = "") -> Toolchain:
    """The compiler that `toolchain_data` described, as one that is remembered.

    Raises
    ------
    ValueError : it is no such description.
    """
    if not isinstance(data, Mapping) or data.keys() != {f.name for f in fields(Toolchain)}:
        raise ValueError("not the description of a compiler")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items()}
    values["remembered"] = asked
    return Toolchain(**values)


def _key(asked: str) -> str:
    return digest("toolchain", cpu_identity(), asked, os.environ.get("CC", "").strip())


def _recall(asked: str, cache: Cache) -> Toolchain | None:
    entry = cache.get(_key(asked))
    if entry is None:
        return None
    try:
        return read_toolchain(json.loads(entry.read(_FILE)), asked)
    except (CacheError, ValueError):
        return None
