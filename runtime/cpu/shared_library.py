"""Shared libraries made from C text: found in the cache or compiled into it, and loaded."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any

from codegen.c.kernel_source import NETWORK_ENTRY
from poly.errors import ToolchainError
from runtime.common.cache import Cache, Entry, digest
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.remembered import at_hand
from runtime.cpu.toolchain import Toolchain

LIBRARY = "kernel.so"
#: Seconds that a compiler command may take.
LIMIT = 600.0
_BUILD_FORMAT = "1"  # part of every key; change it when the contents of an entry change


def build_library(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any] | None = None,
    limit: float = LIMIT,
) -> Entry:
    """The cache entry of a shared library made from C text, compiled if it is missing.

    The entry holds ``kernel.so``, the sources, and ``meta.json`` (`meta`, flags, compiler).

    limit : seconds that one compiler command may take

    Raises
    ------
    ToolchainError : the compiler failed, or there is none.
    CacheError : the library cannot be stored.
    """
    key = library_key(sources, flags, toolchain)
    entry = cache.get(key)
    if entry is not None:
        return entry
    if toolchain.remembered is not None:
        toolchain = with_team(at_hand(toolchain), cache)
        return build_library(sources, flags, toolchain, cache, meta, limit)
    return cache.put(key, _compile(sources, flags, toolchain, cache, meta or {}, limit))


def library_key(sources: Mapping[str, str], flags: tuple[str, ...], toolchain: Toolchain) -> str:
    """The cache key: sources, flags, compiler and processor."""
    texts = [part for name in sorted(sources) for part in (name, sources[name])]
    return digest("library", _BUILD_FORMAT, toolchain.identity, "\n".join(flags), *texts)


def _compile(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any],
    limit: float,
) -> dict[str, bytes]:
    with cache.workspace() as folder:
        out = folder / LIBRARY
        warnings = compile_shared(toolchain, sources, flags, out, timeout=limit)
        library = out.read_bytes()
    about = {**meta, "flags": list(flags), "toolchain": str(toolchain), "warnings": warnings}
    files = {name: text.encode() for name, text in sources.items()}
    return {**files, LIBRARY: library, "meta.json": json.dumps(about, indent=1).encode()}


def open_library(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any] | None = None,
) -> tuple[ctypes.CDLL, Entry]:
    """Build or find a library and load it.

    Raises
    ------
    ToolchainError : the compiler failed, or the library that it made cannot be loaded.
    CacheError : the library cannot be stored.
    """
    toolchain = with_team(toolchain, cache)
    for attempt in range(3):
        entry = build_library(sources, flags, toolchain, cache, meta)
        path = entry.file(LIBRARY)
        try:
            return ctypes.CDLL(str(path)), entry
        except OSError as error:
            # Another process may have evicted the entry between the check and the load.
            if path.exists() or attempt == 2:
                raise ToolchainError(f"the compiled kernel cannot be loaded: {error}") from error
    raise AssertionError("unreachable")


def load_network(entry: Entry) -> tuple[ctypes.CDLL, Any]:
    """The library of a compiled graph and its entry point ``(threads, sizes, arrays)``.

    Raises
    ------
    ToolchainError : it cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(entry.file(LIBRARY)))
        function = library[NETWORK_ENTRY]
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"the compiled model cannot be loaded: {error}") from error
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return library, function
