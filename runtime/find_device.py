"""Devices by name: ``cuda``, ``opencl``, and ``cuda-emulator``, which needs no GPU.

The packages that a device needs are imported only when it is requested.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from poly.errors import FarkasError
from runtime.common.cache import Cache
from runtime.gpu.device import Device
from runtime.gpu.device_names import CUDA, EMULATOR, OPENCL, TF32, DeviceName, emulated, read_name

_LOCK = threading.Lock()
_FOUND: dict[tuple[DeviceName, str], Device] = {}


def find_device(name: str, cache: Cache | None = None) -> Device:
    """The device of a name; the same one whenever it is asked for again.

    =======================  =========================================================
    ``cuda``                 the first CUDA device; ``cuda:1`` is the second
    ``cuda,tf32``            the same, where factors of type float32 may be rounded to the 10 bits
                             of TF32, so that tensor cores multiply them
    ``opencl``               the first GPU of OpenCL, else its first device; ``opencl:1`` is the
                             second, ``opencl:nvidia`` the first with that in its or its
                             platform's name
    ``cuda-emulator``        the CUDA text on the CPU: slow, for checking it without a GPU
    ``cuda-emulator:sm_90``  the text for such a device; with ``,tf32``, too
    =======================  =========================================================

    Devices that differ in what may be rounded, or in their cache, share their memory.

    cache : where compiled kernels are kept; by default that of `runtime.common.cache`

    Raises
    ------
    ArgumentError : there is no such kind of device, or it has no tensor cores.
    ToolchainError : a package, a driver, a compiler or the device is missing; says which.
    CacheError : the cache directory cannot be used.
    """
    wanted = read_name(name)
    store = Cache() if cache is None else cache
    with _LOCK:
        return _find(wanted, store)


def describe_device(name: str) -> str:
    """What `find_device` finds for a name, or what is missing for it."""
    try:
        return repr(find_device(name))
    except FarkasError as error:
        return str(error)


def _find(name: DeviceName, cache: Cache) -> Device:
    key = (name, str(cache.directory))
    if key not in _FOUND:
        plain = replace(name, which="" if name.kind == EMULATOR else name.which, rounded=False)
        same = next((device for (other, _), device in _FOUND.items() if other == name), None)
        if name == plain:
            made = same.with_cache(cache) if same else _KINDS[name.kind](name.which, cache)
            _FOUND[key] = made
        else:
            _FOUND[key] = _variant(_find(plain, cache), name)
    return _FOUND[key]


def _variant(device: Device, name: DeviceName) -> Device:
    """The same device, with the options that a name gives."""
    if name.kind == EMULATOR:
        return device.variant(str(name), emulated(name))
    return device.variant(f"{device.name},{TF32}", name.machine(device.machine))


def _cuda(which: str, cache: Cache) -> Device:
    from runtime.cuda.device import CudaDevice
    from runtime.cuda.find_launcher import find_launcher

    number = int(which or 0)
    return CudaDevice(find_launcher(number), number, cache)


def _opencl(which: str, cache: Cache) -> Device:
    from runtime.gpu.opencl import OpenClDevice

    return OpenClDevice(which, cache)


def _emulator(which: str, cache: Cache) -> Device:
    from runtime.gpu.emulator import CpuDevice

    return CpuDevice(cache.directory)


_KINDS: dict[str, Callable[[str, Cache], Device]] = {
    CUDA: _cuda,
    OPENCL: _opencl,
    EMULATOR: _emulator,
}
