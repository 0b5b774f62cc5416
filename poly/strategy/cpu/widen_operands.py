"""Operands in 16-bit floats that are used often, converted to float32 once.

    float32 C[i,j] +=! A[i,k] * B[k,j]                with float16 A, B

converts each element of A for every j, and of B for every i, inside the innermost loop.  Where an
element is used often enough, it is converted before instead:

    A_wide[i,k] = A[i,k]
    C[i,j] +=! A_wide[i,k] * B[k,j]

In a contraction, that is done for what a register tile reads as single numbers, here A: each tile
along j needs all of it.  Where these are few, or share a block, each converts it for itself, see
`poly.strategy.cpu.conversions`, and what it reads in vectors is converted where it is packed.
Elsewhere, it is done for rows that are read in vectors again and again, such as the factors of a
normalisation.

float32 holds every 16-bit float, and expressions of these are computed in it, so no bit of a result
changes.  The operands themselves stay as narrow in memory as they are: only this program has the
wider ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poly.deps.scop import Scop, build_scop
from poly.ir.accesses import loops_of_read, stride_of
from poly.ir.expr import Const, Expr, Index, Read, reads_of, rewrite
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    fresh_name,
    fresh_statement,
    statement_names,
    taken_names,
)
from poly.machine.cpu import Machine
from poly.strategy.cpu.cache_blocks import find_blocks
from poly.strategy.cpu.choose_tile import find_tile
from poly.strategy.cpu.conversions import Place, place_of_rows
from poly.strategy.cpu.packing import is_packed
from poly.strategy.cpu.register_tile import Contraction
from poly.strategy.cpu.stencil_tile import Stencil

#: An operand is converted if each of its elements is used at least this often, by a statement with
#: at least so many instances: threads have to wait for each other.
REUSE, FEWEST = 64, 1 << 16
#: The same for what a register tile reads in vectors in the order in which it is in memory, and
#: which is quickly converted there.
REUSE_IN_LANES = 128
#: The same for what it reads number by number, which takes as long as a multiply-add in all lanes.
REUSE_AS_NUMBERS = 8
#: The assumed extent of a loop of unknown extent.
USUAL = 256


def widen_operands(program: Program, machine: Machine) -> Program:
    """Convert inputs that are reused to the type they are computed in, once for all uses."""
    written = {s.target.tensor for s in program.statements}
    narrow = {t.name for t in program.inputs if t.dtype.is_widened} - written
    found = [s for s in program.statements if not s.block and narrow & {r.tensor for r in s.reads}]
    scop = build_scop(program) if found else None
    result = program
    for s in found:
        assert scop is not None
        own = scop.statement(s.name)
        core = find_tile(scop, own, machine) if s.is_reduction and s.reductions else None
        for name in dict.fromkeys(r.tensor for r in s.reads if r.tensor in narrow):
            reads = [r for r in s.reads if r.tensor == name]
            if len(reads) > 1 or reads[0] not in reads_of(s.value):
                continue
            least = _least_reuse(scop, s, core, reads[0], machine)
            if least is not None and _is_reused(program, s, reads[0], least):
                result = _converted(result, s.name, name)
    return result


def _least_reuse(
    scop: Scop, s: Statement, core: Contraction | Stencil | None, read: Read, machine: Machine
) -> int | None:
    """How often elements of an operand have to be used to be converted before; None if they are
    converted where they are used, whatever that is.
    """
    if not isinstance(core, Contraction):
        rows = core is None and stride_of(read, s.indices[-1] if s.indices else "") == 1
        return REUSE if rows else None  # single numbers are converted once for a vector
    if core.dot is not None:
        return None  # multiplied as it is
    if core.v in loops_of_read(read):
        return None if is_packed(read, core) else REUSE_IN_LANES
    operands = [r for r in s.reads if r.indices]
    place = place_of_rows(read, core, operands, find_blocks(scop, core, machine), machine)
    return REUSE_AS_NUMBERS if place == Place.BEFORE else None


def _is_reused(program: Program, s: Statement, read: Read, least: int) -> bool:
    """Whether a statement has enough instances, and each element is used often enough."""
    instances = prod(_extent(r) for r in s.ranges)
    if instances < FEWEST:
        return False
    shape, moved = program.tensors[read.tensor].shape, loops_of_read(read)
    if all(isinstance(e, Const) for e in shape):
        return instances >= least * prod(_size(e) for e in shape)
    return prod(_extent(r) for r in s.ranges if r.index not in moved) >= least


def _extent(r: Range) -> int:
    if isinstance(r.lo, Const) and isinstance(r.hi, Const):
        return int(r.hi.value) - int(r.lo.value)
    return USUAL


def _size(e: Expr) -> int:
    return int(e.value) if isinstance(e, Const) else USUAL


def _converted(program: Program, statement: str, name: str) -> Program:
    """The program with one input of a statement in a temporary of a wider type."""
    tensor = program.tensors[name]
    taken = taken_names(program)
    wide = Tensor(fresh_name(f"{name}_wide", taken), tensor.dtype.compute, tensor.shape)
    indices = [fresh_name(f"i{d}", taken) for d in range(tensor.rank)]
    here = tuple(map(Index, indices))
    ranges = tuple(Range(i, Const(0), e) for i, e in zip(indices, tensor.shape, strict=True))
    own = fresh_statement(f"{statement}_{name}", statement_names(program))
    copy = Statement(own, Read(wide.name, here), "=", False, Read(name, here), ranges)

    def visit(e: Expr) -> Expr:
        return replace(e, tensor=wide.name) if isinstance(e, Read) and e.tensor == name else e

    rest = (
        replace(s, value=rewrite(s.value, visit)) if s.name == statement else s
        for s in program.statements
    )
    # Before everything else, so that it separates no statements that may share loops.
    return replace(program, temps=(*program.temps, wide), statements=(copy, *rest), text=None)
