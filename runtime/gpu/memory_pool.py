"""Memory of a device: buffers that go back where they came from, and are taken again."""

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

#: Bytes that a pool keeps at most.
_MOST_KEPT = 1 << 30
_GRAIN = 512


class DeviceBuffer:
    """Memory of a device; it goes back to its pool when nobody has it any more.

    handle : what the device calls it; count : bytes, at least as many as were asked for
    stream : the one whose work on it is done in order
    """

    __slots__ = ("__weakref__", "_pool", "count", "handle", "lent", "stream")

    def __init__(self, pool: Pool, handle: Any, count: int, stream: Hashable) -> None:
        self._pool, self.handle, self.count, self.stream = pool, handle, count, stream
        #: Whether others, or other streams, may still be at work on it when it is given back.
        self.lent = False

    def release(self) -> None:
        """Give it back now."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._pool.give(handle, self.count, self.stream, self.lent)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # nobody hears of it, and at the end of the process
            self.release()  # the driver may be gone


class Residents:
    """Constants on a device, each content once as long as somebody has it.

    put : gives a buffer with an array's bytes in it
    """

    def __init__(self, put: Callable[[Array], DeviceBuffer]) -> None:
        self._put, self._lock = put, threading.Lock()
        self._known: WeakValueDictionary[bytes, DeviceBuffer] = WeakValueDictionary()

    def get(self, array: Array) -> DeviceBuffer:
        """Memory with the bytes of a C-contiguous array, which nobody may write."""
        plain = array.reshape(-1).view(np.uint8)
        key = hashlib.sha256(plain.data).digest()
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._put(plain)
            return found


class Pool:
    """Buffers that wait for their next use, each on the stream that it was used on.

    What has been used on one stream is not taken for another one, whose work may begin before.

    allocate : memory of so many bytes; raises `MemoryError`
    free : gives it back to the device, behind everything that is at work on it
    """

    def __init__(
        self, allocate: Callable[[int], Any], free: Callable[[Any], None], limit: int = _MOST_KEPT
    ) -> None:
        self._allocate, self._free, self._limit = allocate, free, limit
        # A buffer may be given back while another one is taken: by the garbage collector.
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[Hashable, int], list[Any]] = OrderedDict()
        self.kept_bytes = 0

    def take(self, count: int, stream: Hashable) -> DeviceBuffer:
        """A buffer of at least so many bytes, and of one at least.

        Raises
        ------
        ArgumentError : the device has no room for it.
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
                raise ArgumentError(f"the device has no room for {count} bytes") from None
        return DeviceBuffer(self, handle, count, stream)

    def give(self, handle: Any, count: int, stream: Hashable, lent: bool) -> None:
        """Keep a buffer for the next use; those that wait longest go when there are too many."""
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
        """Free memory; where a device refuses, it is lost: what went wrong is told to whoever uses
        the device, and not to those who give something back.
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
        """Free everything that waits."""
        with self._lock:
            handles = [h for kept in self._kept.values() for h in kept]
            self._kept.clear()
            self.kept_bytes = 0
        self._free_all(handles)
