"""Layouts of tensors, and programs rewritten for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poly.errors import ProgramError
from poly.ir.expr import Const, Expr, Read, add, floordiv, mod
from poly.ir.program import Program, Tensor

_BLOCK = re.compile(r"([0-9]{1,8})x([0-9]{1,10})\Z")
LARGEST_BLOCK = 1 << 30

#: The number of parts into which an array is cut for threads to arrange.
PARTS = 16
#: Applies a function to each of some values, as `map` does.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Layout:
    """An order of dimensions, some of which may be cut into blocks that are innermost.

    ``A[i0, i1, …]`` is stored as ``A'[i_order[0], i_order[1], …]``; for each ``(d, size)`` of
    `blocks`, ``i_d // size`` replaces i_d in that, and ``i_d mod size`` comes last, in their order.
    Last blocks are padded with zeros.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The indices at which the element ``A[indices]`` is stored."""
        sizes = dict(self.blocks)
        outer = (floordiv(indices[d], sizes[d]) if d in sizes else indices[d] for d in self.order)
        return (*outer, *(mod(indices[d], size) for d, size in self.blocks))

    def extents(self, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """The shape of the stored tensor."""
        sizes = dict(self.blocks)
        outer = (
            floordiv(add(shape[d], Const(sizes[d] - 1)), sizes[d]) if d in sizes else shape[d]
            for d in self.order
        )
        return (*outer, *(Const(size) for _, size in self.blocks))

    def whole_blocks(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of a box with the last blocks padded."""
        blocks = dict(self.blocks)
        return tuple(-(-n // blocks.get(d, 1)) * blocks.get(d, 1) for d, n in enumerate(sizes))

    def box(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape in which a box of whole blocks is stored."""
        blocks = dict(self.blocks)
        return (
            *(sizes[d] // blocks.get(d, 1) for d in self.order),
            *(size for _, size in self.blocks),
        )

    def sizes(self, box: Sequence[int]) -> tuple[int, ...]:
        """The box that is stored in a shape; the inverse of `box`."""
        blocks = dict(self.blocks)
        extents = {d: n * blocks.get(d, 1) for d, n in zip(self.order, box, strict=False)}
        return tuple(extents[d] for d in range(len(self.order)))

    def arrange(
        self, array: np.ndarray, out: np.ndarray | None = None, each: Mapper = map
    ) -> np.ndarray:
        """The elements of an array in this layout, contiguous.

        out : the array to write to, of the shape of the `box` of whole blocks
        each : applies a function to each of some parts, in any order; `map`, or that of a pool
        """
        if out is None:
            out = np.empty(self.box(self.whole_blocks(array.shape)), array.dtype)
        # The elements by (outer dimensions, remainders); a last block that is not whole is a
        # part of its own.
        copies = [(out, array)]
        rank = array.ndim
        for n, (dim, size) in enumerate(self.blocks):
            at, last = self.order.index(dim), rank + n
            copies = [
                part for target, source in copies
                for part in _cut_into_blocks(target, source, (dim, size), at, last)
            ]  # fmt: skip
        order = (*self.order, *range(rank, rank + len(self.blocks)))
        parts = [
            (target[k : k + step], source[k : k + step])
            for target, source in ((t, np.transpose(s, order)) for t, s in copies)
            for step in [max(1, -(-len(target) // PARTS))]
            for k in range(0, len(target), step)
        ]
        for _ in each(lambda part: np.copyto(*part), parts):
            pass
        return out

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a script: the order, and ``1x32`` for blocks of 32 of dimension 1."""
        return (*map(str, self.order), *("x".join(map(str, block)) for block in self.blocks))

    def __str__(self) -> str:
        text = "".join(f"_{d}" for d in self.order)
        return text + "".join(f"_b{dim}x{size}" for dim, size in self.blocks)


def _cut_into_blocks(
    target: np.ndarray, source: np.ndarray, block: tuple[int, int], at: int, last: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The whole blocks of a dimension, and the elements of one that is not; its rest becomes 0.

    source : one dimension more is added to it, for the elements of a block
    at, last : the dimensions of the target for blocks and for their elements
    """
    dim, size = block
    before = (slice(None),) * at
    inside = (slice(None),) * last
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    whole, rest = divmod(source.shape[dim], size)
    for first, blocks, count in ((0, whole, size), (whole, 1, rest)):
        if not blocks * count:
            continue
        start = first * size
        chosen = source[(slice(None),) * dim + (slice(start, start + blocks * count),)]
        shape = (*source.shape[:dim], blocks, count, *source.shape[dim + 1 :])
        cut = np.moveaxis(chosen.reshape(shape), dim + 1, -1)
        part = target[(*before, slice(first, first + blocks))]
        copies.append((part[(*inside, slice(0, count))], cut))
        part[(*inside, slice(count, None))] = 0
    return copies


def layout_of(words: Sequence[str], tensor: str, rank: int) -> Layout:
    """The layout of a tensor with these `Layout.words`; without any, the order of the dimensions.

    Raises
    ------
    ValueError : the words are not a layout; the message says why.
    """
    given = list(words)
    blocks: list[tuple[int, int]] = []
    while given and (found := _BLOCK.match(given[-1])):
        blocks.insert(0, (int(found[1]), int(found[2])))
        given.pop()
    order = tuple(int(d) if d.isdigit() and len(d) < 9 else -1 for d in given)
    order = order or tuple(range(rank))
    if sorted(order) != list(range(rank)):
        raise ValueError(f"the order must name each dimension of {tensor} once, from 0")
    for n, (dim, size) in enumerate(blocks):
        if dim >= rank or not 1 <= size <= LARGEST_BLOCK or dim in dict(blocks[:n]):
            raise ValueError(f"{dim}x{size} is not a block of a dimension of {tensor}")
    return Layout(order, tuple(blocks))


def relayout(program: Program, tensor: str, layout: Layout) -> Program:
    """The same program with an input or an output in another layout.

    For an input, pass ``layout.arrange(a)`` in place of ``a``.

    Raises
    ------
    ProgramError : `tensor` is updated in place or is not an input or output, or `layout` does
        not match its rank.
    """
    declared = {t.name: t for t in (*program.inputs, *program.outputs)}.get(tensor)
    if declared is None or tensor in program.updated:
        raise ProgramError(f"{tensor} is not an input or output of {program.name}")
    if sorted(layout.order) != list(range(declared.rank)):
        raise ProgramError(f"{layout.order} is not an order of the {declared.rank} dimensions")

    def access(e: Read) -> Read:
        return replace(e, indices=layout.indices(e.indices)) if e.tensor == tensor else e

    def changed(t: Tensor) -> Tensor:
        return replace(t, shape=layout.extents(t.shape)) if t.name == tensor else t

    return program.with_accesses(changed, access)
