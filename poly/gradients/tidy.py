"""Rewrites that make the text of a gradient short: sums that begin with their first term, copies
that are read in place, scattered sums that are gathered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from poly.gradients.derivatives import ZERO, plus
from poly.gradients.first_writes import begun_in_blocks
from poly.gradients.statements import is_made, with_indices
from poly.ir.accesses import meets_itself
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    dtype_of_expr,
    indices_of,
    is_weak,
    rewrite,
    substitute_value,
)  # fmt: skip
from poly.ir.linear_form import normal
from poly.ir.program import Program, Statement, default_name, fresh_statement
from poly.rewrites.eliminate_dead import eliminate_dead
from poly.rewrites.periodic import shifted_reads
from poly.rewrites.scatter_to_gather import gather_sum
from poly.sets.to_isl import domain_set


def tidied(program: Program) -> Program:
    """The program of a gradient in a form that one would write."""
    program = shortened(program)
    for rewritten in (
        _without_copies, eliminate_dead, without_unused, _ordered, _results_last, numbered,
    ):  # fmt: skip
        program = rewritten(program)
    return program


def shortened(program: Program) -> Program:
    """The program with fewer statements that add to the same tensors."""
    for rewritten in (_gathered, _without_implied, _begun, _joined, begun_in_blocks):
        program = rewritten(program)
    return program


def _gathered(program: Program) -> Program:
    """Each element of a scattered sum looks for its terms."""
    made = []
    for s in program.statements:
        if is_made(s):
            s = shifted_reads(s)
            s = s if s.block else gather_sum(program, s)
        made.append(s)
    return replace(program, statements=tuple(made), text=None)


def _without_implied(program: Program) -> Program:
    """Guards are left out that follow from the ranges and the other guards."""
    made = (_least_guarded(program, s) if is_made(s) else s for s in program.statements)
    return replace(program, statements=tuple(made))


def _least_guarded(program: Program, s: Statement) -> Statement:
    n = 0
    while n < len(s.guards):
        fewer = replace(s, guards=(*s.guards[:n], *s.guards[n + 1 :]))
        if domain_set(program, fewer).is_subset(domain_set(program, s)):
            s = fewer
        else:
            n += 1
    return s


def _begun(program: Program) -> Program:
    """A sum that fills a tensor needs no zeros before it."""
    left = list(program.statements)
    at = 0
    while at < len(left):
        zeros = left[at]
        fills = is_made(zeros) and zeros.value == ZERO and _fills(program, zeros)
        n = _next_access(left, at) if fills else None
        adds = n is not None and left[n].target.tensor == zeros.target.tensor
        begun = _first_sum(program, left[n]) if adds and n is not None else None
        if n is None or begun is None:
            at += 1
        else:
            left[n] = begun
            del left[at]
    return replace(program, statements=tuple(left))


def _first_sum(program: Program, s: Statement) -> Statement | None:
    """A sum without zeros before it; None if it does not reach every element."""
    if not _adds(s) or not _spans(program, s):
        return None
    if s.reductions:
        return None if s.free_guards else replace(s, init=True)
    return None if s.guards else replace(s, op="=")


def _joined(program: Program) -> Program:
    """Terms that are added element by element are added at once."""
    left = list(program.statements)
    at = 0
    while at < len(left):
        first = left[at]
        n = _next_access(left, at) if is_made(first) else None
        value = None if n is None else _both(program, first, left[n])
        between = {s.target.tensor for s in left[at + 1 : n]}
        if n is None or value is None or {r.tensor for r in first.reads} & between:
            at += 1
        else:
            left[n] = replace(left[n], op=first.op, value=value)
            del left[at]
    return replace(program, statements=tuple(left))


def _both(program: Program, first: Statement, last: Statement) -> Expr | None:
    """The sum of two values, if the last is added to the elements that the first wrote, in the same
    step of a block.
    """
    if first.target.tensor != last.target.tensor or len(first.free) != len(last.free):
        return None
    names: dict[str, Expr] = {a: Index(b) for a, b in zip(first.free, last.free, strict=True)}
    if first.block:
        adds = first.block == last.block and _adds_in_step(first) and _adds_in_step(last)
        same = adds and _same_elements(with_indices(first, names), last)
    else:
        same = _fills(program, first) and _adds(last) and _fills(program, last)
    if not same:
        return None
    return plus(substitute_value(first.value, names), last.value)


def _adds_in_step(s: Statement) -> bool:
    """Whether a statement of a block adds one term to elements that it does not read."""
    plain = s.op == "+=" and not (s.init or s.reductions or s.scatters)
    return is_made(s) and plain and not meets_itself(s)


def _same_elements(first: Statement, last: Statement) -> bool:
    """Whether two statements with the same indices write the same elements, in each step."""
    bounds = [tuple((r.lo, r.hi) for r in s.ranges) for s in (first, last)]
    guards = [set(s.guards) for s in (first, last)]
    indices = [tuple(map(normal, s.target.indices)) for s in (first, last)]
    return all(a == b for a, b in (bounds, guards, indices))


def _without_copies(program: Program) -> Program:
    """Temporaries that are copies, or one number, are not made."""
    temps = {t.name: t for t in program.temps}
    left = list(program.statements)
    at = 0
    while at < len(left):
        copy = left[at]
        name = copy.target.tensor
        once = [s.target.tensor for s in left].count(name) == 1 and name in temps
        new = None
        if once and is_made(copy) and copy.op == "=" and _fills(program, copy):
            new = _source(program, copy, [s.target.tensor for s in left[at:]])
        if new is None:
            at += 1
        else:
            del left[at]
            left = [_replaced(program, s, name, new) for s in left]
    return replace(program, statements=tuple(left))


def _source(program: Program, copy: Statement, written: Sequence[str]) -> str | Const | None:
    """The tensor that a statement copies, or the number that it stores."""
    value = copy.value
    if isinstance(value, Const):
        dtype = program.tensors[copy.target.tensor].dtype
        return None if value == ZERO else Const(float(value.value), dtype)
    plain = isinstance(value, Read) and value.indices == copy.target.indices
    if plain and isinstance(value, Read) and value.tensor not in written:
        same = program.dtypes[value.tensor] == program.dtypes[copy.target.tensor]
        return value.tensor if same else None
    return None


def _replaced(program: Program, s: Statement, name: str, new: str | Const) -> Statement:
    def visit(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor == name:
            return replace(e, tensor=new) if isinstance(new, str) else new
        if isinstance(e, Op) and e.fn == "mul" and isinstance(new, Const):
            return _product(e, new, program)
        return e

    return replace(s, value=rewrite(s.value, visit))


def _product(e: Op, one: Const, program: Program) -> Expr:
    """A product without the factor 1.0, and without types of literals that another factor has."""
    if one in e.args and one.value == 1.0:
        other = e.args[1 - e.args.index(one)]
        if isinstance(other, Const) and other.dtype is None:
            return Const(float(other.value), one.dtype)
        return other if dtype_of_expr(other, program.dtypes) == one.dtype else e
    first, *rest = e.args
    if isinstance(first, Const) and first.dtype == one.dtype:
        strong = not any(is_weak(x) or dtype_of_expr(x, program.dtypes) != one.dtype for x in rest)
        return replace(e, args=(replace(first, dtype=None), *rest)) if strong else e
    return e


def without_unused(program: Program) -> Program:
    """Temporaries are declared only if they are used."""
    used = {s.target.tensor for s in program.statements}
    used |= {r.tensor for s in program.statements for r in s.reads}
    return replace(program, temps=tuple(t for t in program.temps if t.name in used))


def _ordered(program: Program) -> Program:
    """Reduction indices in the order in which they appear, as in a text."""

    def visit(s: Statement) -> Statement:
        if not is_made(s):
            return s
        ranges = {r.index: r for r in s.ranges}
        seen = dict.fromkeys(i for e in (s.value, *s.guards) for i in indices_of(e))
        summed = [i for i in (*seen, *s.reductions) if i in s.reductions]
        left = dict.fromkeys(i for e in s.target.indices for i in indices_of(e))
        free = [i for i in left if i != s.step]
        order = dict.fromkeys((*([s.step] if s.block else ()), *free, *summed))
        return replace(
            s, ranges=tuple(ranges[i] for i in order), reductions=tuple(dict.fromkeys(summed))
        )

    return replace(program, statements=tuple(map(visit, program.statements)))


def _results_last(program: Program) -> Program:
    """Gradients that nothing reads come last, in their order: statements that are between others
    which run through the same rows would keep these apart.
    """
    kept = list(program.statements)
    moved: list[Statement] = []
    for t in program.outputs:
        own = [s for s in kept if s.target.tensor == t.name]
        if own and all(is_made(s) and not s.block for s in own) and _may_wait(kept, moved, own):
            kept = [s for s in kept if s.target.tensor != t.name]
            moved += own
    return replace(program, statements=(*kept, *moved), text=None)


def _may_wait(
    kept: Sequence[Statement], moved: Sequence[Statement], own: Sequence[Statement]
) -> bool:
    """Whether the statements of a tensor, which are among `kept`, may run after all others."""
    (name,) = {s.target.tensor for s in own}
    used = {r.tensor for s in own for r in s.reads} - {name}
    others = (s for s in (*kept, *moved) if s.target.tensor != name)
    read = any(r.tensor == name for s in others for r in s.reads)
    return not read and not any(s.target.tensor in used for s in kept[kept.index(own[0]) :])


def numbered(program: Program) -> Program:
    """The names of statements by position, but for labels."""
    labels = {s.name for s in program.statements if not re.fullmatch(r"S\d+|__\d+", s.name)}
    taken = {n for s in program.statements if s.name in labels for n in (s.name, f"{s.name}_init")}
    made = []
    blocks = {
        b: n for n, b in enumerate(dict.fromkeys(s.block for s in program.statements if s.block), 1)
    }
    for n, s in enumerate(program.statements):
        name = s.name if s.name in labels else fresh_statement(default_name(n), taken)
        made.append(replace(s, name=name, block=blocks.get(s.block, 0)))
    return replace(program, statements=tuple(made), text=None)


def _fills(program: Program, s: Statement) -> bool:
    """Whether a statement has one value for every element of its tensor."""
    plain = not (s.block or s.init or s.reductions or s.guards) and s.op in ("=", "+=")
    own = any(r.tensor == s.target.tensor for r in s.reads)
    return plain and not own and _spans(program, s)


def _adds(s: Statement) -> bool:
    return is_made(s) and s.op == "+=" and not s.init and not s.block and s.is_reduction


def _spans(program: Program, s: Statement) -> bool:
    """Whether the target's indices are the loops over its shape, one each."""
    ranges = {r.index: r for r in s.ranges}
    shape = program.tensors[s.target.tensor].shape
    seen: set[str] = set()
    for e, extent in zip(s.target.indices, shape, strict=True):
        if not isinstance(e, Index) or e.name in seen:
            return False
        seen.add(e.name)
        if ranges[e.name].lo != Const(0) or ranges[e.name].hi != extent:
            return False
    return True


def _next_access(statements: Sequence[Statement], at: int) -> int | None:
    """The next statement that reads or writes what one writes."""
    name = statements[at].target.tensor
    for n in range(at + 1, len(statements)):
        s = statements[n]
        if s.target.tensor == name or any(r.tensor == name for r in s.reads):
            return n
    return None
