"""Devices by name: ``cuda``, ``opencl``, and ``cuda-emulator``, which needs no GPU.

What a device needs is imported when it is asked for, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from difflib import get_close_matches

from poly.errors import ArgumentError
from runtime.cache import Cache
from runtime.gpu_device import Device

_LOCK = threading.Lock()
_FOUND: dict[tuple[str, str, str], Device] = {}


def find_device(name: str, cache: Cache | None = None) -> Device:
    """The device of a name; the same one whenever it is asked for again.

    ==================  ==============================================================
    ``cuda``            the first CUDA device; ``cuda:1`` is the second
    ``opencl``          the first GPU of OpenCL, else its first device; ``opencl:1`` is the
                        second, ``opencl:nvidia`` the first with that in its or its platform's name
    ``cuda-emulator``   the CUDA text on the CPU: slow, for checking it without a GPU
    ==================  ==============================================================

    cache : where compiled kernels are kept; by default that of `runtime.cache`

    Raises
    ------
    ArgumentError : there is no such kind of device.
    ToolchainError : a package, a driver, a compiler or the device is missing; says which.
    CacheError : the cache directory cannot be used.
    """
    kind, colon, which = name.partition(":")
    if kind not in _KINDS or (colon and (not which or kind == "cuda-emulator")):
        raise ArgumentError(f"there is no device {name!r}; {_near(name)}")
    if kind == "cuda" and colon and not which.isdecimal():
        raise ArgumentError(f"there is no device {name!r}; they are called cuda, cuda:1, cuda:2, …")
    which = which.lstrip("0") if which.isdecimal() else which
    store = Cache() if cache is None else cache
    key = (kind, which, str(store.directory))
    with _LOCK:
        if key not in _FOUND:
            _FOUND[key] = _KINDS[kind](which, store)
        return _FOUND[key]


def _near(name: str) -> str:
    near = get_close_matches(name.lower().partition(":")[0], _KINDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KINDS)}"


def _cuda(which: str, cache: Cache) -> Device:
    from runtime.cuda_packages import find_launcher
    from runtime.gpu_cuda import CudaDevice

    number = int(which or 0)
    return CudaDevice(find_launcher(number), number, cache)


def _opencl(which: str, cache: Cache) -> Device:
    from runtime.gpu_opencl import OpenClDevice

    return OpenClDevice(which, cache)


def _emulator(which: str, cache: Cache) -> Device:
    from runtime.gpu_on_cpu import CpuDevice

    return CpuDevice(cache.directory)


_KINDS: dict[str, Callable[[str, Cache], Device]] = {
    "cuda": _cuda,
    "opencl": _opencl,
    "cuda-emulator": _emulator,
}
