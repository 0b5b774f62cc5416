"""Kernels for GPUs in the cache, as text: scheduling and generating them takes longest."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass

from codegen.gpu.emit import GpuSource
from poly.errors import CacheError
from poly.ir.program import Program
from poly.machine.gpu import GpuMachine
from runtime.common.cache import Cache, digest
from runtime.common.fingerprint import code_digest

_FILE = "kernels.pickle"


@dataclass(frozen=True)
class StoredKernels:
    """The automatic kernels of a program.

    schedule : its script; fallbacks : see `codegen.pipeline.Generated`
    """

    source: GpuSource
    schedule: str
    fallbacks: tuple[tuple[str, str], ...]


def source_key(program: Program, machine: GpuMachine, dialect: str, tuned: str) -> str:
    """The cache key of a program's kernels.

    tuned : identifies the schedules that are used instead of automatic ones
    """
    made_by = (sys.version, code_digest("poly", "codegen", "runtime"))
    return digest("gpu kernels", *made_by, repr(machine), dialect, tuned, program.digest)


def store_kernels(key: str, kernels: StoredKernels, cache: Cache) -> None:
    """Keep the kernels of a program.

    Raises
    ------
    CacheError : see `Cache.keep`.
    """
    cache.keep(key, {_FILE: pickle.dumps(kernels, protocol=5)})


def recall_kernels(key: str, cache: Cache) -> StoredKernels | None:
    """The kernels that were stored; None if they are missing or damaged."""
    entry = cache.get(key)
    if entry is None:
        return None
    try:
        found: StoredKernels = pickle.loads(entry.read(_FILE))
    except CacheError:
        cache.discard(key)
        return None
    return found
