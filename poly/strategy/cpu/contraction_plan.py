"""The plan of a contraction: its register tile, its cache blocks, and what else these may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from poly.machine.cpu import Machine
from poly.strategy.common.tactic import Group, NoMatch, Parameter, field_parameter, yes_or_no
from poly.strategy.cpu.cache_blocks import Blocks, cut_loops, find_blocks
from poly.strategy.cpu.choose_tile import loops_outside
from poly.strategy.cpu.packing import is_own, reduction_order
from poly.strategy.cpu.register_tile import Contraction, Update, find_update, reads_in_place
from poly.strategy.cpu.tile_order import is_stored_slowly, reads_rows

#: Sides of register tiles, and tiles in a block, that are tried.
VECTORS, ROWS, TILES = (1, 2, 3, 4, 6), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14), (1, 2, 4, 8, 16, 32)
#: Terms of a sum in a block, and unrolled ones, that are tried.
TERMS, UNROLLED = (0, 32, 64, 128, 256, 512, 1024), (1, 2, 4, 8)
#: Registers of a tile that its accumulators leave for operands.
OPERANDS = 2
#: The loop that threads share, if it is not given.
BALANCED = "balanced"


@dataclass(frozen=True)
class ContractionPlan:
    """The update with its register tile, and the cache blocks of its loops.

    packs : whether operands are packed for tiles that do not read them in order
    rows_outside : whether tiles of rows run around those of columns, not inside
    threads : the loop that threads share; `BALANCED`: the one that keeps all of them busy
    unrolled : terms of the innermost reduction that are unrolled
    """

    core: Contraction
    blocks: Blocks
    packs: bool = True
    rows_outside: bool = False
    threads: str = BALANCED
    unrolled: int = 1


def plan_around(group: Group[Machine], core: Contraction) -> ContractionPlan | NoMatch:
    """The plan for a register tile: with the blocks that suit it.

    Hardly anything is worth packing where rows read elements of their own that are not shifted,
    where results are stored row by row, or where few rows read what is contiguous.
    """
    scop = group.schedule.scop
    blocks = find_blocks(scop, core, group.machine)
    unknown = {r for r in core.reductions if core.extent(r) is None}
    if unknown - {r for r, _ in blocks.reductions}:
        return NoMatch(f"{core.statement} has no rows to reuse a packed operand for")
    if unknown & set(core.shaped):
        return NoMatch(f"a reduction of unknown extent bounds the tile of {core.statement}")
    slowly = is_stored_slowly(scop, core, group.machine)
    own = any(is_own(r, core) for r in scop.statement(core.statement).source.reads)
    packs = not slowly and not own and not reads_in_place(scop, core)
    return ContractionPlan(core, blocks, packs, rows_outside=slowly or reads_rows(scop, core))


def _update(group: Group[Machine], plan: ContractionPlan) -> Update:
    schedule, name = group.schedule, plan.core.statement
    outside = loops_outside(schedule, name)
    found = find_update(schedule.scop, schedule.scop.statement(name), group.machine, (), outside)
    assert found is not None, "the plan is of a contraction"
    return found


def _lane_loops(group: Group[Machine], plan: ContractionPlan) -> Iterable[str]:
    update = _update(group, plan)
    return [v for v in update.free if update.with_vector(v) is not None]


def _along_lanes(group: Group[Machine], plan: ContractionPlan, v: str) -> ContractionPlan | NoMatch:
    found = _update(group, plan).with_vector(v)
    return NoMatch(f"no lanes along {v}") if found is None else plan_around(group, found[1])


def _row_loops(group: Group[Machine], plan: ContractionPlan) -> Iterable[str]:
    core = plan.core
    return [x for x in core.free if x != core.v and core.extent(x) != 1]


def _along_rows(group: Group[Machine], plan: ContractionPlan, w: str) -> ContractionPlan | NoMatch:
    found = _update(group, plan).with_vector(plan.core.v, w)
    return NoMatch(f"no rows along {w}") if found is None else plan_around(group, found[1])


def _tile(
    group: Group[Machine], plan: ContractionPlan, vectors: int, rows: int
) -> ContractionPlan | NoMatch:
    """The plan with another register tile, and the blocks that suit it."""
    if rows > 1 and not plan.core.w:
        return NoMatch(f"{plan.core.statement} has no rows")
    if vectors * rows > group.machine.registers - OPERANDS:
        return NoMatch(f"{vectors} x {rows} vectors do not fit the registers")
    return plan_around(group, replace(plan.core, vectors=vectors, rows=rows))


def _counts_of_vectors(group: Group[Machine], plan: ContractionPlan) -> Iterable[int]:
    extent = plan.core.extent(plan.core.v)
    most = VECTORS[-1] if extent is None else -(-extent // plan.core.lanes)
    return [n for n in VECTORS if n <= most]


def _counts_of_rows(group: Group[Machine], plan: ContractionPlan) -> Iterable[int]:
    core = plan.core
    extent = core.extent(core.w) if core.w else 1
    even = [extent] if extent and extent <= ROWS[-1] else []
    return sorted({*even, *(n for n in ROWS if extent is None or n <= extent)})


def _packed_columns(group: Group[Machine], plan: ContractionPlan) -> Iterable[int]:
    extent = plan.core.extent(plan.core.v)
    sizes = [n * plan.core.width for n in TILES]
    return [0, *(n for n in sizes if extent is None or n < extent + plan.core.width)]


def _terms(plan: ContractionPlan) -> int:
    return prod(n for _, n in plan.blocks.reductions) if plan.blocks.reductions else 0


def _counts_of_terms(group: Group[Machine], plan: ContractionPlan) -> Iterable[int]:
    extents = [plan.core.extent(r) for r in plan.core.reductions]
    if None in extents:
        return TERMS[1:]
    every = prod(x or 1 for x in extents)
    return [n for n in TERMS if n < every]


def _in_terms(group: Group[Machine], plan: ContractionPlan, terms: int) -> ContractionPlan:
    core = plan.core
    extents = {r: core.extent(r) for r in core.reductions}
    cut = cut_loops(reduction_order(core), extents, terms) if terms else {}
    return replace(plan, blocks=replace(plan.blocks, reductions=tuple(cut.items())))


def _blocks_of_rows(group: Group[Machine], plan: ContractionPlan) -> Iterable[int]:
    core = plan.core
    if not core.w:
        return [0]
    extent = core.extent(core.w)
    sizes = [n * core.rows for n in TILES]
    return [0, *(n for n in sizes if extent is None or n < extent)]


def _in_rows(group: Group[Machine], plan: ContractionPlan, rows: int) -> ContractionPlan | NoMatch:
    core, old = plan.core, plan.blocks
    if rows and not core.w:
        return NoMatch(f"{core.statement} has no rows")
    others = tuple(x for x in core.free if x not in (core.v, core.w, *old.before))
    if old.rows is not None and old.rows[0] == core.w and rows:
        return replace(plan, blocks=replace(old, rows=(core.w, rows)))
    cut = (core.w, rows) if rows else None
    return replace(plan, blocks=replace(old, outside=(), rows=cut, inside=others))


def _threads_loops(group: Group[Machine], plan: ContractionPlan) -> Iterable[str]:
    core, blocks = plan.core, plan.blocks
    tiles = [f"{core.v}_o", *([f"{core.w}_o"] if core.w else [])]
    blocked = [f"{core.v}_p"] if blocks.packed else []
    blocked += [f"{blocks.rows[0]}_p"] if blocks.rows else []
    return [BALANCED, *blocks.before, *blocked, *blocks.outside, *blocks.inside, *tiles]


#: What else a plan may be.
CONTRACTION_PARAMETERS: tuple[Parameter[Machine, ContractionPlan], ...] = (
    Parameter("lanes along", lambda p: p.core.v, _lane_loops, _along_lanes),
    Parameter("rows along", lambda p: p.core.w, _row_loops, _along_rows),
    Parameter(
        "vectors",
        lambda p: p.core.vectors,
        _counts_of_vectors,
        lambda group, p, n: _tile(group, p, n, min(p.core.rows, group.machine.registers // n)),
    ),
    Parameter(
        "rows",
        lambda p: p.core.rows,
        _counts_of_rows,
        lambda group, p, n: _tile(group, p, p.core.vectors, n),
    ),
    field_parameter("packing", "packs", yes_or_no),
    Parameter(
        "packed columns",
        lambda p: p.blocks.packed,
        _packed_columns,
        lambda group, p, n: replace(p, blocks=replace(p.blocks, packed=n)),
    ),
    Parameter("terms in a block", _terms, _counts_of_terms, _in_terms),
    Parameter(
        "rows in a block",
        lambda p: p.blocks.rows[1] if p.blocks.rows else 0,
        _blocks_of_rows,
        _in_rows,
    ),
    field_parameter("rows outside", "rows_outside", yes_or_no),
    field_parameter("threads along", "threads", _threads_loops),
    field_parameter("unrolled terms", "unrolled", lambda group, p: UNROLLED),
)
