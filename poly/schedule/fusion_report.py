"""Which statements share loops, the memory traffic this saves, and why others do not share any.

For a tensor T that statement W writes and R reads, with the loops L around both: one iteration of
the innermost of L produces and uses a part of T, its footprint.  If that is small enough for a
cache, or a promotion keeps it, R need not read it from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poly.deps.scop import Role
from poly.errors import IllegalScheduleError, ScheduleError, UndecidedError
from poly.ir.cost import bytes_of
from poly.ir.program import Tensor
from poly.machine.cpu import Machine
from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Scope
from poly.tree.nodes import Band, Member, Node, Promote, path_to

#: Names of the scopes of promotions in reports.
_SCOPES = {
    Scope.REGISTER: "registers",
    Scope.LOCAL: "local memory",
    Scope.SHARED: "shared memory",
}


@dataclass(frozen=True)
class Handover:
    """A tensor that one statement writes and another reads.

    loops : around both; kept : where it is stored in between: ``registers``, ``local memory``,
        ``shared memory``, a cache or ``memory``; bytes : its size; part : the bytes produced in one
        iteration of `loops`
    saved : bytes that need not be moved
    obstacle : why no loops are shared, "" if some are
    """

    tensor: str
    maker: str
    user: str
    loops: tuple[str, ...]
    kept: str
    bytes: int
    part: int
    saved: int
    obstacle: str = ""


def handovers(
    schedule: Schedule, sizes: Mapping[str, int], machine: Machine | GpuMachine
) -> tuple[Handover, ...]:
    """Every tensor that one comprehension of the program passes to another.

    sizes : a value for every size
    """
    scop = schedule.scop
    found = []
    for user in scop.statements:
        reads = {r.tensor for r in user.source.reads} if user.role != Role.INIT else set()
        for maker in scop.statements:
            name = maker.target.tensor
            if maker.role != Role.INIT and maker.source != user.source and name in reads:
                tensor = scop.program.tensors[name]
                found.append(_handover(schedule, tensor, maker.name, user.name, sizes, machine))
    return tuple(found)


def _handover(
    schedule: Schedule,
    tensor: Tensor,
    maker: str,
    user: str,
    sizes: Mapping[str, int],
    machine: Machine | GpuMachine,
) -> Handover:
    whole = bytes_of(tensor, sizes)
    nodes = _shared_nodes(schedule.tree, maker, user)
    loops = [m for node in nodes if isinstance(node, Band) for m in node.members]
    if not loops:
        why = _obstacle(schedule, maker, user)
        return Handover(tensor.name, maker, user, (), "memory", whole, whole, 0, why)
    names = tuple(m.name for m in loops)
    part = _part(schedule, tensor.name, maker, loops, sizes, whole)
    kept = next(
        (n.scope for n in nodes if isinstance(n, Promote) and n.tensor == tensor.name), None
    )
    if kept is not None:
        where = _SCOPES[kept]
    else:
        where = next((level for level, limit in machine.caches if part <= limit), "memory")
    temporary = any(t.name == tensor.name for t in schedule.program.temps)
    # A promoted tensor that nothing else reads is not stored at all.
    ways = 2 if kept is not None and temporary else 1
    return Handover(
        tensor.name,
        maker,
        user,
        names,
        where,
        whole,
        part,
        0 if where == "memory" else ways * whole,
    )


def _part(
    schedule: Schedule,
    tensor: str,
    maker: str,
    loops: list[Member],
    sizes: Mapping[str, int],
    whole: int,
) -> int:
    try:
        found = schedule.footprints(maker, sizes)[len(loops)]
    except UndecidedError:  # beyond isl's budget: nothing is claimed
        return whole
    return next((t.bytes for t in found.tensors if t.tensor == tensor), whole)


def _shared_nodes(tree: Node, one: str, other: str) -> list[Node]:
    """The nodes above both statements, outermost first."""
    shared = []
    for a, b in zip(path_to(tree, one), path_to(tree, other), strict=False):
        if a is not b:
            break
        shared.append(a)
    return shared


def _obstacle(schedule: Schedule, maker: str, user: str) -> str:
    """Why two statements do not share their outermost loop in the order written."""
    written = Schedule.of(schedule.program, schedule.exact)
    loops = written.loops(maker)
    if not loops or not written.loops(user):
        return "one of them has no loops"
    try:
        written.fuse(maker, user, loops[:1])
    except IllegalScheduleError as error:
        return str(error)
    except ScheduleError as error:
        return str(error).partition("\n")[0]
    return "it would be legal, but saves no pass over memory that costs anything"
