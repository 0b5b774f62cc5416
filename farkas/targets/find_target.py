"""Targets by name, and by the arguments of `compile` and `compile_onnx`."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING

from farkas.targets.base import NoRunner, Target
from farkas.targets.cpu import CpuRunner
from poly.errors import ArgumentError
from poly.machine.cpu import host_machine
from poly.machine.gpu import ANY
from runtime.common.cache import Cache
from runtime.cpu.remembered import look_for
from runtime.cpu.toolchain import Toolchain

if TYPE_CHECKING:
    from runtime.gpu.device import Device

CompilerLike = str | PathLike[str] | Toolchain | None
CacheLike = str | PathLike[str] | Cache | None


def target_of(
    cc: CompilerLike, cache: CacheLike, threads: int | None = None, target: str | Target = "cpu"
) -> Target:
    """The target for the arguments of `compile` and `compile_onnx`.

    target : ``cpu``, or a name that `runtime.find_device.find_device` knows

    Raises
    ------
    ToolchainError : there is no usable C compiler, or something that the device needs is missing.
    CacheError : the cache directory cannot be used.
    ArgumentError : arguments of another type, or that the target does not have.
    """
    if isinstance(target, Target):
        for name, value in (("cc", cc), ("cache", cache), ("threads", threads)):
            if value is not None:
                raise ArgumentError(f"{name} is part of the target that is given; leave one out")
        return target
    if not isinstance(target, str):
        raise ArgumentError(f"target is a {type(target).__name__}, expected a name, as in 'cuda'")
    if target == "cpu":
        return cpu_target(cc, cache, threads)
    for name, value in (("cc", cc), ("threads", threads)):
        if value is not None:
            raise ArgumentError(f"{name} is not supported for target {target!r}, only for 'cpu'")
    from runtime.find_device import find_device

    store = cache_of(cache)
    return device_target(find_device(target, store), store)


def cpu_target(cc: CompilerLike, cache: CacheLike, threads: int | None = None) -> Target:
    """This machine, with a C compiler, or what is left of one: see `runtime.cpu.remembered`.

    Raises as `target_of` does.
    """
    store = cache_of(cache)
    if isinstance(cc, Toolchain):
        return Target(host_machine(), "cpu", CpuRunner(cc, store, threads))
    if not (cc is None or isinstance(cc, (str, PathLike))):
        raise ArgumentError(f"cc is a {type(cc).__name__}, expected a path or a Toolchain")
    asked = "" if cc is None else fspath(cc)
    runner = CpuRunner(look_for(asked, store), store, threads, asked=asked)
    return Target(host_machine(), "cpu", runner)


def device_target(device: Device, cache: Cache) -> Target:
    """A GPU, or an emulator of one.

    cache : keeps the texts of kernels
    """
    from farkas.targets.gpu import DeviceRunner

    return Target(device.machine, device.dialect, DeviceRunner(device, cache))


def text_target(name: str = "cpu") -> Target:
    """A target for text generation; neither a device nor a compiler is needed.

    name : ``cpu``, for the present processor; ``cuda`` or ``opencl``, for an unknown device; or
        ``cuda-emulator:sm_90``, for one that is known by its name

    Raises
    ------
    ArgumentError : there is no such target, or it needs a device to be known.
    """
    from runtime.gpu.device_names import EMULATOR, OPENCL, emulated, read_name

    if name == "cpu":
        return Target(host_machine(), name, NoRunner())
    found = read_name(name)
    if found.kind == EMULATOR:
        return Target(emulated(found), "cuda", NoRunner())
    if found.which:
        raise ArgumentError(
            f"text is not generated for {name!r}, a particular device; did you mean {found.kind!r}?"
        )
    if found.rounded:
        raise ArgumentError(
            f"{name!r} does not name a device; did you mean {f'{EMULATOR}:sm_90,tf32'!r}?"
        )
    return Target(ANY, "opencl" if found.kind == OPENCL else "cuda", NoRunner())


def cache_of(cache: CacheLike) -> Cache:
    """A cache from any of its forms.  Raises `ArgumentError` or `CacheError`."""
    if isinstance(cache, Cache):
        return cache
    if cache is None or isinstance(cache, (str, PathLike)):
        return Cache(None if cache is None else fspath(cache))
    raise ArgumentError(f"cache is a {type(cache).__name__}, expected a path or a Cache")
