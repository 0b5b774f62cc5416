"""Operands in 16-bit floats that are used often, converted to float32 once.

    float32 C[i,j] +=! A[i,k] * B[k,j]                with float16 A, B

converts each element of A for every j, and of B for every i, inside the innermost loop.  Where an
element is used often enough, it is converted before instead:

    A_wide[i,k] = A[i,k]
    C[i,j] +=! A_wide[i,k] * B[k,j]

In a contraction, that is done for what a register tile reads as single numbers, here A: each tile
along j needs all of it.  What it reads in vectors is converted where it is packed, and so is either
in a batch of products; see `poly.strategy.cpu.packing`.  Elsewhere, it is done for rows that are
read in vectors again and again, such as the factors of a normalisation.

float32 holds every 16-bit float, and expressions of these are computed in it, so no bit of a result
changes.  The operands themselves stay as narrow in memory as they are: only this program has the
wider ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from poly.deps.scop import build_scop
from poly.ir.accesses import loops_of_read, stride_of
from poly.ir.expr import Const, Expr, Index, Read, reads_of, rewrite
from poly.ir.program import (
    RESERVED,
    Program,
    Range,
    Statement,
    Tensor,
    fresh_name,
    fresh_statement,
    statement_names,
)
from poly.machine.cpu import Machine
from poly.strategy.cpu.choose_tile import find_tile
from poly.strategy.cpu.packing import is_batched, is_packed, is_used_by_one_tile
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
            if _is_converted(program, s, core, name):
                result = _converted(result, s.name, name)
    return result


def _is_converted(
    program: Program, s: Statement, core: Contraction | Stencil | None, name: str
) -> bool:
    """Whether elements of an operand are used often, and better converted before."""
    reads = [r for r in s.reads if r.tensor == name]
    if len(reads) > 1 or reads[0] not in reads_of(s.value):
        return False
    (read,) = reads
    least = REUSE
    if isinstance(core, Contraction):
        if core.dot is not None:
            return False  # multiplied as it is
        operands = [r for r in s.reads if r.indices]
        in_lanes = core.v in loops_of_read(read)
        rows = is_used_by_one_tile(read, core) or any(is_batched(operands, i) for i in s.free)
        if is_packed(read, core) if in_lanes else rows:
            return False
        least = REUSE_IN_LANES if in_lanes else REUSE_AS_NUMBERS
    elif core is not None or stride_of(read, s.indices[-1] if s.indices else "") != 1:
        return False  # single numbers, converted once for a vector
    moved = loops_of_read(read)
    instances = prod(_extent(r) for r in s.ranges)
    if instances < FEWEST:
        return False
    shape = program.tensors[name].shape
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
    taken = {*program.tensors, *program.sizes, *RESERVED}
    taken |= {i for x in program.statements for i in x.indices}
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
