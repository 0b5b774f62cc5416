"""Joined dimensions: ``X[c, p, q]`` is ``X'[c, pq]`` on the same bytes where all loops run p and q
over whole rows.

An image of 7 x 7 is 49 adjacent elements, a better multiple of a vector than its rows of seven.
With open sizes, H x W is a size of its own: a proof for every H_W holds for H_W = H*W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    indices_of,
    mul,
    rewrite,
    substitute_value,
    walk,
)
from poly.ir.graph import Graph
from poly.ir.program import RESERVED, Program, Range, Statement, Tensor, fresh_name
from poly.rewrites.split_dimensions import Shapes, with_shapes

#: The first of two loops and the second, for each statement.
Pairs = tuple[frozenset[tuple[str, str]], ...]
#: A tensor, and the first of two of its dimensions.
Joints = frozenset[tuple[str, int]]


def join_dimensions(program: Program) -> Program:
    """Join adjacent dimensions that every loop runs through together: fewer and longer loops.

    Two adjacent loops become one if they are side by side in every access that moves with
    either, and the second runs over its whole dimension there; the order of instances stays.
    A product of sizes becomes a size, with a constraint that defines it.  Windows of one element
    do not keep two loops apart.
    """
    if program.has_blocks:
        return program  # the loop over the steps must stay separate
    written, program = program, _without_single(program)
    pairs, joints = _joined(program)
    if not any(pairs):
        return written
    taken = set(program.tensors) | {i for s in program.statements for i in s.indices}
    products = _Products(taken | set(program.sizes) | RESERVED)
    statements = [
        _with_joined(s, own, joints, products)
        for s, own in zip(program.statements, pairs, strict=True)
    ]

    def changed(t: Tensor) -> Tensor:
        groups = _groups(t.rank, [d for name, d in joints if name == t.name])
        return replace(t, shape=tuple(products([t.shape[d] for d in g]) for g in groups))

    made = program.with_tensors(changed, statements)
    return replace(
        made,
        sizes=(*program.sizes, *products.names.values()),
        constraints=(*program.constraints, *products.constraints),
    )


def join_open_dimensions(program: Program) -> Program:
    """Join the dimensions of a call of open sizes; fixed ones were joined in the whole graph."""
    return join_dimensions(program) if program.sizes else program


def join_in_graph(graph: Graph) -> Graph:
    """Join dimensions that loops run through together, by views of their values."""

    def change(program: Program) -> tuple[Program, Shapes]:
        made = program if program.sizes else join_dimensions(program)
        changed = (t for t in made.tensors.values() if t.rank < program.tensors[t.name].rank)
        return made, {t.name: t.shape for t in changed}

    return with_shapes(graph, change)


def _without_single(program: Program) -> Program:
    """The program without reduction loops of one instance, as those of a window of 1 x 1."""
    return replace(program, statements=tuple(map(_of_many, program.statements)), text=None)


def _of_many(s: Statement) -> Statement:
    # A guard on a reduction loop does not restrict the initialisation; without it, it would.
    guarded = {i for g in s.guards for i in indices_of(g)}
    single = {
        r.index: r.lo
        for r in s.ranges
        if r.index in s.reductions
        and r.index not in guarded
        and isinstance(r.lo, Const)
        and r.hi == Const(int(r.lo.value) + 1)
    }
    if not single or len(single) == len(s.reductions):
        return s
    return replace(
        s,
        value=substitute_value(s.value, indices=single),
        ranges=tuple(r for r in s.ranges if r.index not in single),
        reductions=tuple(i for i in s.reductions if i not in single),
    )


class _Products:
    """Products of extents, and joined loops: each has one name, none of those in `taken`."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.names: dict[tuple[str, ...], str] = {}
        self.loops: dict[tuple[str, ...], str] = {}

    def __call__(self, extents: Sequence[Expr]) -> Expr:
        if len(extents) == 1:
            return extents[0]
        factor, sizes = 1, []
        for e in extents:
            if isinstance(e, Size):
                sizes.append(e.name)
            else:
                assert isinstance(e, Const)
                factor *= int(e.value)
        if not sizes or not factor:
            return Const(factor)
        size = Size(sizes[0] if len(sizes) == 1 else self._named(self.names, sizes))
        return size if factor == 1 else Op("mul", (Const(factor), size))

    def loop(self, indices: Iterable[str]) -> str:
        """The name of some loops as one."""
        return self._named(self.loops, indices)

    def _named(self, known: dict[tuple[str, ...], str], parts: Iterable[str]) -> str:
        names = tuple(parts)
        if names not in known:
            known[names] = fresh_name("_".join(names), self.taken)
        return known[names]

    @property
    def constraints(self) -> tuple[Expr, ...]:
        """The definitions of the new sizes."""
        found = []
        for (first, *others), name in self.names.items():
            product: Expr = Size(first)
            for size in others:
                product = mul(product, Size(size))
            found.append(Op("eq", (Size(name), product)))
        return tuple(found)


def _joined(program: Program) -> tuple[Pairs, Joints]:
    """The largest consistent choice of pairs of loops and of dimensions."""
    tensors = program.tensors
    reads = [list(_reads(s)) for s in program.statements]
    pairs: Pairs = tuple(frozenset(_candidates(s)) for s in program.statements)
    joints: Joints = frozenset(
        (t.name, d)
        for t in tensors.values()
        if t.name not in program.updated and any(r.tensor == t.name for own in reads for r in own)
        for d in range(t.rank - 1)
        if all(isinstance(x, (Const, Size)) for x in t.shape[d : d + 2])
    )
    while True:
        fitting = frozenset(
            (name, d)
            for name, d in joints
            if all(
                _is_joint(s, r, d, own, tensors)
                for s, found, own in zip(program.statements, reads, pairs, strict=True)
                for r in found
                if r.tensor == name
            )
        )
        left = tuple(
            frozenset(p for p in own if _is_always_joint(s, found, p, fitting))
            for s, found, own in zip(program.statements, reads, pairs, strict=True)
        )
        if (left, fitting) == (pairs, joints):
            return pairs, joints
        pairs, joints = left, fitting


def _reads(s: Statement) -> Iterator[Read]:
    """Every access of a statement, as often as it occurs there."""
    for e in (*walk(s.target), *walk(s.value)):
        if isinstance(e, Read):
            yield e


def _candidates(s: Statement) -> Iterator[tuple[str, str]]:
    """Adjacent loops of one kind with plain ranges on which no guard depends."""
    guarded = {i for g in s.guards for i in indices_of(g)}
    for a, b in zip(s.ranges, s.ranges[1:], strict=False):
        known = isinstance(a.lo, Const) and all(isinstance(r.hi, (Const, Size)) for r in (a, b))
        known = known and (a.lo == Const(0) or all(isinstance(r.hi, Const) for r in (a, b)))
        same = (a.index in s.reductions) == (b.index in s.reductions)
        if known and same and b.lo == Const(0) and not guarded & {a.index, b.index}:
            yield a.index, b.index


def _is_joint(
    s: Statement,
    read: Read,
    d: int,
    pairs: frozenset[tuple[str, str]],
    tensors: Mapping[str, Tensor],
) -> bool:
    """Whether two dimensions of an access are a pair of loops over whole dimensions.

    The first loop may be partial if its end is unknown: products of sizes cannot be compared.
    """
    first, second = read.indices[d : d + 2]
    if not isinstance(first, Index) or not isinstance(second, Index):
        return False
    if (first.name, second.name) not in pairs:
        return False
    ends = {r.index: r.hi for r in s.ranges}
    outer, inner = tensors[read.tensor].shape[d : d + 2]
    known = isinstance(ends[first.name], Const) and isinstance(outer, Const)
    return ends[second.name] == inner and (known or ends[first.name] == outer)


def _is_always_joint(
    s: Statement, reads: list[Read], pair: tuple[str, str], joints: Joints
) -> bool:
    """Whether two loops appear only side by side."""
    together = sum(
        (r.tensor, d) in joints and r.indices[d : d + 2] == (Index(pair[0]), Index(pair[1]))
        for r in reads
        for d in range(len(r.indices) - 1)
    )
    found = Counter(e.name for x in (s.target, s.value) for e in walk(x) if isinstance(e, Index))
    return found[pair[0]] == found[pair[1]] == together


def _groups(count: int, joints: list[int]) -> list[list[int]]:
    """The numbers below `count`, each together with the next where that is a joint."""
    groups: list[list[int]] = []
    for k in range(count):
        if k and k - 1 in joints:
            groups[-1].append(k)
        else:
            groups.append([k])
    return groups


def _with_joined(
    s: Statement, pairs: frozenset[tuple[str, str]], joints: Joints, products: _Products
) -> Statement:
    """A statement with its pairs of loops as one loop each."""
    joined = [k for k, r in enumerate(s.ranges[1:]) if (s.ranges[k].index, r.index) in pairs]
    names: dict[str, str] = {}
    ranges: list[Range] = []
    for group in _groups(len(s.ranges), joined):
        first, *rest = (s.ranges[k] for k in group)
        if not rest:
            ranges.append(first)
            continue
        name = names[first.index] = products.loop(s.ranges[k].index for k in group)
        inner = [r.hi for r in rest]
        lo = first.lo if first.lo == Const(0) else products([first.lo, *inner])
        ranges.append(Range(name, lo, products([first.hi, *inner])))

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        own = [d for name, d in joints if name == e.tensor]
        indices: list[Expr] = []
        for group in _groups(len(e.indices), own):
            index = e.indices[group[0]]
            if len(group) > 1:
                assert isinstance(index, Index)
                index = Index(names[index.name])
            indices.append(index)
        return replace(e, indices=tuple(indices))

    target = rewrite(s.target, visit)
    assert isinstance(target, Read)
    kept = {r.index for r in ranges} | set(names)
    reductions = tuple(names.get(i, i) for i in s.reductions if i in kept)
    return replace(
        s,
        target=target,
        value=rewrite(s.value, visit),
        ranges=tuple(ranges),
        reductions=reductions,
    )
