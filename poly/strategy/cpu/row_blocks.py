"""Blocks of rows through two contractions, the second of which sums up along rows of the first.

In attention, ``S[b,i,j] = sum over d of Q[b,i,d] * K[b,j,d]`` makes a row of scores for each i,
which becomes a row of weights, and ``O[b,i,e] = sum over j of P[b,i,j] * V[b,j,e]`` sums these up.
A block of some i goes through all of that at once, so that scores never leave the caches, and
memory grows with the length of a row instead of its square.

Scores of a block are stored with i innermost, in lanes: then no operand but Q has to be packed, and
what is done along a row, such as its maximum, is done lane by lane, without a sum over lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.deps.legality import coincident_members
from poly.deps.scop import Role
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Index
from poly.ir.row_chains import MOST_LENGTH, RowChain, row_chain
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import Arranging
from poly.strategy.common.queries import attempt, nest
from poly.strategy.common.tactic import Group, NoMatch, Tactic, field_parameter
from poly.strategy.cpu.threads import share_loops
from poly.tree.kinds import Scope

#: Vectors of rows in a block, and of columns in the tile of the second contraction.
VECTORS = 2
#: The other side of register tiles, by vector registers of the machine.
FEW, MANY, MANY_REGISTERS = 4, 8, 32


@dataclass(frozen=True)
class RowPlan:
    """A chain in a schedule.

    names : of its statements there, with initialisations; run : the loops that all share, the last
    one over rows
    vectors : of rows in a block; 0: as many as stay in the caches; height : the other side of
        register tiles; 0: as the registers allow
    """

    chain: RowChain
    names: tuple[str, ...]
    run: tuple[str, ...]
    vectors: int = 0
    height: int = 0


def share_rows(schedule: Schedule, given: Arranging[Machine]) -> Schedule:
    """Fuse two contractions, and what is between, along the rows that the second one sums up.

    In groups of their own, they would store all of these rows.
    """
    plan = _plan(schedule)
    if isinstance(plan, NoMatch):
        return schedule

    def fused(made: Schedule) -> Schedule:
        for n in plan.names[1:]:
            made = made.fuse(plan.names[0], n, plan.run)
        return made

    found = attempt(schedule, fused)
    flags = coincident_members(found.tree, plan.chain.last, found.dependences)
    if found is schedule or not all(flags[x] for x in plan.run):
        return schedule
    # If the tactic is refused, the statements are better off apart.
    group = Group(found.draft(), plan.names, given.machine)
    tiled = attempt(found, lambda _: RowBlocks().apply(group, plan).checked())
    return schedule if tiled is found else found


def _plan(schedule: Schedule) -> RowPlan | NoMatch:
    """The chain of a program, as it is scheduled."""
    chain = row_chain(schedule.program)
    if isinstance(chain, str):
        return NoMatch(chain)
    scop = schedule.scop
    names = tuple(
        n for n in schedule.statements if scop.statement(n).source.name in chain.statements
    )
    return RowPlan(chain, names, scop.statement(names[0]).free[: chain.depth])


class RowBlocks(Tactic[Machine, RowPlan]):
    """Blocks of rows that run through two contractions, such as those of attention."""

    name = "row blocks"
    parameters = (
        field_parameter("vectors of rows", "vectors", lambda group, p: (0, 1, 2, 4)),
        field_parameter("height", "height", lambda group, p: (0, 2, 4, 6, 8, 12)),
    )

    def match(self, group: Group[Machine]) -> RowPlan | NoMatch:
        plan = _plan(group.schedule)
        if isinstance(plan, NoMatch):
            return plan
        if (
            plan.names != group.names
            or nest(group.schedule, group.names)[: len(plan.run)] != plan.run
        ):
            return NoMatch("the statements do not share the loops over rows")
        return plan

    def apply(self, group: Group[Machine], plan: RowPlan) -> Schedule:
        schedule, names, machine = group.schedule, plan.names, group.machine
        *outer, row = plan.run
        lanes = machine.vector_bytes // FLOAT32.bytes
        block, inner = f"{row}_o", f"{row}_i"
        length = plan.chain.length or MOST_LENGTH
        fits = length * VECTORS * lanes <= machine.l2 // 8
        rows = (plan.vectors or (VECTORS if fits else 1)) * lanes
        schedule = schedule.split(names[0], row, rows, (block, inner))
        schedule = schedule.distribute(names[0], inner)
        schedule = share_loops(schedule, names, (*outer, block), machine)
        schedule = _buffered(schedule, plan, block)
        height = plan.height or (MANY if machine.registers >= MANY_REGISTERS else FEW)
        schedule = _first(schedule, plan, inner, lanes, height)
        for n in names:
            if n not in (
                plan.chain.first,
                f"{plan.chain.first}_init",
                plan.chain.last,
                f"{plan.chain.last}_init",
            ):
                schedule = _along_rows(schedule, plan, n, inner, lanes)
        return _last(schedule, plan, inner, lanes, height)


def _buffered(schedule: Schedule, plan: RowPlan, block: str) -> Schedule:
    """What a block of rows makes and reads, in buffers with the rows in lanes."""
    depth = len(plan.run)
    target = schedule.scop.statement(plan.chain.last).target.tensor
    done = {*plan.chain.temps}
    for tensor in plan.chain.temps:
        rank = schedule.program.tensors[tensor].rank
        order = range(rank) if tensor == target else _rows_last(rank, depth - 1)
        schedule = schedule.promote(plan.names[0], block, tensor, Scope.LOCAL, tuple(order))
    for n in plan.names:
        s = schedule.scop.statement(n)
        for read in s.source.reads if s.role != Role.INIT else ():
            own = [d for d, i in enumerate(read.indices) if i == Index(s.free[depth - 1])]
            if n == plan.chain.last or read.tensor in done or len(own) != 1:
                continue
            done.add(read.tensor)
            order = _rows_last(len(read.indices), own[0])
            schedule = schedule.promote(n, block, read.tensor, Scope.LOCAL, tuple(order))
    return schedule


def _rows_last(rank: int, dimension: int) -> list[int]:
    return [*(d for d in range(rank) if d != dimension), dimension]


def _first(schedule: Schedule, plan: RowPlan, inner: str, lanes: int, height: int) -> Schedule:
    """The tile of the first contraction: some columns of scores by a block of rows."""
    s = plan.chain.first
    schedule = schedule.fuse(f"{s}_init", s, schedule.loops(f"{s}_init")[len(plan.run) :])
    column = schedule.loops(f"{s}_init")[-1]
    schedule = schedule.split(s, column, height, (f"{column}_o", f"{column}_i"))
    schedule = schedule.reorder(s, [f"{column}_o", f"{column}_i", inner])
    schedule = schedule.distribute(s, f"{column}_i")
    sums = [x for x in schedule.loops(s) if x in schedule.scop.statement(s).source.reductions]
    schedule = schedule.reorder(s, [*sums, f"{column}_i", inner])
    target = schedule.scop.statement(s).target.tensor
    order = _rows_last(schedule.program.tensors[target].rank, len(plan.run) - 1)
    schedule = schedule.promote(s, f"{column}_o", target, Scope.REGISTER, tuple(order))
    return _in_registers(schedule, s, inner, f"{column}_i", lanes)


def _last(schedule: Schedule, plan: RowPlan, inner: str, lanes: int, height: int) -> Schedule:
    """The tile of the second contraction: some rows by some columns of the result."""
    s = plan.chain.last
    schedule = schedule.fuse(f"{s}_init", s, schedule.loops(f"{s}_init")[len(plan.run) :])
    column = schedule.loops(f"{s}_init")[-1]
    rows, inside = f"{inner}_o", f"{inner}_i"
    schedule = schedule.split(s, column, VECTORS * lanes, (f"{column}_o", f"{column}_i"))
    schedule = schedule.split(s, inner, height, (rows, inside))
    schedule = schedule.reorder(s, [f"{column}_o", rows, inside, f"{column}_i"])
    schedule = schedule.distribute(s, inside)
    sums = [x for x in schedule.loops(s) if x in schedule.scop.statement(s).source.reductions]
    schedule = schedule.reorder(s, [*sums, inside, f"{column}_i"])
    target = schedule.scop.statement(s).target.tensor
    order = tuple(range(schedule.program.tensors[target].rank))
    schedule = schedule.promote(s, rows, target, Scope.REGISTER, order)
    return _in_registers(schedule, s, f"{column}_i", inside, lanes)


def _in_registers(schedule: Schedule, s: str, inner: str, beside: str, lanes: int) -> Schedule:
    """Vectors along one loop of a tile, several of them, and the other loop unrolled."""
    for n in (f"{s}_init", s):
        schedule = schedule.vectorize(n, inner, lanes)
        schedule = attempt(schedule, Schedule.unroll, n, f"{inner}_o")
        schedule = schedule.unroll(n, beside)
    return schedule


def _along_rows(schedule: Schedule, plan: RowPlan, n: str, inner: str, lanes: int) -> Schedule:
    """A statement on whole rows, or on one value of each: with the rows in lanes.

    What follows the second contraction has its columns in lanes, as its result is stored.
    """
    loops = schedule.loops(n)[len(plan.run) :]
    if plan.names.index(n) > plan.names.index(plan.chain.last):
        return attempt(schedule, Schedule.vectorize, n, loops[-1])
    if len(loops) > 1:
        schedule = schedule.reorder(n, [*loops[1:], inner])
    schedule = schedule.vectorize(n, inner, lanes)
    return attempt(schedule, Schedule.unroll, n, f"{inner}_o")
