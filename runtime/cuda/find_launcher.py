"""The package that gives access to CUDA: cuda-bindings or pycuda, whichever is installed."""

from __future__ import annotations

import os
from collections.abc import Callable

from poly.errors import ArgumentError, ToolchainError
from runtime.cuda.launcher import Launcher, NotInstalledError

#: The name of the package to use.
ENVIRONMENT = "FARKAS_CUDA"


def find_launcher(number: int) -> Launcher:
    """The launcher for a device by its number.

    Of the installed packages, the first that works: cuda-bindings, which accepts streams of other
    libraries directly, then pycuda.  ``FARKAS_CUDA`` chooses one by its name.

    Raises
    ------
    ArgumentError : ``FARKAS_CUDA`` does not name a package.
    ToolchainError : no package, a broken one, no driver, or no such device.
    """
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen and chosen not in _PACKAGES:
        raise ArgumentError(f"{ENVIRONMENT}={chosen} is not one of {', '.join(_PACKAGES)}")
    problems: list[ToolchainError] = []
    for package in [chosen] if chosen else list(_PACKAGES):
        try:
            return _PACKAGES[package](number)
        except NotInstalledError as error:
            problems.append(error)
        except ToolchainError as error:
            problems.insert(0, error)  # more useful than that the other one is not installed
    first = problems[0]
    if not isinstance(first, NotInstalledError) or chosen:
        raise first
    raise ToolchainError(
        "CUDA needs pycuda or cuda-bindings: in a clone of Farkas, pip install '.[cuda]', which "
        "compiles pycuda, or pip install '.[cuda-bindings]', which compiles nothing"
    )


def _bindings(number: int) -> Launcher:
    from runtime.cuda.bindings_launcher import BindingsLauncher

    return BindingsLauncher(number)


def _pycuda(number: int) -> Launcher:
    from runtime.cuda.pycuda_launcher import PycudaLauncher

    return PycudaLauncher(number)


_PACKAGES: dict[str, Callable[[int], Launcher]] = {"cuda-bindings": _bindings, "pycuda": _pycuda}
