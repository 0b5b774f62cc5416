"""What the packages that give access to CUDA have in common.

All work in the primary context of a device, which torch, CuPy and JAX use as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from poly.errors import ToolchainError
from runtime.common.arguments import Array


@dataclass(frozen=True)
class CudaStream:
    """A stream: CUDA's handle, 0 for the default one, and its owner.

    brief : whether the owner may destroy it before the results of its work are used
    """

    handle: int = 0
    owner: Any = field(default=None, compare=False, repr=False)
    brief: bool = field(default=False, compare=False, repr=False)

    def __int__(self) -> int:
        return self.handle


class Launcher(Protocol):
    """One CUDA device, accessed through some package.

    package : its name; device : the device's name; architecture : e.g. ``sm_90``
    processors : number of streaming multiprocessors

    Memory is an address.  Errors of the driver are raised as `ToolchainError` with its message.
    """

    package: str
    device: str
    architecture: str
    processors: int

    def load(self, data: bytes) -> Any:
        """A module for a cubin."""

    def function(self, module: Any, symbol: str, sizes: int, tensors: int) -> Any:
        """A kernel that takes `sizes` int64 and then `tensors` pointers."""

    def unload(self, module: Any) -> None:
        """Unload a module once all work on the device has finished."""

    def allocate(self, count: int) -> int:
        """Allocate `count` bytes.  Raises `MemoryError` if they are not available."""

    def free(self, address: int) -> None:
        """Free memory once all work on the device has finished.

        It may be freed later, after a capture in progress.
        """

    def write(self, address: int, data: Array, stream: CudaStream) -> None:
        """Copy an array of bytes to the device."""

    def read(self, data: Array, address: int, stream: CudaStream) -> None:
        """Copy an array of bytes from the device, and wait for it."""

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        """Copy on the device."""

    def number_of(self, address: int) -> int | None:
        """The number of the device that owns the memory; None if all do, or if unknown."""

    def wait(self, stream: CudaStream) -> None:
        """Wait for everything on a stream."""

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        sizes: Sequence[int],
        addresses: Sequence[int],
        stream: CudaStream,
    ) -> None:
        """Launch a kernel."""

    def record(self, work: Callable[[CudaStream], None]) -> Callable[[CudaStream], None] | None:
        """Capture what `work` launches on a stream as one CUDA graph that is launched as a whole.

        None if the package cannot capture.  `work` only launches kernels, on the stream that it is
        given; nothing runs during the capture.
        """


class NotInstalledError(ToolchainError):
    """A package is not installed."""


def missing_device(number: int, names: Sequence[str]) -> ToolchainError:
    """The error for a device that does not exist."""
    if not names:
        return ToolchainError("there is no CUDA device; the driver finds none")
    there = ", ".join(f"{n}: {name}" for n, name in enumerate(names))
    return ToolchainError(f"there is no CUDA device {number}; there are {there}")
