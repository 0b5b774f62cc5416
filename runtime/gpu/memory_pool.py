"""A pool of device memory: buffers return to it and are reused."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from poly.errors import ArgumentError, ToolchainError
from runtime.common.arguments import Array

#: The most bytes that a pool keeps.
_MOST_KEPT = 1 << 30
_GRAIN = 512


class DeviceBuffer:
    """Memory of a device; it returns to its pool when it is no longer referenced.

    handle : the device's handle; count : bytes, at least as many as were requested
    stream : the one whose work on it is done in order
    """

    __slots__ = ("__weakref__", "_pool", "count", "handle", "lent", "stream")

    def __init__(self, pool: Pool, handle: Any, count: int, stream: Hashable) -> None:
        self._pool, self.handle, self.count, self.stream = pool, handle, count, stream
        #: Whether other libraries or streams may still use it when it is returned.
        self.lent = False

    def release(self) -> None:
        """Return it to its pool now."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._pool.give(handle, self.count, self.stream, self.lent)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # errors here are never seen, and when the process
            self.release()  # ends, the driver may be gone


class Residents:
    """Constants on a device; equal contents are stored once, as long as they are referenced.

    put : returns a buffer with an array's bytes in it
    """

    def __init__(self, put: Callable[[Array], DeviceBuffer]) -> None:
        self._put, self._lock = put, threading.Lock()
        self._known: WeakValueDictionary[bytes, DeviceBuffer] = WeakValueDictionary()

    def get(self, array: Array) -> DeviceBuffer:
        """Memory with the bytes of a C-contiguous array, which must not be written."""
        plain = array.reshape(-1).view(np.uint8)
        key = hashlib.sha256(plain.data).digest()
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._put(plain)
            return found


class Pool:
    """Free buffers, each reused on the stream it was used on.

    A buffer used on one stream is not reused on another, whose work may begin earlier.

    allocate : allocates a number of bytes; raises `MemoryError`
    free : returns memory to the device, after all work on it
    """

    def __init__(
        self, allocate: Callable[[int], Any], free: Callable[[Any], None], limit: int = _MOST_KEPT
    ) -> None:
        self._allocate, self._free, self._limit = allocate, free, limit
        # The garbage collector may return a buffer while another one is taken.
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[Hashable, int], list[Any]] = OrderedDict()
        self.kept_bytes = 0

    def take(self, count: int, stream: Hashable) -> DeviceBuffer:
        """A buffer of at least `count` bytes, and at least one.

        Raises
        ------
        ArgumentError : the device has not enough memory.
        """
        count = -(-max(count, 1) // _GRAIN) * _GRAIN
        with self._lock:
            kept = self._kept.get((stream, count))
            if kept:
                self.kept_bytes -= count
                return DeviceBuffer(self, kept.pop(), count, stream)
        try:
            handle = self._allocate(count)
        except MemoryError:
            self.clear()
            try:
                handle = self._allocate(count)
            except MemoryError:
                raise ArgumentError(f"the device has not enough memory for {count} bytes") from None
        return DeviceBuffer(self, handle, count, stream)

    def give(self, handle: Any, count: int, stream: Hashable, lent: bool) -> None:
        """Keep a buffer for reuse; the oldest are freed when there are too many."""
        if lent or count > self._limit:
            self._free_all([handle])
            return
        with self._lock:
            self._kept.setdefault((stream, count), []).append(handle)
            self._kept.move_to_end((stream, count))
            self.kept_bytes += count
            gone = self._oldest()
        self._free_all(gone)

    def _free_all(self, handles: list[Any]) -> None:
        """Free memory.  If a device refuses, the memory is lost: the error is reported to those who
        use the device, not to those who free something.
        """
        for handle in handles:
            with contextlib.suppress(ToolchainError):
                self._free(handle)

    def _oldest(self) -> list[Any]:
        gone = []
        while self.kept_bytes > self._limit:
            key, handles = next(iter(self._kept.items()))
            if handles:
                gone.append(handles.pop(0))
                self.kept_bytes -= key[1]
            else:
                del self._kept[key]
        return gone

    def clear(self) -> None:
        """Free all buffers in the pool."""
        with self._lock:
            handles = [h for kept in self._kept.values() for h in kept]
            self._kept.clear()
            self.kept_bytes = 0
        self._free_all(handles)
