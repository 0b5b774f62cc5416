"""Grouping: which statements share loops, by fusing groups from first to last."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from poly.deps.legality import coincident_members
from poly.deps.scop import Role
from poly.ir.accesses import loops_of_read
from poly.ir.cost import WORTH_SHARING
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt, inner_loops, loop_extents, shares_ranges, work_of
from poly.tree.nodes import Band, Node, Sequence


class Core(Protocol):
    """The core that a group is tiled around: an update and its free loops, which form the tile."""

    @property
    def statement(self) -> str: ...

    @property
    def free(self) -> tuple[str, ...]: ...


class Parallel(Protocol):
    """A machine; grouping only uses its degree of parallelism."""

    @property
    def parallelism(self) -> int: ...

    @property
    def exact(self) -> Self:
        """The machine without instructions that round otherwise than is written."""


M = TypeVar("M", bound=Parallel)

#: Finds the core of some statements of a schedule on a machine, None if they have none.
CoreOf = Callable[[Schedule, tuple[str, ...], M], Core | None]


def groups(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """The statements that share their outermost loop (in a block, their outermost inside a step),
    group by group in execution order.
    """
    if not isinstance(schedule.tree, Sequence):
        return tuple(_inside(schedule, schedule.statements, schedule.tree))
    children = schedule.tree.children
    return tuple(g for f in children for g in _inside(schedule, f.statements, f.child))


def _inside(schedule: Schedule, names: tuple[str, ...], child: Node) -> list[tuple[str, ...]]:
    """The groups in a block, else the group itself."""
    step = schedule.scop.statement(names[0]).step
    # A whole step is one group if its loops are shared, too.
    if not step or not isinstance(child, Band) or child.names[-1] != step:
        return [names]
    below = child.child
    return [f.statements for f in below.children] if isinstance(below, Sequence) else [names]


@dataclass(frozen=True)
class Arranging(Generic[M]):
    """What a pass over a whole schedule is given.

    core_of : finds groups that will be tiled; these share all free loops of the core or none
    apart : statements that are not fused with what is before them
    """

    machine: M
    core_of: CoreOf[M]
    apart: Collection[str] = ()


def group_statements(schedule: Schedule, given: Arranging[M]) -> Schedule:
    """Fuse adjacent groups of statements, as deep as that stays legal and parallel."""
    position = 0
    while True:
        current = groups(schedule)
        if position + 1 >= len(current):
            return schedule
        first, second = current[position : position + 2]
        fused = None
        if second[0] not in given.apart:
            fused = _fuse_groups(schedule, first, second, given.machine, given.core_of)
        if fused is None:
            position += 1
        else:
            schedule = fused


def _fuse_groups(
    schedule: Schedule,
    first: tuple[str, ...],
    second: tuple[str, ...],
    machine: M,
    core_of: CoreOf[M],
) -> Schedule | None:
    if not are_connected(schedule, first, second):
        return None
    if len({schedule.scop.statement(n[0]).source.block for n in (first, second)}) > 1:
        return None
    above = len(schedule.loops(first[0])) - len(inner_loops(schedule, first[0]))
    cores = [core_of(schedule, _with_updates(schedule, n), machine) for n in (first, second)]
    core = cores[0] or cores[1]
    if any(c is not None and core is not None and c.statement != core.statement for c in cores):
        return None
    if core is not None and _is_filling(schedule, first, second, core):
        return None
    leading = inner_loops(schedule, first[0])
    common = min(len(_nest(schedule, first)), len(_nest(schedule, second)))
    for depth in range(common, 0, -1):
        if core is not None and depth != len(core.free):
            # A contraction keeps all its free loops for its tile, or it is not fused.
            continue
        loops = leading[:depth]
        if not shares_ranges(schedule, first, second, above + depth):
            continue
        fused = attempt(schedule, Schedule.fuse, first[0], second[0], loops)
        if fused is schedule:
            continue
        carried = coincident_members(fused.tree, second[0], fused.dependences)
        if all(carried[loop] for loop in loops) and _keeps_threads(
            schedule, first, second, loops, machine
        ):
            return fused
    return None


def _is_filling(
    schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...], core: Core
) -> bool:
    """Whether a group fills whole operands of a tile, and the next is the start of its sums, which
    has to stay with these.
    """
    s = schedule.scop.statement(core.statement)
    names = {schedule.scop.statement(n).source.name for n in second}
    if names != {core.statement} or core.statement in second:
        return False
    written = {schedule.scop.statement(n).target.tensor for n in first}
    own = [r for r in s.source.reads if r.tensor in written]
    elementwise = any(set(core.free) <= loops_of_read(r) for r in own)
    return s.target.tensor not in written and not elementwise


def _with_updates(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The statements of a group, and the updates whose initialisation is among them."""
    updates = (s.source.name for s in map(schedule.scop.statement, names) if s.role == Role.INIT)
    return (*names, *(u for u in updates if u not in names and u in schedule.scop.by_name))


def _keeps_threads(
    schedule: Schedule,
    first: tuple[str, ...],
    second: tuple[str, ...],
    loops: tuple[str, ...],
    machine: M,
) -> bool:
    """Whether sharing these loops leaves each group as many threads as it can use alone.

    A group of little work may have fewer: running it serially is cheaper than a synchronisation.
    """
    shared = _product(loop_extents(schedule, first[0])[loop] for loop in loops)
    if shared >= machine.parallelism:
        return True
    for names in (first, second):
        work = [work_of(schedule.scop.statement(n)) for n in names]
        large = None in work or sum(w or 0 for w in work) >= WORTH_SHARING
        if large and shared < _parallelism(schedule, names):
            return False
    return True


def _parallelism(schedule: Schedule, names: tuple[str, ...]) -> float:
    """How many threads could work on a group, as far as its loops are known."""
    flags = coincident_members(schedule.tree, names[0], schedule.dependences)
    extents = loop_extents(schedule, names[0])
    nest = _nest(schedule, names)
    return _product(extents[loop] for loop in nest if flags[loop])


def _product(extents: Iterable[int | None]) -> float:
    """The product of extents; unknown ones count as large."""
    return math.prod(math.inf if e is None else max(1, e) for e in extents)


def _nest(schedule: Schedule, names: tuple[str, ...]) -> tuple[str, ...]:
    """The loops that all statements of a group share."""
    shared = inner_loops(schedule, names[0])
    for name in names[1:]:
        other = inner_loops(schedule, name)
        shared = tuple(a for a, b in zip(shared, other, strict=False) if a == b)
    return shared


def are_connected(schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether a value or an element written by `first` is used by `second`."""
    written = {schedule.scop.statement(n).target.tensor for n in first}
    for name in second:
        s = schedule.scop.statement(name)
        touched = {r.tensor for r in s.source.reads} | {s.target.tensor}
        if s.role == Role.INIT:
            touched = {s.target.tensor}
        if touched & written:
            return True
        # The initialisation of a reduction is fused together with its update.
        if s.role == Role.INIT and s.source.name in schedule.scop.by_name:
            update = schedule.scop.statement(s.source.name)
            if {r.tensor for r in update.source.reads} & written:
                return True
    return False
