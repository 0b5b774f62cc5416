"""Transposes: square tiles that are transposed in registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poly.deps.scop import Role, ScopStatement
from poly.ir.accesses import stride_of
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import dimension_at, static_extents
from poly.strategy.common.tactic import Group, NoMatch, Tactic, field_parameter
from poly.strategy.cpu.threads import share_loops

#: Rows shorter than this are not worth it.
FEWEST = 4
#: Sides of tiles that are tried.
SIZES = (4, 8, 16, 32)


@dataclass(frozen=True)
class TransposePlan:
    """A tile of ``size`` by ``size``.

    row, lane : the loop along which the target is contiguous, and that of the sources
    extents : of both, None where unknown
    """

    row: str
    lane: str
    size: int
    extents: tuple[int | None, int | None]


def plain_assignment(group: Group[Machine]) -> ScopStatement | NoMatch:
    """The statement of a group that is one assignment in its written loops."""
    schedule, names = group.schedule, group.names
    s = schedule.scop.statement(names[0])
    if len(names) > 1 or s.role != Role.ASSIGN or s.may_reads or not s.source.reads:
        return NoMatch("not a single assignment with affine reads")
    if any(dimension_at(schedule, s.name, x) != x for x in schedule.loops(s.name)):
        return NoMatch("its loops were transformed")
    return s


def _sizes(group: Group[Machine], plan: TransposePlan) -> Iterable[int]:
    return [n for n in SIZES if all(x is None or n <= x for x in plan.extents)]


class Transpose(Tactic[Machine, TransposePlan]):
    """Square tiles where the sources are contiguous along another loop than the target.

    Lanes run along the sources, rows along the target, and each tile is transposed in registers, so
    that both sides access whole cache lines.
    """

    name = "transpose"
    plain = True
    parameters = (field_parameter("size", "size", _sizes),)

    def match(self, group: Group[Machine]) -> TransposePlan | NoMatch:
        schedule = group.schedule
        s = plain_assignment(group)
        if isinstance(s, NoMatch):
            return s
        loops, extents = schedule.loops(s.name), static_extents(s)
        dtype = schedule.program.tensors[s.target.tensor].dtype
        if any(schedule.program.tensors[r.tensor].dtype != dtype for r in s.source.reads):
            return NoMatch("element types differ")
        rows = [x for x in loops if stride_of(s.target, x) == 1]
        lanes = [
            x
            for x in loops
            if x not in rows
            and stride_of(s.target, x) is None
            and all(stride_of(r, x) in (0, 1) for r in s.source.reads)
            and any(stride_of(r, x) == 1 for r in s.source.reads)
        ]
        if not rows or not lanes:
            return NoMatch("all accesses are contiguous along one loop")
        row, lane = rows[-1], lanes[-1]
        if all(stride_of(r, row) in (0, 1) for r in s.source.reads):
            return NoMatch(f"contiguous along {row}: no transpose needed")
        short = (extents[row], extents[lane])
        if any(x is not None and x < FEWEST for x in short):
            return NoMatch("rows are too short to be transposed")
        # A tile of 32 rows would need more registers than there are.
        size = group.machine.vector_bytes // max(4, dtype.bytes)
        if dtype.bytes == 1:
            size = 16  # of which each step is an instruction, on any machine
        while any(x is not None and size > x for x in short):
            size //= 2
        return TransposePlan(row, lane, size, short)

    def apply(self, group: Group[Machine], plan: TransposePlan) -> Schedule:
        schedule, s, size = group.schedule, group.names[0], plan.size
        row, lane = plan.row, plan.lane
        loops = schedule.loops(s)
        outer = [x for x in loops if x not in (row, lane)]
        if [*outer, lane, row] != list(loops):
            schedule = schedule.reorder(s, [*outer, lane, row])
        words = (f"{lane}_o", f"{row}_o", f"{lane}_i", f"{row}_i")
        schedule = schedule.tile(s, [lane, row], [size, size], words)
        schedule = schedule.interchange(s, f"{lane}_i", f"{row}_i")
        schedule = share_loops(schedule, group.names, (*outer, f"{lane}_o"), group.machine)
        if None in plan.extents:
            # Unrolled remainders of unknown extents would be very long.
            schedule = schedule.isolate(s, f"{lane}_o")
            schedule = schedule.isolate(s, f"{row}_o")
        elif any((x or 0) % size for x in plan.extents):
            schedule = schedule.unroll(s, f"{row}_i")
            schedule = schedule.isolate(s, f"{row}_o")
        return schedule.vectorize(s, f"{lane}_i")
