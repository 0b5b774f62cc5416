"""Operators whose places depend on elements of other tensors."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.aten.emitter import Emitter
from frontends.aten.move import filled
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, axis_of, indices, is_empty
from frontends.onnx.core.comprehension_text import at
from frontends.onnx.ops.broadcasting import operand


def integers(index: Ref) -> None:
    """Refuse an index of other elements.  Raises `Unsupported`."""
    if not index.is_integer:
        raise Unsupported(f"an index of {index.dtype} elements")


@lowering("embedding.default")
def embedding(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Y[…,j] = W[I[…],j]"""
    weight, index, out = a["weight"], a["indices"], outs[0]
    return _rows(e, weight, index, 0, out)


@lowering("index_select.default")
def index_select(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Places of one dimension, by a vector of them."""
    x, index = a["self"], a["index"]
    vector = e.reshape(x, x.shape or (1,))
    index = e.reshape(index, index.shape or (1,))
    shape = outs[0].shape or (1,)
    found = _rows(e, vector, index, axis_of(a["dim"], x.rank), Ref("", x.dtype, shape))
    return e.reshape(found, outs[0].shape)


def _rows(e: Emitter, x: Ref, index: Ref, axis: int, out: Ref) -> Ref:
    integers(index)
    if is_empty(out.shape):
        return filled(e, out, 0)
    _nonempty(x, [axis])
    e.check(index, "0", x.shape[axis])
    own = indices(out.rank)
    read = at("I", own[axis : axis + index.rank])
    where = [*own[:axis], read, *own[axis + index.rank :]]
    return e.each(out.dtype, out.shape, at("X", where), {"X": x, "I": index})


def _nonempty(x: Ref, axes: Sequence[int]) -> None:
    if is_empty([x.shape[n] for n in axes]):
        raise Unsupported("an index into nothing")


@lowering("gather.default")
def gather(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Y[i,j] = X[I[i,j],j], along one dimension."""
    x, index, out = a["self"], a["index"], outs[0]
    integers(index)
    if not x.rank or not index.rank:
        given = {"self": e.reshape(x, x.shape or (1,)), "dim": 0}
        given["index"] = e.reshape(index, index.shape or (1,))
        found = gather(e, given, [Ref("", out.dtype, out.shape or (1,))])
        return e.reshape(found, out.shape)
    if is_empty(out.shape):
        return filled(e, out, 0)
    axis = axis_of(a["dim"], x.rank)
    _nonempty(x, [axis])
    e.check(index, "0", x.shape[axis])
    own = indices(out.rank)
    where = [at("I", own) if n == axis else i for n, i in enumerate(own)]
    return e.each(out.dtype, out.shape, at("X", where), {"X": x, "I": index})


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Places of several dimensions, by tensors that broadcast; negative ones count from the end."""
    x: Ref = a["self"]
    out = outs[0]
    given = [*a["indices"], *[None] * (x.rank - len(a["indices"]))]
    used = [n for n, t in enumerate(given) if t is not None]
    if not used:
        return x
    tensors = [given[n] for n in used]
    for tensor in tensors:
        integers(tensor)
    if is_empty(out.shape):
        return filled(e, out, 0)
    _nonempty(x, used)
    rank = max(t.rank for t in tensors)
    together = used == [*range(used[0], used[-1] + 1)]
    begin = used[0] if together else 0
    own = indices(out.rank)
    among = own[begin : begin + rank]
    rest = iter([*own[:begin], *own[begin + rank :]])
    shape = out.shape[begin : begin + rank]
    inputs = {"X": x}
    where: list[str] = []
    for axis, tensor in enumerate(given):
        if tensor is None:
            where.append(next(rest))
            continue
        name = f"I{axis}"
        inputs[name] = tensor
        read = operand(name, tensor.shape, among, shape)
        extent = e.extent(x.shape[axis])
        if a["name"] == "index.Tensor":
            e.check(tensor, f"-{extent}", x.shape[axis])
        where.append(f"select({read} < 0, {read} + {extent}, {read})")
    return e.each(out.dtype, out.shape, at("X", where), inputs)
