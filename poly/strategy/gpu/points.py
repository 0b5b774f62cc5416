"""Points: a thread for each point of the loops that a group shares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poly.machine.gpu import GpuMachine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import loop_extents, nest
from poly.strategy.common.tactic import Group, NoMatch, Parameter, Tactic
from poly.strategy.gpu.map_loops import map_loops, thread_tiles
from poly.strategy.gpu.queries import contiguity, element_in_register, parallel_nest
from poly.tree.kinds import Mark
from poly.tree.nodes import loops_of


@dataclass(frozen=True)
class PointsPlan:
    """The parallel loops, and the threads of a block along some of them, the innermost first."""

    run: tuple[str, ...]
    tiles: tuple[tuple[str, int], ...]


class Points(Tactic[GpuMachine, PointsPlan]):
    """A thread for each point of the shared loops; contiguous elements go to adjacent threads."""

    name = "points"
    plain = True
    parameters = (
        Parameter(
            "threads",
            lambda p: p.tiles[0][1],
            lambda group, p: (32, 64, 128, 256, 512) if len(p.tiles) == 1 else (p.tiles[0][1],),
            lambda group, p, n: replace(p, tiles=((p.tiles[0][0], n), *p.tiles[1:])),
        ),
    )

    def match(self, group: Group[GpuMachine]) -> PointsPlan | NoMatch:
        schedule, names = group.schedule, group.names
        run = parallel_nest(schedule, names)
        if not run:
            return NoMatch("no parallel loop")
        extents = loop_extents(schedule, names[0])
        along = max(reversed(run), key=lambda x: contiguity(schedule, names, x))
        tiles = thread_tiles(run, along, extents)
        if not tiles:
            return NoMatch("only one point")
        return PointsPlan(run, tuple(tiles.items()))

    def apply(self, group: Group[GpuMachine], plan: PointsPlan) -> Schedule:
        schedule, names = group.schedule, group.names
        extents = loop_extents(schedule, names[0])
        schedule = map_loops(schedule, names[0], plan.run, dict(plan.tiles), extents)
        shared = nest(schedule, names)
        marks = {m.name: m.mark for m in loops_of(schedule.tree, names[0])}
        last = max(k for k, loop in enumerate(shared) if marks[loop] == Mark.THREAD)
        return element_in_register(schedule, names, shared[last:])
