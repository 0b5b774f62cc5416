"""The automatic schedule for GPUs: steps chosen from access relations, not from names.

1. *Arrange*: groups as for a CPU, as long as enough blocks are left to fill all SMs; their loops
   begin at 0.
2. *Contractions* get tiles of blocks, threads and registers, or warps with tensor cores where the
   machine has suitable ones.
3. *Transposes*: an input read along one of the shared loops and written along another goes
   through tiles in shared memory, so that both sides are coalesced.
4. *Rows*: accesses contiguous along loops inside the shared ones get a block for each row (or
   warps for some rows), whose threads share these loops and reduce together.
5. *Vector points*: elementwise accesses get a thread for every few adjacent elements, as many as
   one access of 16 bytes loads or stores; they are loaded to and stored from registers.
6. *Points*: everything else has a thread for each point of the shared loops.

Statements without a parallel loop keep their order, and run on one thread.
"""

from __future__ import annotations

from poly.machine.gpu import ANY, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.apply_tactics import Strategy, apply_tactics
from poly.strategy.common.grouping import group_statements
from poly.strategy.gpu.contraction import BlockTile
from poly.strategy.gpu.points import Points
from poly.strategy.gpu.queries import start_at_zero
from poly.strategy.gpu.rows import Rows
from poly.strategy.gpu.tensor_cores import TensorCores
from poly.strategy.gpu.transpose import Transpose
from poly.strategy.gpu.vector_points import VectorPoints

#: The passes over a program for a GPU, in order.
GPU_STRATEGY: Strategy[GpuMachine] = Strategy(
    arrange=(group_statements, start_at_zero),
    tactics=(TensorCores(), BlockTile(), Transpose(), Rows(), VectorPoints(), Points()),
    marks=("map_blocks", "map_threads"),
)


def gpu_schedule(schedule: Schedule, machine: GpuMachine = ANY) -> Schedule:
    """Schedule a program for a GPU, starting from its written order: fast and legal.

    The result is deterministic for a program and machine.
    """
    return apply_tactics(schedule, machine, GPU_STRATEGY).schedule
