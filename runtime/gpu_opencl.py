"""Kernels through OpenCL: GPUs and, with PoCL, CPUs.  Needs ``pip install 'farkas[opencl]'``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.gpu import GpuKernel, GpuSource
from poly.errors import ArgumentError, ToolchainError
from runtime.arguments import Array
from runtime.cache import Cache, digest
from runtime.toolchain import first_lines

_BINARY = "program.bin"


class OpenClDevice:
    """One device of OpenCL, with one queue.

    which : its number, GPUs first, or part of the name of a device or of its platform; by default
        the first GPU, else the first device
    cache : keeps compiled kernels

    Raises
    ------
    ToolchainError : pyopencl is missing or broken, or there is no platform or no such device.
    """

    dialect = "opencl"

    def __init__(self, which: str = "", cache: Cache | None = None) -> None:
        self._cl = cl = _pyopencl()
        self.device = _choose(_devices(cl), which)
        self._cache = cache
        self._context = cl.Context([self.device])
        self._queue = cl.CommandQueue(self._context)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenClDevice {_name(self.device)}>"

    def build(self, source: GpuSource) -> dict[str, Any]:
        program = self._program(source.text)
        return {k.symbol: self._cl.Kernel(program, k.symbol) for k in source.kernels}

    def _program(self, text: str) -> Any:
        """A program that is compiled, through the cache if there is one."""
        cl, device = self._cl, self.device
        if self._cache is None:
            return self._compile(text)
        names = (device.platform.name, device.platform.version, device.name, device.version)
        key = digest("opencl", text, *names, device.driver_version)
        entry = self._cache.get(key)
        if entry is not None:
            try:
                binary = entry.read(_BINARY)
                return cl.Program(self._context, [device], [binary]).build(cache_dir=False)
            except cl.Error:  # a driver may refuse what it made under another name
                self._cache.discard(key)
        program = self._compile(text)
        (binary,) = program.get_info(cl.program_info.BINARIES)
        if binary:
            self._cache.put(key, {_BINARY: binary, "kernels.cl": text.encode()})
        return program

    def _compile(self, text: str) -> Any:
        try:
            # Without pyopencl's own cache, which lies elsewhere.
            return self._cl.Program(self._context, text).build(cache_dir=False)
        except self._cl.RuntimeError as error:
            raise ToolchainError(f"OpenCL's compiler failed:\n{first_lines(str(error))}") from None

    def empty(self, count: int) -> Any:
        try:
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, count)
        except (self._cl.MemoryError, self._cl.LogicError):
            raise ArgumentError(f"the device has no room for {count} bytes") from None

    def write(self, buffer: Any, array: Array) -> None:
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, buffer, array)

    def read(self, buffer: Any, array: Array) -> None:
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, array, buffer)

    def launch(
        self,
        module: dict[str, Any],
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        buffers: Sequence[Any],
    ) -> None:
        total = tuple(g * b for g, b in zip(grid, kernel.block, strict=True))
        # A kernel object holds the arguments of its next launch.
        with self._lock:
            module[kernel.symbol](self._queue, total, kernel.block, *map(np.int64, sizes), *buffers)


# --- finding a device ---------------------------------------------------------------------------


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ModuleNotFoundError as error:
        if error.name != "pyopencl":
            raise ToolchainError(f"pyopencl is installed but needs {error.name}") from None
        raise ToolchainError("OpenCL needs pyopencl: pip install 'farkas[opencl]'") from None
    except ImportError as error:
        raise ToolchainError(f"pyopencl is installed but cannot be imported: {error}") from None
    return pyopencl


def _devices(cl: Any) -> list[Any]:
    """All devices, GPUs first."""
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # how pyopencl says that there is none
        platforms = []
    advice = (
        "install the driver of a GPU, or PoCL for the CPU: pip install pocl-binary-distribution"
    )
    if not platforms:
        raise ToolchainError(f"there is no OpenCL platform; {advice}")
    found = [d for p in platforms for d in _devices_of(cl, p)]
    if not found:
        names = ", ".join(p.name for p in platforms)
        raise ToolchainError(f"there is no OpenCL device on any platform ({names}); {advice}")
    return sorted(found, key=lambda d: not d.type & cl.device_type.GPU)


def _devices_of(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without a device may say so by an error
        return []


def _choose(found: list[Any], which: str) -> Any:
    if which.isdecimal():
        chosen = found[int(which) :]
    else:
        chosen = [d for d in found if which.lower() in f"{d.platform.name} {d.name}".lower()]
    if not chosen:
        names = ", ".join(f"{n}: {_name(d)}" for n, d in enumerate(found))
        raise ToolchainError(f"there is no OpenCL device {which!r}; there are {names}")
    return chosen[0]


def _name(device: Any) -> str:
    return f"{device.name.strip()} ({device.platform.name.strip()})"
