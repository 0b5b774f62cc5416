"""Kernels through OpenCL: GPUs and, with PoCL, CPUs.  Needs ``pip install '.[opencl]'``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource, joined_text
from poly.errors import ArgumentError, ToolchainError
from poly.machine.gpu import GpuMachine
from runtime.common.arguments import Array, Shape
from runtime.common.cache import Cache, digest
from runtime.cpu.toolchain import first_lines
from runtime.gpu.device import Device, KernelLaunch, Operand, bytes_in

_BINARY = "program.bin"
#: Unrolling hints are useless on CPUs: for unrolled loops with two conditions, PoCL 3.0 generates
#: wrong code; Intel's compiler does not, nor does PoCL without optimisation.
_ROLLED = re.compile(r"^ *#pragma unroll.*\n", re.MULTILINE)
#: A NaN that compilers cannot see through: PoCL 3 has its own rounding and other functions, which
#: do not handle NaN, and where it folds ``ceil(NAN)`` itself, the result is undefined.
_NAN = re.compile(r"\bNAN\b")
_UNSEEN = """static inline float fk_nan(void)
{ volatile uint bits = 0x7fc00000; return as_float(bits); }
"""


def _for_cpus(text: str) -> str:
    """A text without constructs that OpenCL for CPUs miscompiles."""
    text = _ROLLED.sub("", text)
    return _UNSEEN + _NAN.sub("fk_nan()", text) if _NAN.search(text) else text


class OpenClDevice(Device):
    """One OpenCL device, with one queue.

    which : its number, GPUs first, or part of the name of a device or of its platform; by default
        the first GPU, else the first device
    cache : keeps compiled kernels

    Attributes
    ----------
    device, context, queue : pyopencl's; arrays of other code must belong to this context, and a
        stream is an in-order queue of it

    Raises
    ------
    ToolchainError : pyopencl is missing or broken, or there is no platform or no such device.
    """

    dialect = "opencl"

    def __init__(self, which: str = "", cache: Cache | None = None) -> None:
        super().__init__()
        self._cl = cl = _pyopencl()
        self.name = f"opencl:{which}" if which else "opencl"
        self.device = _choose(_devices(cl), which)
        self.context = cl.Context([self.device])
        self.queue = self.default_stream = cl.CommandQueue(self.context)
        self.alignment = max(self.alignment, self.device.mem_base_addr_align // 8)  # of bits
        if self.device.type & cl.device_type.GPU:
            self.machine = GpuMachine("opencl", self.device.max_compute_units)
        self._cache = cache
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenClDevice {_name(self.device)}>"

    def build(self, *sources: GpuSource) -> dict[str, Any]:
        program = self._program(joined_text(sources))
        return {k.symbol: self._cl.Kernel(program, k.symbol) for s in sources for k in s.kernels}

    def _program(self, text: str) -> Any:
        """A program that is compiled, through the cache if there is one."""
        cl, device = self._cl, self.device
        if device.type & cl.device_type.CPU:
            text = _for_cpus(text)
        if self._cache is None:
            return self._compile(text)
        names = (device.platform.name, device.platform.version, device.name, device.version)
        key = digest("opencl", text, *names, device.driver_version)
        entry = self._cache.get(key)
        if entry is not None:
            try:
                binary = entry.read(_BINARY)
                return cl.Program(self.context, [device], [binary]).build(cache_dir=False)
            except cl.Error:  # a driver may refuse a binary that it made under another name
                self._cache.discard(key)
        program = self._compile(text)
        (binary,) = program.get_info(cl.program_info.BINARIES)
        if binary:
            self._cache.keep(key, {_BINARY: binary, "kernels.cl": text.encode()})
        return program

    def _compile(self, text: str) -> Any:
        try:
            # Without pyopencl's own cache, which is in another folder, and without messages about
            # loops that were not unrolled.
            return self._cl.Program(self.context, text).build(["-w"], cache_dir=False)
        except self._cl.RuntimeError as error:
            raise ToolchainError(f"OpenCL's compiler failed:\n{first_lines(str(error))}") from None

    # --- memory ---------------------------------------------------------------------------------

    def allocate(self, count: int) -> Any:
        cl = self._cl
        try:
            return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, count)
        except (cl.MemoryError, cl.LogicError) as error:  # not enough now, or never enough
            raise MemoryError from error

    def free(self, handle: Any) -> None:
        handle.release()  # itself waits for work on it

    def part(self, handle: Any, start: int, count: int) -> Any:
        return handle.get_sub_region(start, count)

    def write(self, handle: Any, array: Array, stream: Any) -> None:
        if array.nbytes:
            with self._said("the copy to the device failed"):
                self._cl.enqueue_copy(stream, handle, bytes_in(array), is_blocking=False)

    def read(self, handle: Any, array: Array, stream: Any) -> None:
        if array.nbytes:
            with self._said("a kernel, or the copy from the device, failed"):
                self._cl.enqueue_copy(stream, bytes_in(array), handle)

    def copy(self, to: Any, origin: Any, count: int, stream: Any) -> None:
        if count:
            with self._said("the copy on the device failed"):
                self._cl.enqueue_copy(stream, to, origin, byte_count=count)

    def wait(self, stream: Any) -> None:
        with self._said("a kernel failed"):
            stream.finish()

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Raise pyopencl's errors as `ToolchainError`."""
        try:
            yield
        except self._cl.Error as error:  # memory that is short, too, which some drivers find late
            raise ToolchainError(f"{what}: {error}") from None

    def locate(self, handle: Any) -> tuple[Hashable, int]:
        info = self._cl.mem_info
        whole = handle.get_info(info.ASSOCIATED_MEMOBJECT)
        start = handle.get_info(info.OFFSET) if whole is not None else 0
        return ("opencl", (handle if whole is None else whole).int_ptr), int(start)

    # --- kernels --------------------------------------------------------------------------------

    def stream(self, value: Any) -> Any:
        if value is None:
            return self.queue
        if not isinstance(value, self._cl.CommandQueue) or value.context != self.context:
            raise ArgumentError(f"stream= is not a queue of the context of {self.name}")
        if value.properties & self._cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
            raise ArgumentError("stream= is a queue that does not run in order")
        return value

    def launch(
        self,
        module: dict[str, Any],
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[Any],
        stream: Any,
    ) -> None:
        total = tuple(g * b for g, b in zip(grid, kernel.block, strict=True))
        # A kernel object holds the arguments of its next launch.
        with self._lock, self._said(f"{kernel.symbol} cannot be started"):
            module[kernel.symbol](stream, total, kernel.block, *map(np.int64, sizes), *handles)

    def record(self, launches: Sequence[KernelLaunch]) -> Callable[[Any], None]:
        cl = self._cl
        made = []
        with self._said("the launches cannot be recorded"):
            for x in launches:
                # One object per launch, which keeps its arguments.
                known = x.module[x.kernel.symbol]
                kernel = cl.Kernel(known.get_info(cl.kernel_info.PROGRAM), x.kernel.symbol)
                kernel.set_args(*map(np.int64, x.sizes), *x.handles)
                total = tuple(g * b for g, b in zip(x.grid, x.kernel.block, strict=True))
                made.append((kernel, total, x.kernel.block))

        def replay(stream: Any) -> None:
            with self._said("a kernel cannot be started"):
                for kernel, total, block in made:
                    cl.enqueue_nd_range_kernel(stream, kernel, total, block)

        return replay

    # --- arrays of pyopencl ---------------------------------------------------------------------

    def holds(self, value: Any) -> bool:
        return self._is_array(value) or super().holds(value)

    def foreign_stream(self, value: Any) -> Any:
        mine = self._is_array(value) and value.queue is not None
        return value.queue if mine and value.queue.context == self.context else None

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], Shape]:
        if self._is_array(value):
            return value.dtype, tuple(value.shape)
        return super().describe(name, value)

    def foreign(self, name: str, value: Any, stream: Any) -> Operand | None:
        if not self._is_array(value):
            return None
        if value.context != self.context:
            raise ArgumentError(
                f"{name} belongs to another context of OpenCL; make it on the queue of the device"
            )
        if value.queue is not None and value.queue != stream:
            value.queue.finish()
        for event in value.events:
            event.wait()
        memory = value.base_data
        if value.offset and value.nbytes:
            try:
                memory = memory.get_sub_region(value.offset, value.nbytes)
            except self._cl.Error:
                raise ArgumentError(
                    f"{name} begins {value.offset} bytes after the start of its buffer, which "
                    f"{self.name} cannot use without a copy"
                ) from None
        return Operand(
            memory, value.shape, value.dtype, bool(value.flags.c_contiguous), owner=value
        )

    def _is_array(self, value: Any) -> bool:
        if type(value).__module__.partition(".")[0] == "numpy":
            return False
        from pyopencl.array import Array as ClArray

        return isinstance(value, ClArray)


# --- finding a device ---------------------------------------------------------------------------


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ModuleNotFoundError as error:
        if error.name != "pyopencl":
            raise ToolchainError(f"pyopencl is installed but needs {error.name}") from None
        raise ToolchainError(
            "OpenCL needs pyopencl: pip install '.[opencl]' in a clone of Farkas"
        ) from None
    except ImportError as error:
        raise ToolchainError(f"pyopencl is installed but cannot be imported: {error}") from None
    return pyopencl


def _devices(cl: Any) -> list[Any]:
    """All devices, GPUs first."""
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # pyopencl's way to say that there is none
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
    usable = [device for device in found if not _is_unknown(device)]
    if not usable:
        version = found[0].platform.version.partition("  ")[0].strip()
        raise ToolchainError(
            f"{version} {UNKNOWN_PROCESSOR}, and compiles nothing for it; install a later PoCL: "
            "apt install pocl-opencl-icd, or conda install pocl"
        )
    return sorted(usable, key=lambda d: not d.type & cl.device_type.GPU)


#: What is wrong with a PoCL that is older than the processor.
UNKNOWN_PROCESSOR = "does not know this processor"


def _is_unknown(device: Any) -> bool:
    """Whether a PoCL has no name for the processor: its compiler refuses the one that it uses."""
    return re.search(r"pthread-\S+-generic$", device.version.strip()) is not None


def _devices_of(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without a device may raise an error
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
