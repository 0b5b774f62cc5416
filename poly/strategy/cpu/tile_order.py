"""Whether the tiles of a contraction run row by row, or column by column.

Usually all tiles of a column come before the next column: they share the operand that moves along
the lanes, which is packed for them.  Row by row is better where rows have operands of their own, or
where results take longer to be stored than to be computed.
"""

from __future__ import annotations

from math import prod

from poly.deps.scop import Scop
from poly.ir.accesses import elements_read, loops_of_read, stride_of
from poly.ir.expr import Const
from poly.machine.cpu import Machine
from poly.strategy.cpu.packing import LINE
from poly.strategy.cpu.register_tile import Contraction

#: Terms of a sum that take less time than its result takes to be stored, and tiles in a row and in
#: a column from which on their order matters.
FEW_TERMS, FEW_TILES = 32, 4
#: Rows a multiple of this many bytes apart meet in few sets of the first cache.
FEW_SETS = 1024
#: The part of the second cache, or of a larger result, that each row of tiles may read.
SMALL = 4


def reads_rows(scop: Scop, core: Contraction) -> bool:
    """Whether each row reads elements of its own along the lanes, perhaps shifted as in a stencil.

    All tiles of a row share its lines.
    """
    reads = scop.statement(core.statement).source.reads
    return any(core.w in loops_of_read(r) and stride_of(r, core.v) == 1 for r in reads)


def is_stored_slowly(scop: Scop, core: Contraction, machine: Machine) -> bool:
    """Whether a column of tiles takes longer to be stored than to be computed.

    That is so for few terms where rows share cache lines with the next column, meet in the cache,
    or are too many to stay there.  Packing takes longer than it saves, then.

    Each row of tiles reads the operand that moves along the lanes again, which therefore has to be
    contiguous along them, to fit the second cache, and to be small beside it or the result.
    """
    if not core.w or core.dot is not None:
        return False
    s = scop.statement(core.statement)
    loops = (core.v, core.w, *core.reductions)
    known = {x: n for x in loops if (n := core.extent(x)) is not None}
    moving = [r for r in s.source.reads if core.v in loops_of_read(r)]
    result = scop.program.tensors[s.target.tensor]
    shape = [int(e.value) for e in result.shape if isinstance(e, Const)]
    in_lanes = all(
        stride_of(r, core.v) == 1 and not scop.program.tensors[r.tensor].dtype.is_widened
        for r in (s.target, *moving)
    )
    if len(known) < len(loops) or len(shape) < result.rank or not in_lanes:
        return False
    size = result.dtype.bytes
    row, whole, operand = size * shape[-1], size * prod(shape), size * elements_read(moving, known)
    return (
        prod(known[r] for r in core.reductions) <= FEW_TERMS
        and min(known[core.v] // core.width, known[core.w] // core.rows) >= FEW_TILES
        and (row % LINE > 0 or row % FEW_SETS == 0 or whole > machine.l2)
        and operand <= min(machine.l2, max(machine.l2, whole) // SMALL)
    )
