"""Time on a device, between its own events, without the host's overhead.

Starting a kernel from Python takes longer than many a kernel runs.  So the device first fills
memory, for longer than the host needs to enqueue the timed calls; these then run one after the
other without a gap.
"""

from __future__ import annotations

import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from runtime.gpu.device import Device
from runtime.gpu.device_names import CUDA, OPENCL, read_name

Call = Callable[[], object]

#: The least bytes to fill at a time, and the fills that are timed to measure one.
FILL, FILLS = 64 << 20, 8
#: The device is kept busy for this multiple of the host's time, and by at most this many fills.
AHEAD, MOST_FILLS = 2.0, 4096
#: Bytes that are copied at a time to measure bandwidth; copies, and how often they are timed.
COPY, COPIES, COPY_SAMPLES = 256 << 20, 4, 5


class Clock(ABC):
    """The clock of a device.

    stream : the stream of the timed calls; None for the device's default
    cache_bytes : of the device's largest cache
    """

    stream: Any = None
    cache_bytes = 0

    def __init__(self) -> None:
        self._fill_seconds = 0.0

    @abstractmethod
    def fill(self) -> None:
        """Start filling memory, more than fits in the caches."""

    @abstractmethod
    def mark(self) -> Any:
        """Record an event after everything that was started."""

    @abstractmethod
    def between(self, first: Any, last: Any) -> float:
        """Seconds from one event to a later one, once both have occurred."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for everything that was started."""

    @property
    def fill_bytes(self) -> int:
        """Bytes to fill at a time."""
        return max(FILL, 2 * self.cache_bytes)

    def seconds(self, calls: Sequence[Call], emptied: bool = False) -> float:
        """Seconds per call, for calls one after the other.

        emptied : the caches are filled with other data before each
        """
        start = time.perf_counter()
        for call in calls:
            call()
        host = time.perf_counter() - start
        self.wait()
        for _ in range(self._fills(AHEAD * host)):
            self.fill()
        groups = [[call] for call in calls] if emptied else [calls]
        events = []
        for group in groups:
            if emptied:
                self.fill()
            first = self.mark()
            for call in group:
                call()
            events.append((first, self.mark()))
        return sum(self.between(*pair) for pair in events) / len(calls)

    def _fills(self, seconds: float) -> int:
        """The number of fills that keep the device busy for this long."""
        if not self._fill_seconds:
            self.fill()
            first = self.mark()
            for _ in range(FILLS):
                self.fill()
            self._fill_seconds = max(self.between(first, self.mark()) / FILLS, 1e-9)
        return min(MOST_FILLS, math.ceil(seconds / self._fill_seconds))


class HostClock(Clock):
    """The clock for a device whose calls are synchronous, as the emulator's are."""

    def fill(self) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def between(self, first: float, last: float) -> float:
        return last - first

    def wait(self) -> None:
        pass


class CudaClock(Clock):
    """Events of CUDA on the default stream, which torch and CuPy use, too.

    driver : ``cuda.bindings.driver``; number : of the device
    """

    def __init__(self, driver: Any, number: int) -> None:
        super().__init__()
        self._driver = driver
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", number)
        kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        self.cache_bytes = int(self._call("cuDeviceGetAttribute", kind, device))
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", device))
        self._memory = self._call("cuMemAlloc", self.fill_bytes)

    def fill(self) -> None:
        self._call("cuMemsetD8Async", self._memory, 0, self.fill_bytes, 0)

    def mark(self) -> Any:
        event = self._call("cuEventCreate", 0)
        self._call("cuEventRecord", event, 0)
        return event

    def between(self, first: Any, last: Any) -> float:
        self._call("cuEventSynchronize", last)
        milliseconds = self._call("cuEventElapsedTime", first, last)
        for event in (first, last):
            self._call("cuEventDestroy", event)
        return 1e-3 * float(milliseconds)

    def wait(self) -> None:
        self._call("cuStreamSynchronize", 0)

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *values = getattr(self._driver, name)(*arguments)
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name} failed: {code}")
        return values[0] if values else None


class OpenClClock(Clock):
    """Markers on a queue of a device's context.

    device : a `runtime.gpu.opencl.OpenClDevice`
    """

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._cl = cl = importlib.import_module("pyopencl")
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self.stream = cl.CommandQueue(device.context, properties=properties)
        self.cache_bytes = int(device.device.global_mem_cache_size)
        self._memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, self.fill_bytes)

    def fill(self) -> None:
        self._cl.enqueue_fill_buffer(self.stream, self._memory, bytes(4), 0, self.fill_bytes)

    def mark(self) -> Any:
        return self._cl.enqueue_marker(self.stream)

    def between(self, first: Any, last: Any) -> float:
        self.stream.finish()
        return 1e-9 * float(last.profile.end - first.profile.end)

    def wait(self) -> None:
        self.stream.finish()


def clock_of(device: Device) -> Clock:
    """The clock of a device.

    Raises
    ------
    ImportError : cuda-bindings, which provides events, is missing.
    """
    name = read_name(device.name)
    if name.kind == CUDA:
        return CudaClock(importlib.import_module("cuda.bindings.driver"), int(name.which or 0))
    return OpenClClock(device) if name.kind == OPENCL else HostClock()


def copy_bandwidth(device: Device, clock: Clock, count: int = COPY) -> float:
    """Bytes read and written per second when `count` bytes are copied on the device."""
    stream = device.stream(clock.stream)
    origin, to = (device.pool.take(count, stream) for _ in range(2))
    call = partial(device.copy, to.handle, origin.handle, count, stream)
    return 2 * count / min(clock.seconds([call] * COPIES) for _ in range(COPY_SAMPLES))
