"""This machine, through C.  Code that compiles and runs kernels is loaded when needed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from farkas.targets.base import Runner
from frontends.onnx import Routines
from poly.errors import CacheError
from runtime.common.arguments import check_no_stream, check_threads
from runtime.common.cache import Cache
from runtime.cpu.remembered import remember
from runtime.cpu.toolchain import Toolchain, cpu_identity, describe_compiler

if TYPE_CHECKING:
    from codegen.c.kernel_source import KernelSource
    from poly.ir.graph import Graph
    from poly.machine.cpu import Machine
    from runtime.common.compile_report import Progress
    from runtime.cpu.loaded_kernel import LoadedKernel
    from runtime.network.cpu_model import CpuModel
    from runtime.tuned.record_file import TunedSchedules


@dataclass(frozen=True)
class CpuRunner(Runner):
    """A C compiler, and threads.

    threads : None: every processor that the process may use
    asked : how the compiler was asked for, a path or "", so that the cache remembers it; None: it
        was given by its description
    machine : that graphs are compiled for; None: this one
    """

    toolchain: Toolchain
    cache: Cache
    threads: int | None = None
    asked: str | None = None
    machine: Machine | None = None
    recalls: ClassVar[bool] = True
    has_roofline: ClassVar[bool] = True
    one_thread: ClassVar[int | None] = 1
    routines: ClassVar[Routines] = Routines.FAST

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.toolchain, self.cache, self.threads, self.asked)

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def cc(self) -> str:  # type: ignore[override]
        return self.asked or self.toolchain.path

    @property
    def tuned(self) -> TunedSchedules:
        from poly.machine.cpu import host_machine
        from runtime.tuned.record_file import tuned_schedules

        machine = self.machine or host_machine()
        return tuned_schedules(self.cache, machine, self.toolchain, self.threads)

    def prepare(self) -> None:
        from runtime.cpu.helpers import prepare_helpers

        prepare_helpers(self.toolchain, self.cache)

    def build(self, source: KernelSource, limit: float) -> None:
        from runtime.cpu.openmp_pool import with_team
        from runtime.cpu.shared_library import build_library

        toolchain = with_team(self.toolchain, self.cache)
        build_library(source.files, source.flags, toolchain, self.cache, limit=limit)

    def load(self, source: KernelSource) -> LoadedKernel:
        from runtime.cpu.loaded_kernel import load_kernel
        from runtime.intrinsics.check import require

        # They were checked where they were declared, perhaps with another compiler.
        require(source.instructions, self.toolchain, self.cache)
        loaded = load_kernel(source, self.toolchain, self.cache, self.threads)
        self._remember()
        return loaded

    def compile(self, graph: Graph, progress: Progress | None = None) -> CpuModel:
        from runtime.network.compile_cpu import compile_graph

        made = compile_graph(
            graph,
            toolchain=self.toolchain,
            cache=self.cache,
            threads=self.threads,
            machine=self.machine,
            progress=progress,
        )
        self._remember()
        return made

    def _remember(self) -> None:
        """Let processes find what was compiled where the compiler is gone."""
        if self.asked is not None:
            with contextlib.suppress(CacheError):
                remember(self.toolchain, self.asked, self.cache)

    def check_call(self, threads: int | None, stream: Any) -> None:
        if threads is not None:
            check_threads(threads)
        check_no_stream(stream)


def _restored(
    toolchain: Toolchain, cache: Cache, threads: int | None, asked: str | None
) -> CpuRunner:
    """An unpickled runner.  On another processor its compiler is described anew.

    Raises
    ------
    ToolchainError : there is no such compiler here.
    """
    if toolchain.cpu != cpu_identity():
        toolchain = describe_compiler(toolchain.command)
    return CpuRunner(toolchain, cache, threads, asked)
