"""The part of `pycuda.driver` that Farkas uses, on top of whatever ``libcuda.so.1`` there is.

As in pycuda, memory is given back by the thread that has the context, streams of others are no
streams, and the arguments of a kernel are packed into one buffer.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import numpy as np

_cuda = ctypes.CDLL("libcuda.so.1")
_u64, _size = ctypes.c_uint64, ctypes.c_size_t
_current = threading.local()


class Error(Exception):
    pass


class MemoryError(Error):
    pass


def _call(name: str, *arguments: Any) -> None:
    code = _cuda[name](*arguments)
    if code:
        text = ctypes.c_char_p()
        _cuda.cuGetErrorString(code, ctypes.byref(text))
        assert text.value is not None
        kind = MemoryError if code == 2 else Error
        raise kind(f"{name} failed: {text.value.decode()}")


def init() -> None:
    _call("cuInit", 0)


class Context:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def push(self) -> None:
        _call("cuCtxPushCurrent_v2", self._handle)
        _current.stack = [*getattr(_current, "stack", []), self]

    def detach(self) -> None:
        _call("cuDevicePrimaryCtxRelease_v2", 0)

    @staticmethod
    def pop() -> None:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        _current.stack = _current.stack[:-1]

    @staticmethod
    def synchronize() -> None:
        _call("cuCtxSynchronize")


class device_attribute:  # noqa: N801
    MULTIPROCESSOR_COUNT = 16


class Device:
    def __init__(self, number: int) -> None:
        self._number = number

    @staticmethod
    def count() -> int:
        count = ctypes.c_int()
        _call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def name(self) -> str:
        name = ctypes.create_string_buffer(256)
        _call("cuDeviceGetName", name, 256, self._number)
        return name.value.decode()

    def compute_capability(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        place = ctypes.byref(major), ctypes.byref(minor)
        _call("cuDeviceComputeCapability", *place, self._number)
        return major.value, minor.value

    def get_attribute(self, which: int) -> int:
        value = ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(value), which, self._number)
        return value.value

    def retain_primary_context(self) -> Context:
        handle = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), self._number)
        return Context(handle)


class DeviceAllocation:
    def __init__(self, address: int) -> None:
        self._address = address

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        if not getattr(_current, "stack", []):
            raise Error("cannot activate out-of-thread context")
        _call("cuMemFree_v2", _u64(self._address))


def mem_alloc(count: int) -> DeviceAllocation:
    address = _u64()
    _call("cuMemAlloc_v2", ctypes.byref(address), _size(count))
    return DeviceAllocation(address.value)


class Stream:
    def __init__(self) -> None:
        handle = _u64()
        _call("cuStreamCreate", ctypes.byref(handle), 0)
        self.handle = handle.value

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", _u64(self.handle))


def _stream(stream: Stream | None) -> Any:
    if stream is not None and not isinstance(stream, Stream):
        raise TypeError(f"no stream: {stream!r}")
    return _u64(0 if stream is None else stream.handle)


def memcpy_htod_async(dest: int, src: Any, stream: Stream | None = None) -> None:
    data = np.frombuffer(src, np.uint8)
    place = ctypes.c_void_p(data.ctypes.data)
    _call("cuMemcpyHtoDAsync_v2", _u64(dest), place, _size(data.nbytes), _stream(stream))


def memcpy_dtoh_async(dest: Any, src: int, stream: Stream | None = None) -> None:
    data = np.frombuffer(dest, np.uint8)
    place = ctypes.c_void_p(data.ctypes.data)
    _call("cuMemcpyDtoHAsync_v2", place, _u64(src), _size(data.nbytes), _stream(stream))


def memcpy_dtod_async(dest: int, src: int, size: int, stream: Stream | None = None) -> None:
    _call("cuMemcpyDtoDAsync_v2", _u64(dest), _u64(src), _size(size), _stream(stream))


class Function:
    arg_format = ""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def prepare(self, arg_types: Any) -> Function:
        self.arg_format = "".join(arg_types)
        return self

    def prepared_async_call(self, grid: Any, block: Any, stream: Stream | None, *args: int) -> None:
        data = ctypes.create_string_buffer(struct.pack(self.arg_format, *args))
        size = _size(struct.calcsize(self.arg_format))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), None)
        shape = [ctypes.c_uint(n) for n in (*grid, *block, 0)]
        _call("cuLaunchKernel", self._handle, *shape, _stream(stream), None, extra)


class Module:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def get_function(self, name: str) -> Function:
        function = ctypes.c_void_p()
        _call("cuModuleGetFunction", ctypes.byref(function), self._handle, name.encode())
        return Function(function)


def module_from_buffer(buffer: bytes) -> Module:
    module = ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), buffer)
    return Module(module)
