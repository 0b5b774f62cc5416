"""`compile_on_device`: compile a graph to a model that runs on a GPU."""

from __future__ import annotations

from codegen.pipeline import GPU
from poly.ir.graph import Call, Graph, verify_graph
from runtime.common.cache import Cache
from runtime.common.compile_report import CompileReport, Progress
from runtime.gpu.device import Device
from runtime.network.build_gpu import build_kernels
from runtime.network.clock import Clock
from runtime.network.generate_graph import sharing_of
from runtime.network.gpu_model import GpuModel
from runtime.reference.evaluate import evaluate


def compile_on_device(
    graph: Graph,
    *,
    device: Device,
    cache: Cache,
    progress: Progress | None = None,
) -> GpuModel:
    """Compile a graph for a device: merged calls, schedules, kernels, memory plan.

    cache : keeps the texts of kernels

    Raises
    ------
    ScheduleError : no kernels can be generated for a call, for example because the device lacks its
        element types.
    ToolchainError : the device's compiler failed.
    CacheError : see `runtime.common.cache.Cache.keep`.
    ArgumentError : the device has not enough memory for the constants.
    """
    tell = progress or (lambda stage, done, total, what: None)
    clock = Clock()
    graph = GPU[device.dialect].optimise(verify_graph(graph), device.machine, evaluate)
    clock.lap("graph")
    sharing = sharing_of(graph, device.alignment)
    calls = [n for n in graph.nodes if isinstance(n, Call) and sharing.runs(n)]
    kernels = build_kernels(calls, device, cache, tell, clock, device.tuned(cache))
    tell("load", 0, 1, "constants")
    model = GpuModel(graph, kernels, device, sharing)
    plan = None if graph.sizes else model.plan()
    clock.lap("load")
    tell("load", 1, 1, "constants")
    constants = sum(a.nbytes for a in graph.constants.values())
    arena, bound = (plan.arena, plan.bound) if plan else (0, 0)
    laps = tuple(clock.laps.items())
    known = all(k.from_cache for k in kernels.values())
    model.report = CompileReport(laps, len(kernels), len(calls), arena, bound, constants, known)
    return model
