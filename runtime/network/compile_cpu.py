"""`compile_graph`: compile a graph to a model that can be called."""

from __future__ import annotations

from codegen.pipeline import CPU
from poly.ir.graph import Graph, verify_graph
from poly.machine.cpu import Machine, host_machine
from runtime.common.arguments import check_threads, default_threads
from runtime.common.cache import Cache
from runtime.common.compile_report import CompileReport, Progress
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.toolchain import Toolchain
from runtime.network.build_cpu import build_graph
from runtime.network.clock import Clock
from runtime.network.cpu_model import CpuModel
from runtime.network.generate_kernels import kernel_workers
from runtime.reference.evaluate import evaluate
from runtime.tuned.record_file import tuned_schedules


def compile_graph(
    graph: Graph,
    *,
    toolchain: Toolchain,
    cache: Cache,
    threads: int | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> CpuModel:
    """Compile a graph: merged calls, layouts, schedules, C, library, memory plan.

    Raises
    ------
    ArgumentError : `threads` is not a number from 1 to 4096.
    ToolchainError : the compiler failed.
    CacheError : the library cannot be stored.
    """
    count = default_threads() if threads is None else check_threads(threads)
    machine = machine or host_machine()
    toolchain = with_team(toolchain, cache)
    tell = progress or (lambda stage, done, total, what: None)
    clock = Clock()
    with kernel_workers(len(graph.nodes)) as workers:  # they start while the graph is rewritten
        graph = CPU.optimise(verify_graph(graph), machine, evaluate)
        clock.lap("graph")
        tuned = tuned_schedules(cache, machine, toolchain, count)
        built = build_graph(graph, machine, toolchain, cache, tell, clock, workers, tuned)
    model = CpuModel(built, count, toolchain, cache)
    arena, bound = (built.plan.arena, built.plan.bound) if built.plan else (0, 0)
    clock.lap("load")
    tell("load", 1, 1, "library and constants")
    calls = sum(map(built.sharing.runs, built.graph.nodes))
    constants = sum(a.nbytes for a in built.graph.constants.values())
    laps = tuple(clock.laps.items())
    model.report = CompileReport(
        laps, built.kernels, calls, arena, bound, constants, built.from_cache
    )
    return model
