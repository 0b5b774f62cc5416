"""The automatic schedule for CPUs: steps chosen from access relations and the machine, not names.

`docs/pipeline.md` lists its passes and tactics, in order, with what each does.

Every choice becomes steps of the checked `Schedule`; an optional step that is refused is left out,
and the schedule stays legal.
"""

from __future__ import annotations

from poly.errors import ArgumentError
from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.apply_tactics import Strategy, apply_tactics
from poly.strategy.common.grouping import group_statements
from poly.strategy.cpu.arrange import reschedule_serial, share_block_loops
from poly.strategy.cpu.contraction import RegisterTile
from poly.strategy.cpu.interleave import Interleave
from poly.strategy.cpu.join_threads import share_threads
from poly.strategy.cpu.memory_bound import MemoryBound
from poly.strategy.cpu.row_blocks import RowBlocks, share_rows
from poly.strategy.cpu.stencil import StencilRows
from poly.strategy.cpu.transpose import Transpose
from poly.strategy.cpu.window import Window

#: The passes over a program for a CPU, in order.
CPU_STRATEGY: Strategy[Machine] = Strategy(
    arrange=(share_block_loops, share_rows, group_statements, reschedule_serial),
    tactics=(
        RowBlocks(),
        RegisterTile(),
        StencilRows(),
        Window(),
        Interleave(),
        Transpose(),
        MemoryBound(),
    ),
    marks=("parallelize", "vectorize"),
    finish=(share_threads,),
)


def auto_schedule(schedule: Schedule, machine: Machine | None = None) -> Schedule:
    """Schedule a program for a CPU, starting from its written order: fast and legal.

    The result is deterministic for a program and machine.

    machine : by default the one that this process runs on

    Raises
    ------
    ArgumentError : it is no schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ArgumentError(
            f"the schedule is a {type(schedule).__name__}, expected a Schedule, as "
            "Schedule.of(parse(text)) makes"
        )
    return apply_tactics(schedule, machine or host_machine(), CPU_STRATEGY).schedule
