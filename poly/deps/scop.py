"""Scops: a program as sets of statement instances with access relations and an initial order.

Each statement of the program gives one or two *scop statements*: ``T[i,j] +=! v`` is
``T_init[i,j]``, which stores the identity, and ``T[i,j,k]``, which updates.  For each there are

* the domain ``{ T[i,j,k] : … }``,
* one relation for the write ``{ T[i,j,k] -> C[i,j] }``, and one for each read,
* whether it is a reduction, whose instances commute.

A read at a data-dependent index is a *may* read of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby

import islpy as isl

from poly.errors import ProgramError
from poly.ir.dtypes import identity
from poly.ir.expr import Const, Expr, Read, indices_of, reads_of
from poly.ir.program import Program, Statement
from poly.sets.isl_names import dims
from poly.sets.to_isl import (
    access_map,
    context_set,
    domain_set,
    init_domain_set,
    init_name,
    is_affine,
    isl_expr,
    parameters,
)
from poly.tree.nodes import Filter, Node, band, band_of, leaf, sequence, step_of


class Role(StrEnum):
    """The role of a scop's statement in its comprehension.

    ASSIGN : ``T[f] = value``; INIT : ``T[f] = identity``; UPDATE : ``T[f] op= value``
    """

    ASSIGN = "assign"
    INIT = "init"
    UPDATE = "update"


@dataclass(frozen=True)
class ScopStatement:
    """One set of instances with a common body.

    role : ``assign`` (``T[f] = value``), ``init`` (``T[f] = identity``) or ``update``
    (``T[f] = T[f] ∘ value``).
    """

    name: str
    role: Role
    loops: tuple[str, ...]
    domain: isl.Set
    write: isl.Map
    reads: tuple[isl.Map, ...]
    may_reads: tuple[isl.Map, ...]
    is_reduction: bool
    source: Statement
    target: Read
    value: Expr

    @property
    def scatters(self) -> bool:
        """Whether data says which element is written; `write` then has all that it may be."""
        return self.role == Role.UPDATE and self.source.scatters

    @property
    def affine_reads(self) -> tuple[tuple[Read, isl.Map], ...]:
        """The reads of the value whose indices do not depend on data, each with its relation."""
        if self.role == Role.INIT:
            return ()
        relations = self.reads[1:] if self.role == Role.UPDATE else self.reads
        affine = (r for r in self.source.reads if is_affine(r))
        return tuple(zip(affine, relations, strict=True))

    @property
    def step(self) -> str:
        """The loop over the steps of the block around the statement, "" if there is none."""
        return self.source.step

    @property
    def free(self) -> tuple[str, ...]:
        """The free indices that run inside a step."""
        return tuple(i for i in self.source.free if i != self.step)

    @property
    def is_box(self) -> bool:
        """Whether no range and no condition is seen to relate loops to each other."""
        ranges = (e for r in self.source.ranges for e in (r.lo, r.hi))
        return not self.source.guards and not any(indices_of(e) for e in ranges)

    @property
    def all_reads(self) -> tuple[isl.Map, ...]:
        return (*self.reads, *self.may_reads)

    @cached_property
    def other_reads(self) -> tuple[isl.Map, ...]:
        """All reads but that of the element which an update changes."""
        if not self.is_reduction:
            return self.all_reads
        return tuple(m for m in self.all_reads if not m.is_equal(self.write))


@dataclass(frozen=True, eq=False)
class Scop:
    """A program with its statements' domains and access relations, in initial order.

    padded : statements that a schedule runs beyond their domain, with the instances run, see
    `poly.buffers.pad_tiles`
    """

    program: Program
    context: isl.Set
    statements: tuple[ScopStatement, ...]
    padded: Mapping[str, ScopStatement] = field(default_factory=dict)

    def statement(self, name: str) -> ScopStatement:
        return self.by_name[name]

    def as_run(self, name: str) -> ScopStatement:
        """A statement with all instances that are run."""
        return self.padded.get(name) or self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, ScopStatement]:
        return {s.name: s for s in self.statements}

    @cached_property
    def written_tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.target.tensor for s in self.statements))

    @cached_property
    def domain(self) -> isl.UnionSet:
        """All instances."""
        return _union_set([s.domain for s in self.statements])

    @property
    def run_domain(self) -> isl.UnionSet:
        """All instances that are run."""
        return _union_set([self.as_run(s.name).domain for s in self.statements])

    @cached_property
    def writes(self) -> isl.UnionMap:
        return _union_map(self.context, [s.write for s in self.statements])

    @cached_property
    def reads(self) -> isl.UnionMap:
        """All reads, may-reads included."""
        return _union_map(self.context, [r for s in self.statements for r in s.all_reads])

    def reads_of(self, tensor: str) -> isl.UnionMap:
        """All reads of a tensor, may-reads included."""
        reads = [r for s in self.statements for r in s.all_reads]
        wanted = [r for r in reads if r.get_tuple_name(isl.dim_type.out) == tensor]
        return _union_map(self.context, wanted)

    @cached_property
    def initial_tree(self) -> Node:
        """The order written: statements in sequence, each in lexicographic order of its loops;
        those of a block below the loop over its steps.
        """
        children: list[Filter] = []
        for _, found in groupby(self.statements, key=lambda s: s.source.block or s.name):
            group = tuple(found)
            block = group[0].source.block
            nests = [
                Filter((s.name,), band_of(s.name, s.loops, s.domain, leaf(), int(block > 0)))
                for s in group
            ]
            child = nests[0].child
            if block:
                step = step_of([(s.name, s.loops, s.domain) for s in group])
                child = band([step], sequence(nests))
            children.append(Filter(tuple(s.name for s in group), child))
        return sequence(children)

    def __str__(self) -> str:
        lines = [f"context {self.context}"]
        for s in self.statements:
            lines.append(f"{s.name}: {s.role}{' reduction' if s.is_reduction else ''}")
            lines.append(f"  domain {s.domain}")
            lines.append(f"  write  {s.write}")
            lines += [f"  read   {r}" for r in s.reads]
            lines += [f"  may read {r}" for r in s.may_reads]
        return "\n".join(lines)


def build_scop(program: Program) -> Scop:
    """The scop of a verified program.

    Raises
    ------
    ProgramError : if an index of a write is not affine.
    """
    context = context_set(program)
    statements: list[ScopStatement] = []
    for s in program.statements:
        if s.init:
            statements.append(_init_statement(program, s))
        statements.append(_main_statement(program, s))
    names = [s.name for s in statements]
    if len(set(names)) != len(names):
        raise ProgramError(f"two statements share a name: {', '.join(names)}")
    return Scop(program, context, tuple(statements))


def _init_statement(program: Program, s: Statement) -> ScopStatement:
    domain = init_domain_set(program, s)
    write = access_map(program, domain, s.free, s.target)
    if write is None:
        raise ProgramError(f"statement {s.name}: the index of the write {s.target} is not affine")
    value = Const(identity(s.op, program.tensors[s.target.tensor].dtype))
    return ScopStatement(
        init_name(s), Role.INIT, s.free, domain, write, (), (), False, s, s.target, value
    )


def _main_statement(program: Program, s: Statement) -> ScopStatement:
    domain = domain_set(program, s)
    write = may_access_map(program, domain, s.indices, s.target)
    reads: list[isl.Map] = [write] if s.is_update else []
    may_reads: list[isl.Map] = []
    for read in s.reads:
        relation = access_map(program, domain, s.indices, read)
        if relation is not None:
            reads.append(relation)
        else:
            may_reads.append(_whole_tensor(program, domain, read))
    role = Role.UPDATE if s.is_update else Role.ASSIGN
    return ScopStatement(
        s.name, role, s.indices, domain, write, tuple(reads), tuple(may_reads),
        s.is_reduction, s, s.target, s.value,
    )  # fmt: skip


def with_domain(program: Program, s: ScopStatement, domain: isl.Set) -> ScopStatement:
    """A statement with other instances; all of its accesses are affine."""

    def access(read: Read) -> isl.Map:
        relation = access_map(program, domain, s.loops, read)
        assert relation is not None
        return relation

    write = access(s.target)
    reads = () if s.role == Role.INIT else tuple(map(access, s.source.reads))
    own = (write,) if s.role == Role.UPDATE else ()
    return replace(s, domain=domain, write=write, reads=(*own, *reads))


def may_access_map(
    program: Program, domain: isl.Set, loops: Sequence[str], access: Read
) -> isl.Map:
    """``{ S[i, j] -> T[i, y] : y inside T }``: the elements that an access may be to."""
    found = access_map(program, domain, loops, access)
    if found is not None:
        return found
    shape = program.tensors[access.tensor].shape
    y = dims("y", len(shape))
    conditions = [
        f"0 <= {d} < {isl_expr(e)}" if reads_of(i) else f"{d} = {isl_expr(i)}"
        for d, e, i in zip(y, shape, access.indices, strict=True)
    ]
    name, at = domain.get_tuple_name(), ", ".join(loops)
    text = f"{{ {name}[{at}] -> {access.tensor}[{', '.join(y)}] : {' and '.join(conditions)} }}"
    return isl.Map(f"{parameters(program)} {text}").intersect_domain(domain)


def _whole_tensor(program: Program, domain: isl.Set, read: Read) -> isl.Map:
    """``{ S[x] -> T[y] : y inside T }``, for a data-dependent read."""
    tensor = program.tensors[read.tensor]
    sizes = ", ".join(program.sizes)
    y = dims("y", tensor.rank)
    box = " and ".join(f"0 <= {d} < {e}" for d, e in zip(y, tensor.shape, strict=True))
    text = f"[{sizes}] -> {{ {read.tensor}[{', '.join(y)}] : {box or 'true'} }}"
    return isl.Map.from_domain_and_range(domain, isl.Set(text))


def _union_set(sets: list[isl.Set]) -> isl.UnionSet:
    result = isl.UnionSet.from_set(sets[0])
    for s in sets[1:]:
        result = result.union(isl.UnionSet.from_set(s))
    return result


def _union_map(context: isl.Set, maps: list[isl.Map]) -> isl.UnionMap:
    result = isl.UnionMap.empty(context.get_space())
    for m in maps:
        result = result.union(isl.UnionMap.from_map(m))
    return result
