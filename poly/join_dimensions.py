"""Dimensions that are one: ``X[c, p, q]`` is ``X'[c, pq]`` on the same bytes where all loops run p
and q through whole rows.

An image of 7 x 7 is 49 neighbours, of which vectors have few left over; its rows are seven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from poly.expr import Const, Expr, Index, Read, indices_of, rewrite, walk
from poly.graph import Graph, static_shape
from poly.program import RESERVED, Program, Range, Statement, Tensor
from poly.split_dimensions import Shapes, with_shapes

#: The first of two loops and the second, for each statement.
Pairs = tuple[frozenset[tuple[str, str]], ...]
#: A tensor, and the first of two of its dimensions.
Joints = frozenset[tuple[str, int]]


def join_dimensions(program: Program) -> tuple[Program, Shapes]:
    """The program with fewer and longer loops, and the new shapes of the tensors that have any.

    Two neighbouring loops become one if they stand side by side in every access that moves with
    either, and the second runs through its whole dimension there; the order of instances stays.
    """
    pairs, joints = _joined(program)
    if not any(pairs):
        return program, {}
    taken = set(program.tensors) | {i for s in program.statements for i in s.indices}
    statements = [
        _with_joined(s, own, joints, taken)
        for s, own in zip(program.statements, pairs, strict=True)
    ]

    def changed(t: Tensor) -> Tensor:
        groups = _groups(t.rank, [d for name, d in joints if name == t.name])
        return replace(t, shape=tuple(_product([t.shape[d] for d in g]) for g in groups))

    made = program.with_tensors(changed, statements)
    names = {name for name, _ in joints}
    return made, {name: static_shape(made.tensors[name]) for name in sorted(names)}


def join_in_graph(graph: Graph) -> Graph:
    """The graph with the dimensions of its programs joined, by views of their values."""
    return with_shapes(graph, join_dimensions)


def _joined(program: Program) -> tuple[Pairs, Joints]:
    """The greatest choice of pairs of loops and of dimensions in which each suits the others."""
    tensors = program.tensors
    reads = [list(_reads(s)) for s in program.statements]
    pairs: Pairs = tuple(frozenset(_candidates(s)) for s in program.statements)
    joints: Joints = frozenset(
        (t.name, d)
        for t in tensors.values()
        if t.name not in program.updated and all(isinstance(x, Const) for x in t.shape)
        for d in range(t.rank - 1)
        if any(r.tensor == t.name for own in reads for r in own)
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
    """Every access of a statement, as often as it is written there."""
    for e in (*walk(s.target), *walk(s.value)):
        if isinstance(e, Read):
            yield e


def _candidates(s: Statement) -> Iterator[tuple[str, str]]:
    """Neighbouring loops of one kind with known ranges on which no guard depends."""
    guarded = {i for g in s.guards for i in indices_of(g)}
    for a, b in zip(s.ranges, s.ranges[1:], strict=False):
        known = all(isinstance(x, Const) for r in (a, b) for x in (r.lo, r.hi))
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
    """Whether two dimensions of an access are a pair of loops, the second from end to end."""
    first, second = read.indices[d : d + 2]
    if not isinstance(first, Index) or not isinstance(second, Index):
        return False
    if (first.name, second.name) not in pairs:
        return False
    extent = next(r.hi for r in s.ranges if r.index == second.name)
    return extent == tensors[read.tensor].shape[d + 1]


def _is_always_joint(
    s: Statement, reads: list[Read], pair: tuple[str, str], joints: Joints
) -> bool:
    """Whether two loops stand nowhere but side by side."""
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


def _product(extents: list[Expr]) -> Expr:
    if len(extents) == 1:
        return extents[0]
    return Const(prod(int(x.value) for x in extents if isinstance(x, Const)))


def _with_joined(
    s: Statement, pairs: frozenset[tuple[str, str]], joints: Joints, taken: set[str]
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
        name = "_".join(s.ranges[k].index for k in group)
        while name in taken or name in RESERVED:
            name += "_"
        names[first.index] = name
        factor = prod(int(r.hi.value) for r in rest if isinstance(r.hi, Const))
        assert isinstance(first.lo, Const) and isinstance(first.hi, Const)
        lo, hi = (Const(int(x.value) * factor) for x in (first.lo, first.hi))
        ranges.append(Range(name, lo, hi))

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
