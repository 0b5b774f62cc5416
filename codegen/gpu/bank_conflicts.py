"""Padding of shared buffers, so that the threads of a warp use different banks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from codegen.loops.nodes import (
    Buffer,
    For,
    LoopNode,
    Matrix,
    MoveSums,
    MultiplyMatrices,
    Store,
    axis_of,
)
from codegen.loops.traverse import children_of, map_children, reads_in, walk_loops
from poly.buffers.copies import TOGETHER
from poly.ir.expr import (
    evaluate_int,
    sizes_of,
)
from poly.ir.instruction_tables import MATRIX_INTRINSICS
from poly.ir.intrinsics import SUMS_ALIGNMENT
from poly.machine.gpu import BANK_BYTES, BANKS
from poly.tree.kinds import Mark, Scope

#: Elements by which rows may be padded, first those that keep rows aligned for vectors.
_PADDING = (0, 4, 8, 1, 2)
#: How much more time aligned rows may take, since several of their elements are read at once.
_ALIGNED_WORTH = 1.25


def pad_for_banks(root: LoopNode, block: tuple[int, int, int], limit: int) -> LoopNode:
    """Pad the rows of shared buffers where a warp would otherwise have bank conflicts.

    block : threads in x, y and z; limit : bytes of shared memory per block
    """
    buffers = {
        n.name: n for n in walk_loops(root) if isinstance(n, Buffer) and n.scope == Scope.SHARED
    }
    total = sum(b.dtype.bytes * prod(b.shape) for b in buffers.values())
    found: dict[str, int] = {}
    for name, buffer in buffers.items():
        if len(buffer.shape) < 2:
            continue
        lanes = _warp_accesses(root, buffer, block)
        if not lanes:
            continue
        unit = max(_matrix_unit(root, buffer), _copy_unit(root, buffer))
        paddings = [p for p in _PADDING if p % unit == 0] if unit <= _PADDING[2] else [0, unit]
        cost = {p: _conflicts(buffer, p, lanes) for p in paddings}
        aligned = min((p for p in paddings if p % _PADDING[1] == 0), key=cost.__getitem__)
        least = min(paddings, key=cost.__getitem__)
        pad = aligned if cost[aligned] <= cost[least] * _ALIGNED_WORTH else least
        more = pad * buffer.dtype.bytes * prod(buffer.shape[:-1])
        if pad and total + more <= limit:
            found[name], total = pad, total + more

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if isinstance(node, Buffer) and node.name in found:
            *outer, last = node.shape
            return replace(node, shape=(*outer, last + found[node.name]))
        return node

    return visit(root)


def _matrices(node: LoopNode) -> list[tuple[Matrix, str]]:
    """The matrices in memory of one node, with the instruction."""
    if isinstance(node, MultiplyMatrices):
        return [(m, node.intrinsic) for _, *pair in node.products for m in pair]
    if isinstance(node, MoveSums) and node.memory is not None:
        return [(node.memory, "")]
    return []


def _matrix_unit(root: LoopNode, buffer: Buffer) -> int:
    """The number of elements to whose multiples matrices require rows to be padded."""
    units = [
        (MATRIX_INTRINSICS[name].alignment if name else SUMS_ALIGNMENT) // buffer.dtype.bytes
        for n in walk_loops(root)
        for m, name in _matrices(n)
        if m.first.tensor == buffer.name
    ]
    return max(units, default=1)


def _copy_unit(root: LoopNode, buffer: Buffer) -> int:
    """The same, where threads copy adjacent elements to the rows at once."""
    loops = (n for n in walk_loops(root) if isinstance(n, For) and n.mark == Mark.WIDE)
    copied = any(r.tensor == buffer.name for n in loops for r in reads_in(n))
    return TOGETHER // buffer.dtype.bytes if copied else 1


def _of_matrix(
    matrix: Matrix, buffer: Buffer, lanes: list[dict[str, int]]
) -> list[tuple[int, ...]]:
    """The indices a warp loads from a matrix at once: 16 bytes of each of 8 rows or columns."""
    last = len(buffer.shape) - 1
    across = matrix.rows if matrix.columns == last else matrix.columns
    first = [evaluate_int(i, lanes[0]) for i in matrix.first.indices]
    found = []
    for lane in range(len(lanes)):
        index = list(first)
        index[across] += lane // 4
        index[last] += lane % 4 * max(1, BANK_BYTES // buffer.dtype.bytes)
        found.append(tuple(index))
    return found


def _warp_accesses(
    root: LoopNode, buffer: Buffer, block: tuple[int, int, int]
) -> list[list[tuple[int, ...]]]:
    """For each access to a buffer, its indices in the threads of the first warp; loops are at 0."""
    name = buffer.name
    found: list[list[tuple[int, ...]]] = []
    x, y, _ = block
    threads = range(min(BANKS, prod(block)))

    def visit(node: LoopNode, lanes: list[dict[str, int]]) -> None:
        if isinstance(node, For):
            if node.mark == Mark.THREAD:
                own = [(t % x, t // x % y, t // (x * y))[axis_of(node)] for t in threads]
            elif node.mark == Mark.OWN_THREAD:
                own = [evaluate_int(node.lower, env) for env in lanes]
            else:
                own = [0] * len(lanes)
            lanes = [{**env, node.var: v} for env, v in zip(lanes, own, strict=True)]
        if isinstance(node, Store):
            for read in reads_in(node):
                if read.tensor == name and not any(sizes_of(i) for i in read.indices):
                    found.append([tuple(evaluate_int(i, env) for i in read.indices)
                                  for env in lanes])  # fmt: skip
        for matrix, _ in _matrices(node):
            if matrix.first.tensor == name and not any(map(sizes_of, matrix.first.indices)):
                found.append(_of_matrix(matrix, buffer, lanes))
        for child in children_of(node):
            visit(child, lanes)

    visit(root, [{} for _ in threads])
    return found


def _conflicts(buffer: Buffer, pad: int, accesses: list[list[tuple[int, ...]]]) -> int:
    """The total number of bank accesses if rows are padded by `pad` elements."""
    shape = (*buffer.shape[:-1], buffer.shape[-1] + pad)
    total = 0
    for indices in accesses:
        asked: dict[int, set[int]] = defaultdict(set)
        for index in indices:
            flat = 0
            for i, extent in zip(index, shape, strict=True):
                flat = flat * extent + i
            word = flat * buffer.dtype.bytes // BANK_BYTES
            asked[word % BANKS].add(word)
        total += max(map(len, asked.values()))
    return total
