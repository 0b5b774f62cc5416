"""Whole compiled models in the cache: graph, memory plan and constants, ready to be called.

A model that was compiled before can then be used without being imported, optimised or laid out
again: only its constants, in the layouts of its kernels, and the data of a call are read.

The graph is pickled.  A pickle is code like the library beside it, and must be trusted as much: the
cache belongs to one user, nobody else may write to it, and its contents are checked against the
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
#: Bytes of constants per file; processors read files in parallel.
_PART = 1 << 24
#: The most that one model may use of a cache: the limit divided by this.
_SHARE = 4

#: Type, shape and offset in bytes of each constant.
_Constants = Mapping[str, tuple[np.dtype[Any], Shape, int]]


@dataclass(frozen=True, eq=False)
class _Stored:
    """What a model consists of besides its constants.

    graph : without them; constants : type, shape and offset of each; bytes : of all of them;
    library : the key of the entry that holds the compiled kernels; files : digests of the other
    files the model was made from, by name
    """

    graph: Graph
    constants: _Constants
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
    CacheError : see `Cache.keep`.
    """
    constants: dict[str, tuple[np.dtype[Any], Shape, int]] = {}
    total = 0
    for name, array in model.graph.constants.items():
        constants[name] = array.dtype, array.shape, total
        total += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    if total > cache.limit // _SHARE:
        return
    block = np.zeros(total, np.uint8)
    for name, array in _views(block, constants).items():
        array[...] = model.graph.constants[name]
    assert model.built.plan is not None, "only networks of fixed sizes are stored"
    graph = replace(model.graph, constants={})
    plan, library = model.built.plan, model.entry.key
    stored = _Stored(graph, constants, total, plan, library, model.report, files)
    parts = {name: block[a:b].data for name, a, b in _parts(total)}
    cache.keep(key, {_GRAPH: pickle.dumps(stored, protocol=5), **parts})


def recall_model(
    key: str,
    toolchain: Toolchain,
    cache: Cache,
    threads: int,
    file_digest: Callable[[str], str | None],
) -> CpuModel | None:
    """The model that is stored under a key, None unless all of it is present and intact.

    file_digest : the current digest of a file that the model was made from

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
    graph = replace(stored.graph, constants=_views(block, stored.constants))
    kernels, plan = stored.report.kernels, stored.plan
    built = Built(graph, library, plan.sharing, {}, (), kernels, True, plan)
    model = CpuModel(built, threads, toolchain, cache)
    took = time.perf_counter() - start
    model.report = replace(stored.report, stages=(("load", took),), from_cache=True)
    return model


def _views(block: Array, constants: _Constants) -> dict[str, Array]:
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
        for _ in pool.map(fill, _parts(block.nbytes)):
            pass


def _parts(total: int) -> list[tuple[str, int, int]]:
    """The files of constants: name, start and end offset."""
    starts = range(0, total, _PART)
    return [(f"{_PARTS}{n}", at, min(at + _PART, total)) for n, at in enumerate(starts)]
