"""How often an operand is used, and whether it is read where it is for that."""

from __future__ import annotations

from math import prod

from poly.deps.scop import Scop, ScopStatement
from poly.ir.accesses import element_stride, elements_read, loops_of_read, stride_of
from poly.ir.expr import Read

#: The assumed extent of a loop of unknown extent.
USUAL = 64
#: Rows a multiple of this many bytes apart map to the same set of the first cache.
ALIASING = 4096
#: Uses of each element up to which a copy costs more than it saves, and fewer where rows alias.
FEW_USES, ALIASED_USES = 256, 32


def reuse_of(s: ScopStatement, read: Read, extents: dict[str, int | None]) -> float:
    """How often an element of a read is used: instances over elements.

    Loops of unknown extent that do not move it are taken as `USUAL`, others as 1.
    """
    loops = loops_of_read(read)
    usual = {x: e or (1 if x in loops else USUAL) for x, e in extents.items()}
    return prod(usual[x] for x in s.loops) / elements_read([read], usual)


def pays_in_place(scop: Scop, s: ScopStatement, v: str, extents: dict[str, int | None]) -> bool:
    """Whether tiles with vector loop v read what moves with it where it is: contiguous, and used so
    few times that a copy costs more than it saves.
    """
    if None in extents.values():
        return False
    moving = [r for r in s.source.reads if v in loops_of_read(r) and r.indices]
    return all(_pays_in_place(scop, s, v, r, extents) for r in moving)


def _pays_in_place(
    scop: Scop, s: ScopStatement, v: str, read: Read, extents: dict[str, int | None]
) -> bool:
    tensor = scop.program.tensors[read.tensor]
    terms = [x for x in s.source.reductions if x in loops_of_read(read) and extents[x] != 1]
    if len(terms) != 1 or stride_of(read, v) != 1 or tensor.dtype.is_widened:
        return False
    stride = element_stride(read, tensor.shape, terms[0], 1)
    if stride is None:
        return False
    aliased = stride * tensor.dtype.bytes % ALIASING == 0
    return reuse_of(s, read, extents) <= (ALIASED_USES if aliased else FEW_USES)
