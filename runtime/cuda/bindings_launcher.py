"""CUDA through cuda-bindings, NVIDIA's own; needs ``pip install '.[cuda-bindings]'``."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from poly.errors import ToolchainError
from runtime.common.arguments import Array
from runtime.cuda.launcher import CudaStream, NotInstalledError, missing_device


class BindingsLauncher:
    """A `runtime.cuda.launcher.Launcher` for the device with a number.

    Raises
    ------
    ToolchainError : the package, the driver or the device is missing.
    """

    package = "cuda-bindings"

    def __init__(self, number: int) -> None:
        self._driver = driver = _import()
        try:
            (code,) = driver.cuInit(0)
        except RuntimeError as error:  # libcuda.so.1 is missing
            raise ToolchainError(f"NVIDIA's driver is not installed: {error}") from None
        if code == driver.CUresult.CUDA_ERROR_NO_DEVICE:
            raise missing_device(number, ())
        self._check(code, "NVIDIA's driver does not start")
        count = self._call("cuDeviceGetCount")
        if number >= count:
            raise missing_device(number, [self._name(n) for n in range(count)])
        device = self._call("cuDeviceGet", number)
        self.device = self._name(number)
        kinds = driver.CUdevice_attribute
        major, minor, self.processors = (
            self._call("cuDeviceGetAttribute", kind, device)
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        self.architecture = f"sm_{major}{minor}"
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        # Synchronising the whole device while launches are captured is an error.  Memory that the
        # garbage collector frees meanwhile is freed after the capture.
        self._lock = threading.RLock()
        self._recording, self._late = False, list[Callable[[], None]]()

    def load(self, data: bytes) -> Any:
        with self._current():
            return self._call("cuModuleLoadData", data)

    def function(self, module: Any, symbol: str, sizes: int, tensors: int) -> Any:
        with self._current():
            return self._call("cuModuleGetFunction", module, symbol.encode())

    def allocate(self, count: int) -> int:
        with self._current():
            code, address = self._driver.cuMemAlloc(count)
            if code == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise MemoryError
            self._check(code, "cuMemAlloc failed")
            return int(address)

    def free(self, address: int) -> None:
        self._idle(lambda: self._call("cuMemFree", address))

    def unload(self, module: Any) -> None:
        self._idle(lambda: self._call("cuModuleUnload", module))

    def write(self, address: int, data: Array, stream: CudaStream) -> None:
        with self._current():
            source = data.ctypes.data
            self._call("cuMemcpyHtoDAsync", address, source, data.nbytes, stream.handle)

    def read(self, data: Array, address: int, stream: CudaStream) -> None:
        with self._current():
            to = data.ctypes.data
            self._call("cuMemcpyDtoHAsync", to, address, data.nbytes, stream.handle)
            self._call("cuStreamSynchronize", stream.handle)

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        with self._current():
            self._call("cuMemcpyDtoDAsync", to, origin, count, stream.handle)

    def number_of(self, address: int) -> int | None:
        kinds = self._driver.CUpointer_attribute
        try:
            with self._current():
                managed, number = (
                    self._call("cuPointerGetAttribute", kind, address)
                    for kind in (
                        kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED,
                        kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                    )
                )
        except ToolchainError:  # not CUDA memory
            return None
        return None if managed else int(number)

    def wait(self, stream: CudaStream) -> None:
        with self._current():
            self._call("cuStreamSynchronize", stream.handle)

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        sizes: Sequence[int],
        addresses: Sequence[int],
        stream: CudaStream,
    ) -> None:
        # Each parameter has eight bytes; the driver takes the address of each.
        count = len(sizes) + len(addresses)
        values = (ctypes.c_int64 * max(1, count))(*sizes, *addresses)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(1, count))(*(first + 8 * n for n in range(count)))
        with self._current():
            self._call(
                "cuLaunchKernel", function, *grid, *block, 0, stream.handle,
                ctypes.addressof(pointers), 0,
            )  # fmt: skip

    def record(self, work: Callable[[CudaStream], None]) -> Callable[[CudaStream], None]:
        with self._lock:
            self._recording = True
            try:
                with self._current():
                    made = self._graph(work)
            finally:
                self._recording = False
                self._catch_up()
        return _Recorded(self, made)

    # --- inside -----------------------------------------------------------------------------

    def _idle(self, what: Callable[[], None]) -> None:
        """Do something once everything on the device has finished; later, if impossible now.

        It never waits for the lock: the garbage collector may call it at any time.
        """
        self._late.append(what)
        if self._lock.acquire(blocking=False):
            try:
                self._catch_up()
            finally:
                self._lock.release()

    def _catch_up(self) -> None:
        """Do what is postponed until the device is idle, unless a graph is being captured."""
        if self._recording or not self._late:
            return
        # While others capture, the driver does not wait; they will be retried.
        with contextlib.suppress(ToolchainError), self._current():
            self._call("cuCtxSynchronize")
            while self._late:
                with contextlib.suppress(ToolchainError):
                    self._late.pop()()

    def _graph(self, work: Callable[[CudaStream], None]) -> Any:
        """A graph of what `work` launches on the stream it is given.

        Work of other threads is not captured.  That holds for the default stream, too, since unlike
        other streams this one does not synchronise with it.
        """
        driver = self._driver
        flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        stream = self._call("cuStreamCreate", flag)
        try:
            self._call("cuStreamBeginCapture", stream, mode)
            graph = None
            try:
                try:
                    work(CudaStream(int(stream)))
                finally:
                    code, graph = driver.cuStreamEndCapture(stream)
                self._check(code, "the launches cannot be recorded")
                return self._call("cuGraphInstantiate", graph, 0)
            finally:
                if graph:
                    self._call("cuGraphDestroy", graph)
        finally:
            self._call("cuStreamDestroy", stream)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the primary context current on this thread, and restore the previous one after."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def _call(self, name: str, *arguments: Any) -> Any:
        """The results of a driver function without its status code."""
        code, *values = getattr(self._driver, name)(*arguments)
        self._check(code, f"{name} failed")
        return values[0] if values else None

    def _check(self, code: Any, what: str) -> None:
        driver = self._driver
        if code == driver.CUresult.CUDA_SUCCESS:
            return
        _, text = driver.cuGetErrorString(code)
        words = text.decode() if text else "unknown error"
        raise ToolchainError(f"{what}: {words} ({code.name})")

    def _name(self, number: int) -> str:
        data = self._call("cuDeviceGetName", 256, self._call("cuDeviceGet", number))
        return str(data.partition(b"\0")[0].decode(errors="replace"))


class _Recorded:
    """A CUDA graph, ready to be launched."""

    def __init__(self, launcher: BindingsLauncher, graph: Any) -> None:
        self._launcher, self._graph = launcher, graph

    def __call__(self, stream: CudaStream) -> None:
        with self._launcher._current():
            self._launcher._call("cuGraphLaunch", self._graph, stream.handle)

    def __del__(self) -> None:
        # Wait for launches in progress; at the end of the process the driver may be gone.
        with contextlib.suppress(Exception), self._launcher._current():
            self._launcher._call("cuGraphExecDestroy", self._graph)


def _import() -> Any:
    try:
        from cuda.bindings import driver
    except ModuleNotFoundError as error:
        if error.name not in ("cuda", "cuda.bindings"):
            raise ToolchainError(f"cuda-bindings is installed but needs {error.name}") from None
        raise NotInstalledError(
            "cuda-bindings is not installed: pip install '.[cuda-bindings]' in a clone of Farkas"
        ) from None
    except ImportError as error:
        raise ToolchainError(f"cuda-bindings cannot be imported: {error}") from None
    return driver
