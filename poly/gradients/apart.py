"""Programs in which no statement overwrites what it reads, and no input is updated.

``T[i] = 2 * T[i]`` becomes ``K[i] = T[i]; T[i] = 2 * K[i]``.  Where a statement reads both what was
there before and what it wrote itself, as in ``A[i] = A[i-1] + A[i+1]``, isl says which is which:
``A[i] = select(i >= 2, A[i-1], K[i-1]) + K[i+1]``.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from poly.deps.dependences import compute_dependences, initial_order
from poly.deps.scop import Scop, build_scop
from poly.errors import GradientError
from poly.gradients.derivatives import chosen
from poly.gradients.statements import Names, over_all, statement
from poly.ir.expr import Expr, Index, Op, Read, Size, reads_of, rewrite, substitute
from poly.ir.program import Program, Statement, Tensor
from poly.sets.from_isl import conditions_of


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
    return without_lost_results(without_own_reads(program, names))


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
        reads = _Reads(scop, s) if _reads_own(s) and not s.block else None
        if reads is None or not reads.overwritten:
            made.append(s)
            continue
        t = program.tensors[s.target.tensor]
        copy = Tensor(names.tensor(f"{t.name}_before_{s.name}"), t.dtype, t.shape)
        temps.append(copy)
        indices, ranges = over_all(names, t)
        value = Read(t.name, indices)
        made.append(statement(names, Read(copy.name, indices), "=", value, ranges))
        made.append(replace(s, value=reads.replaced(copy.name)))
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
    scop = build_scop(program)
    found = compute_dependences(scop, exact=True)
    made = []
    for s in program.statements:
        domain = scop.by_name[s.name].domain
        own = isl.UnionSet.from_set(domain)
        lost = found.output.intersect_domain(own).domain()
        lost = lost.subtract(found.flow.intersect_domain(own).domain())
        if s.is_update or lost.is_empty():
            made.append(s)
            continue
        left = domain.subtract(lost.extract_set(domain.get_space()))
        kept = _condition(program, s, left, domain)
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


class _Reads:
    """What a statement reads of the tensor that it writes."""

    def __init__(self, scop: Scop, s: Statement) -> None:
        self._scop, self._statement = scop, s
        order = initial_order(scop)
        found = scop.by_name[s.name]
        space = isl.Map.from_domain_and_range(found.domain, found.domain).get_space()
        before = order.lex_lt_union_map(order).extract_map(space)
        self._domain = found.domain
        self.overwritten = False
        #: Where each read is of what the statement wrote.
        self._new: dict[Read, isl.Set] = {}
        for read, relation in found.affine_reads:
            if read.tensor != s.target.tensor:
                continue
            writers = relation.apply_range(found.write.reverse())
            self._new[read] = writers.intersect(before.reverse()).domain()
            later = writers.subtract(before.reverse())
            self.overwritten |= not later.is_empty()
        data = (r for r in s.reads if any(reads_of(i) for i in r.indices))
        self.overwritten |= any(r.tensor == s.target.tensor for r in data)

    def replaced(self, copy: str) -> Expr:
        """The value, with what was there before read from a copy."""
        s = self._statement

        def visit(e: Expr) -> Expr:
            if not isinstance(e, Read) or e.tensor != s.target.tensor:
                return e
            if any(reads_of(i) for i in e.indices):
                raise GradientError(
                    f"statement {s.name} reads {e}, which it overwrites, at places that depend on "
                    f"data"
                )
            old = replace(e, tensor=copy)
            new = self._new[e]
            if new.is_empty():
                return old
            return e if self._domain.is_subset(new) else chosen(self._condition(e, new), e, old)

        return rewrite(s.value, visit)

    def _condition(self, read: Read, new: isl.Set) -> Expr:
        """When a read is of what the statement wrote."""
        s = self._statement
        found = _condition(self._scop.program, s, new, self._domain)
        if found is None:
            raise GradientError(
                f"statement {s.name} reads {read} of before and of its own in ways that are too "
                f"many to tell apart"
            )
        return found


def _condition(program: Program, s: Statement, points: isl.Set, domain: isl.Set) -> Expr | None:
    """When an instance of a statement is one of some; None if that is too long to say."""
    found = conditions_of(_as_params(points), _as_params(domain))
    if found is None:
        return None
    condition = found[0]
    for c in found[1:]:
        condition = Op("and", (condition, c))
    own = {n: Size(n) for n in program.sizes}
    return substitute(condition, sizes={**own, **{i: Index(i) for i in s.indices}})


def _as_params(points: isl.Set) -> isl.Set:
    """A set over its dimensions as conditions on parameters."""
    count, known = points.dim(isl.dim_type.set), points.dim(isl.dim_type.param)
    return points.move_dims(isl.dim_type.param, known, isl.dim_type.set, 0, count).params()
