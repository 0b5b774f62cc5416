"""The threads of kernels that torch calls: torch's own."""

from __future__ import annotations

from importlib import import_module

from farkas.targets.cpu import CpuRunner
from farkas.targets.find_target import cpu_target
from runtime.cpu.openmp_pool import on_threads_of_process
from runtime.cpu.toolchain import Toolchain


def compiler() -> Toolchain:
    """The compiler of kernels that take turns with torch's.

    Raises
    ------
    ToolchainError : there is no usable C compiler.
    """
    import_module("torch")  # which loads its OpenMP library
    runner = cpu_target(None, None).runner
    assert isinstance(runner, CpuRunner)
    return on_threads_of_process(runner.toolchain)
