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
    """An order of dimensions, one of which may be cut into blocks that are innermost.

    ``A[i0, i1, …]`` is stored as ``A'[i_order[0], i_order[1], …]``; with ``block = (d, size)``,
    ``i_d // size`` replaces i_d in that, and ``i_d mod size`` comes last.  The last block is
    padded with zeros.
    """

    order: tuple[int, ...]
    block: tuple[int, int] | None = None

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The indices at which the element ``A[indices]`` is stored."""
        if self.block is None:
            return tuple(indices[d] for d in self.order)
        dim, size = self.block
        outer = tuple(floordiv(indices[d], size) if d == dim else indices[d] for d in self.order)
        return (*outer, mod(indices[dim], size))

    def extents(self, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """The shape of the stored tensor."""
        if self.block is None:
            return tuple(shape[d] for d in self.order)
        dim, size = self.block
        blocks = floordiv(add(shape[dim], Const(size - 1)), size)
        return (*(blocks if d == dim else shape[d] for d in self.order), Const(size))

    def whole_blocks(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of a box with the last block padded."""
        dim, size = self.block or (-1, 1)
        return tuple(-(-n // size) * size if d == dim else n for d, n in enumerate(sizes))

    def box(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape in which a box of whole blocks is stored."""
        if self.block is None:
            return tuple(sizes[d] for d in self.order)
        dim, size = self.block
        return (*(sizes[d] // size if d == dim else sizes[d] for d in self.order), size)

    def sizes(self, box: Sequence[int]) -> tuple[int, ...]:
        """The box that is stored in a shape; the inverse of `box`."""
        dim, size = self.block or (-1, 1)
        extents = {d: n * size if d == dim else n for d, n in zip(self.order, box, strict=False)}
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
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        if self.block is None:
            copies.append((out, np.transpose(array, self.order)))
        else:
            dim, size = self.block
            order = [*(d + (d > dim) for d in self.order), dim + 1]
            before = (slice(None),) * self.order.index(dim)
            whole, rest = divmod(array.shape[dim], size)
            for first, blocks, count in ((0, whole, size), (whole, 1, rest)):
                if not blocks * count:
                    continue
                start = first * size
                source = array[(slice(None),) * dim + (slice(start, start + blocks * count),)]
                cut = (*array.shape[:dim], blocks, count, *array.shape[dim + 1 :])
                target = out[(*before, slice(first, first + blocks))]
                copies.append((target[..., :count], source.reshape(cut).transpose(order)))
                target[..., count:] = 0
        parts = [
            (target[k : k + step], source[k : k + step])
            for target, source in copies
            for step in [max(1, -(-len(target) // PARTS))]
            for k in range(0, len(target), step)
        ]
        for _ in each(lambda part: np.copyto(*part), parts):
            pass
        return out

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a script: the order, and ``1x32`` for blocks of 32 of dimension 1."""
        block = () if self.block is None else ("x".join(map(str, self.block)),)
        return (*map(str, self.order), *block)

    def __str__(self) -> str:
        text = "".join(f"_{d}" for d in self.order)
        return text if self.block is None else f"{text}_b{self.block[0]}x{self.block[1]}"


def layout_of(words: Sequence[str], tensor: str, rank: int) -> Layout:
    """The layout of a tensor with these `Layout.words`; without any, the order of the dimensions.

    Raises
    ------
    ValueError : the words are not a layout; the message says why.
    """
    block = _BLOCK.match(words[-1]) if words else None
    given = words[:-1] if block else words
    order = tuple(int(d) if d.isdigit() and len(d) < 9 else -1 for d in given)
    order = order or tuple(range(rank))
    if sorted(order) != list(range(rank)):
        raise ValueError(f"the order must name each dimension of {tensor} once, from 0")
    if block is None:
        return Layout(order)
    dim, size = int(block[1]), int(block[2])
    if dim >= rank or not 1 <= size <= LARGEST_BLOCK:
        raise ValueError(f"{words[-1]} is not a block of a dimension of {tensor}")
    return Layout(order, (dim, size))


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
