"""Compiled models in the cache, whole: graph, plan of memory and constants, ready to be called.

A model that was compiled before is then there without being imported, optimised or laid out again:
what is read are its constants as the kernels want them, and what a call needs to know.

The graph is pickled.  A pickle is code like the library beside it, and as far to be trusted: the
cache belongs to one user, nobody else may write to it, and what it holds is checked against the
digests of what was written.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from poly.errors import CacheError
from poly.ir.graph import Graph
from runtime.common.arguments import ALIGNMENT, Array, Shape, aligned
from runtime.common.cache import Cache, Entry, digest
from runtime.common.compile_report import CompileReport
from runtime.cpu.toolchain import Toolchain
from runtime.network.built import Built
from runtime.network.cpu_model import CpuModel
from runtime.network.memory_plan import MemoryPlan

_FORMAT = "1"
_GRAPH = "graph.pickle"
_PARTS = "constants-"
#: Bytes of constants in one file; every processor reads the next one.
_PART = 1 << 24
#: The part of a cache that one model may take.
_SHARE = 4

#: Type, shape and first byte of each constant.
_Places = Mapping[str, tuple[np.dtype[Any], Shape, int]]


@dataclass(frozen=True, eq=False)
class _Stored:
    """What a model consists of beside its constants.

    graph : without them; places : type, shape and first byte of each; bytes : of all of them;
    library : the key of the entry that holds the compiled kernels; files : digests of what else
    the model was made from, by name
    """

    graph: Graph
    places: _Places
    bytes: int
    plan: MemoryPlan
    library: str
    report: CompileReport
    files: Mapping[str, str]


def model_key(toolchain: Toolchain, *parts: str) -> str:
    """The key of a model that is made from these parts."""
    return digest("stored model", _FORMAT, sys.version, np.__version__, toolchain.identity, *parts)


def store_model(model: CpuModel, key: str, cache: Cache, files: Mapping[str, str]) -> None:
    """Put a model into the cache, unless it would take too much of it.

    files : digests of files that it was made from, by name

    Raises
    ------
    CacheError : as `Cache.keep`.
    """
    places: dict[str, tuple[np.dtype[Any], Shape, int]] = {}
    total = 0
    for name, array in model.graph.constants.items():
        places[name] = array.dtype, array.shape, total
        total += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    if total > cache.limit // _SHARE:
        return
    block = np.zeros(total, np.uint8)
    for name, array in _views(block, places).items():
        array[...] = model.graph.constants[name]
    assert model.built.plan is not None, "only networks of fixed sizes are stored"
    graph = replace(model.graph, constants={})
    stored = _Stored(graph, places, total, model.built.plan, model.entry.key, model.report, files)
    parts = {name: block[a:b].data for name, a, b in _parts(total)}
    cache.keep(key, {_GRAPH: pickle.dumps(stored, protocol=5), **parts})


def recall_model(
    key: str,
    toolchain: Toolchain,
    cache: Cache,
    threads: int,
    file_digest: Callable[[str], str | None],
) -> CpuModel | None:
    """The model that is stored under a key, None unless all of it is there and sound.

    file_digest : what the digest of a file that the model was made from is now

    Raises
    ------
    ToolchainError : the library cannot be loaded.
    """
    start = time.perf_counter()
    entry = cache.get(key, unread=_PARTS)
    if entry is None:
        return None
    try:
        stored: _Stored = pickle.loads(entry.read(_GRAPH))
        library = cache.get(stored.library)
        if library is None or any(file_digest(n) != d for n, d in stored.files.items()):
            cache.discard(key)
            return None
        block = aligned((stored.bytes,), np.dtype(np.uint8), ALIGNMENT)
        _read(entry, block)
    except CacheError:
        cache.discard(key)
        return None
    graph = replace(stored.graph, constants=_views(block, stored.places))
    kernels, plan = stored.report.kernels, stored.plan
    built = Built(graph, library, plan.sharing, {}, (), kernels, True, plan)
    model = CpuModel(built, threads, toolchain, cache)
    took = time.perf_counter() - start
    model.report = replace(stored.report, stages=(("load", took),), from_cache=True)
    return model


def _views(block: Array, places: _Places) -> dict[str, Array]:
    """The constants that lie in a block."""
    found = {}
    for name, (dtype, shape, at) in places.items():
        size = prod(shape) * dtype.itemsize
        found[name] = block[at : at + size].view(dtype).reshape(shape)
    return found


def _read(entry: Entry, block: Array) -> None:
    """Fill a block from the files of an entry; raises `CacheError` unless they are sound."""

    def fill(part: tuple[str, int, int]) -> None:
        name, start, end = part
        entry.fill(name, block[start:end].data)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, _parts(block.nbytes)):
            pass


def _parts(total: int) -> list[tuple[str, int, int]]:
    """The files of constants: name, first byte and end."""
    starts = range(0, total, _PART)
    return [(f"{_PARTS}{n}", at, min(at + _PART, total)) for n, at in enumerate(starts)]
