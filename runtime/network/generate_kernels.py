"""Schedule and generate the kernels of a graph, in several processes at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codegen.c.convention import LIBRARY, Convention
from codegen.c.function import CFunction, emit_function
from codegen.pipeline import CPU
from poly.errors import ToolchainError
from poly.ir.instruction_tables import declare_intrinsic, declared_intrinsics
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from runtime.common.workers import WorkerDiedError, Workers, processes
from runtime.tuned.record_file import TunedSchedules

#: A worker takes as long to start as a few kernels take to generate.
KERNELS_PER_WORKER = 6


@dataclass(frozen=True)
class GeneratedKernel:
    """The C function of a program.

    fallbacks : see `codegen.pipeline.Generated`
    seconds : of this process's or the worker's time, by stage
    """

    function: CFunction
    fallbacks: tuple[tuple[str, str], ...]
    seconds: tuple[tuple[str, float], ...]


def generate_kernel(
    program: Program,
    symbol: str,
    machine: Machine,
    declared: Sequence[VectorIntrinsic] = (),
    convention: Convention = LIBRARY,
    tuned: TunedSchedules | None = None,
) -> GeneratedKernel:
    """The automatic schedule and the C function of the program of a call.

    declared : instructions of users, which another process does not know
    tuned : schedules that replace automatic ones

    Raises
    ------
    ScheduleError : no code can be generated.
    """
    for intrinsic in declared:
        declare_intrinsic(intrinsic)
    begin = time.perf_counter()
    emitting = 0.0

    def emitted(schedule: Schedule) -> CFunction:
        nonlocal emitting
        start = time.perf_counter()
        try:
            return emit_function(schedule, symbol, CPU.loop_passes, convention.on(machine))
        finally:
            emitting += time.perf_counter() - start

    script = None if tuned is None else tuned.script
    made = CPU.automatic_call(program, machine, emitted, script)
    seconds = {"schedule": time.perf_counter() - begin - emitting, "generate": emitting}
    return GeneratedKernel(made.source, made.fallbacks, tuple(seconds.items()))


def kernel_workers(kernels: int) -> Workers:
    """Workers for up to so many kernels.

    Raises
    ------
    ArgumentError : see `runtime.common.workers.processes`.
    """
    count = min(processes() - 1, kernels // KERNELS_PER_WORKER)
    return Workers(__name__, generate_kernel.__name__, max(0, count))


def generate_kernels(
    programs: Sequence[tuple[Program, str, str]],
    machine: Machine,
    workers: Workers,
    convention: Convention = LIBRARY,
    tuned: TunedSchedules | None = None,
) -> Iterator[tuple[int, GeneratedKernel]]:
    """The number of each program and its function, in the order in which they are ready.

    programs : each with the symbol of its function, and the node that it came from
    tuned : see `generate_kernel`

    Raises
    ------
    ScheduleError : no code can be generated.
    ToolchainError : a worker was killed.
    """
    declared = declared_intrinsics()
    arguments = [
        (program, symbol, machine, declared, convention, tuned) for program, symbol, _ in programs
    ]
    try:
        yield from workers.apply(arguments, generate_kernel)
    except WorkerDiedError as error:
        _, symbol, origin = programs[error.argument]
        raise ToolchainError(f"{symbol} (node {origin}) could not be generated: {error}") from None
