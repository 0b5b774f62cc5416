"""Sums into 16-bit floats, kept in float32 and rounded once.

    float16 C[i,j] +=! A[i,k] * B[k,j]

rounds the sum after each term if it is done as written: 2048 + 1 + 1 + … stays 2048.  Instead,

    float32 C_wide[i,j] +=! A[i,k] * B[k,j]
    C[i,j] = C_wide[i,j]

rounds it once, and its terms need no conversion between additions.  The same is done for products,
minima and maxima.  Temporaries that are computed, and not just moved, become ones of float32
themselves and are not rounded at all: most of them never leave the caches.

Results differ, so this is not for exact programs.
"""

from __future__ import annotations

from dataclasses import replace

from poly.ir.dtypes import DType
from poly.ir.expr import Const, Read
from poly.ir.program import (
    Program,
    Statement,
    Tensor,
    fresh_name,
    fresh_statement,
    statement_names,
    taken_names,
)


def widen_sums(program: Program) -> Program:
    """Keep sums of 16-bit floats in float32 and round them once, and temporaries not at all."""
    made = widen_temporaries(program)
    for s in made.statements:
        if _is_narrow_sum(s, made.dtypes):
            made = _with_temporary(made, s)
    return made


def widen_temporaries(program: Program) -> Program:
    """Keep temporaries in the type they are computed in, except those that are only moved."""
    dtypes = program.dtypes
    narrow = {t.name for t in program.temps if t.dtype.is_widened}
    computed = {s.target.tensor for s in program.statements if not _is_moved(s, dtypes)} & narrow
    if not computed:
        return program
    return program.with_tensors(
        lambda t: _wide(t, t.name) if t.name in computed else t, program.statements
    )


def _is_moved(s: Statement, dtypes: dict[str, DType]) -> bool:
    """Whether a statement moves elements of its target's type, or sets them to a number."""
    if s.op != "=":
        return False
    same = isinstance(s.value, Read) and dtypes[s.value.tensor] == dtypes[s.target.tensor]
    return same or isinstance(s.value, Const)


def _is_narrow_sum(s: Statement, dtypes: dict[str, DType]) -> bool:
    """Whether a statement combines several values with an element of fewer bits than it uses to
    compute them.
    """
    return s.is_reduction and bool(s.reductions) and dtypes[s.target.tensor].is_widened


def _wide(t: Tensor, name: str) -> Tensor:
    return replace(t, name=name, dtype=t.dtype.compute)


def _with_temporary(program: Program, s: Statement) -> Program:
    """The program with the target of one statement in a temporary of a wider type, loaded before
    the statement unless that initialises it, and stored after it.
    """
    tensor = program.tensors[s.target.tensor]
    taken = taken_names(program)
    wide = _wide(tensor, fresh_name(f"{tensor.name}_wide", taken))
    names = statement_names(program)
    target = replace(s.target, tensor=wide.name)
    # Where it is not initialised, elements may keep what they had.
    moved = replace(
        s, op="=", init=False, ranges=tuple(r for r in s.ranges if r.index in s.free),
        reductions=(), guards=s.free_guards,
    )  # fmt: skip
    before = replace(
        moved, name=fresh_statement(f"{s.name}_load", names), target=target, value=s.target
    )
    after = replace(moved, name=fresh_statement(f"{s.name}_store", names), value=target)
    run = [*([] if s.init else [before]), replace(s, target=target), after]
    at = program.statements.index(s)
    statements = (*program.statements[:at], *run, *program.statements[at + 1 :])
    return replace(program, temps=(*program.temps, wide), statements=statements, text=None)
