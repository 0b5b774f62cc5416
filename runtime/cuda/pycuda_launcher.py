"""CUDA through pycuda; needs ``pip install '.[cuda]'``."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from poly.errors import ToolchainError
from runtime.common.arguments import Array
from runtime.cuda.launcher import CudaStream, NotInstalledError, missing_device


class PycudaLauncher:
    """A `runtime.cuda.launcher.Launcher` for the device with a number.

    Pycuda knows the default stream and its own.  For streams of other libraries, the whole device
    is synchronised before and after.

    Raises
    ------
    ToolchainError : the package, the driver or the device is missing.
    """

    package = "pycuda"

    def __init__(self, number: int) -> None:
        self._driver = driver = _import()
        try:
            driver.init()
            count = driver.Device.count()
        except driver.Error as error:
            # pycuda distinguishes errors only by the driver's message
            if "no CUDA-capable device" in str(error):
                raise missing_device(number, ()) from None
            raise ToolchainError(f"NVIDIA's driver does not start: {error}") from None
        if number >= count:
            raise missing_device(number, [driver.Device(n).name() for n in range(count)])
        device = driver.Device(number)
        self.device = device.name()
        major, minor = device.compute_capability()
        self.architecture = f"sm_{major}{minor}"
        kinds = driver.device_attribute
        self.processors = device.get_attribute(kinds.MULTIPROCESSOR_COUNT)
        with self._said("the context of the device cannot be had"):
            self._context = device.retain_primary_context()
        # If pycuda did this itself, it would treat the context as one of its own.
        atexit.register(self._context.detach)
        self._memory: dict[int, Any] = {}

    def load(self, data: bytes) -> Any:
        with self._current("the module cannot be loaded"):
            return self._driver.module_from_buffer(data)

    def function(self, module: Any, symbol: str, sizes: int, tensors: int) -> Any:
        with self._current(f"the module has no {symbol}"):
            function = module.get_function(symbol)
            function.prepare("q" * sizes + "P" * tensors)
            return function

    def unload(self, module: Any) -> None:
        pass  # pycuda's own module does so

    def allocate(self, count: int) -> int:
        with self._current("memory cannot be had"):
            try:
                memory = self._driver.mem_alloc(count)
            except self._driver.MemoryError:
                raise MemoryError from None
        self._memory[int(memory)] = memory
        return int(memory)

    def free(self, address: int) -> None:
        # When another thread ends, pycuda could not free what it still holds.
        with self._current("memory cannot be given back"):
            self._driver.Context.synchronize()
            self._memory.pop(address).free()

    def write(self, address: int, data: Array, stream: CudaStream) -> None:
        with self._ordered("the copy to the device failed", stream) as own:
            self._driver.memcpy_htod_async(address, data, own)

    def read(self, data: Array, address: int, stream: CudaStream) -> None:
        with self._ordered("the copy from the device failed", stream) as own:
            self._driver.memcpy_dtoh_async(data, address, own)
            self._wait(own)

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        with self._ordered("the copy on the device failed", stream) as own:
            self._driver.memcpy_dtod_async(to, origin, count, own)

    def number_of(self, address: int) -> None:
        return None  # pycuda does not ask

    def wait(self, stream: CudaStream) -> None:
        with self._ordered("a kernel failed", stream) as own:
            self._wait(own)

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        sizes: Sequence[int],
        addresses: Sequence[int],
        stream: CudaStream,
    ) -> None:
        with self._ordered("the kernel cannot be started", stream) as own:
            function.prepared_async_call(grid, block, own, *sizes, *addresses)

    def record(self, work: Callable[[CudaStream], None]) -> None:
        return None  # pycuda does not support graphs

    # --- inside -----------------------------------------------------------------------------

    def _wait(self, own: Any) -> None:
        """Wait for a stream of pycuda's, which has no object for the default one."""
        if own is None:
            self._driver.Context.synchronize()
        else:
            own.synchronize()

    @contextmanager
    def _ordered(self, what: str, stream: CudaStream) -> Iterator[Any]:
        """Pycuda's stream that is ordered with a stream, None for the default one."""
        own = stream.owner if isinstance(stream.owner, self._driver.Stream) else None
        foreign = own is None and stream.handle != 0
        with self._current(what):
            if foreign:
                self._driver.Context.synchronize()
            yield own
            if foreign:
                self._driver.Context.synchronize()

    @contextmanager
    def _current(self, what: str) -> Iterator[None]:
        """Make the primary context current on this thread, and restore the previous one after."""
        with self._said(what):
            self._context.push()
            try:
                yield
            finally:
                self._driver.Context.pop()

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Raise pycuda's errors as `ToolchainError`."""
        try:
            yield
        except self._driver.Error as error:
            raise ToolchainError(f"{what}: {error}") from None


def _import() -> Any:
    try:
        import pycuda.driver
    except ModuleNotFoundError as error:
        if error.name != "pycuda":
            raise ToolchainError(f"pycuda is installed but needs {error.name}") from None
        raise NotInstalledError(
            "pycuda is not installed: pip install '.[cuda]' in a clone of Farkas"
        ) from None
    except ImportError as error:
        advice = "; is NVIDIA's driver installed?" if "libcuda" in str(error) else ""
        raise ToolchainError(f"pycuda cannot be imported: {error}{advice}") from None
    return pycuda.driver
