"""What the packages through which CUDA is reached have in common.

All work in the primary context of a device, which is that of torch, CuPy and JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from poly.errors import ToolchainError
from runtime.common.arguments import Array


@dataclass(frozen=True)
class CudaStream:
    """A stream: CUDA's handle, 0 for the default one, and whoever made it.

    brief : whether its maker may destroy it before what was made on it is used
    """

    handle: int = 0
    owner: Any = field(default=None, compare=False, repr=False)
    brief: bool = field(default=False, compare=False, repr=False)

    def __int__(self) -> int:
        return self.handle


class Launcher(Protocol):
    """One CUDA device by way of some package.

    package : its name; device : what the device is called; architecture : e.g. ``sm_90``
    processors : how many streaming multiprocessors it has

    Memory is an address.  What the driver refuses is a `ToolchainError` with its words.
    """

    package: str
    device: str
    architecture: str
    processors: int

    def load(self, data: bytes) -> Any:
        """A module for a cubin."""

    def function(self, module: Any, symbol: str, sizes: int, tensors: int) -> Any:
        """A kernel that takes so many int64 and then so many pointers."""

    def unload(self, module: Any) -> None:
        """Give a module back, when everything that is at work on the device has ended."""

    def allocate(self, count: int) -> int:
        """Memory of so many bytes.  Raises `MemoryError` where there is no room for it."""

    def free(self, address: int) -> None:
        """Give memory back, when everything that is at work on the device has ended.

        It may be given back later, behind what is recorded.
        """

    def write(self, address: int, data: Array, stream: CudaStream) -> None:
        """Copy an array of bytes to the device."""

    def read(self, data: Array, address: int, stream: CudaStream) -> None:
        """Copy an array of bytes from the device, and wait for it."""

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        """Copy on the device."""

    def number_of(self, address: int) -> int | None:
        """The number of the device whose memory it is; None if all have it, or nobody knows."""

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
        """Start a kernel."""

    def record(self, work: Callable[[CudaStream], None]) -> Callable[[CudaStream], None] | None:
        """What launches on a stream become as one graph of CUDA, which is started at once.

        None if the package cannot record.  `work` only launches kernels, on the stream that it is
        given; nothing runs meanwhile.
        """


class NotInstalledError(ToolchainError):
    """A package is not installed."""


def missing_device(number: int, names: Sequence[str]) -> ToolchainError:
    """The error for a device that is not among those that there are."""
    if not names:
        return ToolchainError("there is no CUDA device; the driver finds none")
    there = ", ".join(f"{n}: {name}" for n, name in enumerate(names))
    return ToolchainError(f"there is no CUDA device {number}; there are {there}")
