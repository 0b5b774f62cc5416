"""Loop nests that are instructions of a CPU become calls of them.

The schedule marks them (`poly.buffers.vector_instructions`); they arrive here as loops around one
store with final indices into buffers.  The elements that an instruction accesses are adjacent in
memory, in the order of its meaning; so each operand has the strides of the meaning's array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Buffer, CallIntrinsic, For, LoopNode, Store
from codegen.loops.traverse import map_children
from poly.errors import ScheduleError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Read, rewrite
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.linear_form import linear_form, normal
from poly.ir.match_values import ways_to_store
from poly.ir.program import Program
from poly.tree.kinds import Tensorized


def call_intrinsics(root: LoopNode, program: Program) -> LoopNode:
    """Replace each loop nest that is marked as an instruction by a call of it.

    Raises
    ------
    ScheduleError : a tile is not full, or its elements are not where the instruction has them.
    """
    shapes: dict[str, tuple[Expr, ...]] = {t.name: t.shape for t in program.tensors.values()}
    return _visit(root, _Memory(shapes, program.dtypes))


@dataclass(frozen=True)
class _Memory:
    """The shapes and types of tensors and of the buffers around."""

    shapes: Mapping[str, tuple[Expr, ...]]
    dtypes: Mapping[str, DType]

    def inside(self, buffer: Buffer) -> _Memory:
        shape = tuple(Const(n) for n in buffer.shape)
        return _Memory(
            {**self.shapes, buffer.name: shape}, {**self.dtypes, buffer.name: buffer.dtype}
        )

    def stride(self, read: Read, loop: str) -> int | None:
        """The distance in elements between what a loop's iterations access, if it is constant."""
        total = 0
        shape = self.shapes[read.tensor]
        for d, index in enumerate(read.indices):
            form = linear_form(index)
            factor = form.coefficient(Index(loop))
            if any(depends_on(a, loop) for a, _ in form.without(Index(loop)).terms):
                return None
            if not factor:
                continue
            inner = shape[d + 1 :]
            if not all(isinstance(e, Const) for e in inner):
                return None
            total += factor * prod(int(e.value) for e in inner if isinstance(e, Const))
        return total


def _visit(node: LoopNode, memory: _Memory) -> LoopNode:
    if isinstance(node, Buffer):
        memory = memory.inside(node)
    if isinstance(node, For) and isinstance(node.mark, Tensorized):
        intrinsic = node.mark.intrinsic
        if isinstance(intrinsic, VectorIntrinsic):
            return _call(node, intrinsic, memory)
    return map_children(node, lambda c: _visit(c, memory))


def _call(node: For, intrinsic: VectorIntrinsic, memory: _Memory) -> LoopNode:
    loops: dict[str, int] = {}
    body: LoopNode = node
    while isinstance(body, For) and body.mark == node.mark:
        if body.lower != Const(0) or body.step != 1 or not isinstance(body.upper, Const):
            break
        loops[body.var] = int(body.upper.value)
        body = body.body
    if not isinstance(body, Store) or sorted(loops.values()) != sorted(intrinsic.extents):
        raise ScheduleError(
            f"{intrinsic.name} in {node.label}: not every tile is known to be full, or other code "
            "is inside; the loops of an instruction have to be the innermost ones"
        )
    found = _operands(body, intrinsic, loops, memory)
    if found is None:
        raise ScheduleError(
            f"{intrinsic.name}: {body.statement} does not have its elements where "
            f"`{intrinsic.statement}` has them, adjacent in the order of "
            f"{', '.join(map(str, intrinsic.meaning.tensors.values()))}: promote what is not, with "
            "a layout in this order"
        )
    tensors = tuple(intrinsic.meaning.tensors)
    firsts = tuple(_first(found[t], loops) for t in tensors)
    return CallIntrinsic(intrinsic, tensors, firsts, body.statement, (intrinsic.target,))


def _first(read: Read, loops: Mapping[str, int]) -> Read:
    def zero(e: Expr) -> Expr:
        return Const(0) if isinstance(e, Index) and e.name in loops else e

    return Read(read.tensor, tuple(normal(rewrite(i, zero)) for i in read.indices))


def _operands(
    store: Store, intrinsic: VectorIntrinsic, loops: Mapping[str, int], memory: _Memory
) -> dict[str, Read] | None:
    """The element for each tensor of the meaning, whose strides are those of the meaning."""
    meaning = intrinsic.statement
    for order in _orders(intrinsic, loops):
        by_index = dict(zip(meaning.indices, order, strict=True))

        def fits(pattern: Read, read: Read, names: Mapping[str, str] = by_index) -> bool:
            wanted = intrinsic.meaning.dtypes[pattern.tensor]
            if memory.dtypes[read.tensor] != wanted:
                return False
            strides = intrinsic.strides(pattern.tensor)
            for index, loop in names.items():
                step = sum(
                    linear_form(i).coefficient(Index(index)) * n
                    for i, n in zip(pattern.indices, strides, strict=True)
                )
                if memory.stride(read, loop) != step:
                    return False
            return True

        if not fits(meaning.target, store.target):
            continue
        ways = ways_to_store(intrinsic.meaning, store.target, store.value, memory.dtypes)
        for assigned in ways:
            if all(fits(p, r) for p, r in assigned.items()):
                return {p.tensor: r for p, r in assigned.items()}
    return None


def _orders(intrinsic: VectorIntrinsic, loops: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The loops in the order of the meaning's indices: isl may have exchanged them."""
    return [
        order
        for order in permutations(loops)
        if tuple(loops[x] for x in order) == intrinsic.extents
    ]
