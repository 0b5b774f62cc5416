"""The package through which CUDA is reached: cuda-bindings or pycuda, whichever is there.

Both work in the primary context of a device, which is that of torch, CuPy and JAX.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from poly.errors import ArgumentError, ToolchainError
from runtime.arguments import Array

#: Which package to take: its name.
ENVIRONMENT = "FARKAS_CUDA"


@dataclass(frozen=True)
class CudaStream:
    """A stream: CUDA's handle, 0 for the default one, and whoever made it."""

    handle: int = 0
    owner: Any = field(default=None, compare=False, repr=False)

    def __int__(self) -> int:
        return self.handle


class Launcher(Protocol):
    """One CUDA device by way of some package.

    package : its name; device : what the device is called; architecture : e.g. ``sm_90``

    Memory is an address.  What the driver refuses is a `ToolchainError` with its words.
    """

    package: str
    device: str
    architecture: str

    def load(self, data: bytes) -> Any:
        """A module for a cubin."""

    def function(self, module: Any, symbol: str, sizes: int, tensors: int) -> Any:
        """A kernel that takes so many int64 and then so many pointers."""

    def allocate(self, count: int) -> int:
        """Memory of so many bytes.  Raises `MemoryError` where there is no room for it."""

    def free(self, address: int) -> None:
        """Give memory back, when everything that is at work on the device has ended."""

    def write(self, address: int, data: Array, stream: CudaStream) -> None:
        """Copy an array of bytes to the device."""

    def read(self, data: Array, address: int, stream: CudaStream) -> None:
        """Copy an array of bytes from the device, and wait for it."""

    def copy(self, to: int, origin: int, count: int, stream: CudaStream) -> None:
        """Copy on the device."""

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


def find_launcher(number: int) -> Launcher:
    """The launcher for a device by its number.

    Of the packages that are installed, the first that works: cuda-bindings, which takes streams of
    others as they are, then pycuda.  ``FARKAS_CUDA`` chooses one by its name.

    Raises
    ------
    ArgumentError : ``FARKAS_CUDA`` names no package.
    ToolchainError : no package, a broken one, no driver, or no such device.
    """
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen and chosen not in _PACKAGES:
        raise ArgumentError(f"{ENVIRONMENT}={chosen} is none of {', '.join(_PACKAGES)}")
    problems: list[ToolchainError] = []
    for package in [chosen] if chosen else list(_PACKAGES):
        try:
            return _PACKAGES[package](number)
        except NotInstalledError as error:
            problems.append(error)
        except ToolchainError as error:
            problems.insert(0, error)  # says more than that another one is not installed
    first = problems[0]
    if not isinstance(first, NotInstalledError) or chosen:
        raise first
    raise ToolchainError(
        "CUDA needs pycuda or cuda-bindings: pip install 'farkas[cuda]', which compiles pycuda, or "
        "pip install 'farkas[cuda-bindings]', which compiles nothing"
    )


class NotInstalledError(ToolchainError):
    """A package is not installed."""


def missing_device(number: int, names: Sequence[str]) -> ToolchainError:
    """The error for a device that is not among those that there are."""
    if not names:
        return ToolchainError("there is no CUDA device; the driver finds none")
    there = ", ".join(f"{n}: {name}" for n, name in enumerate(names))
    return ToolchainError(f"there is no CUDA device {number}; there are {there}")


def _bindings(number: int) -> Launcher:
    from runtime.cuda_bindings import BindingsLauncher

    return BindingsLauncher(number)


def _pycuda(number: int) -> Launcher:
    from runtime.cuda_pycuda import PycudaLauncher

    return PycudaLauncher(number)


_PACKAGES: dict[str, Callable[[int], Launcher]] = {"cuda-bindings": _bindings, "pycuda": _pycuda}
