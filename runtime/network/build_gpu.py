"""Build an optimised graph into kernels on a device: schedules, texts, a few modules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from codegen.gpu.emit import GpuSource
from codegen.pipeline import GPU
from poly.ir.graph import Call
from poly.ir.program import Program
from runtime.common.cache import Cache
from runtime.common.compile_report import Progress
from runtime.gpu.device import Device
from runtime.network.clock import Clock
from runtime.network.kernel_store import (
    StoredKernels,
    recall_kernels,
    source_key,
    store_kernels,
)
from runtime.tuned.record_file import TunedSchedules

#: Programs that are compiled as one module; meanwhile, the next ones are generated.
TOGETHER = 8


@dataclass(frozen=True, eq=False)
class DeviceKernels:
    """The kernels of a program on a device.

    module : the device's compiled form of this and other sources
    from_cache : whether texts and schedule were in the cache
    """

    stored: StoredKernels
    module: Any
    from_cache: bool

    @property
    def source(self) -> GpuSource:
        """The texts."""
        return self.stored.source


def build_kernels(
    calls: Sequence[Call],
    device: Device,
    cache: Cache,
    tell: Progress,
    clock: Clock,
    tuned: TunedSchedules | None = None,
) -> dict[str, DeviceKernels]:
    """The kernels of calls, by the digest of the program; equal programs share them.

    tuned : the schedules of kernels that were tuned

    Raises
    ------
    ScheduleError : see `codegen.pipeline.Pipeline.automatic_call`.
    ToolchainError : the device's compiler failed.
    CacheError : the result cannot be stored.
    """
    programs = {n.program.digest: n for n in calls}
    found: dict[str, tuple[StoredKernels, bool]] = {}
    modules: list[tuple[list[str], Future[Any]]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for names in _parts(list(programs), TOGETHER):
            for name in names:
                call = programs[name]
                tell("schedule and generate", len(found), len(programs), call.origin)
                found[name] = _kernels(call.program, device, cache, tuned)
            texts = (found[n][0].source for n in names)
            sources = [s for s in texts if s.kernels]
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
        name: DeviceKernels(stored, made[name], known) for name, (stored, known) in found.items()
    }


def _kernels(
    program: Program, device: Device, cache: Cache, tuned: TunedSchedules | None
) -> tuple[StoredKernels, bool]:
    """The kernels of a program, and whether they were found in the cache."""
    machine, dialect = device.machine, device.dialect
    key = source_key(program, machine, dialect, "" if tuned is None else tuned.identity)
    known = recall_kernels(key, cache)
    if known is not None:
        return known, True
    pipeline = GPU[dialect]
    made = pipeline.automatic_call(
        program,
        machine,
        lambda s: pipeline.emit(s, program),
        None if tuned is None else tuned.script,
    )
    stored = StoredKernels(made.source, str(made.schedule), made.fallbacks)
    store_kernels(key, stored, cache)
    return stored, False


def _parts(names: list[str], most: int) -> Iterator[list[str]]:
    for first in range(0, len(names), most):
        yield names[first : first + most]
