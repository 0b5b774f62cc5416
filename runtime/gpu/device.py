"""What a device can do, and the arrays that lie on one.

There is a `Device` for each way to reach one: `runtime.cuda.device`, `runtime.gpu.opencl`,
`runtime.gpu.emulator`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource
from poly.errors import ArgumentError
from poly.machine.gpu import ANY, GpuMachine
from runtime.common.arguments import Array, Shape
from runtime.common.cache import Cache
from runtime.gpu.interop import HOST, cuda_interface, dlpack_capsule
from runtime.gpu.memory_pool import DeviceBuffer, Pool, Residents


@dataclass(frozen=True)
class Operand:
    """An array that lies on the device and is used as it is.

    handle : what the device calls its memory; owner : keeps that alive
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
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class KernelLaunch:
    """The start of a kernel of a module: blocks in x, y and z, and what it takes."""

    module: Any
    kernel: GpuKernel
    grid: tuple[int, int, int]
    sizes: tuple[int, ...]
    handles: tuple[Any, ...]


class Device(ABC):
    """Where kernels run.

    A handle of memory is whatever the device says it is, and so is a stream.  Work on one stream
    is done in the order in which it is given; `default_stream` is that of a call that does not say.

    name : as `find_device` takes it; dialect : of the text that it takes
    machine : what a schedule has to know of it
    dlpack : kind and number of the device in DLPack, None if arrays are not exchanged so
    """

    name: str
    dialect: str
    machine: GpuMachine = ANY
    default_stream: Hashable = None
    dlpack: tuple[int, int] | None = None
    #: Bytes of memory that a part of it begins at a multiple of, see `part`: a line of a cache.
    alignment: int = 128
    #: Keeps compiled kernels.
    _cache: Cache | None = None

    def __init__(self) -> None:
        self.pool = Pool(self.allocate, self.free)
        self._residents = Residents(self._kept)

    def with_cache(self, cache: Cache) -> Device:
        """The same device with another place for compiled kernels."""
        other = copy.copy(self)
        other._cache = cache
        return other

    def variant(self, name: str, machine: GpuMachine) -> Device:
        """The same device under another name, for which schedules are made otherwise.

        Both have the same memory, and take each other's arrays.
        """
        other = copy.copy(self)
        other.name, other.machine = name, machine
        return other

    def put(self, value: Any, stream: Any = None) -> DeviceArray:
        """A copy of a numpy array on the device.

        Raises
        ------
        ArgumentError : `value` is no array, the stream none of the device, or there is no room.
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
        """Memory with the bytes of a constant; equal ones share it.

        Raises
        ------
        ArgumentError : there is no room for it.
        """
        return self._residents.get(np.ascontiguousarray(array).reshape(array.shape))

    def _kept(self, array: Array) -> DeviceBuffer:
        buffer = self.pool.take(array.nbytes, self.default_stream)
        buffer.lent = True  # whatever stream reads it
        self.write(buffer.handle, array, self.default_stream)
        self.wait(self.default_stream)
        return buffer

    def record(self, launches: Sequence[KernelLaunch]) -> Callable[[Any], None]:
        """A function of a stream that starts kernels there, one after the other.

        Whoever calls it keeps their memory, and has one call follow the other.
        """

        def replay(stream: Any) -> None:
            for x in launches:
                self.launch(x.module, x.kernel, x.grid, x.sizes, x.handles, stream)

        return replay

    # --- what each device does in its own way ---------------------------------------------------

    @abstractmethod
    def build(self, *sources: GpuSource) -> Any:
        """A module of the compiled kernels of sources.

        Raises
        ------
        ToolchainError : with the compiler's words.
        """

    @abstractmethod
    def allocate(self, count: int) -> Any:
        """Memory of so many bytes.  Raises `MemoryError` where there is no room for it."""

    @abstractmethod
    def free(self, handle: Any) -> None:
        """Give memory back, behind everything that is at work on it."""

    @abstractmethod
    def part(self, handle: Any, start: int, count: int) -> Any:
        """So many bytes of memory as memory, at least one, from a multiple of `alignment` on."""

    @abstractmethod
    def write(self, handle: Any, array: Array, stream: Any) -> None:
        """Copy a C-contiguous array to the device; it may be used until `wait`."""

    @abstractmethod
    def read(self, handle: Any, array: Array, stream: Any) -> None:
        """Copy to a C-contiguous array, when everything before on the stream has ended."""

    @abstractmethod
    def copy(self, to: Any, origin: Any, count: int, stream: Any) -> None:
        """Copy so many bytes on the device."""

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
        """Start a kernel."""

    @abstractmethod
    def stream(self, value: Any) -> Any:
        """The stream for an argument ``stream=``; the default one for None.

        Raises
        ------
        ArgumentError : it is no stream of the device.
        """

    @abstractmethod
    def place(self, handle: Any) -> tuple[Hashable, int]:
        """What the memory is a part of, and the byte of it at which it begins."""

    def fetch(self, name: str, value: Any, stream: Any) -> Array:
        """A copy of an array on the device as a numpy array.

        Raises
        ------
        ArgumentError : it lies on another device, cannot be taken, or is not C-contiguous.
        """
        operand = self.operand(name, value, stream)
        if not operand.contiguous:
            raise ArgumentError(f"{name} is not C-contiguous, and is not copied as it is")
        array = np.empty(operand.shape, operand.dtype)
        self.read(operand.handle, array, stream)
        return array

    # --- arrays of others -----------------------------------------------------------------------

    def foreign_stream(self, value: Any) -> Any:
        """The stream that an array of another library is made on; None if it does not say."""
        return None

    def may_end(self, stream: Any) -> bool:
        """Whether a stream may be destroyed before what is made on it is used."""
        return False

    def leave(self, stream: Any, arrays: Iterable[Any], waits: bool) -> None:
        """The end of a call on a stream with some arrays, which waits for it if it has to."""
        ends = self.may_end(stream)
        if waits or ends:
            self.wait(stream)
        for array in arrays if ends else ():
            if isinstance(array, DeviceArray):
                array.forget(stream)

    def foreign(self, name: str, value: Any, stream: Any) -> Operand | None:
        """An array of another library on this device, with what makes it done before the stream.

        None for what lies in the host's memory.

        Raises
        ------
        ArgumentError : it lies on another device, or cannot be taken; `name` says which one it is.
        """
        return None

    def holds(self, value: Any) -> bool:
        """Whether an array lies on a device, this or another one."""
        if isinstance(value, (np.ndarray, np.generic)):
            return False
        if isinstance(value, DeviceArray):
            return True
        try:
            kind = getattr(value, "__dlpack_device__", None)
            if kind is not None and kind()[0] != HOST:
                return True
            return hasattr(value, "__cuda_array_interface__")
        except Exception:  # a tensor that requires a gradient, say: that is told when it is taken
            return True

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], Shape]:
        """Element type and shape of an array on a device, which is not waited for.

        Raises
        ------
        ArgumentError : it cannot be taken.
        """
        if isinstance(value, DeviceArray):
            return value.dtype, value.shape
        raise self._elsewhere(name, value)

    def check_threads(self, threads: Any) -> None:
        """Refuse a number of threads, which a CPU has.

        Raises
        ------
        ArgumentError : it is not None.
        """
        if threads is not None:
            raise ArgumentError(f"threads= has no meaning on {self.name}")

    def stream_of_call(self, asked: Any, arrays: Iterable[Any]) -> Any:
        """The stream of a call: what is asked for, else that of the first array that names its own,
        else the default one.

        arrays : those of the call that lie on a device

        Raises
        ------
        ArgumentError : what is asked for is no stream of the device.
        """
        if asked is not None:
            return self.stream(asked)
        found = (self.stream_of(a) for a in arrays)
        return next((s for s in found if s is not None), self.default_stream)

    def stream_of(self, value: Any) -> Any:
        """The stream that an array on the device is made on; None if it does not say."""
        if isinstance(value, DeviceArray):
            return value.stream if value.device.pool is self.pool else None
        return self.foreign_stream(value)

    def is_apart(self, arrays: Iterable[Any], stream: Any) -> bool:
        """Whether somebody else may go on with one of some arrays, or have its memory for something
        else, before what is done on a stream has ended.
        """
        others = (a for a in arrays if not isinstance(a, DeviceArray))
        return any(self.stream_of(a) != stream for a in others)

    def operand(self, name: str, value: Any, stream: Any, writes: bool = False) -> Operand:
        """An array on this device, with what makes it done before what follows on the stream.

        writes : whether that writes it, and so must follow what reads it, too

        Raises
        ------
        ArgumentError : it lies on another device, or cannot be taken.
        """
        if isinstance(value, DeviceArray):
            if value.device.pool is not self.pool:
                raise ArgumentError(
                    f"{name} lies on {value.device.name}, but the program runs on {self.name}"
                )
            return value.on(stream, writes)
        found = self.foreign(name, value, stream)
        if found is None:
            raise self._elsewhere(name, value)
        return found

    def _elsewhere(self, name: str, value: Any) -> ArgumentError:
        return ArgumentError(
            f"{name} is a {type(value).__name__} that does not lie on {self.name}, where the "
            "program runs"
        )


class DeviceArray:
    """A C-contiguous array in a device's memory, made by `Device.put` or by a call.

    Other libraries take it without a copy: CUDA's by ``__dlpack__`` (``torch.from_dlpack``) and
    ``__cuda_array_interface__``; for OpenCL, `handle` is a ``pyopencl.Buffer``.

    shape, dtype : as numpy's; device : where it lies
    stream : the one on which it was last written
    done : whether that has ended
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
        """What the device calls the memory: an address, or a buffer."""
        self._buffer.lent = True
        return self._buffer.handle

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Refuse what numpy would do unasked, a copy to the host."""
        raise TypeError(f"{self!r} is not converted unasked; its copy for numpy is .numpy()")

    def numpy(self) -> Array:
        """A copy as a numpy array, when everything that writes it has ended."""
        array = np.empty(self.shape, self.dtype)
        self.device.read(self._buffer.handle, array, self.stream)
        return array

    def on(self, stream: Any, writes: bool = False) -> Operand:
        """The array for use on a stream, behind what writes it, or what uses it if this writes."""
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
        return Operand(self._buffer.handle, self.shape, self.dtype, owner=self)

    def forget(self, stream: Any) -> None:
        """Everything on a stream has ended, which is not asked for again."""
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
        """A capsule of version 0.8, which every consumer takes.

        stream : the consumer's, which begins behind what has been written; -1 for no waiting
        """
        place = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != place):
            raise BufferError("an array on a device is exchanged without a copy")
        if stream != -1 and not self._done:
            self.device.wait(self.stream)
        self._buffer.lent = True
        handle = self._buffer.handle
        address = handle if isinstance(handle, int) else handle.ctypes.data
        return dlpack_capsule(address, self.shape, self.dtype, place, self)


def bytes_in(array: Array) -> Array:
    """The bytes of a contiguous array: not all elements have a buffer in Python."""
    return array.reshape(-1).view(np.uint8)
