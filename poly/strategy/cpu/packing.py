"""Packing: the operands of a register tile in the order in which it reads them."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from poly.deps.scop import Role, Scop
from poly.ir.accesses import (
    lane_dimension,
    loops_of_read,
    moving_dimensions,
    plain_dimension,
    vector_stride,
)
from poly.ir.expr import Const, Read
from poly.ir.layout import Layout
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from poly.strategy.common.queries import attempt
from poly.strategy.cpu.choose_tile import find_tile
from poly.strategy.cpu.register_tile import UNROLLED_TAPS, Contraction
from poly.strategy.cpu.reuse import ALIASING
from poly.tree.kinds import Scope

#: The part of the first cache that rows may take in one of its sets; see `ALIASING`.
ALIASING_PART = 2 / 3
#: Bytes between accesses that are adjacent, and that no prefetching brings.
LINE, FAR = 64, 1024


def unrolled_reductions(core: Contraction) -> list[str]:
    """The reductions to unroll because they bound the rows of a tile: in each of their iterations
    other rows exist, which are known if their number is.
    """
    known = core.w is not None and core.extent(core.w) is not None
    return _bounding(core) if known else []


def _bounding(core: Contraction) -> list[str]:
    """The short reductions that bound the rows of a tile."""
    return [r for r in core.shaped if (core.extent(r) or 99) <= UNROLLED_TAPS]


def reduction_order(core: Contraction) -> tuple[str, ...]:
    """The reductions around a register tile of static extents, outermost first."""
    shaped = _bounding(core)
    rest = [r for r in core.reductions if r not in shaped]
    taps = [r for r in rest if (core.extent(r) or 99) <= UNROLLED_TAPS]
    return (*taps, *shaped, *(r for r in rest if r not in taps))


def packed_layout(read: Read, dim: int, core: Contraction) -> Layout:
    """The packed layout of an operand that moves with v in dimension `dim`.

    A register tile reads it in order, tile by tile, each in the order of the reductions.
    """
    depth = [-1] * len(read.indices)
    for n, loop in enumerate(reduction_order(core)):
        for d in moving_dimensions(read, loop):
            depth[d] = n
    rest = [d for d in range(len(read.indices)) if d != dim]
    order = (dim, *sorted(rest, key=depth.__getitem__))
    return Layout(order, ((dim, core.vectors * core.lanes), *_groups(read, core)))


def _groups(read: Read, core: Contraction) -> tuple[tuple[int, int], ...]:
    """The block of an operand that an instruction reads at once."""
    if core.dot is None or core.dot.loop not in loops_of_read(read):
        return ()
    dim = lane_dimension(read, core.dot.loop, core.dot.group)
    return () if dim is None else ((dim, core.dot.group),)


def preferred_layouts(
    scop: Scop, machine: Machine, constants: Collection[str]
) -> dict[str, Layout]:
    """The layouts in which register tiles read the inputs `constants` in order.

    Only inputs that a contraction reads along its vector loop are listed, and not those that are
    in that layout already.  Each is read in one way only: another read may want another layout.
    """
    result: dict[str, Layout] = {}
    reads = [r for s in scop.statements if s.role != Role.INIT for r in s.source.reads]
    inputs = set(constants) - set(scop.program.updated)
    for s in scop.statements:
        found = find_tile(scop, s, machine, inputs)
        if not isinstance(found, Contraction):
            continue
        width = found.vectors * found.lanes
        for r in s.source.reads:
            dims = moving_dimensions(r, found.v)
            alone = sum(other.tensor == r.tensor for other in reads) == 1
            if len(dims) != 1 or r.tensor not in inputs or not alone:
                continue
            in_order = (found.extent(found.v) or width + 1) <= width
            stored = vector_stride(r, found.v, found.lanes) == 1
            if (stored if found.dot is None else r in found.dot.in_place) and in_order:
                continue
            result[r.tensor] = packed_layout(r, dims[0], found)
    return result


def is_packed(read: Read, core: Contraction) -> bool:
    """Whether an operand that moves with v is packed by copying.

    Not if it is contiguous along v and no wider than the tile, or stored in blocks along v: then it
    is in the packed order already.  Nor if each row of the tile has its own, as in a depthwise
    convolution with channels last: then there is as much to copy as to read.
    """
    dim, width = plain_dimension(read, core.v), core.vectors * core.lanes
    if core.dot is not None:
        return read not in core.dot.in_place
    in_order = dim == len(read.indices) - 1 and (core.extent(core.v) or width + 1) <= width
    return bool(core.w) and dim is not None and not in_order and not is_own(read, core)


def is_own(read: Read, core: Contraction) -> bool:
    """Whether each row of a tile has an operand of its own, which is contiguous along the lanes."""
    return core.w in loops_of_read(read) and plain_dimension(read, core.v) == len(read.indices) - 1


def pack_operands(schedule: Schedule, core: Contraction, loop: str, columns: int) -> Schedule:
    """Pack the operands that move with v into contiguous blocks of `columns` columns.

    One whose packed block is too large for a buffer is read in place.
    """
    s = schedule.scop.statement(core.statement)
    width = core.vectors * core.lanes
    for read in s.source.reads:
        dim = plain_dimension(read, core.v)
        if dim is None or not is_packed(read, core):
            continue
        layout = packed_layout(read, dim, core)
        if columns <= width and core.dot is None:
            layout = Layout((*(d for d in range(len(read.indices)) if d != dim), dim))
        partial = (core.extent(core.v) or 1) % core.lanes != 0 if core.dot else False
        schedule = attempt(
            schedule, Schedule.promote, core.statement, loop, read.tensor, Scope.LOCAL, layout,
            padded=partial or (core.dot is not None and core.extent(core.v) is None),
            dtype="" if core.dot else wider_type(schedule, read),
        )  # fmt: skip
    return schedule


def wider_type(schedule: Schedule, read: Read) -> str:
    """The type of a copy of an operand, if it is converted where it is copied and not at each use;
    else "".
    """
    dtype = schedule.program.tensors[read.tensor].dtype
    return str(dtype.compute) if dtype.is_widened else ""


def pack_rows(
    schedule: Schedule, core: Contraction, loops: list[str], machine: Machine
) -> Schedule:
    """Pack the rows of operands that would conflict in one cache set, or that touch another page in
    each iteration of the reduction.

    loops : the copy is made in iterations of the first of them for which it fits a buffer; if
        there are several, it is used by several tiles
    """
    s = schedule.scop.statement(core.statement)
    most = machine.l1 // ALIASING * ALIASING_PART
    for read in s.source.reads:
        dim = plain_dimension(read, core.w) if core.w else None
        away = core.dot is not None and read not in core.dot.in_place
        if away and core.v not in loops_of_read(read):
            layout = Layout(tuple(range(len(read.indices))), _groups(read, core))
            schedule = _promoted(schedule, core.statement, loops, read.tensor, layout)
            continue
        if dim is None or core.v in loops_of_read(read) or core.rows <= most:
            continue
        if wider_type(schedule, read):
            continue  # see `poly.strategy.cpu.conversions`
        if is_apart(schedule.scop, read, core) and len(loops) > 1:
            rest = [d for d in range(len(read.indices)) if d != dim]
            layout = Layout((dim, *rest), ((dim, core.rows),))
            schedule = _promoted(schedule, core.statement, loops[:-1], read.tensor, layout)
        elif _stride(schedule.scop, read, dim) % ALIASING == 0:
            schedule = _promoted(schedule, core.statement, loops, read.tensor)
    return schedule


def is_apart(scop: Scop, read: Read, core: Contraction) -> bool:
    """Whether a tile's rows of an operand are adjacent, and far apart from one iteration of the
    reduction to the next.
    """
    dim = plain_dimension(read, core.w) if core.w else None
    along = plain_dimension(read, reduction_order(core)[-1])
    if dim is None or along is None or core.v in loops_of_read(read):
        return False
    return _stride(scop, read, dim) <= LINE < FAR <= _stride(scop, read, along)


def _stride(scop: Scop, read: Read, dim: int) -> int:
    """The stride of a dimension in bytes, with 1 for unknown extents."""
    tensor = scop.program.tensors[read.tensor]
    known = (int(e.value) for e in tensor.shape[dim + 1 :] if isinstance(e, Const))
    return tensor.dtype.bytes * prod(known)


def _promoted(
    schedule: Schedule, s: str, loops: list[str], tensor: str, layout: Layout | tuple[()] = ()
) -> Schedule:
    for loop in loops:
        made = attempt(schedule, Schedule.promote, s, loop, tensor, Scope.LOCAL, layout)
        if made is not schedule:
            return made
    return schedule
