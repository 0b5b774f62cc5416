"""`Target`: where kernels run, what they are built with, and what is stored of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from poly.errors import ArgumentError
from runtime.arguments import check_threads
from runtime.cache import Cache
from runtime.toolchain import Toolchain, find_toolchain

if TYPE_CHECKING:
    from codegen.gpu import GpuSource
    from codegen.source import KernelSource
    from poly.graph import Graph
    from poly.program import Program
    from poly.schedule import Schedule
    from runtime.gpu import GpuProgram
    from runtime.gpu_device import Device
    from runtime.gpu_model import GpuModel
    from runtime.kernel import LoadedKernel
    from runtime.model import Model
    from runtime.open_model import OpenModel
    from runtime.report import Progress

    #: What runs a stage.
    Runnable = Model | OpenModel | GpuModel

CompilerLike = str | PathLike[str] | Toolchain | None
CacheLike = str | PathLike[str] | Cache | None


class Target(ABC):
    """Where kernels run.  A kind of target overrides these hooks."""

    #: What its texts are called in pictures.
    language: ClassVar[str]
    #: Whether whole networks are kept in the cache, and found by the content of their files.
    recalls: ClassVar[bool] = False
    cache: Cache
    threads: int | None

    @abstractmethod
    def automatic(self, program: Program, exact: bool) -> tuple[Schedule, KernelSource | GpuSource]:
        """The automatic schedule of a program, and its text."""

    @abstractmethod
    def generate(self, schedule: Schedule, program: Program) -> KernelSource | GpuSource:
        """The text of a schedule of a program, or of what `farkas.prepared` makes of it."""

    @abstractmethod
    def load(self, source: Any) -> LoadedKernel | GpuProgram:
        """The function made of a text."""

    @abstractmethod
    def compile_graph(
        self, graph: Graph, progress: Progress | None = None, kind: type[Any] | None = None
    ) -> Runnable:
        """A graph of fixed or open sizes, compiled.

        kind : the class of what is made of fixed shapes, one below that of the runtime
        """

    @abstractmethod
    def check_threads(self, threads: int | None) -> None:
        """Refuse a number of threads for a call that it cannot have; None is always right.

        Raises
        ------
        ArgumentError : a number that is none, or a target that has no such number.
        """

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Element type and shape of an array; None if it is none that the target takes."""
        if isinstance(value, (np.ndarray, np.generic)):
            return value.dtype, value.shape
        return None


@dataclass(frozen=True)
class CpuTarget(Target):
    """This machine, by way of C.  `threads` None: every processor that the process may use."""

    toolchain: Toolchain
    cache: Cache
    threads: int | None = None
    language: ClassVar[str] = "C"
    recalls: ClassVar[bool] = True

    def automatic(self, program: Program, exact: bool) -> tuple[Schedule, KernelSource]:
        from codegen.emit import generate_automatic
        from farkas.prepared import automatic_schedule

        return generate_automatic(
            lambda tiles: automatic_schedule(program, exact, tiles),
            lambda schedule: self.generate(schedule, program),
        )

    def generate(self, schedule: Schedule, program: Program) -> KernelSource:
        from codegen.emit import generate

        return generate(schedule, written=program)

    def load(self, source: KernelSource) -> LoadedKernel:
        from runtime.kernel import load_kernel

        return load_kernel(source, self.toolchain, self.cache, self.threads)

    def check_threads(self, threads: int | None) -> None:
        if threads is not None:
            check_threads(threads)

    def compile_graph(
        self, graph: Graph, progress: Progress | None = None, kind: type[Any] | None = None
    ) -> Model | OpenModel:
        from runtime.compile_graph import compile_graph
        from runtime.model import Model

        return compile_graph(
            graph,
            toolchain=self.toolchain,
            cache=self.cache,
            threads=self.threads,
            progress=progress,
            kind=kind or Model,
        )


@dataclass(frozen=True)
class DeviceTarget(Target):
    """A GPU, or what stands for one."""

    device: Device
    cache: Cache
    threads: None = None

    @property
    def language(self) -> str:  # type: ignore[override]
        return {"cuda": "CUDA C", "opencl": "OpenCL C"}[self.device.dialect]

    def automatic(self, program: Program, exact: bool) -> tuple[Schedule, GpuSource]:
        from farkas.prepared import scheduled_program
        from poly.schedule import Schedule
        from runtime.gpu_build import automatic_source

        start = Schedule.of(scheduled_program(program, exact), exact)
        return automatic_source(start, self.device.machine, self.device.dialect, program)

    def generate(self, schedule: Schedule, program: Program) -> GpuSource:
        from codegen.gpu import generate_gpu

        return generate_gpu(schedule, self.device.dialect, written=program)

    def load(self, source: GpuSource) -> GpuProgram:
        from runtime.gpu import GpuProgram

        return GpuProgram(source, self.device)

    def check_threads(self, threads: int | None) -> None:
        if threads is not None:
            raise ArgumentError(f"threads= has no meaning on {self.device.name}")

    def compile_graph(
        self, graph: Graph, progress: Progress | None = None, kind: type[Any] | None = None
    ) -> GpuModel:
        from runtime.compile_on_device import compile_on_device
        from runtime.gpu_model import GpuModel

        return compile_on_device(
            graph, device=self.device, cache=self.cache, progress=progress, kind=kind or GpuModel
        )

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        if self.device.holds(value):
            found = self.device.operand(name, value, self.device.stream(None))
            return found.dtype, found.shape
        return super().describe(name, value)


def target_of(
    cc: CompilerLike, cache: CacheLike, threads: int | None = None, target: str | Target = "cpu"
) -> Target:
    """The target for the arguments of `compile` and `compile_onnx`.

    target : ``cpu``, or a name that `runtime.devices.find_device` knows

    Raises
    ------
    ToolchainError : there is no usable C compiler, or something is missing that the device needs.
    CacheError : the cache directory cannot be used.
    ArgumentError : arguments of another type, or that the target does not have.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise ArgumentError(f"target is a {type(target).__name__}, expected a name, as in 'cuda'")
    if target == "cpu":
        return cpu_target(cc, cache, threads)
    for name, value in (("cc", cc), ("threads", threads)):
        if value is not None:
            raise ArgumentError(f"{name} has no meaning for target {target!r}, only for 'cpu'")
    from runtime.devices import find_device

    store = _cache(cache)
    return DeviceTarget(find_device(target, store), store)


def cpu_target(cc: CompilerLike, cache: CacheLike, threads: int | None = None) -> CpuTarget:
    """This machine, with a C compiler.  Raises as `target_of`."""
    if isinstance(cc, Toolchain):
        toolchain = cc
    elif cc is None or isinstance(cc, (str, PathLike)):
        toolchain = find_toolchain(None if cc is None else fspath(cc))
    else:
        raise ArgumentError(f"cc is a {type(cc).__name__}, expected a path or a Toolchain")
    return CpuTarget(toolchain, _cache(cache), threads)


def _cache(cache: CacheLike) -> Cache:
    if isinstance(cache, Cache):
        return cache
    if cache is None or isinstance(cache, (str, PathLike)):
        return Cache(None if cache is None else fspath(cache))
    raise ArgumentError(f"cache is a {type(cache).__name__}, expected a path or a Cache")
