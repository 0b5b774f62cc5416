"""Which buffers can be kept in scalar or vector variables."""

from __future__ import annotations

from math import prod

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Buffer, CallIntrinsic, For, Store, VectorStore
from codegen.loops.rolled import is_rolled
from codegen.loops.traverse import reads_in, walk_loops
from codegen.vector.vectorise import lane_stride
from poly.ir.expr import Index
from poly.ir.linear_form import linear_form


def is_scalarisable(buffer: Buffer) -> bool:
    """Whether every access to a buffer has constant indices once rolled loops are unrolled, up to
    whole vectors of lanes.
    """
    lanes = vector_lanes(buffer)
    if lanes is None:
        return False
    loops = [n for n in walk_loops(buffer.body) if isinstance(n, For)]
    rolled = {Index(n.var) for n in loops if is_rolled(n)}
    rolled -= {Index(n.var) for n in loops if not is_rolled(n)}  # of the same name
    vectors = {id(n.store): n.var for n in walk_loops(buffer.body) if isinstance(n, VectorStore)}
    for n in walk_loops(buffer.body):
        if not isinstance(n, (Store, CallIntrinsic)):
            continue
        var = vectors.get(id(n))
        for read in reads_in(n):
            if read.tensor != buffer.name:
                continue
            for index in read.indices:
                form = linear_form(index)
                if var is not None:
                    form = form.without(Index(var))
                if any(a not in rolled for a, _ in form.terms):
                    return False
                if index is read.indices[-1] and any(c % lanes for _, c in form.terms):
                    return False
    return True


def is_indexed(buffer: Buffer) -> bool:
    """Whether rolled loops move along a buffer, so that its registers are elements of an array."""
    rolled = {n.var for n in walk_loops(buffer.body) if isinstance(n, For) and is_rolled(n)}
    return bool(rolled) and any(
        depends_on(index, var)
        for read in reads_in(buffer.body)
        if read.tensor == buffer.name
        for index in read.indices
        for var in rolled
    )


def vector_lanes(buffer: Buffer) -> int | None:
    """The one number of lanes in which a buffer is accessed (1: scalars), None if it varies."""
    widths: set[int] = set()
    inside: set[int] = set()
    for n in walk_loops(buffer.body):
        if isinstance(n, VectorStore):
            inside.add(id(n.store))
            for read in reads_in(n.store):
                if read.tensor == buffer.name:
                    stride = lane_stride(read, n.var)
                    if stride not in (0, 1):
                        return None  # the accesses have different lane offsets
                    widths.add(n.lanes if stride == 1 else 1)
        elif isinstance(n, CallIntrinsic):
            widths |= {
                lanes for read, lanes in zip(n.operands, vectors_of(n), strict=True)
                if read.tensor == buffer.name
            }  # fmt: skip
        elif isinstance(n, Store) and id(n) not in inside:
            widths |= {1 for read in reads_in(n) if read.tensor == buffer.name}
    return widths.pop() if len(widths) == 1 else None


def vectors_of(node: CallIntrinsic) -> tuple[int, ...]:
    """The number of elements that an instruction accesses of each of its operands."""
    return tuple(prod(node.intrinsic.shape(t)) for t in node.tensors)
