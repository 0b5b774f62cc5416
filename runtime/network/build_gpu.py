"""From an optimised graph to kernels on a device: schedules, texts, a few modules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from codegen.c.kernel_unit import generate_automatic
from codegen.gpu.emit import GpuSource, generate_gpu
from poly.ir.graph import Call
from poly.ir.program import Program
from poly.machine.gpu import GpuMachine
from poly.rewrites.join_dimensions import join_dimensions
from poly.rewrites.split_reduction import in_parts
from poly.schedule.schedule import Schedule
from poly.strategy.common.apply_tactics import apply_tactics
from poly.strategy.gpu.auto_schedule import GPU_STRATEGY
from runtime.common.cache import Cache
from runtime.common.compile_report import Progress
from runtime.gpu.device import Device
from runtime.network.build_cpu import Clock
from runtime.network.kernel_store import recall_source, source_key, store_source

#: Programs that are compiled as one module; the next ones are generated meanwhile.
TOGETHER = 8


@dataclass(frozen=True, eq=False)
class DeviceKernels:
    """The kernels of a program on a device.

    schedule : its script; module : whatever the device made of the source, and of others
    from_cache : whether source and schedule were there
    """

    source: GpuSource
    schedule: str
    module: Any
    from_cache: bool


def automatic_source(
    start: Schedule, machine: GpuMachine, dialect: str, written: Program | None = None
) -> tuple[Schedule, GpuSource]:
    """The automatic schedule of a program for a GPU, and its text.

    Where isl cannot generate what tiles leave of a program, threads with points of their own can,
    and in the end one thread that does all of it.

    start : the written order; written : see `codegen.gpu.emit.generate_gpu`

    Raises
    ------
    ScheduleError : there is no text for it, as of element types that the dialect has not.
    """
    tiled = [
        lambda plain=plain: apply_tactics(start, machine, GPU_STRATEGY, plain).schedule
        for plain in (False, True)
    ]
    return generate_automatic(
        [*tiled, lambda: start], lambda schedule: generate_gpu(schedule, dialect, written)
    )


def build_kernels(
    calls: Sequence[Call], device: Device, cache: Cache, tell: Progress, clock: Clock
) -> dict[str, DeviceKernels]:
    """The kernels of calls, by the digest of the program; equal programs share them.

    Raises
    ------
    ScheduleError : as `automatic_source`.
    ToolchainError : the device's compiler failed.
    CacheError : the result cannot be stored.
    """
    programs = {n.program.digest: n for n in calls}
    found: dict[str, tuple[str, GpuSource, bool]] = {}
    modules: list[tuple[list[str], Future[Any]]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for names in _parts(list(programs), TOGETHER):
            for name in names:
                call = programs[name]
                tell("schedule and generate", len(found), len(programs), call.origin)
                found[name] = _source(call.program, device, cache)
            sources = [found[n][1] for n in names if found[n][1].kernels]
            if sources:
                modules.append((names, pool.submit(device.build, *sources)))
        tell("schedule and generate", len(programs), len(programs), "")
        clock.lap("schedule and generate")
        made: dict[str, Any] = dict.fromkeys(programs)  # what has nothing to do has no module
        for done, (names, module) in enumerate(modules):
            tell("compile", done, len(modules), f"kernels on {device.name}")
            made |= dict.fromkeys(names, module.result())
        tell("compile", len(modules), len(modules), "")
    clock.lap("compile")
    return {
        name: DeviceKernels(source, script, made[name], known)
        for name, (script, source, known) in found.items()
    }


def _source(program: Program, device: Device, cache: Cache) -> tuple[str, GpuSource, bool]:
    """The script and the text of a program, made or found in the cache, and which of both."""
    machine, dialect = device.machine, device.dialect
    key = source_key(program, machine, dialect)
    known = recall_source(key, cache)
    if known is not None:
        return *known, True
    prepared = join_dimensions(program) if program.sizes else program
    start = in_parts(prepared, machine.processors)
    schedule, source = automatic_source(start, machine, dialect, program)
    store_source(key, source, str(schedule), cache)
    return str(schedule), source, False


def _parts(names: list[str], most: int) -> Iterator[list[str]]:
    for first in range(0, len(names), most):
        yield names[first : first + most]


def scripts(kernels: Mapping[str, DeviceKernels]) -> dict[str, str]:
    """The schedule of each program as a script, by the symbol of its first kernel."""
    return {k.source.kernels[0].symbol: k.schedule for k in kernels.values() if k.source.kernels}
