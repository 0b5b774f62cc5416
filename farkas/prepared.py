"""What programs become before they are scheduled, and their automatic schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poly.join_dimensions import join_dimensions
from poly.partial_sums import in_parts
from poly.phases import split_sums
from poly.program import Program
from poly.schedule import Schedule
from poly.strategy import auto_schedule
from poly.unread import without_unread

if TYPE_CHECKING:
    from codegen.gpu import GpuSource
    from poly.gpu_machine import GpuMachine


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
    """The automatic schedule of a program for a GPU, and its text; see `poly.gpu_strategy`.

    In place of the program, what `scheduled_program` makes of it, but for pairs of products, for
    which GPUs have no such instruction, and with long sums in parts.
    """
    from runtime.gpu_build import automatic_source

    prepared = scheduled_program(program, exact, pairs=False)
    start = Schedule.of(prepared, exact) if exact else in_parts(prepared, machine.processors)
    return automatic_source(start, machine, dialect, program)


def automatic_schedule(program: Program, exact: bool, tiles: bool = True) -> Schedule:
    """The automatic schedule for a CPU; see `poly.strategy`."""
    return auto_schedule(Schedule.of(scheduled_program(program, exact), exact), tiles=tiles)
