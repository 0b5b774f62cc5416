"""Kernels through OpenCL: GPUs and, with PoCL, CPUs.  Needs ``pip install 'farkas[opencl]'``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.gpu import GpuKernel, GpuSource
from poly.errors import ArgumentError, ToolchainError
from runtime.arguments import Array
from runtime.toolchain import first_lines


class OpenClDevice:
    """One device of OpenCL, with one queue.

    which : part of the name of a platform or of a device; the first GPU, else the first device, if
        it is empty

    Raises
    ------
    ToolchainError : pyopencl is not installed, or finds no device.
    """

    dialect = "opencl"

    def __init__(self, which: str = "") -> None:
        self._cl = cl = _pyopencl()
        found = _devices(cl)
        chosen = [d for d in found if which.lower() in f"{d.platform.name} {d.name}".lower()]
        chosen.sort(key=lambda d: not d.type & cl.device_type.GPU)
        if not chosen:
            names = ", ".join(f"{d.name} ({d.platform.name})" for d in found) or "none"
            raise ToolchainError(
                f"there is no OpenCL device {which!r}; there are {names}"
                if which
                else "OpenCL has no device; install a driver, or PoCL: "
                "pip install pocl-binary-distribution"
            )
        self.device = chosen[0]
        self._context = cl.Context([self.device])
        self._queue = cl.CommandQueue(self._context)

    def __repr__(self) -> str:
        return f"<OpenClDevice {self.device.name} ({self.device.platform.name})>"

    def build(self, source: GpuSource) -> Any:
        try:
            return self._cl.Program(self._context, source.text).build()
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
        module: Any,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        buffers: Sequence[Any],
    ) -> None:
        function = getattr(module, kernel.symbol)
        total = tuple(g * b for g, b in zip(grid, kernel.block, strict=True))
        function(self._queue, total, kernel.block, *map(np.int64, sizes), *buffers)


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ImportError:
        raise ToolchainError(
            "OpenCL needs pyopencl: pip install 'farkas[opencl]', or pip install pyopencl"
        ) from None
    return pyopencl


def _devices(cl: Any) -> list[Any]:
    try:
        return [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.LogicError:  # no platform at all
        return []
