"""Lower instances to stores: substitute loop expressions for indices, buffers for tensors."""

from __future__ import annotations

from dataclasses import replace

from codegen.loops.from_schedule import LoopProgram
from codegen.loops.index_ranges import Ranges, extreme, modulo, settle
from codegen.loops.nodes import Buffer, For, Instance, LoopNode, Store
from codegen.loops.traverse import map_children, reads_in
from poly.deps.scop import Role
from poly.ir.dtypes import INT64, UINT64, identity
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Read,
    dtype_of_expr,
    maximum,
    minimum,
    reads_of,
    rewrite,
    sub,
    substitute,
    substitute_value,
)
from poly.ir.program import Program
from poly.sets.isl_names import dim
from poly.tree.kinds import Scope
from poly.tree.nodes import Accesses, serves

#: Bytes of a cache line, and the distance in memory at which lines share a set of the L1 cache.
LINE, CACHE_SET = 64, 2048


def lower(loops: LoopProgram) -> LoopNode:
    """Replace every instance by its `Store`.

    Reads of a promoted tensor go to the innermost buffer; a read at a data-dependent index is
    clamped to the tensor.
    """
    return _Lowering(loops).node(loops.body, (), {})


def var_range(node: For, ranges: Ranges) -> tuple[int, int] | None:
    """Inclusive constant bounds of a loop's variable, if it has them."""
    low, high = extreme(node.lower, ranges, min), extreme(node.upper, ranges, max)
    if node.limits is not None:
        least, greatest = node.limits
        low = least if low is None else max(low, least)
        high = greatest + 1 if high is None else min(high, greatest + 1)
    return None if low is None or high is None or high <= low else (low, high - 1)


def ranges_inside(node: LoopNode, ranges: Ranges) -> Ranges:
    """The ranges of variables inside a node: for a loop, including its own variable, which no
    enclosing loop has.
    """
    if not isinstance(node, For):
        return ranges
    bound = var_range(node, ranges)
    return ranges if bound is None else {**ranges, node.var: bound}


def padded(buffer: Buffer) -> tuple[int, ...]:
    """The shape of a buffer, padded so that its rows do not all begin in one cache set."""
    if buffer.scope != Scope.LOCAL or len(buffer.shape) < 2:
        return buffer.shape
    *outer, last = buffer.shape
    if last * buffer.dtype.bytes % CACHE_SET or max(outer) == 1:
        return buffer.shape
    return (*outer, last + LINE // buffer.dtype.bytes)


class _Lowering:
    def __init__(self, loops: LoopProgram) -> None:
        self.loops = loops
        self.program: Program = loops.schedule.program
        self.scop = loops.schedule.scop

    def node(self, node: LoopNode, buffers: tuple[Buffer, ...], ranges: Ranges) -> LoopNode:
        if isinstance(node, Instance):
            return self._store(node, buffers, ranges)
        if isinstance(node, Buffer):
            buffers = (*buffers, node)
        inner = ranges_inside(node, ranges)
        done = map_children(node, lambda c: self.node(c, buffers, inner))
        if isinstance(done, Buffer) and all(r.tensor != done.name for r in reads_in(done)):
            # isl has put a copy of the promotion's mark where nothing is promoted.
            return done.body
        return replace(done, shape=padded(done)) if isinstance(done, Buffer) else done

    def _store(self, node: Instance, buffers: tuple[Buffer, ...], ranges: Ranges) -> Store:
        if node.statement in self.loops.copies:
            return self._copy(node, buffers, ranges)
        s = self.scop.statement(node.statement)
        buffers = tuple(b for b in buffers if s.name in b.inside)
        env = dict(zip(s.loops, node.args, strict=True))
        # Where data says which element is written, indices are values, and of their type.
        target = (substitute_value if s.scatters else substitute)(s.target, indices=env)
        assert isinstance(target, Read)
        value = substitute_value(s.value, indices=env)
        # Accesses that coincide here may both be served, from either buffer.
        served = {
            substitute_value(r, indices=env): frozenset({(s.name, r)}) for r in s.source.reads
        }
        op = s.source.op if s.role == Role.UPDATE else "="
        dtype = self.program.tensors[target.tensor].dtype

        def visit(e: Expr) -> Expr:
            if isinstance(e, Read):
                return self._resolve(e, buffers, ranges, served.get(e))
            return e

        if s.scatters:
            target = replace(target, indices=tuple(rewrite(i, visit) for i in target.indices))
        stored = self._resolve(target, buffers, ranges)
        return Store(stored, op, rewrite(value, visit), dtype, s.name)

    def _resolve(
        self,
        read: Read,
        buffers: tuple[Buffer, ...],
        ranges: Ranges,
        accesses: Accesses = None,
    ) -> Read:
        """The stored element that all these accesses read; None: any access."""
        for buffer in reversed(buffers):
            if buffer.tensor == read.tensor and serves(buffer.accesses, accesses):
                return self._in_buffer(buffer, read.indices, ranges, buffer.prefix)
        if read.tensor not in self.program.tensors:
            return read
        shape = self.program.tensors[read.tensor].shape
        indices = tuple(
            self._clamped(i, extent, buffers) if reads_of(i) else settle(i, ranges)
            for i, extent in zip(read.indices, shape, strict=True)
        )
        return replace(read, indices=indices)

    def _clamped(self, index: Expr, extent: Expr, buffers: tuple[Buffer, ...]) -> Expr:
        """A data-dependent index clamped to the tensor; a cast keeps it a value (`linear_form`).

        A uint64 is bounded before the cast, which would turn a large value negative.
        """
        dtypes = {**self.program.dtypes, **{b.name: b.dtype for b in buffers}}
        own = dtype_of_expr(index, dtypes)
        if own.kind == "u" and isinstance(extent, Const) and own.limits[1] < int(extent.value):
            return Cast(INT64, index)
        if own == UINT64:
            index = minimum(index, Const(INT64.limits[1], UINT64))
        return maximum(Const(0), minimum(Cast(INT64, index), sub(extent, Const(1))))

    def _copy(self, node: Instance, buffers: tuple[Buffer, ...], ranges: Ranges) -> Store:
        copy = self.loops.copies[node.statement]
        own = next(n for n, b in enumerate(buffers) if b.name == copy.buffer)
        elements = node.args[copy.depth :]
        prefix, accesses = node.args[: copy.depth], buffers[own].accesses
        inside = self._in_buffer(buffers[own], elements, ranges, prefix, copied=True)
        around = tuple(b for b in buffers[:own] if copy.buffer in b.inside)
        outside = self._resolve(Read(copy.tensor, elements), around, ranges, accesses)
        dtype = buffers[own].dtype
        if copy.op and copy.inward:
            return Store(inside, "=", Const(identity(copy.op, dtype)), dtype, node.statement)
        target, source = (inside, outside) if copy.inward else (outside, inside)
        return Store(target, copy.op or "=", source, dtype, node.statement)

    def _in_buffer(
        self,
        buffer: Buffer,
        indices: tuple[Expr, ...],
        ranges: Ranges,
        prefix: tuple[Expr, ...],
        copied: bool = False,
    ) -> Read:
        """Element e of the tensor is at ``e mod size`` in each dimension of the buffer, or relative
        to the buffer's origin; double-buffered, iteration p uses half ``p mod 2``.  Where the
        buffer has room for the whole dimension, that is e.

        copied : by a copy for the iteration `prefix`, and not by code in the buffer's scope
        """
        half = (settle(modulo(prefix[-1], 2, ranges), ranges),) if buffer.halves else ()
        sizes = buffer.layout.sizes(buffer.shape[len(half) :])
        origins = buffer.origins or (None,) * len(sizes)
        at = {dim("p", n): e for n, e in enumerate(prefix)}
        reduced: list[Expr] = []
        for n, (i, size, origin) in enumerate(zip(indices, sizes, origins, strict=True)):
            if origin is not None:
                formula, here = origin
                first = substitute(formula, indices=at) if copied else here
                i = sub(i, first)
            i = settle(i, ranges)
            reduced.append(i if self._is_whole(buffer, n, size) else modulo(i, size, ranges))
        kept = buffer.layout.indices(reduced)
        return Read(buffer.name, (*half, *(settle(i, ranges) for i in kept)))

    def _is_whole(self, buffer: Buffer, dimension: int, size: int) -> bool:
        """Whether a buffer begins at 0 in a dimension, and has room for all of it."""
        tensor = self.program.tensors.get(buffer.tensor)
        if tensor is None or (buffer.origins and buffer.origins[dimension] is not None):
            return False
        extent = tensor.shape[dimension]
        return isinstance(extent, Const) and int(extent.value) <= size
