"""Compiled graphs in the cache, of fixed and of open sizes, ready to be called.

A graph that was compiled before can then be used without being imported, optimised or laid out
again: only its constants, in the layouts of its kernels, and the data of a call are read.  The
constants are an entry of their own: variants of a network share them.

The graph is pickled.  A pickle is code like the library beside it, and must be trusted as much: the
cache belongs to one user, nobody else may write to it, and its contents are checked against the
digests of what was written.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from poly.errors import CacheError
from runtime.common.arguments import ALIGNMENT, Array, Shape, aligned
from runtime.common.cache import Cache, Entry, digest
from runtime.common.compile_report import CompileReport
from runtime.cpu.toolchain import Toolchain
from runtime.network.built import Built
from runtime.network.cpu_model import CpuModel

_GRAPH = "graph.pickle"
_PARTS = "constants-"
#: Bytes of constants per file; processors read files in parallel.
_PART = 1 << 24
#: The most that one model may use of a cache: the limit divided by this.
_SHARE = 4

#: Type, shape and offset in bytes of each constant.
_Constants = Mapping[str, tuple[np.dtype[Any], Shape, int]]


@dataclass(frozen=True, eq=False)
class _Stored:
    """What a model consists of besides its constants.

    built : with a graph without them; constants : type, shape and offset of each; bytes : of all of
    them; block : the key of the entry that holds them
    """

    built: Built
    constants: _Constants
    bytes: int
    block: str
    report: CompileReport


@dataclass(frozen=True, eq=False)
class Block:
    """Constants one after the other.

    places : type, shape and offset of each; bytes : of all of them; files : their content in parts
    key : of the content
    """

    places: _Constants
    bytes: int
    files: Mapping[str, tuple[memoryview, ...]]
    key: str


def block_of(arrays: Mapping[str, Array]) -> Block:
    """Constants as they are stored."""
    places: dict[str, tuple[np.dtype[Any], Shape, int]] = {}
    total = 0
    for name, array in arrays.items():
        places[name] = array.dtype, array.shape, total
        total += _room(array)
    files = _filled(total, arrays.values())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = pool.map(hashlib.sha256, chain.from_iterable(files.values()))
        key = digest("constants", *(found.digest() for found in hashes))
    return Block(places, total, files, key)


def _room(array: Array) -> int:
    """The bytes that a constant takes in a block."""
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def store_model(model: CpuModel, cache: Cache) -> str | None:
    """Put a model into the cache; returns its key, None if it would take too much of the cache.

    Raises
    ------
    CacheError : see `Cache.keep`.
    """
    if sum(map(_room, model.graph.constants.values())) > cache.limit // _SHARE:
        return None
    block = block_of(model.graph.constants)
    built = replace(model.built, graph=replace(model.graph, constants={}))
    stored = _Stored(built, block.places, block.bytes, block.key, model.report)
    data = pickle.dumps(stored, protocol=5)
    key = digest("stored model", data)
    for name, content in ((block.key, block.files), (key, {_GRAPH: data})):
        if not cache.has(name):
            cache.keep(name, content)
    return key


def recall_model(key: str, toolchain: Toolchain, cache: Cache, threads: int) -> CpuModel | None:
    """The model that is stored under a key, None unless all of it is present and intact.

    Raises
    ------
    ToolchainError : the library cannot be loaded.
    """
    start = time.perf_counter()
    entry = cache.get(key)
    if entry is None:
        return None
    try:
        stored: _Stored = pickle.loads(entry.read(_GRAPH))
    except CacheError:
        cache.discard(key)
        return None
    library = cache.get(stored.built.entry.key)
    block = _recall_block(stored, cache)
    if library is None or block is None:
        return None
    graph = replace(stored.built.graph, constants=views_of(block, stored.constants))
    built = replace(stored.built, graph=graph, entry=library, from_cache=True)
    model = CpuModel(built, threads, toolchain, cache)
    took = time.perf_counter() - start
    model.report = replace(stored.report, stages=(("load", took),), from_cache=True)
    return model


def _recall_block(stored: _Stored, cache: Cache) -> Array | None:
    """The constants of a model in one block, None unless they are present and intact."""
    block = empty_block(stored.bytes)
    entry = cache.get(stored.block, unread=_PARTS)
    if entry is None:
        return None
    try:
        _read(entry, block)
    except CacheError:
        cache.discard(stored.block)
        return None
    return block


def empty_block(count: int) -> Array:
    """Memory for the constants of a model."""
    return aligned((count,), np.dtype(np.uint8), ALIGNMENT)


def views_of(block: Array, constants: _Constants) -> dict[str, Array]:
    """The constants in a block, as arrays."""
    found = {}
    for name, (dtype, shape, at) in constants.items():
        size = prod(shape) * dtype.itemsize
        found[name] = block[at : at + size].view(dtype).reshape(shape)
    return found


def _read(entry: Entry, block: Array) -> None:
    """Fill a block from the files of an entry; raises `CacheError` if they are damaged."""

    def fill(part: tuple[str, int, int]) -> None:
        name, start, end = part
        entry.fill(name, block[start:end].data)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, parts_of(block.nbytes)):
            pass


def _filled(total: int, arrays: Iterable[Array]) -> dict[str, tuple[memoryview, ...]]:
    """The files of arrays, each followed by zeros up to `ALIGNMENT`.

    They refer to the arrays' memory: touching that of a copy takes longer than writing it.
    """
    zeros = memoryview(bytes(ALIGNMENT))
    files: list[list[memoryview]] = []
    room = 0  # bytes left in the last file
    for array in arrays:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for piece in (data, zeros[: -len(data) % ALIGNMENT]):
            while piece:
                if not room:
                    files.append([])
                    room = _PART
                files[-1].append(piece[:room])
                room, piece = room - len(files[-1][-1]), piece[room:]
    return {name: tuple(f) for (name, _, _), f in zip(parts_of(total), files, strict=True)}


def parts_of(total: int) -> list[tuple[str, int, int]]:
    """The files of constants: name, start and end offset."""
    starts = range(0, total, _PART)
    return [(f"{_PARTS}{n}", at, min(at + _PART, total)) for n, at in enumerate(starts)]
