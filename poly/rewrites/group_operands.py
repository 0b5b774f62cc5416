"""Operands of instructions for several terms, with the groups of terms next to each other.

    Y[k,p,q] += X[c,p+r,q+s] * W[k,c,r,s]

An instruction takes a few terms c from adjacent elements.  Operands that are not stored so are
packed for the tiles that use them, which is right for W, in the order of the vectors along k.  But
X would be packed anew for each window, and for each vector of filters; so it is copied once:

    X_g[c / 4,p,q,c mod 4] = X[c,p,q]

No value changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from poly.ir.accesses import block_of, element_stride, loops_of_read
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Op, Read, rewrite
from poly.ir.instruction_tables import dot_products
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Statement, fresh_statement, statement_names
from poly.rewrites.integer_operands import (
    LANES,
    Copied,
    Factor,
    copied,
    factors_of,
    has_few_filters,
    in_groups,
    without_gaps,
)
from poly.sets.check_bounds import if_proved

#: Rows of up to so many elements are short.
SHORT = 256
#: The assumed extent of a loop of unknown extent.
LARGE = 1 << 20

#: How many products of two types an instruction adds to a sum.
Groups = dict[tuple[DType, DType, DType], int]


def group_operands(program: Program, extensions: Collection[str] = ()) -> Program:
    """Copy operands of sums of products of narrow numbers in groups of terms, where they would be
    packed again and again.
    """
    groups: Groups = {}
    for i in dot_products(extensions):
        a, b, total = i.multiplied
        groups |= {(a, b, total): i.extents[1], (b, a, total): i.extents[1]}
    result = program
    for s in () if program.has_blocks else program.statements:
        result = _grouped(result, s, groups)
    return program if result is program else if_proved(result, program)


def _grouped(program: Program, s: Statement, groups: Groups) -> Program:
    total = program.dtypes[s.target.tensor]
    factors = factors_of(program, s, {t for types in groups for t in types[:2]}, total)
    if factors is None or has_few_filters(s, factors):
        return program
    group = groups.get((factors[0].dtype, factors[1].dtype, total))
    loop = None if group is None else _loop(program, s, factors, group)
    if group is None or loop is None:
        return program
    result = program
    for f in _chosen(program, s, factors, loop):
        result = _copied(result, s.name, f, loop, group)
    return result


def _loop(program: Program, s: Statement, factors: tuple[Factor, Factor], group: int) -> str | None:
    """The reduction whose terms are added in groups; None if they are next to each other already,
    or cannot be.
    """
    whole = [
        r
        for r in s.ranges
        if r.index in s.reductions and r.lo == Const(0) and linear_form(r.hi).is_multiple_of(group)
    ]

    def adjacent(f: Factor, loop: str) -> bool:
        return element_stride(f.read, program.tensors[f.read.tensor].shape, loop, group) == 1

    if any(all(adjacent(f, r.index) for f in factors) for r in whole):
        return None
    suited = [r for r in whole if all(_is_in_groups(f, r.index, group) for f in factors)]
    known = ((int(r.hi.value) if isinstance(r.hi, Const) else LARGE, r.index) for r in suited)
    return max(known, default=(0, None))[1]


def _is_in_groups(f: Factor, loop: str, group: int) -> bool:
    """Whether groups of terms are adjacent in a dimension, or in blocks."""
    block = block_of(f.read, loop)
    plain = Index(loop) in f.read.indices and f.dimension(loop) is not None
    return plain if block is None else block % group == 0


def _chosen(
    program: Program, s: Statement, factors: tuple[Factor, Factor], loop: str
) -> tuple[Factor, ...]:
    """The factors to copy: images, whose windows overlap; one of two that would both be packed, one
    of them for each tile; and what has rows that do not fill vectors, which are then better filled
    along the other.
    """
    apart = [f for f in factors if f.is_apart(program, loop)]
    found = [f for f in apart if f.is_image]
    if not found and len(apart) == len(factors):
        found = [min(apart, key=lambda f: f.size(program))]
    if not found and len(apart) == 1:
        (other,) = (f for f in factors if f not in apart)
        if _has_short_rows(s, apart[0]) and _fills_vectors(s, other, apart[0]):
            found = apart
    return tuple(found)


def _fills_vectors(s: Statement, f: Factor, beside: Factor) -> bool:
    """Whether a loop that moves a factor, and not the one beside it, fills vectors."""
    own, others = (loops_of_read(x.read) for x in (f, beside))
    extents = [r.hi for r in s.ranges if r.index in s.free and r.index in own - others]
    return any(isinstance(e, Const) and int(e.value) % LANES == 0 for e in extents)


def _has_short_rows(s: Statement, f: Factor) -> bool:
    """Whether the rows of a factor are a few vectors, the last of which is not full."""
    row = f.read.indices[-1]
    extents = [r.hi for r in s.ranges if Index(r.index) == row and r.index in s.free]
    known = [int(e.value) for e in extents if isinstance(e, Const)]
    return any(n <= SHORT and n % LANES for n in known)


def _copied(program: Program, statement: str, f: Factor, loop: str, group: int) -> Program:
    """The program with one factor of a statement from a copy in groups; or, of a temporary that
    nothing else reads, with that in groups.
    """
    taken = {*program.tensors, *program.sizes}
    taken |= {i for t in program.statements for i in t.indices}
    (s,) = (t for t in program.statements if t.name == statement)
    name = f.read.tensor
    own = [t for t in program.statements if t.target.tensor == name]
    users = [t for t in program.statements if any(r.tensor == name for r in t.reads)]
    dim = f.read.indices.index(Index(loop))
    alone = users == [s] and name in {t.name for t in program.temps}
    if alone and all(_fills(t, dim) for t in own):
        made = in_groups(Copied(program.tensors[name], tuple(own), f.read), loop, group, taken)
        new = {t.name: x for t, x in zip(own, made.statements, strict=True)}
        temps = tuple(made.tensor if t.name == name else t for t in program.temps)
        statements = [new.get(t.name, t) for t in program.statements]
    else:
        whole = next(r.hi for r in s.ranges if r.index == loop)
        made = without_gaps(copied(program, f, f.dtype, loop, None, whole, taken), s)
        made = in_groups(made, loop, group, taken)
        (copy,) = made.statements
        copy = replace(copy, name=fresh_statement(f"{s.name}_{name}", statement_names(program)))
        temps = (*program.temps, made.tensor)
        statements = [x for t in program.statements for x in ((copy, t) if t is s else (t,))]
    read = made.read

    def visit(t: Statement) -> Statement:
        if t.name != statement:
            return t
        assert isinstance(t.value, Op)
        args = tuple(_with_read(a, f.read, read) for a in t.value.args)
        return replace(t, value=replace(t.value, args=args))

    return replace(program, temps=temps, statements=tuple(map(visit, statements)), text=None)


def _fills(s: Statement, dim: int) -> bool:
    """Whether a statement stores elements that one of its own loops counts along a dimension, from
    the first.
    """
    index = s.target.indices[dim]
    whole = all(r.lo == Const(0) for r in s.ranges if Index(r.index) == index)
    return s.op == "=" and not s.guards and isinstance(index, Index) and whole


def _with_read(e: Expr, old: Read, new: Read) -> Expr:
    return rewrite(e, lambda x: new if x == old else x)
