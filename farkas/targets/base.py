"""`Target`: where kernels run, what they are built with, and what is stored of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from runtime.common.cache import Cache

if TYPE_CHECKING:
    from codegen.c.kernel_source import KernelSource
    from codegen.gpu.emit import GpuSource
    from poly.ir.graph import Graph
    from poly.ir.program import Program
    from poly.schedule.schedule import Schedule
    from runtime.common.compile_report import Progress
    from runtime.cpu.loaded_kernel import LoadedKernel
    from runtime.gpu.gpu_program import GpuProgram


class Target(ABC):
    """Where kernels run.  A kind of target overrides these hooks."""

    #: What its texts are called in pictures.
    language: ClassVar[str]
    #: Whether whole networks are kept in the cache, and found by the content of their files.
    recalls: ClassVar[bool] = False
    #: Whether sums are in registers with lanes, see `poly.graph_passes.fuse_calls.merge_calls`.
    lanes: ClassVar[bool] = False
    #: `threads` of a call that is to have one; None where calls have no such number.
    one_thread: ClassVar[int | None] = 1
    cache: Cache
    threads: int | None

    @abstractmethod
    def automatic(self, program: Program, exact: bool) -> tuple[Schedule, KernelSource | GpuSource]:
        """The automatic schedule of a program, and its text."""

    @abstractmethod
    def generate(self, schedule: Schedule, program: Program) -> KernelSource | GpuSource:
        """The text of a schedule of a program, or of what `farkas.targets.prepare` makes of it."""

    @abstractmethod
    def load(self, source: Any) -> LoadedKernel | GpuProgram:
        """The function made of a text."""

    @abstractmethod
    def compile(self, graph: Graph, progress: Progress | None = None, kind: Any = None) -> Any:
        """A graph of fixed or open sizes, compiled.

        kind : the class of what comes, one derived from the target's own; None: that one
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

    def on_host(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        """Arrays, of which those that lie elsewhere are copied, behind what a stream does."""
        return dict(values)
