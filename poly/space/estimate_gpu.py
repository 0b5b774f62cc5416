"""What a schedule costs on a GPU, by a model: instructions and traffic of blocks, wave by wave.

The model is of the kind of Hong and Kim, "An analytical model for a GPU architecture with
memory-level and thread-level parallelism awareness" (ISCA 2009): where too few warps are at work,
nothing hides the time that memory takes.  As with `poly.space.estimate`, it need only rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from poly.ir.accesses import elements_read, loops_of_read, stride_of
from poly.ir.expr import Op, Read, walk
from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.space.cost import Cost, together
from poly.space.nests import Loop, Nest, nest_of
from poly.tree.kinds import ON_THREADS, Mark, Scope, Tensorized
from poly.tree.nodes import Sequence

#: Of a processor, each cycle: operations of threads, accesses of threads to shared memory or the
#: first cache, and bytes from the device's memory.
OPERATIONS, ACCESSES, BYTES = 128, 32, 12.0
#: Of a processor's tensor cores, each cycle: operations; and elements that a thread of a warp reads
#: by one access for them.
MATRIX_OPERATIONS, MATRIX_ELEMENTS = 1024, 8
#: Bytes that are moved at least, for a thread that reads apart from its neighbours.
SECTOR = 32
#: Warps of a processor that hide the time of memory, and cycles to launch a kernel.
HIDING, LAUNCH = 16, 6000.0


@dataclass(frozen=True)
class GpuEstimate(Cost):
    """The cycles of a schedule by their kinds; they add up over statements.

    instructions : of operations; near : of accesses to shared memory and the first cache
    memory : to move bytes to and from the device's memory
    exposed : in which a processor waits for memory, as too few warps are at work
    launches : to launch kernels
    threads, blocks, per_thread : of the statement with the most instructions: threads of a block,
        blocks for each processor, and results that a thread keeps in registers
    """

    instructions: float = 0.0
    near: float = 0.0
    memory: float = 0.0
    exposed: float = 0.0
    launches: float = 0.0
    threads: float = 1.0
    blocks: float = 1.0
    per_thread: float = 1.0

    @property
    def cycles(self) -> float:
        """Together: what is hidden by other warps counts once."""
        return max(self.instructions, self.near, self.memory) + self.exposed + self.launches


def estimate_gpu(schedule: Schedule, sizes: Mapping[str, int], machine: GpuMachine) -> GpuEstimate:
    """Estimate what a schedule costs on a GPU.

    sizes : a value for every size of the program
    """
    parts = [_of_nest(nest_of(schedule, n, sizes), machine) for n in schedule.statements]
    tree = schedule.tree
    kernels = len(tree.children) if isinstance(tree, Sequence) else 1
    found = together(parts, ("instructions", "near", "memory", "exposed"))
    return replace(found, launches=LAUNCH * kernels)


def _of_nest(nest: Nest, machine: GpuMachine) -> GpuEstimate:
    blocks = prod(x.extent for x in nest.loops if x.mark == Mark.BLOCK)
    # What runs on tensor cores is mapped to warps.
    matrices = [x for x in nest.loops if isinstance(x.mark, Tensorized)]
    warp = machine.warp if matrices else 1
    threads = warp * prod(x.extent for x in nest.loops if x.mark in ON_THREADS)
    # Of the processors' time in waves of blocks, and of the threads of warps, this part is at work.
    busy = blocks / (ceil(blocks / machine.processors) * machine.processors)
    full = threads / (ceil(threads / machine.warp) * machine.warp)
    unrolled = [x for x in nest.loops if x.mark == Mark.UNROLL or isinstance(x.mark, Tensorized)]
    body = {
        i: min(e, prod(x.extent for x in unrolled if i in x.indices))
        for i, e in nest.extents.items()
    }
    turns = nest.instances / max(1, prod(body.values()))
    operators = 1 + sum(isinstance(e, Op) for e in walk(nest.statement.value))
    share = machine.processors * busy * full
    accesses = turns * sum(_accesses(nest, r, body) for r in nest.accesses)
    moved = sum(_bytes(nest, r) for r in nest.accesses)
    memory = moved / (BYTES * machine.processors * busy)
    if matrices:
        accesses /= MATRIX_ELEMENTS
    rate = MATRIX_OPERATIONS if matrices else OPERATIONS
    instructions = (nest.instances * operators / rate + accesses / OPERATIONS) / share
    warps = min(64.0, blocks / machine.processors * ceil(threads / machine.warp))
    return GpuEstimate(
        instructions=instructions,
        near=accesses / (ACCESSES * share),
        memory=memory,
        exposed=max(instructions, memory) * max(0.0, HIDING / max(warps, 0.25) - 1),
        threads=threads,
        blocks=blocks / machine.processors,
        per_thread=elements_read([nest.statement.target], body) / warp,
    )


def _accesses(nest: Nest, read: Read, body: Mapping[str, int]) -> float:
    """Accesses of a thread to a read's elements in the unrolled statements."""
    scopes = {b.scope for b in nest.buffers if read in b.reads}
    if read == nest.statement.target and scopes & {Scope.REGISTER, Scope.FRAGMENT, Scope.PARTIAL}:
        return 0.0
    return float(elements_read([read], body))


def _bytes(nest: Nest, read: Read) -> float:
    """Bytes of a read that blocks move to or from memory, where each keeps what it may."""
    # Threads of a block fetch together: their loops are inside those of the block.
    apart = [x for x in nest.loops if x.mark not in ON_THREADS]
    together = replace(nest, loops=(*apart, *(x for x in nest.loops if x.mark in ON_THREADS)))
    depths = [
        sum(x.mark not in ON_THREADS for x in nest.loops[: b.depth])
        for b in nest.buffers
        if read in b.reads
    ]
    depth = max(depths, default=sum(x.mark == Mark.BLOCK for x in apart))
    return (
        together.bytes_inside(read, depth)
        * together.fetches(read, depth)
        * _scattered(nest, read, bool(depths))
    )


def _scattered(nest: Nest, read: Read, is_buffered: bool) -> float:
    """How many times as many bytes are moved as are used, since neighbours read apart."""
    lines: list[Loop] = [x for x in nest.loops if x.mark in ON_THREADS]
    if is_buffered or not lines:
        return 1.0
    moving = lines[-1].indices & loops_of_read(read)
    if not moving or all(stride_of(read, i) == 1 for i in moving):
        return 1.0
    return max(1.0, SECTOR / nest.bytes[read.tensor])
