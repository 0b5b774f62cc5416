"""Queries of the strategies for a GPU about shared loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from math import prod

from poly.deps.instances import member_limits
from poly.deps.legality import coincident_members
from poly.deps.scop import Role
from poly.ir.accesses import loops_of_read, plain_dimension, stride_of
from poly.ir.expr import Read
from poly.ir.linear_form import linear_form
from poly.machine.gpu import DIMENSIONS, GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Arranging, groups
from poly.strategy.common.queries import (
    accesses,
    attempt,
    buffers_around,
    dimension_at,
    nest,
    plan_around,
)
from poly.strategy.common.tactic import UnsuitableError
from poly.tree.kinds import Scope
from poly.tree.nodes import Band, loops_of, path_to


def parallel_nest(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost loops shared by a group that carry no dependence, adjacent in one band, () if
    there are none; the host runs those outside them.
    """
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    shared = nest(schedule, names)
    run = list(takewhile(lambda x: flags[x], dropwhile(lambda x: not flags[x], shared)))
    for node in path_to(schedule.tree, names[0]):
        if run and isinstance(node, Band) and run[0] in node.names:
            return tuple(x for x in run if x in node.names)
    return ()


def contiguity(schedule: Schedule, names: tuple[str, ...], loop: str) -> int:
    """How many accesses of statements move along a loop with stride 1, minus those with a larger
    stride; accesses that move with more loops count for more.
    """
    found = 0
    for name in names:
        index = dimension_at(schedule, name, loop)
        if not index:
            continue
        for access in accesses(schedule.scop.statement(name)):
            if access.indices:
                stride = stride_of(access, index)
                weight = 1 << 2 * len(loops_of_read(access))
                found += weight if stride in (1, -1) else 0 if stride == 0 else -weight
    return found


def on_blocks(
    loops: Sequence[str], extents: Mapping[str, int | None]
) -> tuple[list[str], list[str]]:
    """The loops that become the dimensions of a grid, and short ones that run inside it."""
    blocks, rest = list(loops), list[str]()
    while len(blocks) > DIMENSIONS:
        shortest = min(blocks, key=lambda x: (extents.get(x) is None, extents.get(x) or 0))
        blocks.remove(shortest)
        rest.append(shortest)
    return blocks, rest


def in_registers(schedule: Schedule, names: tuple[str, ...], loop: str) -> Schedule:
    """Keep what one thread alone writes and reads inside a loop in its registers."""
    for tensor in _own(schedule, names):
        schedule = in_register(schedule, names[0], loop, tensor)
    return schedule


def in_register(schedule: Schedule, name: str, loop: str, tensor: str) -> Schedule:
    """Keep a tensor in registers around a statement, if that is possible."""
    return attempt(schedule, Schedule.promote, name, loop, tensor, Scope.REGISTER)


def unrolled(schedule: Schedule, name: str, *loops: str) -> Schedule:
    """Unroll loops where possible."""
    for loop in loops:
        schedule = attempt(schedule, Schedule.unroll, name, loop)
    return schedule


def _own(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The tensors that a group adds to, and the temporaries that it writes."""
    temps = {t.name for t in schedule.program.temps}
    statements = [schedule.scop.statement(n) for n in names]
    updated = {s.target.tensor for s in statements if s.role == Role.UPDATE}
    written = dict.fromkeys(s.target.tensor for s in statements)
    return tuple(t for t in written if t in updated or t in temps)


def element_in_register(
    schedule: Schedule, names: tuple[str, ...], loops: Sequence[str]
) -> Schedule:
    """Keep what one thread alone writes and reads in a register: around the first of some loops in
    which that is one element of the tensor.  Several would need unrolled loops.
    """
    for tensor in _own(schedule, names):
        for loop in loops:
            made = in_register(schedule, names[0], loop, tensor)
            if made is not schedule and _is_element(made, names[0], tensor):
                schedule = made
                break
    return schedule


def _is_element(schedule: Schedule, name: str, tensor: str) -> bool:
    """Whether the innermost buffer of a tensor around a statement has one element."""
    node = buffers_around(schedule, name, tensor)[-1]
    return prod(plan_around(schedule, name, node).sizes) == 1


def check_rows(schedule: Schedule, name: str, tensor: str) -> None:
    """Refuse registers whose row depends on an index: of ``X[i]`` and ``X[i+2]``, every other i has
    the first one in the other half.  In a buffer of n rows, ``X[n i + 1]`` has a fixed row.

    Raises
    ------
    UnsuitableError : naming the tensor.
    """
    read = [a for a in accesses(schedule.scop.statement(name)) if a.tensor == tensor]
    for node in buffers_around(schedule, name, tensor):
        for d, size in enumerate(plan_around(schedule, name, node).sizes[:-1]):
            if any(c % size for a in read for _, c in linear_form(a.indices[d]).terms):
                raise UnsuitableError(f"the register of each row of {tensor} is not fixed")


def shared_tile(
    schedule: Schedule,
    name: str,
    loop: str,
    tensor: str,
    order: Sequence[int] = (),
    padded: bool = False,
    double: bool = True,
) -> Schedule:
    """Keep an operand in shared memory, if possible; double-buffered where that is possible.

    double : whether to try double buffering; there may be no next part
    """
    for ahead in (True, False) if double else (False,):
        made = attempt(
            schedule, Schedule.promote, name, loop, tensor, Scope.SHARED, order, ahead, padded
        )
        if made is not schedule:
            return made
    return schedule


def order_along(schedule: Schedule, read: Read, loop: str) -> tuple[int, ...]:
    """The dimension order that makes a read contiguous along a loop, () for the one in memory."""
    dimension = plain_dimension(read, loop)
    rank = schedule.program.tensors[read.tensor].rank
    if dimension is None or dimension == rank - 1:
        return ()
    return (*(d for d in range(rank) if d != dimension), dimension)


def start_at_zero(schedule: Schedule, given: Arranging[GpuMachine]) -> Schedule:
    """Shift the loops that groups share to begin at 0, as blocks do."""
    for names in groups(schedule):
        schedule = _group_at_zero(schedule, names)
    return schedule


def _group_at_zero(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    for loop in nest(schedule, names):
        member = next(m for m in loops_of(schedule.tree, names[0]) if m.name == loop)
        limits = member_limits(member, schedule.scop)
        low = limits[0] if limits is not None else _constant_start(schedule, names, loop)
        if low is None or low == 0:
            continue
        schedule = attempt(schedule, _shifted, names, loop, -low)
    return schedule


def _shifted(schedule: Schedule, names: tuple[str, ...], loop: str, by: int) -> Schedule:
    for name in names:
        schedule = schedule.shift(name, loop, by)
    return schedule


def _constant_start(schedule: Schedule, names: tuple[str, ...], loop: str) -> int | None:
    """The least value of a loop, if it is the same constant for all sizes."""
    found = set()
    for name in names:
        index = dimension_at(schedule, name, loop)
        s = schedule.scop.statement(name)
        if not index:
            return None
        low = s.domain.dim_min_val(s.loops.index(index))
        found.add(int(low.to_python()) if low.is_int() else None)
    return found.pop() if len(found) == 1 else None
