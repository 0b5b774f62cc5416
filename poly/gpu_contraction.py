"""Contractions on a GPU: tiles of blocks in shared memory, of threads in registers.

An update C[..] += A[..] * B[..] whose operands each do not move with some free loop: with m a loop
that moves A alone and n one that moves B alone, a block computes a tile of m by n, its threads
parts of it in registers, and A and B come through memory that the block shares, a part of the
reduction at a time: each element that is read from there serves a row or a column of the registers
(Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008).
"""

from __future__ import annotations

from poly.errors import ScheduleError
from poly.gpu_machine import GpuMachine
from poly.schedule import Schedule


def contraction_on_gpu(schedule: Schedule, names: tuple[str, ...], machine: GpuMachine) -> Schedule:
    """The schedule of a group with a contraction.

    Raises
    ------
    ScheduleError : there is none, or it does not suit.
    """
    raise ScheduleError("not yet")
