"""Which buffers can be kept in scalar or vector variables."""

from __future__ import annotations

from codegen.loops.nodes import Buffer, Store, VectorStore
from codegen.loops.traverse import reads_in, walk_loops
from codegen.vector.vectorise import lane_stride
from poly.ir.expr import Index
from poly.ir.linear_form import linear_form


def is_scalarisable(buffer: Buffer) -> bool:
    """Whether every access to a buffer has constant indices, up to whole vectors of lanes."""
    lanes = vector_lanes(buffer)
    if lanes is None:
        return False
    vectors = {id(n.store): n.var for n in walk_loops(buffer.body) if isinstance(n, VectorStore)}
    for n in walk_loops(buffer.body):
        if not isinstance(n, Store):
            continue
        var = vectors.get(id(n))
        for read in reads_in(n):
            if read.tensor != buffer.name:
                continue
            for index in read.indices:
                form = linear_form(index)
                if var is not None:
                    form = form.without(Index(var))
                if form.terms:
                    return False
    return True


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
        elif isinstance(n, Store) and id(n) not in inside:
            widths |= {1 for read in reads_in(n) if read.tensor == buffer.name}
    return widths.pop() if len(widths) == 1 else None
