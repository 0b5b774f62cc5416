"""Stencils: register tiles along the rows of an array, with the filter taps unrolled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from math import prod

from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import (
    attempt,
    fused_around,
    has_lane_epilogue,
    loop_extents,
    shared_loop,
    static_extents,
)
from poly.strategy.common.tactic import Group, NoMatch, Parameter, Tactic, field_parameter
from poly.strategy.cpu.choose_tile import core_of
from poly.strategy.cpu.register_tile import Contraction
from poly.strategy.cpu.stencil_tile import MOST_ROWS, UNROLLED, Stencil, is_tap
from poly.tree.kinds import Scope


def _lanes(group: Group[Machine], plan: Stencil) -> Iterable[int]:
    dtypes = group.schedule.program.dtypes
    target = group.schedule.scop.statement(plan.statement).target.tensor
    most = group.machine.vector_bytes // dtypes[target].bytes
    return [n for n in (4, 8, 16, 32) if n <= most]


def _rows(group: Group[Machine], plan: Stencil) -> Iterable[int]:
    return range(1, MOST_ROWS + 1) if plan.w else (plan.rows,)


def _unrolled(group: Group[Machine], plan: Stencil) -> Iterable[int]:
    extents = static_extents(group.schedule.scop.statement(plan.statement))
    loops = reversed((*plan.rest, *plan.taps))
    return range(1 + sum(1 for _ in takewhile(lambda x: is_tap(extents[x]), loops)))


def _with_taps(plan: Stencil, count: int) -> Stencil:
    """The plan in which so many of the last reductions are unrolled."""
    loops = (*plan.rest, *plan.taps)
    first = len(loops) - count
    return replace(plan, taps=loops[first:], rest=loops[:first])


class StencilRows(Tactic[Machine, Stencil]):
    """A register tile along the rows of an array with unrolled filter taps: a loaded vector serves
    all rows that use it.
    """

    name = "stencil"
    parameters = (
        field_parameter("lanes", "lanes", _lanes),
        field_parameter("rows", "rows", _rows),
        Parameter(
            "unrolled taps", lambda p: len(p.taps), _unrolled, lambda group, p, n: _with_taps(p, n)
        ),
    )

    def core(self, group: Group[Machine]) -> Stencil | None:
        found = core_of(group)
        return found if isinstance(found, Stencil) else None

    def match(self, group: Group[Machine]) -> Stencil | NoMatch:
        return self._plan(group, core_of(group))

    def asked_for(self, group: Group[Machine]) -> Stencil | NoMatch:
        return self._plan(group, core_of(group, Stencil))

    def _plan(self, group: Group[Machine], core: Contraction | Stencil | None) -> Stencil | NoMatch:
        if not isinstance(core, Stencil):
            return NoMatch("no update with filter taps along rows, or a contraction is cheaper")
        s = core.statement
        if not set(core.free) <= set(group.schedule.loops(s)):
            return NoMatch(f"the loops of {s} were transformed")
        together = fused_around(group.schedule, group.names, s)
        if not has_lane_epilogue(group.schedule, together, s):
            return NoMatch("the epilogue cannot be vectorised")
        return core

    def apply(self, group: Group[Machine], plan: Stencil) -> Schedule:
        together = fused_around(group.schedule, group.names, plan.statement)
        return _tiled(group.schedule, together, plan, group.machine)


def _tiled(
    schedule: Schedule, together: tuple[str, ...], core: Stencil, machine: Machine
) -> Schedule:
    """The statements that share the free loops of `core`, tiled along its rows."""
    s, v, w = core.statement, core.v, core.w
    schedule = schedule.split(s, v, core.lanes, (f"{v}_o", f"{v}_i"))
    tiles, points = [f"{v}_o"], [f"{v}_i"]
    if w:
        schedule = schedule.split(s, w, core.rows, (f"{w}_o", f"{w}_i"))
        tiles, points = [f"{w}_o", *tiles], [f"{w}_i", *points]
    others = [loop for loop in core.free if loop not in (v, w)]
    outer = [*others, *tiles]
    # Threads along a row would all need masks, and share cache lines.
    shared = shared_loop(schedule, s, outer[:-1], machine) or shared_loop(
        schedule, s, tiles[-1:], machine
    )
    if shared:
        outer = [shared, *(x for x in outer if x != shared)]
    schedule = schedule.reorder(s, [*outer, *points])
    if shared:
        schedule = schedule.parallelize(s, shared)
        schedule = _share_next(schedule, s, outer, shared)
    if len(together) > 1:
        schedule = schedule.distribute(s, points[0])
    schedule = schedule.reorder(s, [*core.rest, *core.taps, *points])
    target = schedule.scop.statement(s).target.tensor
    schedule = schedule.promote(s, outer[-1], target, Scope.REGISTER)
    for name in together:
        schedule = schedule.vectorize(name, f"{v}_i")
        if w:
            schedule = schedule.unroll(name, f"{w}_i")
    for tap in core.taps:
        schedule = schedule.unroll(s, tap)
    if core.known and core.vectors > 1 and tiles[-1] == outer[-1] != shared:
        if core.vectors * core.rows * _taps(schedule, core) <= UNROLLED:
            return schedule.unroll(s, outer[-1])
        return schedule.isolate(s, outer[-1])
    return schedule


def _share_next(schedule: Schedule, s: str, outer: list[str], shared: str) -> Schedule:
    """Also share the next loop among threads, where the first may be short."""
    following = outer[outer.index(shared) + 1 : -1]
    if not following or loop_extents(schedule, s)[shared] is not None:
        return schedule
    return attempt(schedule, Schedule.parallelize, s, following[0])


def _taps(schedule: Schedule, core: Stencil) -> int:
    extents = static_extents(schedule.scop.statement(core.statement))
    return prod(extents[t] or 1 for t in core.taps)
