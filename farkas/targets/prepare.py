"""What programs become before they are scheduled, and their automatic schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poly.ir.program import Program
from poly.machine.cpu import host_machine
from poly.rewrites.eliminate_dead import without_unread
from poly.rewrites.join_dimensions import join_dimensions
from poly.rewrites.polyphase import split_sums
from poly.rewrites.split_reduction import in_parts
from poly.schedule.schedule import Schedule
from poly.strategy.common.apply_tactics import apply_tactics
from poly.strategy.cpu.auto_schedule import CPU_STRATEGY

if TYPE_CHECKING:
    from codegen.gpu.emit import GpuSource
    from poly.machine.gpu import GpuMachine


def scheduled_program(program: Program, exact: bool = False, pairs: bool = True) -> Program:
    """The program that has the automatic schedule.

    What nobody reads is left out, products of many tensors are split, strided sums done phase by
    phase, and dimensions that are one joined.  Exact sums are not taken apart.
    """
    program = without_unread(program)
    return program if exact else join_dimensions(split_sums(program, pairs))


def automatic_on_gpu(
    program: Program, exact: bool, machine: GpuMachine, dialect: str
) -> tuple[Schedule, GpuSource]:
    """The automatic schedule of a program for a GPU, and its text; see
    `poly.strategy.gpu.auto_schedule`.

    In place of the program, what `scheduled_program` makes of it, but for pairs of products, for
    which GPUs have no such instruction, and with long sums in parts.
    """
    from runtime.network.build_gpu import automatic_source

    prepared = scheduled_program(program, exact, pairs=False)
    start = Schedule.of(prepared, exact) if exact else in_parts(prepared, machine.processors)
    return automatic_source(start, machine, dialect, program)


def automatic_schedule(program: Program, exact: bool, tiles: bool = True) -> Schedule:
    """The automatic schedule for a CPU; see `poly.strategy.cpu.auto_schedule`."""
    start = Schedule.of(scheduled_program(program, exact), exact)
    return apply_tactics(start, host_machine(), CPU_STRATEGY, plain=not tiles).schedule
