"""Accesses that wrap around, as at periodic boundaries: loops in parts, and shifts that are read.

    Y[i,j] = X[i,j] + X[i,(j + 1) mod N]        j in 0:N

has no stride along j.  In two parts, it has one in each:

    Y[i,j] = X[i,j] + X[i,j + 1]                j in 0:N-1
    Y[i,j] = X[i,j] + X[i,j + 1 - N]            j in N-1:N

This is index set splitting (Griebl, Feautrier and Lengauer, "Index Set Splitting", 2000).

A shift around all of a dimension is a bijection, so what is written shifted may as well be read
shifted:

    Y[(i + c) mod N] += X[i]                    i in 0:N
    Y[i] += X[(i + N - c) mod N]                i in 0:N

Each element is computed from the same terms in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from poly.ir.accesses import loops_as_values, meets_itself
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    indices_of,
    mod,
    reads_of,
    rewrite,
    substitute,
    substitute_value,
    walk,
)
from poly.ir.linear_form import Linear, atom, constant, linear_form, render
from poly.ir.program import Program, Range, Statement, fresh_statement, statement_names

#: The most places at which a loop is cut, and the fewest iterations that the longest part has.
MOST_CUTS, LEAST = 4, 16


def split_periodic(program: Program) -> Program:
    """Split loops whose reads wrap around, as at periodic boundaries, into parts that do not."""
    labels = statement_names(program)
    made = tuple(part for s in program.statements for part in _parts(s, labels))
    same = len(made) == len(program.statements)
    if same and all(a is b for a, b in zip(made, program.statements, strict=True)):
        return program
    return replace(program, statements=made, text=None)


def shifted_reads(s: Statement) -> Statement:
    """The statement that reads shifted elements where it wrote them shifted."""
    if s.scatters or meets_itself(s):
        return s
    ranges = {r.index: r for r in s.ranges}
    for d, e in enumerate(s.target.indices):
        found = _shift(e)
        if found is None:
            continue
        loop, by, length = found
        others = (i for k, x in enumerate(s.target.indices) if k != d for i in indices_of(x))
        if loop in (s.step, *others, *loops_as_values(s.value)):
            continue
        if (ranges[loop].lo, ranges[loop].hi) == (Const(0), Const(length)):
            s = _read_shifted(s, d, ranges[loop], length - by)
    return s


def _shift(e: Expr) -> tuple[str, int, int] | None:
    """(i, c, N) of an index ``(i + c) mod N`` with 0 <= c < N."""
    if not isinstance(e, Op) or e.fn != "mod" or not isinstance(e.args[1], Const):
        return None
    form, length = linear_form(e.args[0]), int(e.args[1].value)
    (index, factor), *rest = form.terms or ((Const(0), 0),)
    if rest or factor != 1 or not isinstance(index, Index) or length <= 0:
        return None
    return index.name, form.constant % length, length


def _read_shifted(s: Statement, d: int, r: Range, by: int) -> Statement:
    """The statement with ``(i + by) mod N`` in place of i, and i itself in dimension d."""
    assert isinstance(r.hi, Const)
    new = {r.index: mod(add(Index(r.index), Const(by)), int(r.hi.value))}
    ranges = {x.index: x for x in s.ranges}

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        return replace(e, indices=tuple(_short(i, ranges) for i in e.indices))

    indices = (Index(r.index) if k == d else e for k, e in enumerate(s.target.indices))
    return replace(
        s,
        target=replace(s.target, indices=tuple(indices)),
        value=rewrite(substitute_value(s.value, new), visit),
        guards=tuple(_short_guard(substitute(g, new), ranges) for g in s.guards),
    )


def _short_guard(g: Expr, ranges: dict[str, Range]) -> Expr:
    if isinstance(g, Op) and g.fn in ("and", "or", "not"):
        return replace(g, args=tuple(_short_guard(a, ranges) for a in g.args))
    return replace(g, args=tuple(_short(a, ranges) for a in g.args)) if isinstance(g, Op) else g


def _short(e: Expr, ranges: dict[str, Range]) -> Expr:
    """An index with remainders of remainders by the same number as one."""

    def visit(x: Expr) -> Expr:
        if not isinstance(x, Op) or x.fn != "mod" or not isinstance(x.args[1], Const):
            return x
        length = int(x.args[1].value)
        form = linear_form(x.args[0])
        total = constant(form.constant)
        for a, c in form.terms:
            same = isinstance(a, Op) and a.fn == "mod" and a.args[1] == x.args[1]
            inner = linear_form(a.args[0]) if same and isinstance(a, Op) else atom(a)
            total += inner.scale(c)
        alone = render(Linear(total.terms, total.constant % length))
        if isinstance(alone, Index) and alone.name in ranges:
            r = ranges[alone.name]
            if (r.lo, r.hi) == (Const(0), x.args[1]):
                return alone
        return mod(alone, length)

    return e if reads_of(e) else rewrite(e, visit)


# --- loops in parts -----------------------------------------------------------------------------


def _parts(s: Statement, labels: set[str]) -> list[Statement]:
    """The statement, in parts along its last dimension if reads wrap around there."""
    last = s.target.indices[-1] if s.target.indices else Const(0)
    if not isinstance(last, Index) or last.name == s.step or meets_itself(s):
        return [s]
    r = next(r for r in s.ranges if r.index == last.name)
    if not isinstance(r.lo, Const) or not isinstance(r.hi, Const):
        return [s]
    lo, hi = int(r.lo.value), int(r.hi.value)
    cuts: set[int] = set()
    for e in _wrapping(s, last.name):
        found = _cuts(e, lo, hi)
        if len(found) > MOST_CUTS:
            return [s]
        cuts |= set(found)
    ends = [lo, *sorted(cuts), hi]
    pieces = list(pairwise(ends))
    if not 1 < len(pieces) <= MOST_CUTS + 1 or max(b - a for a, b in pieces) < LEAST:
        return [s]
    names = [fresh_statement(f"{s.name}_{a}".replace("-", "m"), labels) for a, _ in pieces]
    return [_part(s, last.name, a, b, name) for (a, b), name in zip(pieces, names, strict=True)]


def _wrapping(s: Statement, loop: str) -> Iterator[Op]:
    """The remainders that only this loop moves, in the last index of reads of which no other index
    has it.
    """
    for read in s.reads:
        *others, last = read.indices or (Const(0),)
        if any(loop in indices_of(e) for e in others) or reads_of(last):
            continue
        for e in walk(last):
            if isinstance(e, Op) and _along(e, loop) is not None:
                yield e


def _along(e: Op, loop: str) -> tuple[int, int, int] | None:
    """(a, c, N) of ``(a*loop + c) mod N`` with a = 1 or -1."""
    if e.fn != "mod" or not isinstance(e.args[1], Const) or int(e.args[1].value) <= 0:
        return None
    form = linear_form(e.args[0])
    factor = form.coefficient(Index(loop))
    if len(form.terms) != 1 or factor not in (1, -1):
        return None
    return factor, form.constant, int(e.args[1].value)


def _cuts(e: Op, lo: int, hi: int) -> range:
    """The iterations inside lo:hi before which ``(a*i + c) mod N`` wraps around."""
    (loop,) = indices_of(e)
    found = _along(e, loop)
    assert found is not None
    factor, c, length = found
    # Upwards where i + c = 0 mod N; downwards where -(i - 1) + c = 0 mod N.
    wraps = -c if factor == 1 else c + 1
    first = lo + 1
    return range(first + (wraps - first) % length, hi, length)


def _part(s: Statement, loop: str, lo: int, hi: int, name: str) -> Statement:
    """The instances with ``lo <= loop < hi``, within which nothing wraps around."""

    def visit(e: Expr) -> Expr:
        found = _along(e, loop) if isinstance(e, Op) else None
        if found is None or not isinstance(e, Op):
            return e
        factor, c, length = found
        turns = (factor * lo + c) // length
        if turns != (factor * (hi - 1) + c) // length:
            return e
        return render(linear_form(e.args[0]) - turns * length)

    def access(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        return replace(e, indices=tuple(i if reads_of(i) else rewrite(i, visit) for i in e.indices))

    ranges = (Range(loop, Const(lo), Const(hi)) if r.index == loop else r for r in s.ranges)
    return replace(s, name=name, value=rewrite(s.value, access), ranges=tuple(ranges))
