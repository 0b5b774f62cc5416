"""Layouts of tensors: which one a program's schedule would like, and programs rewritten for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poly.analysis import moving_dimensions, vector_stride
from poly.contraction import find_contraction
from poly.errors import ProgramError
from poly.expr import Const, Expr, Read, add, floordiv, mod, rewrite
from poly.machine import Machine
from poly.program import Program, Tensor
from poly.scop import Scop
from poly.tiling import reduction_order

#: Into so many parts an array is cut for threads to arrange.
PARTS = 16
#: Runs a function on each of some values, as `map` does.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Layout:
    """An order of dimensions, one of which may be cut into blocks that lie innermost.

    ``A[i0, i1, …]`` is kept as ``A'[i_order[0], i_order[1], …]``; with ``block = (d, size)``,
    ``i_d // size`` stands for i_d in that, and ``i_d mod size`` comes last.  The last block is
    filled with zeros.
    """

    order: tuple[int, ...]
    block: tuple[int, int] | None = None

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The place at which the element ``A[indices]`` is kept."""
        if self.block is None:
            return tuple(indices[d] for d in self.order)
        dim, size = self.block
        outer = tuple(floordiv(indices[d], size) if d == dim else indices[d] for d in self.order)
        return (*outer, mod(indices[dim], size))

    def extents(self, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """The shape of the kept tensor."""
        if self.block is None:
            return tuple(shape[d] for d in self.order)
        dim, size = self.block
        blocks = floordiv(add(shape[dim], Const(size - 1)), size)
        return (*(blocks if d == dim else shape[d] for d in self.order), Const(size))

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the kept array, as `extents` of known ones."""
        if self.block is None:
            return tuple(shape[d] for d in self.order)
        dim, size = self.block
        return (*(-(-shape[d] // size) if d == dim else shape[d] for d in self.order), size)

    def arrange(
        self, array: np.ndarray, out: np.ndarray | None = None, each: Mapper = map
    ) -> np.ndarray:
        """The elements of an array in this layout, contiguous.

        out : where they go, of that `shape`
        each : runs a function on each of some parts, in any order; `map`, or that of a pool
        """
        if out is None:
            out = np.empty(self.shape(array.shape), array.dtype)
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        if self.block is None:
            copies.append((out, np.transpose(array, self.order)))
        else:
            dim, size = self.block
            whole = array.shape[dim] // size * size
            at = [slice(None)] * array.ndim
            for part in (slice(0, whole), slice(whole, None)):
                source = array[(*at[:dim], part)]
                if not source.size:
                    continue
                blocks = 1 if part.start else whole // size
                count = source.shape[dim] // blocks
                cut = (*source.shape[:dim], blocks, count, *source.shape[dim + 1 :])
                order = [*(d + (d > dim) for d in self.order), dim + 1]
                first = part.start // size
                at[self.order.index(dim)] = slice(first, first + blocks)
                target = out[tuple(at)]
                copies.append((target[..., :count], source.reshape(cut).transpose(order)))
                target[..., count:] = 0
                at = [slice(None)] * array.ndim
        parts = [
            (target[k : k + step], source[k : k + step])
            for target, source in copies
            for step in [max(1, -(-len(target) // PARTS))]
            for k in range(0, len(target), step)
        ]
        for _ in each(lambda part: np.copyto(*part), parts):
            pass
        return out

    def __str__(self) -> str:
        text = "".join(f"_{d}" for d in self.order)
        return text if self.block is None else f"{text}_b{self.block[0]}x{self.block[1]}"


def preferred_layouts(
    scop: Scop, machine: Machine, constants: Collection[str]
) -> dict[str, Layout]:
    """For each of the inputs `constants` that a contraction reads along its vector loop, the layout
    in which a register tile reads it from one end to the other; those that are so already are not
    listed.

    Only an input that is read in one way is listed: another read may want another layout.
    """
    result: dict[str, Layout] = {}
    reads = [r for s in scop.statements if s.role != "init" for r in s.source.reads]
    inputs = set(constants) - set(scop.program.updated)
    for s in scop.statements:
        found = find_contraction(scop, s, machine, inputs)
        if found is None:
            continue
        width = found.vectors * found.lanes
        for r in s.source.reads:
            dims = moving_dimensions(r, found.v)
            alone = sum(other.tensor == r.tensor for other in reads) == 1
            if len(dims) != 1 or r.tensor not in inputs or not alone:
                continue
            is_panel = (found.extent(found.v) or width + 1) <= width
            if vector_stride(r, found.v, found.lanes) == 1 and is_panel:
                continue
            depth = [-1] * len(r.indices)
            for n, loop in enumerate(reduction_order(found)):
                for d in moving_dimensions(r, loop):
                    depth[d] = n
            rest = [d for d in range(len(r.indices)) if d != dims[0]]
            order = (dims[0], *sorted(rest, key=depth.__getitem__))
            result[r.tensor] = Layout(order, (dims[0], width))
    return result


def relayout(program: Program, tensor: str, layout: Layout) -> Program:
    """The same program with an input or an output in another layout.

    For an input, pass ``layout.arrange(a)`` in place of ``a``.

    Raises
    ------
    ProgramError : if `tensor` is updated in place or no input or output, or `layout` does not
        fit it.
    """
    declared = {t.name: t for t in (*program.inputs, *program.outputs)}.get(tensor)
    if declared is None or tensor in program.updated:
        raise ProgramError(f"{tensor} is no input or output of {program.name}")
    if sorted(layout.order) != list(range(declared.rank)):
        raise ProgramError(f"{layout.order} is no order of the {declared.rank} dimensions")

    def visit(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor == tensor:
            return replace(e, indices=layout.indices(e.indices))
        return e

    def changed(t: Tensor) -> Tensor:
        return replace(t, shape=layout.extents(t.shape)) if t.name == tensor else t

    statements = []
    for s in program.statements:
        target = visit(s.target)
        assert isinstance(target, Read)
        statements.append(replace(s, target=target, value=rewrite(s.value, visit)))
    return replace(
        program,
        inputs=tuple(map(changed, program.inputs)),
        outputs=tuple(map(changed, program.outputs)),
        statements=tuple(statements),
        text=None,
    )
