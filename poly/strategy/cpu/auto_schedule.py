"""The automatic schedule for CPUs: steps chosen from access relations and the machine, not names.

1. *Arrange*: adjacent statements share loops where that is legal, keeps them parallel, and
   leaves a contraction's own loops free to be tiled; but not loops too short for all threads.
2. *Contractions* (updates with reuse: some operand is invariant in some free loop) get a
   register tile: a vector loop v along which one operand is broadcast and the others contiguous,
   a second loop w along which the vector operand is reused, the reduction outside, accumulators
   in registers, the vector operand packed where it is not contiguous, and cache blocks
   where they pay: see `poly.strategy.cpu.cache_blocks`
   (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008).
3. *Stencils* get tiles along rows, see `poly.strategy.cpu.stencil_tile`.
4. *Everything else* is bound by memory: windows, transposes, and the rest.

Every choice becomes steps of the checked `Schedule`; an optional step that is refused is left out,
and the schedule stays legal.
"""

from __future__ import annotations

from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.apply_tactics import Strategy, apply_tactics
from poly.strategy.common.grouping import group_statements
from poly.strategy.cpu.arrange import reschedule_serial, share_block_loops
from poly.strategy.cpu.contraction import RegisterTile
from poly.strategy.cpu.memory_bound import MemoryBound
from poly.strategy.cpu.stencil import StencilRows
from poly.strategy.cpu.transpose import Transpose
from poly.strategy.cpu.window import Window

#: The passes over a program for a CPU, in order.
CPU_STRATEGY: Strategy[Machine] = Strategy(
    arrange=(share_block_loops, group_statements, reschedule_serial),
    tactics=(RegisterTile(), StencilRows(), Window(), Transpose(), MemoryBound()),
)


def auto_schedule(schedule: Schedule, machine: Machine | None = None) -> Schedule:
    """Schedule a program for a CPU, starting from its written order: fast and legal.

    The result is deterministic for a program and machine.

    machine : by default the one that this process runs on
    """
    return apply_tactics(schedule, machine or host_machine(), CPU_STRATEGY).schedule
