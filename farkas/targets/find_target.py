"""Targets by name, and by the arguments of `compile` and `compile_onnx`."""

from __future__ import annotations

from os import PathLike, fspath

from farkas.targets.base import Target
from farkas.targets.cpu import CpuTarget
from poly.errors import ArgumentError
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain, find_toolchain

CompilerLike = str | PathLike[str] | Toolchain | None
CacheLike = str | PathLike[str] | Cache | None


def target_of(
    cc: CompilerLike, cache: CacheLike, threads: int | None = None, target: str | Target = "cpu"
) -> Target:
    """The target for the arguments of `compile` and `compile_onnx`.

    target : ``cpu``, or a name that `runtime.find_device.find_device` knows

    Raises
    ------
    ToolchainError : there is no usable C compiler, or something is missing that the device needs.
    CacheError : the cache directory cannot be used.
    ArgumentError : arguments of another type, or that the target does not have.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise ArgumentError(f"target is a {type(target).__name__}, expected a name, as in 'cuda'")
    if target == "cpu":
        return cpu_target(cc, cache, threads)
    for name, value in (("cc", cc), ("threads", threads)):
        if value is not None:
            raise ArgumentError(f"{name} has no meaning for target {target!r}, only for 'cpu'")
    from farkas.targets.gpu import DeviceTarget
    from runtime.find_device import find_device

    store = _cache(cache)
    return DeviceTarget(find_device(target, store), store)


def cpu_target(cc: CompilerLike, cache: CacheLike, threads: int | None = None) -> CpuTarget:
    """This machine, with a C compiler.  Raises as `target_of`."""
    if isinstance(cc, Toolchain):
        toolchain = cc
    elif cc is None or isinstance(cc, (str, PathLike)):
        toolchain = find_toolchain(None if cc is None else fspath(cc))
    else:
        raise ArgumentError(f"cc is a {type(cc).__name__}, expected a path or a Toolchain")
    return CpuTarget(toolchain, _cache(cache), threads)


def _cache(cache: CacheLike) -> Cache:
    if isinstance(cache, Cache):
        return cache
    if cache is None or isinstance(cache, (str, PathLike)):
        return Cache(None if cache is None else fspath(cache))
    raise ArgumentError(f"cache is a {type(cache).__name__}, expected a path or a Cache")
