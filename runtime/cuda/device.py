"""Kernels through CUDA, and arrays of torch, CuPy, JAX and others on its devices."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource, joined_text
from poly.errors import ArgumentError, ToolchainError
from poly.machine.gpu import cuda_machine
from runtime.common.arguments import Array, Shape
from runtime.common.cache import Cache
from runtime.cuda.compile import Cubin, compile_cubin, find_cuda_compiler
from runtime.cuda.launcher import CudaStream, Launcher
from runtime.gpu.device import Device, DeviceArray, KernelLaunch, Operand, bytes_in
from runtime.gpu.interop import CUDA, CUDA_MANAGED, HOST, borrow

#: CUDA's second name for the default stream.
_LEGACY = 1
#: How often capturing launches is tried: the work of other threads may disturb it.
_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class CudaModule:
    """Kernels on a device: their machine code, and the functions by symbol.

    The device unloads them when they are no longer referenced.
    """

    cubin: Cubin
    functions: dict[str, Any]


class CudaDevice(Device):
    """One CUDA device.

    launcher : gives access to it; number : of the device; cache : keeps compiled kernels

    Raises
    ------
    ToolchainError : there is no compiler for the device.
    """

    dialect = "cuda"
    default_stream = CudaStream()

    def __init__(self, launcher: Launcher, number: int = 0, cache: Cache | None = None) -> None:
        super().__init__()
        self.launcher, self.name, self._cache = launcher, f"cuda:{number}", cache
        self.dlpack = (CUDA, number)
        self.machine = cuda_machine(launcher.architecture, launcher.processors)
        find_cuda_compiler(launcher.architecture)  # so that a missing compiler is reported at once

    def __repr__(self) -> str:
        return f"<CudaDevice {self.launcher.device} ({self.name}, {self.launcher.package})>"

    def compile(self, source: GpuSource) -> None:
        if self._cache is not None:  # where it is found again
            self._cubin(source)

    def _cubin(self, *sources: GpuSource) -> Cubin:
        text, flags = joined_text(sources), sources[0].flags
        return compile_cubin(text, self.launcher.architecture, self._cache, flags)

    def build(self, *sources: GpuSource) -> CudaModule:
        launcher, cubin = self.launcher, self._cubin(*sources)
        try:
            module = launcher.load(cubin.data)
        except ToolchainError as error:
            raise ToolchainError(
                f"the driver does not take what {cubin.compiler} made: {error}; if it is older, it "
                "needs an older nvidia-cuda-nvrtc"
            ) from None
        functions = {
            k.symbol: launcher.function(module, k.symbol, len(k.sizes), len(k.tensors))
            for source in sources
            for k in source.kernels
        }
        made = CudaModule(cubin, functions)
        finalize(made, _unload, launcher, module).atexit = False
        return made

    # --- memory ---------------------------------------------------------------------------------

    def allocate(self, count: int) -> int:
        return self.launcher.allocate(count)

    def free(self, handle: int) -> None:
        self.launcher.free(handle)

    def part(self, handle: int, start: int, count: int) -> int:
        return handle + start

    def write(self, handle: int, array: Array, stream: CudaStream) -> None:
        if array.nbytes:
            self.launcher.write(handle, bytes_in(array), stream)

    def read(self, handle: int, array: Array, stream: CudaStream) -> None:
        if array.nbytes:
            self.launcher.read(bytes_in(array), handle, stream)
        else:
            self.wait(stream)

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        if count:
            self.launcher.copy(to, origin, count, stream)

    def wait(self, stream: CudaStream) -> None:
        self.launcher.wait(stream)

    def locate(self, handle: int) -> tuple[str, int]:
        return self.name, handle

    # --- kernels --------------------------------------------------------------------------------

    def launch(
        self,
        module: CudaModule,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[int],
        stream: CudaStream,
    ) -> None:
        function = module.functions[kernel.symbol]
        self.launcher.launch(function, grid, kernel.block, sizes, handles, stream)

    def record(self, launches: Sequence[KernelLaunch]) -> Callable[[CudaStream], None]:
        return _Replay(self.launcher, super().record(launches))

    def stream(self, value: Any) -> CudaStream:
        if value is None:
            return CudaStream()
        handle: Any = value
        try:
            if hasattr(value, "__cuda_stream__"):  # a method; an attribute at first
                pair = value.__cuda_stream__
                _, handle = pair() if callable(pair) else pair
            else:
                for name in ("cuda_stream", "ptr", "handle"):  # of torch, CuPy, pycuda and numba
                    if hasattr(value, name):
                        handle = getattr(value, name)
                        break
            if isinstance(handle, ctypes.c_void_p):
                handle = handle.value or 0
            handle = getattr(handle, "value", handle)
            if isinstance(handle, (bool, str, float)) or int(handle) < 0:
                raise TypeError
            return _stream(int(handle), value)
        except (TypeError, ValueError):
            raise ArgumentError(
                f"stream= is a {type(value).__name__}, expected CUDA's handle of a stream or an "
                "object that has one"
            ) from None

    # --- arrays of others -----------------------------------------------------------------------

    def foreign_stream(self, value: Any) -> CudaStream | None:
        torch = sys.modules.get("torch")
        try:
            if torch is not None and isinstance(value, torch.Tensor):
                # Neither interface says.  Torch never destroys a stream.
                return _stream(torch.cuda.current_stream(value.device).cuda_stream)
            handle = value.__cuda_array_interface__.get("stream")
            return None if handle is None else _stream(int(handle), brief=True)
        except Exception:  # it has none, or will say why it refuses when it is borrowed
            return None

    def may_end(self, stream: CudaStream) -> bool:
        return stream.brief

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], Shape]:
        lent = None if isinstance(value, DeviceArray) else borrow(name, value, 0)
        return super().describe(name, value) if lent is None else (lent.dtype, lent.shape)

    def foreign(self, name: str, value: Any, stream: CudaStream) -> Operand | None:
        lent = borrow(name, value, stream.handle)
        if lent is None or lent.device == (HOST, 0):
            return None
        owner = lent.device
        if owner is None and lent.address and 0 not in lent.shape:
            known = self.launcher.number_of(lent.address)
            owner = None if known is None else (CUDA, known)
        if owner not in (None, self.dlpack, (CUDA_MANAGED, 0)):
            kind, number = owner
            where = f"cuda:{number}" if kind == CUDA else f"a device of kind {kind} in DLPack"
            raise ArgumentError(f"{name} is on {where}, but the program runs on {self.name}")
        if lent.stream is not None and _stream(lent.stream) != stream:
            self.wait(_stream(lent.stream))
        return Operand(
            lent.address, lent.shape, lent.dtype, lent.contiguous, lent.writeable, owner=lent
        )


def _unload(launcher: Launcher, module: Any) -> None:
    with contextlib.suppress(ToolchainError):  # nobody could handle it
        launcher.unload(module)


class _Replay:
    """Run launches one by one at first, which loads the kernels; then as a graph."""

    def __init__(self, launcher: Launcher, plain: Callable[[CudaStream], None]) -> None:
        self._launcher, self._plain = launcher, plain
        self._graph: Callable[[CudaStream], None] | None = None
        self._runs = 0

    def __call__(self, stream: CudaStream) -> None:
        self._runs += 1
        if self._graph is None and 1 < self._runs < 2 + _ATTEMPTS:
            # A driver that cannot capture them can still run them.
            with contextlib.suppress(ToolchainError):
                self._graph = self._launcher.record(self._plain)
        (self._graph or self._plain)(stream)


def _stream(handle: int, owner: Any = None, brief: bool = False) -> CudaStream:
    """The stream with a handle; the default stream, which has two names, never ends."""
    return CudaStream() if handle in (0, _LEGACY) else CudaStream(handle, owner, brief)
