"""Statements that are not in the program: fences, barriers, and combinations of threads' parts.

isl generates separate loops for statements that do not interleave, as for the initialisation of a
sum over all iterations of p: it all comes before the rest.  Such a loop would have a buffer of its
own.  *Fences* prevent that: two statements without effect, one before and one after all others
in each iteration p, which interleave with the statements between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import islpy as isl

from poly.deps.footprint import prefix_map
from poly.deps.scop import Scop
from poly.sets.isl_names import dims
from poly.tree.nodes import Member, Promote


@dataclass(frozen=True)
class Fence:
    """A statement without effect that runs once in each iteration of the loops `prefix`.

    barrier : it is a barrier: the threads of a block wait for each other
    """

    name: str
    prefix: tuple[str, ...]
    extension: str
    members: tuple[Member, ...] = ()
    barrier: bool = False

    @property
    def depth(self) -> int:
        return len(self.prefix)

    @property
    def tuple_text(self) -> str:
        return f"{self.name}[{', '.join(dims('x', self.depth))}]"


@dataclass(frozen=True)
class Combination(Fence):
    """The point at which threads of a block combine their parts in `buffer` by `op`.

    The result is an element of `tensor`, which has `rank` dimensions.

    threads : how many adjacent threads; set once all loops are mapped
    """

    tensor: str = ""
    buffer: str = ""
    op: str = ""
    rank: int = 0
    threads: int = 1


def combination(
    node: Promote,
    scop: Scop,
    prefix: list[Member],
    statements: tuple[str, ...],
    threads: int,
) -> Combination:
    """``{ combine[p] }``: the threads of a block combine their parts, in every iteration p of the
    loops around them in which one of them has a part.
    """
    s = scop.statement(statements[0])
    name = f"{node.buffer}_all"
    return Combination(
        name, tuple(m.name for m in prefix), everywhere(name, scop, prefix, statements),
        tensor=node.tensor, buffer=node.buffer, op=s.source.op,
        rank=scop.program.tensors[node.tensor].rank, threads=threads,
    )  # fmt: skip


def everywhere(
    name: str,
    scop: Scop,
    prefix: list[Member],
    statements: tuple[str, ...],
    early: bool = False,
) -> str:
    """``{ [p] -> name[p] }`` for the iterations p of loops in which a statement has an instance.

    early : also the iteration of the last loop before each of these
    """
    every = prefix_map(scop.statement(statements[0]), prefix).range()
    for other in statements[1:]:
        every = every.union(prefix_map(scop.statement(other), prefix).range())
    every = every.intersect_params(scop.context).coalesce()
    if early:
        *outer, last = dims("p", len(prefix))
        listed = ", ".join([*outer, last])
        back = isl.Map(f"{{ [{listed}] -> [{', '.join([*outer, f'{last} - 1'])}] }}")
        every = every.union(every.apply(back)).coalesce()
    return _in_each(name, len(prefix), every)


def _in_each(name: str, depth: int, every: isl.Set) -> str:
    """``{ [p] -> name[p] }`` for a set of iterations p."""
    p = ", ".join(dims("p", depth))
    sizes = ", ".join(every.get_var_names(isl.dim_type.param))
    here = isl.Map(f"[{sizes}] -> {{ [{p}] -> {name}[{p}] }}")
    return str(here.intersect_domain(every))


def fences(
    node: Promote,
    scop: Scop,
    outer: list[Member],
    statements: tuple[str, ...],
    copies: Iterable[str],
) -> tuple[Fence, ...]:
    """Two fences if the statements below the node run in different sets of iterations, else none.

    copies : their extension maps
    """
    if not outer:
        return ()
    found = [isl.Map(c).domain() for c in copies]
    found += [prefix_map(scop.as_run(name), outer).range() for name in statements]
    found = [f.intersect_params(scop.context) for f in found]
    if all(f.is_equal(found[0]) for f in found):
        return ()
    every = found[0]
    for f in found[1:]:
        every = every.union(f)
    every, prefix = every.coalesce(), tuple(m.name for m in outer)
    names = (f"{node.buffer}_{side}" for side in ("open", "close"))
    return tuple(Fence(n, prefix, _in_each(n, len(outer), every)) for n in names)
