"""Blocks in a form of which segments can be made: all that runs along the steps is inside.

What is read step by step is in tensors of the block's own: an output gets a copy.  Sums over the
steps and results of each, which come after the block, and sums that it begins with come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from poly.gradients.derivatives import ZERO
from poly.gradients.statements import Names, statement
from poly.ir.expr import Expr, Index, Read, indices_of, rewrite, substitute, substitute_value
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Range, Statement


def along_steps(program: Program, block: int, names: Names) -> Program:
    """The program with everything that runs along the steps of a block inside it."""
    return _with_later(_with_earlier(_apart(program, block, names), block), block)


def steps_behind(read: Read, index: str, group: Sequence[Statement]) -> int | None:
    """How many steps before step `index` an element was written; None if that is not known."""
    writer = next(s for s in group if s.target.tensor == read.tensor)
    for e, written in zip(read.indices, writer.target.indices, strict=True):
        if writer.step in indices_of(written):
            known = substitute(written, {writer.step: Index(index)})
            ahead = linear_form(known) - linear_form(e)
            return None if ahead.terms or ahead.constant < 0 else ahead.constant
    return None


def with_ranges(
    ranges: Sequence[Range], indices: Mapping[str, Expr], sizes: Mapping[str, Expr] | None = None
) -> tuple[Range, ...]:
    """Ranges with other indices and sizes in their bounds."""
    return tuple(
        Range(r.index, substitute(r.lo, indices, sizes), substitute(r.hi, indices, sizes))
        for r in ranges
    )


# --- states that are results, too ---------------------------------------------------------------


def _apart(program: Program, block: int, names: Names) -> Program:
    """The program with copies of outputs that steps of a block read."""
    group = [s for s in program.statements if s.block == block]
    read = {r.tensor for s in group for r in s.reads}
    outputs = {t.name for t in program.outputs}
    for name in dict.fromkeys(s.target.tensor for s in group):
        if name in read & outputs:
            program = _with_copy(program, block, name, names)
    return program


def _with_copy(program: Program, block: int, name: str, names: Names) -> Program:
    """Steps read and write a copy of a tensor, which is stored to it, too."""
    t = program.tensors[name]
    copy = replace(t, name=names.tensor(f"{name}_state"))

    def visit(e: Expr) -> Expr:
        return replace(e, tensor=copy.name) if isinstance(e, Read) and e.tensor == name else e

    made: list[Statement] = []
    at = next(n for n, s in enumerate(program.statements) if s.block == block)
    for n, s in enumerate(program.statements):
        if s.block == block:
            target = rewrite(s.target, visit)
            assert isinstance(target, Read)
            made.append(replace(s, target=target, value=rewrite(s.value, visit)))
            if s.target.tensor == name:
                free = [r for r in s.ranges if r.index in s.free]
                made.append(
                    statement(names, s.target, "=", target, free, s.free_guards, block, s.step)
                )
            continue
        made.append(s)
        if s.target.tensor == name and n < at:
            target = replace(s.target, tensor=copy.name)
            value = rewrite(s.value, visit)
            made.append(replace(s, name=names.statement(), target=target, value=value))
    return replace(program, temps=(*program.temps, copy), statements=tuple(made), text=None)


# --- what comes before the block ----------------------------------------------------------------


def _with_earlier(program: Program, block: int) -> Program:
    """The program with sums in the block that begin what its steps add to."""
    at = next(n for n, s in enumerate(program.statements) if s.block == block)
    before, rest = list(program.statements[:at]), list(program.statements[at:])
    group = [s for s in rest if s.block == block]
    changed = {s.target.tensor for s in group}
    given = {t.name for t in (*program.inputs, *program.outputs)}
    moved: list[Statement] = []
    for s in reversed(before):
        others = [o for o in (*before, *moved) if o is not s]
        alone = s.target.tensor in changed - given and not any(
            s.target.tensor in (o.target.tensor, *(r.tensor for r in o.reads)) for o in others
        )
        writers = [o for o in group if o.target.tensor == s.target.tensor]
        adds = all(o.is_update and not o.init for o in writers)
        index = _at_every_step(s, group) if alone and adds else None
        # It moves behind what follows it.
        later = {o.target.tensor for o in before[before.index(s) + 1 :]}
        if index is not None and not {r.tensor for r in s.reads} & (changed | later):
            before.remove(s)
            moved.insert(0, _as_step(s, index, group[0].ranges[0], block))
    return replace(program, statements=(*before, *moved, *rest), text=None)


def _at_every_step(s: Statement, group: Sequence[Statement]) -> str | None:
    """The index along which a statement writes what the steps of a block add to."""
    steps = group[0].ranges[0]
    for r in s.ranges:
        same = not s.block and (r.lo, r.hi) == (steps.lo, steps.hi) and r.index in s.free
        if same and steps_behind(s.target, r.index, group) == 0:
            return r.index
    return None


# --- what comes after it ------------------------------------------------------------------------


def _with_later(program: Program, block: int) -> Program:
    """The program with the sums over steps, and the results of each, in the block."""
    at = next(n for n, s in enumerate(program.statements) if s.block == block)
    group = [s for s in program.statements if s.block == block]
    outputs = {t.name for t in program.outputs}
    local = {s.target.tensor for s in group} - outputs
    before = list(program.statements[:at])
    after: list[Statement] = []
    for s in program.statements[at + len(group) :]:
        index = _along(s, group, local)
        if index is None or not _may_come_in(s, group, after):
            after.append(s)
            continue
        inside = _as_step(s, index, group[0].ranges[0], block)
        if s.init and index in s.reductions:
            before.append(_zeros(s))
            inside = replace(inside, init=False)
        group.append(inside)
        if index not in s.reductions and s.target.tensor not in outputs:
            local.add(s.target.tensor)
    return replace(program, statements=(*before, *group, *after), text=None)


def _along(s: Statement, group: Sequence[Statement], local: set[str]) -> str | None:
    """The index of a statement that runs along the steps of a block, reading what they computed."""
    if s.block or (s.init and s.op != "+="):
        return None
    steps = group[0].ranges[0]
    reads = [r for r in s.reads if r.tensor in local]
    for r in s.ranges if reads else ():
        same = (r.lo, r.hi) == (steps.lo, steps.hi) and (s.is_update or r.index in s.free)
        if same and all(steps_behind(read, r.index, group) is not None for read in reads):
            return r.index
    return None


def _may_come_in(s: Statement, group: Sequence[Statement], after: Sequence[Statement]) -> bool:
    """Whether a statement after a block may run in it: before those that stay after it, and with
    the others' steps.
    """
    name = s.target.tensor
    if {r.tensor for r in s.reads} & {o.target.tensor for o in after}:
        return False
    return not any(
        name == o.target.tensor or name in {r.tensor for r in o.reads} for o in (*after, *group)
    )


def _as_step(s: Statement, index: str, steps: Range, block: int) -> Statement:
    """A statement along one of its indices, as one of a block."""
    if steps.index in s.indices and steps.index != index:
        other = next(n for k in range(10**6) if (n := f"{steps.index}{k}") not in s.indices)
        s = _renamed(s, steps.index, other)
    new = {index: Index(steps.index)}
    target = substitute_value(s.target, new)
    assert isinstance(target, Read)
    ranges = with_ranges([r for r in s.ranges if r.index != index], new)
    return replace(
        s, target=target, value=substitute_value(s.value, new), ranges=(steps, *ranges),
        guards=tuple(substitute(g, new) for g in s.guards), block=block,
        reductions=tuple(i for i in s.reductions if i != index),
    )  # fmt: skip


def _renamed(s: Statement, old: str, new: str) -> Statement:
    to = {old: Index(new)}
    target = substitute(s.target, to)
    assert isinstance(target, Read)
    ranges = with_ranges(s.ranges, to)
    return replace(
        s, target=target, value=substitute(s.value, to),
        guards=tuple(substitute(g, to) for g in s.guards),
        ranges=tuple(replace(r, index=new if r.index == old else r.index) for r in ranges),
        reductions=tuple(new if i == old else i for i in s.reductions),
    )  # fmt: skip


def _zeros(s: Statement) -> Statement:
    free = tuple(r for r in s.ranges if r.index in s.free)
    return replace(
        s, name=f"{s.name}_zeros", op="=", init=False, value=ZERO, ranges=free, reductions=(),
        guards=s.free_guards,
    )  # fmt: skip
