"""The interface of devices, and the arrays in their memory.

Each kind of access has its own `Device`: `runtime.cuda.device`, `runtime.gpu.opencl`,
`runtime.gpu.emulator`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource
from poly.errors import ArgumentError
from poly.machine.gpu import ANY, GpuMachine
from runtime.common.arguments import Array, Shape
from runtime.common.cache import Cache
from runtime.gpu.interop import HOST, cuda_interface, dlpack_capsule
from runtime.gpu.memory_pool import DeviceBuffer, Pool, Residents
from runtime.tuned.record_file import TunedSchedules, record_file


@dataclass(frozen=True)
class Operand:
    """An array in the device's memory that is used without a copy.

    handle : the device's name for its memory; owner : keeps that alive
    """

    handle: Any
    shape: Shape
    dtype: np.dtype[Any]
    contiguous: bool = True
    writeable: bool = True
    owner: Any = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel of a module with its grid in x, y and z, and its arguments."""

    module: Any
    kernel: GpuKernel
    grid: tuple[int, int, int]
    sizes: tuple[int, ...]
    handles: tuple[Any, ...]


class Device(ABC):
    """A device that runs kernels.

    Memory handles are whatever the device defines, and so are streams.  Work on one stream is done
    in order; `default_stream` is that of a call that does not give one.

    name : as `find_device` takes it; dialect : of the text that it takes
    machine : the properties that schedules depend on
    dlpack : kind and number of the device in DLPack, None if it does not exchange arrays that way
    """

    name: str
    dialect: str
    machine: GpuMachine = ANY
    default_stream: Hashable = None
    dlpack: tuple[int, int] | None = None
    #: Alignment in bytes of parts of a memory, see `part`: a cache line.
    alignment: int = 128
    #: Whether times on it say anything; on an emulator they do not.
    is_timed: bool = True
    #: Keeps compiled kernels.
    _cache: Cache | None = None

    def __init__(self) -> None:
        self.pool = Pool(self.allocate, self.free)
        self._residents = Residents(self._kept)

    def with_cache(self, cache: Cache) -> Device:
        """The same device with another cache for compiled kernels."""
        other = copy.copy(self)
        other._cache = cache
        return other

    def variant(self, name: str, machine: GpuMachine) -> Device:
        """The same device under another name and with other properties for schedules.

        Both have the same memory, and accept each other's arrays.
        """
        other = copy.copy(self)
        other.name, other.machine = name, machine
        return other

    def tuned(self, cache: Cache) -> TunedSchedules | None:
        """The schedules that were tuned on such a device; None if nothing can be timed on it."""
        if not self.is_timed:
            return None
        return TunedSchedules(record_file(cache, f"{self.dialect}; {self.machine}"), threads=1)

    def put(self, value: Any, stream: Any = None) -> DeviceArray:
        """A copy of a numpy array on the device.

        Raises
        ------
        ArgumentError : `value` is not an array, the stream does not belong to the device, or there
            is not enough memory.
        """
        if not isinstance(value, (np.ndarray, np.generic)) or isinstance(value, np.ma.MaskedArray):
            raise ArgumentError(f"put takes a numpy array, not a {type(value).__name__}")
        array = np.asarray(value)
        if array.dtype.hasobject or not array.dtype.isnative:
            raise ArgumentError(f"put takes native numbers, not {array.dtype}")
        array = np.ascontiguousarray(array).reshape(array.shape)
        found = self.stream(stream)
        buffer = self.pool.take(array.nbytes, found)
        self.write(buffer.handle, array, found)
        self.wait(found)
        return DeviceArray(self, buffer, array.shape, array.dtype, found, done=True)

    def resident(self, array: Array) -> DeviceBuffer:
        """Memory with the bytes of a constant; equal constants share it.

        Raises
        ------
        ArgumentError : there is not enough memory.
        """
        return self._residents.get(np.ascontiguousarray(array).reshape(array.shape))

    def _kept(self, array: Array) -> DeviceBuffer:
        buffer = self.pool.take(array.nbytes, self.default_stream)
        buffer.lent = True  # any stream may read it
        self.write(buffer.handle, array, self.default_stream)
        self.wait(self.default_stream)
        return buffer

    def record(self, launches: Sequence[KernelLaunch]) -> Callable[[Any], None]:
        """A function of a stream that launches kernels on it, one after the other.

        The caller keeps their memory alive, and orders the calls.
        """

        def replay(stream: Any) -> None:
            for x in launches:
                self.launch(x.module, x.kernel, x.grid, x.sizes, x.handles, stream)

        return replay

    # --- implemented by each device -------------------------------------------------------------

    @abstractmethod
    def build(self, *sources: GpuSource) -> Any:
        """A module of the compiled kernels of sources.

        Raises
        ------
        ToolchainError : with the compiler's output.
        """

    def compile(self, source: GpuSource) -> None:
        """Compile a source before `build` does, where that needs nothing but a compiler.

        Raises
        ------
        ToolchainError, CacheError : as for `build`.
        """
        return

    @abstractmethod
    def allocate(self, count: int) -> Any:
        """Allocate `count` bytes.  Raises `MemoryError` if they are not available."""

    @abstractmethod
    def free(self, handle: Any) -> None:
        """Free memory, after all work on it."""

    @abstractmethod
    def part(self, handle: Any, start: int, count: int) -> Any:
        """Part of a memory, of at least one byte; `start` is a multiple of `alignment`."""

    @abstractmethod
    def write(self, handle: Any, array: Array, stream: Any) -> None:
        """Copy a C-contiguous array to the device; the array may be read until `wait`."""

    @abstractmethod
    def read(self, handle: Any, array: Array, stream: Any) -> None:
        """Copy to a C-contiguous array, after all earlier work on the stream."""

    @abstractmethod
    def copy(self, to: Any, origin: Any, count: int, stream: Any) -> None:
        """Copy `count` bytes on the device."""

    @abstractmethod
    def wait(self, stream: Any) -> None:
        """Wait for everything on a stream.  Raises `ToolchainError` if a kernel failed."""

    @abstractmethod
    def launch(
        self,
        module: Any,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[Any],
        stream: Any,
    ) -> None:
        """Launch a kernel."""

    @abstractmethod
    def stream(self, value: Any) -> Any:
        """The stream for an argument ``stream=``; the default one for None.

        Raises
        ------
        ArgumentError : it is not a stream of the device.
        """

    @abstractmethod
    def locate(self, handle: Any) -> tuple[Hashable, int]:
        """The memory that a handle is a part of, and the offset in bytes at which it begins."""

    def fetch(self, name: str, value: Any, stream: Any) -> Array:
        """A copy of an array on the device as a numpy array.

        Raises
        ------
        ArgumentError : it is on another device, cannot be borrowed, or is not C-contiguous.
        """
        operand = self.operand(name, value, stream)
        if not operand.contiguous:
            raise ArgumentError(f"{name} is not C-contiguous; make a contiguous copy on its device")
        array = np.empty(operand.shape, operand.dtype)
        self.read(operand.handle, array, stream)
        return array

    # --- arrays of other libraries ----------------------------------------------------------------

    def foreign_stream(self, value: Any) -> Any:
        """The stream that another library's array is computed on; None if it does not say."""
        return None

    def may_end(self, stream: Any) -> bool:
        """Whether a stream may be destroyed before the results of its work are used."""
        return False

    def leave(self, stream: Any, arrays: Iterable[Any], waits: bool) -> None:
        """Finish a call on a stream with some arrays, waiting for the stream if necessary."""
        ends = self.may_end(stream)
        if waits or ends:
            self.wait(stream)
        for array in arrays if ends else ():
            if isinstance(array, DeviceArray):
                array.forget(stream)

    def foreign(self, name: str, value: Any, stream: Any) -> Operand | None:
        """An array of another library on this device, synchronised with the stream.

        None for an array in host memory.

        Raises
        ------
        ArgumentError : it is on another device, or cannot be borrowed; the message has `name`.
        """
        return None

    def holds(self, value: Any) -> bool:
        """Whether an array is in the memory of this or another device."""
        if isinstance(value, (np.ndarray, np.generic)):
            return False
        if isinstance(value, DeviceArray):
            return True
        try:
            kind = getattr(value, "__dlpack_device__", None)
            if kind is not None and kind()[0] != HOST:
                return True
            return hasattr(value, "__cuda_array_interface__")
        except Exception:  # e.g. a tensor that requires a gradient: reported when it is borrowed
            return True

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], Shape]:
        """Element type and shape of an array on a device, without synchronisation.

        Raises
        ------
        ArgumentError : it cannot be borrowed.
        """
        if isinstance(value, DeviceArray):
            return value.dtype, value.shape
        raise self._elsewhere(name, value)

    def check_threads(self, threads: Any) -> None:
        """Refuse a number of threads, which only CPUs have.

        Raises
        ------
        ArgumentError : it is not None.
        """
        if threads is not None:
            raise ArgumentError(f"threads= is not supported on {self.name}; omit it")

    def stream_of_call(self, asked: Any, arrays: Iterable[Any]) -> Any:
        """The stream of a call: the one given, else that of the first array that names its own,
        else the default one.

        arrays : those of the call that are on a device

        Raises
        ------
        ArgumentError : the given one is not a stream of the device.
        """
        if asked is not None:
            return self.stream(asked)
        found = (self.stream_of(a) for a in arrays)
        return next((s for s in found if s is not None), self.default_stream)

    def stream_of(self, value: Any) -> Any:
        """The stream that an array on the device is computed on; None if it does not say."""
        if isinstance(value, DeviceArray):
            return value.stream if value.device.pool is self.pool else None
        return self.foreign_stream(value)

    def is_apart(self, arrays: Iterable[Any], stream: Any) -> bool:
        """Whether other work may use one of the arrays, or reuse its memory, before the work on a
        stream has finished.
        """
        others = (a for a in arrays if not isinstance(a, DeviceArray))
        return any(self.stream_of(a) != stream for a in others)

    def operand(self, name: str, value: Any, stream: Any, writes: bool = False) -> Operand:
        """An array on this device, ready for use on the stream.

        writes : whether it will be written, and so must also wait for its readers

        Raises
        ------
        ArgumentError : it is on another device, or cannot be borrowed.
        """
        if isinstance(value, DeviceArray):
            if value.device.pool is not self.pool:
                raise ArgumentError(
                    f"{name} is on {value.device.name}, but the program runs on {self.name}"
                )
            return value.on(stream, writes)
        found = self.foreign(name, value, stream)
        if found is None:
            raise self._elsewhere(name, value)
        return found

    def _elsewhere(self, name: str, value: Any) -> ArgumentError:
        return ArgumentError(
            f"{name} is a {type(value).__name__} that is not on {self.name}, where the "
            "program runs; copy it there first"
        )


class DeviceArray:
    """A C-contiguous array in a device's memory, made by `Device.put` or by a call.

    Other libraries take it without a copy: CUDA's by ``__dlpack__`` (``torch.from_dlpack``) and
    ``__cuda_array_interface__``; for OpenCL, `handle` is a ``pyopencl.Buffer``.

    shape, dtype : as numpy's; device : the device that holds it
    stream : the one on which it was last written
    done : whether that write has finished
    """

    def __init__(
        self,
        device: Device,
        buffer: DeviceBuffer,
        shape: Shape,
        dtype: np.dtype[Any],
        stream: Any,
        done: bool = False,
    ) -> None:
        self.device, self.shape, self.dtype, self.stream = device, shape, dtype, stream
        self._buffer, self._done = buffer, done
        self._readers: set[Hashable] = set()

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on {self.device.name}>"

    @property
    def handle(self) -> Any:
        """The device's handle of the memory: an address, or a buffer."""
        self._buffer.lent = True
        return self._buffer.handle

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * prod(self.shape)

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Refuse numpy's implicit conversion, which would copy to the host."""
        raise TypeError(f"{self!r} is not converted implicitly; use .numpy() to copy it")

    def numpy(self) -> Array:
        """A copy as a numpy array, after all writes to it."""
        array = np.empty(self.shape, self.dtype)
        self.device.read(self._buffer.handle, array, self.stream)
        return array

    def on(self, stream: Any, writes: bool = False) -> Operand:
        """The array for use on a stream, after writes to it; if `writes`, also after its reads."""
        return Operand(self.used(stream, writes), self.shape, self.dtype, owner=self)

    def shares(self, other: DeviceArray) -> bool:
        """Whether both have the same memory: each has its own, but for copies of the object."""
        return self._buffer is other._buffer

    def used(self, stream: Any, writes: bool = False) -> Any:
        """The handle of its memory for such a use."""
        if not self._done and self.stream != stream:
            self.device.wait(self.stream)
            self._done = True
        if writes:
            for reader in self._readers - {stream}:
                self.device.wait(reader)
            self._readers.clear()
            self.stream, self._done = stream, False
        else:
            self._readers.add(stream)
        if stream != self._buffer.stream:
            self._buffer.lent = True
        return self._buffer.handle

    def forget(self, stream: Any) -> None:
        """Drop the reference to a stream on which all work has finished."""
        self._readers.discard(stream)
        if self.stream == stream:
            self.stream, self._done = self.device.default_stream, True

    # --- for other libraries --------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for libraries that use CUDA; version 3."""
        if self.device.dlpack is None or self.device.dlpack[0] == HOST:
            raise AttributeError(f"{self!r} is not in the memory of a CUDA device")
        self._buffer.lent = True
        return cuda_interface(self._buffer.handle, self.shape, self.dtype, int(self.stream))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device."""
        if self.device.dlpack is None:
            raise BufferError(f"arrays on {self.device.name} are not exchanged by DLPack")
        return self.device.dlpack

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A capsule of version 0.8, which every consumer accepts.

        stream : the consumer's, which waits for writes to the array; -1 for no waiting
        """
        here = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != here):
            raise BufferError("an array on a device is exchanged without a copy; omit copy=True")
        if stream != -1 and not self._done:
            self.device.wait(self.stream)
        self._buffer.lent = True
        handle = self._buffer.handle
        address = handle if isinstance(handle, int) else handle.ctypes.data
        return dlpack_capsule(address, self.shape, self.dtype, here, self)


def bytes_in(array: Array) -> Array:
    """The bytes of a contiguous array: Python has no buffer for some element types."""
    return array.reshape(-1).view(np.uint8)
