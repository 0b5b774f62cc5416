"""Programs in which no statement overwrites what it reads, and no input is updated.

``T[i] = 2 * T[i]`` becomes ``K[i] = T[i]; T[i] = 2 * K[i]``.  Where a statement reads both what was
there before and what it wrote itself, as in ``A[i] = A[i-1] + A[i+1]``, isl says which is which:
``A[i] = select(i >= 2, A[i-1], K[i-1]) + K[i+1]``.
"""

from __future__ import annotations

from dataclasses import replace

from poly.deps.lifetimes import OwnReads, results_left
from poly.deps.scop import build_scop
from poly.errors import GradientError
from poly.gradients.combined import combined_in_steps
from poly.gradients.derivatives import chosen
from poly.gradients.statements import Names, over_all, statement
from poly.gradients.states import with_states
from poly.ir.expr import Const, Expr, Index, Read, reads_of, rewrite
from poly.ir.program import Program, Statement, Tensor


def without_updates(program: Program, names: Names) -> tuple[Program, dict[str, str]]:
    """The program with an output of its own for each tensor that it updates, and their names."""
    new = {n: names.tensor(f"{n}_out") for n in program.updated}
    if not new:
        return program, new

    def renamed(t: Tensor) -> Tensor:
        return replace(t, name=new.get(t.name, t.name))

    def access(read: Read) -> Read:
        return replace(read, tensor=new.get(read.tensor, read.tensor))

    made = program.with_accesses(renamed, access)
    copies = []
    for t in program.inputs:
        if t.name in new:
            indices, ranges = over_all(names, t)
            value = Read(t.name, indices)
            copies.append(statement(names, Read(new[t.name], indices), "=", value, ranges))
    statements = (*copies, *made.statements)
    return replace(made, inputs=program.inputs, statements=statements), new


def separate(program: Program, names: Names) -> Program:
    """The program, each of whose statements keeps what it reads and what it writes.

    Raises
    ------
    GradientError : it could not be found out what is read, or what is left.
    """
    found = with_states(combined_in_steps(program, names), names)
    return without_lost_results(without_own_reads(found, names))


def without_own_reads(program: Program, names: Names) -> Program:
    """The program with copies of what statements read before they overwrite it.

    Raises
    ------
    GradientError : it could not be found out what is read.
    """
    if not any(_reads_own(s) for s in program.statements):
        return program
    scop = build_scop(program)
    made: list[Statement] = []
    temps = list(program.temps)
    for s in program.statements:
        reads = OwnReads(scop, s) if _reads_own(s) and not s.block else None
        if reads is None or not reads.overwritten:
            made.append(s)
            continue
        t = program.tensors[s.target.tensor]
        copy = Tensor(names.tensor(f"{t.name}_before_{s.name}"), t.dtype, t.shape)
        temps.append(copy)
        indices, ranges = over_all(names, t)
        value = Read(t.name, indices)
        made.append(statement(names, Read(copy.name, indices), "=", value, ranges))
        made.append(replace(s, value=_with_copy(s, reads, copy.name)))
    return replace(program, temps=tuple(temps), statements=tuple(made), text=None)


def without_lost_results(program: Program) -> Program:
    """The program without the instances whose results are overwritten before anything reads them.

    ``Y[i % 3] = X[i]`` keeps the last three.

    Raises
    ------
    GradientError : it could not be found out which are left.
    """
    if not _may_lose(program):
        return program
    left = results_left(program)
    made = []
    for s in program.statements:
        if s.name not in left:
            made.append(s)
            continue
        kept = left[s.name]
        if kept is None:
            raise GradientError(f"which results of statement {s.name} are left is too hard to say")
        made.append(replace(s, guards=(*s.guards, kept)))
    return replace(program, statements=tuple(made), text=None)


def _may_lose(program: Program) -> bool:
    """Whether an element may be stored twice."""
    stores = [s for s in program.statements if not s.is_update]
    targets = [s.target.tensor for s in stores]
    return len(set(targets)) < len(targets) or any(
        {e.name for e in s.target.indices if isinstance(e, Index)} < set(s.indices) for s in stores
    )


def _reads_own(s: Statement) -> bool:
    return any(r.tensor == s.target.tensor for r in s.reads)


def _with_copy(s: Statement, reads: OwnReads, copy: str) -> Expr:
    """A statement's value, with what was there before read from a copy."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor != s.target.tensor:
            return e
        if any(reads_of(i) for i in e.indices):
            raise GradientError(
                f"statement {s.name} reads {e}, which it overwrites, at places that depend on data"
            )
        new = reads.when_new(e)
        if new is None:
            raise GradientError(
                f"statement {s.name} reads {e} of before and of its own in ways that are too many "
                f"to tell apart"
            )
        old = replace(e, tensor=copy)
        if isinstance(new, Const):
            return e if new.value else old
        return chosen(new, e, old)

    return rewrite(s.value, visit)
