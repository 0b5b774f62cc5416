"""`Target`: the C compiler, the cache and the threads that kernels are built with and for."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

from poly.errors import ArgumentError
from runtime.cache import Cache
from runtime.toolchain import Toolchain, find_toolchain

CompilerLike = str | PathLike[str] | Toolchain | None
CacheLike = str | PathLike[str] | Cache | None


@dataclass(frozen=True)
class Target:
    """Where and for whom kernels are built.

    `threads` None stands for every processor that the process may use.
    """

    toolchain: Toolchain
    cache: Cache
    threads: int | None = None


def target_of(cc: CompilerLike, cache: CacheLike, threads: int | None = None) -> Target:
    """The target for the arguments of `compile` and `compile_onnx`.

    Raises
    ------
    ToolchainError : there is no usable C compiler.
    CacheError : the cache directory cannot be used.
    ArgumentError : `cc` or `cache` of another type.
    """
    if isinstance(cc, Toolchain):
        toolchain = cc
    elif cc is None or isinstance(cc, (str, PathLike)):
        toolchain = find_toolchain(None if cc is None else fspath(cc))
    else:
        raise ArgumentError(f"cc is a {type(cc).__name__}, expected a path or a Toolchain")
    if isinstance(cache, Cache):
        store = cache
    elif cache is None or isinstance(cache, (str, PathLike)):
        store = Cache(None if cache is None else fspath(cache))
    else:
        raise ArgumentError(f"cache is a {type(cache).__name__}, expected a path or a Cache")
    return Target(toolchain, store, threads)
