"""Windows and sums of columns: vector lanes along the innermost shared loop, around inner loops.

Sums of long columns take a few rows at a time, along many columns: memory is read along rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from poly.deps.legality import coincident_members
from poly.ir.accesses import element_stride, stride_of
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    accesses,
    dimension_at,
    is_rectangular,
    loop_extents,
    nest,
    static_extents,
)
from poly.strategy.common.tactic import (
    Group,
    NoMatch,
    Parameter,
    Tactic,
    field_parameter,
    yes_or_no,
)
from poly.strategy.cpu.register_tile import UNROLLED_TAPS
from poly.strategy.cpu.threads import share_loops
from poly.tree.kinds import Scope

#: Loops shorter than this are not worth lanes around other loops.
FEWEST = 4
#: Iterations of a single loop that one thread takes at a time.
BLOCK = 256
#: Rows that are added at a time, and the fewest for which that pays.
ROWS, MANY_ROWS = 16, 64
#: Elements between rows from which each is on a page of memory of its own, as far as is known.
FAR = 256


@dataclass(frozen=True)
class WindowPlan:
    """Lanes along a loop that a group shares.

    shared : the loops that it shares, that of the lanes last; inner : those of each statement
        inside them; extent : of the loop of the lanes, None if unknown
    unrolled : inner loops bounded by it, with their statements
    rows : the loop along long columns of a sum, of which `taken` rows are taken at a time
    block : iterations of a single loop that one thread takes at a time
    keeps : whether results stay in registers
    """

    shared: tuple[str, ...]
    inner: tuple[tuple[str, tuple[str, ...]], ...]
    extent: int | None
    unrolled: tuple[tuple[str, str], ...]
    rows: str | None
    taken: int = ROWS
    block: int = BLOCK
    keeps: bool = True


def _blocks(group: Group[Machine], plan: WindowPlan) -> Iterable[int]:
    return (64, 256, 1024, 4096) if len(plan.shared) == 1 else (plan.block,)


class Window(Tactic[Machine, WindowPlan]):
    """Vector lanes along the innermost shared loop, where each access is contiguous along it.

    Other loops may be inside; results stay in registers.
    """

    name = "window"
    parameters = (
        Parameter(
            "rows",
            lambda p: p.taken if p.rows else 1,
            lambda group, p: (4, 8, 16, 32) if p.rows else (1,),
            lambda group, p, n: replace(p, taken=n),
        ),
        field_parameter("block", "block", _blocks),
        field_parameter("results in registers", "keeps", yes_or_no),
    )
    plain = True

    def match(self, group: Group[Machine]) -> WindowPlan | NoMatch:
        schedule, names = group.schedule, group.names
        shared = nest(schedule, names)
        flags = coincident_members(schedule.tree, names[0], schedule.dependences)
        if not shared or not flags[shared[-1]]:
            return NoMatch("the innermost shared loop is not parallel")
        v = shared[-1]
        inner = {n: schedule.loops(n)[len(shared) :] for n in names}
        if not any(inner.values()):
            return NoMatch("no loops inside the shared ones")
        extent = loop_extents(schedule, names[0])[v]
        if extent is not None and extent < FEWEST:
            return NoMatch(f"{v} is too short for vector lanes")
        unrolled: list[tuple[str, str]] = []
        for name in names:
            found = _bounded_loops(schedule, name, v, inner[name])
            if isinstance(found, NoMatch):
                return found
            unrolled += [(name, loop) for loop in found]
        rows = None if unrolled else _long_columns(schedule, names, inner)
        return WindowPlan(shared, tuple(inner.items()), extent, tuple(unrolled), rows)

    def apply(self, group: Group[Machine], plan: WindowPlan) -> Schedule:
        schedule, names = group.schedule, group.names
        shared, v = plan.shared, plan.shared[-1]
        if len(shared) == 1 and (plan.extent is None or plan.extent > plan.block):
            schedule = schedule.split(names[0], v, plan.block, (f"{v}_o", f"{v}_i"))
            shared, v = (f"{v}_o", f"{v}_i"), f"{v}_i"
        schedule = share_loops(schedule, names, shared[:-1], group.machine)
        if plan.rows is not None:
            return _few_rows(schedule, names, v, plan.rows, plan.taken)
        reduced = {schedule.scop.statement(n).target.tensor for n, loops in plan.inner if loops}
        for tensor in sorted(reduced) if plan.keeps else ():
            schedule = schedule.promote(names[0], v, tensor, Scope.REGISTER)
        for name, loop in plan.unrolled:
            schedule = schedule.unroll(name, loop)
        if plan.unrolled:
            schedule = schedule.isolate(names[0], v)
        return schedule.vectorize(names[0], v)


def _long_columns(
    schedule: Schedule, names: tuple[str, ...], inner: dict[str, tuple[str, ...]]
) -> str | None:
    """The only inner loop of a sum whose terms are far apart in memory, and many."""
    if len(names) != 2 or inner[names[0]] or len(inner[names[1]]) != 1:
        return None
    (rows,) = inner[names[1]]
    s, index = schedule.scop.statement(names[1]), dimension_at(schedule, names[1], rows)
    if not index or s.target.tensor != schedule.scop.statement(names[0]).target.tensor:
        return None
    extent = static_extents(s)[index]
    if extent is not None and extent < MANY_ROWS:
        return None
    tensors = schedule.program.tensors
    strides = [element_stride(r, tensors[r.tensor].shape, index, FAR) for r in s.source.reads]
    return rows if any(n is None or abs(n) >= FAR for n in strides) else None


def _few_rows(
    schedule: Schedule, names: tuple[str, ...], v: str, rows: str, count: int
) -> Schedule:
    """Add a few rows at a time to all columns of a block."""
    first, s = names
    outer, taken = f"{rows}_o", f"{rows}_i"
    schedule = schedule.distribute(s, v).split(s, rows, count, (outer, taken))
    schedule = schedule.reorder(s, [outer, v, taken])
    schedule = schedule.promote(s, v, schedule.scop.statement(s).target.tensor, Scope.REGISTER)
    schedule = schedule.isolate(s, outer).unroll(s, taken)
    return schedule.vectorize(s, v).vectorize(first, v)


def _bounded_loops(
    schedule: Schedule, name: str, v: str, loops: tuple[str, ...]
) -> list[str] | NoMatch:
    """The loops of a statement inside `v` whose bounds depend on it, or why `v` has no lanes."""
    s, index = schedule.scop.statement(name), dimension_at(schedule, name, v)
    if not index or s.may_reads:
        return NoMatch(f"{name} cannot be vectorised along {v}")
    strides = [stride_of(a, index) for a in accesses(s)]
    if strides[0] != 1 or any(x is None or abs(x) > 2 for x in strides):
        return NoMatch(f"{name} is not contiguous along {v}")
    extents = static_extents(s)
    found = []
    for loop in loops:
        own = dimension_at(schedule, name, loop)
        if not own:
            return NoMatch(f"{loop} is not a dimension of {name}")
        if is_rectangular(s, own, (index,)):
            continue
        if (extents[own] or UNROLLED_TAPS + 1) > UNROLLED_TAPS:
            return NoMatch(f"the bounds of {loop} of {name} depend on {v}")
        found.append(loop)
    return found
