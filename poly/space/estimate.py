"""What a schedule costs, by a model: cycles of instructions, and of lines from each cache.

The model is of the kind of ECM (Stengel et al., "Quantifying performance bottlenecks of stencil
computations", ICS 2015): the loops whose footprint fits a cache decide what comes from the next
one.  It need only rank the schedules of one program; what it does not know, a model that was
trained on measured ones adds, see `farkas.tuning.learned`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from poly.deps.scop import Role
from poly.ir.accesses import elements_read, loops_of_read, stride_of
from poly.ir.expr import Op, Read, walk
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.space.cost import Cost, together
from poly.space.nests import Buffer, Loop, Nest, is_lane, nest_of
from poly.tree.kinds import Mark, Scope

#: The part of a cache that a footprint may fill.
FITS = 0.75
#: Bytes of a line, and cycles for one from the second cache, the third, and memory.
LINE, FROM_L2, FROM_L3, FROM_MEMORY = 64, 2.0, 8.0, 20.0
#: Multiply-adds, loads and stores a cycle; cycles from a multiply-add to one that needs its result.
MULTIPLY_ADDS, LOADS, STORES, LATENCY = 2, 2, 1, 4
#: Cycles of the end of a loop's iteration, of an access that is not contiguous in its lanes, for
#: each, of an element that is copied to a buffer, and of starting threads.
TURN, SCATTERED, COPIED, START = 1.5, 1.5, 0.5, 15_000.0


@dataclass(frozen=True)
class Estimate(Cost):
    """The cycles of a schedule by their kinds; they add up over statements.

    instructions : of arithmetic, loads and stores, if all data is in the first cache
    l2, l3, memory : to bring lines from there
    copies : to fill buffers; threads : to start threads, and for those that others wait for
    vectors, accumulators, unrolled, spilled : of the statement with the most instructions: lanes
        at work, vectors of results in registers, statements in its innermost loop, and vectors
        that the registers have no room for
    """

    instructions: float = 0.0
    l2: float = 0.0
    l3: float = 0.0
    memory: float = 0.0
    copies: float = 0.0
    threads: float = 0.0
    vectors: float = 1.0
    accumulators: float = 1.0
    unrolled: float = 1.0
    spilled: float = 0.0

    @property
    def cycles(self) -> float:
        """Together: what comes from the caches overlaps with instructions in part."""
        moved = self.l2 + self.l3 + self.memory
        work = max(self.instructions, moved) + 0.25 * min(self.instructions, moved)
        return work + self.copies + self.threads


def estimate(schedule: Schedule, sizes: Mapping[str, int], machine: Machine) -> Estimate:
    """Estimate what a schedule costs on a processor.

    sizes : a value for every size of the program
    """
    parts = [_of_nest(nest_of(schedule, n, sizes), machine) for n in schedule.statements]
    return together(parts, ("instructions", "l2", "l3", "memory", "copies", "threads"))


def _of_nest(nest: Nest, machine: Machine) -> Estimate:
    at_once = [x for x in nest.loops if is_lane(x) or x.mark == Mark.UNROLL]
    lanes = prod(x.extent for x in nest.loops if is_lane(x))
    unrolled = prod(x.extent for x in at_once)
    body = {
        i: min(e, prod(x.extent for x in at_once if i in x.indices))
        for i, e in nest.extents.items()
    }
    width = max(1, min(lanes, machine.vector_bytes // nest.bytes[nest.statement.target.tensor]))
    lines = _moved(nest, machine)
    share = _busy(nest, machine)
    accumulators, spilled = _registers(nest, body, lanes, width, machine)
    one = _of_body(nest, body, lanes, width, accumulators) + spilled
    turns = nest.instances / max(1, prod(body.values()))
    cycles = turns * (one + TURN)
    waits = (cycles + sum(lines)) * (1 / share - 1 / machine.cores)
    starts = START * nest.iterations(_threads_depth(nest)) if share > 1 / machine.cores else 0.0
    return Estimate(
        instructions=cycles / machine.cores,
        l2=lines[0] / machine.cores,
        l3=lines[1] / machine.cores,
        memory=lines[2] / machine.cores,
        copies=_copied(nest) / machine.cores,
        threads=waits + starts,
        vectors=lanes,
        accumulators=accumulators,
        unrolled=unrolled / max(1, lanes),
        spilled=spilled,
    )


def _of_body(
    nest: Nest, body: Mapping[str, int], lanes: int, width: int, accumulators: int
) -> float:
    """The cycles of the statements that are unrolled together, from the first cache."""
    s = nest.statement
    count = prod(body.values())
    operators = sum(isinstance(e, Op) for e in walk(s.value)) + (s.role == Role.UPDATE)
    operations = count / width * max(1, operators if s.role != Role.UPDATE else operators - 1)
    lane_indices = {i for x in nest.loops if is_lane(x) for i in x.indices}
    buffers = {r: b for b in nest.buffers for r in b.reads}
    loads = 0.0
    for read in nest.reads:
        loads += _instructions(read, body, lane_indices, lanes, width, buffers.get(read))
    kept = buffers.get(s.target)
    stored = 0.0
    if kept is None or kept.scope != Scope.REGISTER:
        stored = _instructions(s.target, body, lane_indices, lanes, width, kept)
        loads += stored if s.role == Role.UPDATE else 0.0
    chain = 0.0
    if s.role == Role.UPDATE:
        results = elements_read([s.target], body)
        chain = LATENCY * count / max(1, results) if stored == 0.0 else LATENCY
        chain = max(chain, LATENCY * operations / max(1, accumulators) / 8) if lanes > 1 else chain
    return max(operations / MULTIPLY_ADDS, loads / LOADS, stored / STORES, chain)


def _instructions(
    read: Read,
    body: Mapping[str, int],
    lane_indices: set[str],
    lanes: int,
    width: int,
    buffer: Buffer | None,
) -> float:
    """The loads or stores of an access in the unrolled statements."""
    elements = elements_read([read], body)
    moving = loops_of_read(read) & lane_indices
    if not moving or lanes == 1:
        return float(elements)
    contiguous = buffer is not None or all(stride_of(read, i) == 1 for i in moving)
    return elements / width if contiguous else elements * SCATTERED


def _registers(
    nest: Nest, body: Mapping[str, int], lanes: int, width: int, machine: Machine
) -> tuple[int, float]:
    """Vectors of results in registers, and the cycles for those that do not fit."""
    kept = any(b.scope == Scope.REGISTER and nest.statement.target in b.reads for b in nest.buffers)
    if not kept:
        return 1, 0.0
    accumulators = ceil(elements_read([nest.statement.target], body) / max(1, width))
    room = machine.registers - 2
    return accumulators, 2.0 * max(0, accumulators - room)


def _moved(nest: Nest, machine: Machine) -> tuple[float, float, float]:
    """Cycles for lines from the second cache, the third, and memory."""
    found: list[float] = []
    for (_, size), cost in zip(machine.caches, (FROM_L2, FROM_L3, FROM_MEMORY), strict=True):
        depth = 0
        while depth < len(nest.loops) and _together(nest, depth) > FITS * size:
            depth += 1
        if depth == 0:
            # All of it fits; from memory, it comes once.
            found.append(0.0)
            continue
        lines = sum(
            nest.bytes_inside(r, depth) / LINE * nest.fetches(r, depth) for r in nest.accesses
        )
        found.append(lines * cost)
    return found[0], found[1], found[2]


def _together(nest: Nest, depth: int) -> int:
    return sum(nest.bytes_inside(r, depth) for r in nest.accesses)


def _copied(nest: Nest) -> float:
    """Cycles to fill the buffers around a statement."""
    return sum(
        nest.bytes_inside(r, b.depth) / nest.bytes[r.tensor] * nest.fetches(r, b.depth) * COPIED
        for b in nest.buffers
        if b.scope == Scope.LOCAL
        for r in b.reads
    )


def _on_threads(nest: Nest) -> list[Loop]:
    return [x for x in nest.loops if x.mark == Mark.PARALLEL]


def _threads_depth(nest: Nest) -> int:
    """The number of loops around the first whose iterations threads share."""
    marks = [x.mark for x in nest.loops]
    return marks.index(Mark.PARALLEL) if Mark.PARALLEL in marks else 0


def _busy(nest: Nest, machine: Machine) -> float:
    """The part of all processors' time that is of use, from 1 / cores to 1."""
    count = prod(x.extent for x in _on_threads(nest))
    if not _on_threads(nest) or count < 1:
        return 1 / machine.cores
    return count / (ceil(count / machine.cores) * machine.cores)
