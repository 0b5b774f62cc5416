"""Operators whose places depend on elements of other tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from frontends.aten.emitter import Emitter, converted
from frontends.aten.pointwise import Reads
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, at, axis_of, indices, is_empty

#: The most elements along a dimension that are scattered one by one.
FEW = 32
#: The same where each is combined with what the others left.
FEW_NESTED = 6


def _where(e: Emitter, names: Sequence[str], shape: Sequence[Extent]) -> str:
    ranges = e.ranges(names, shape)
    return f" where {ranges}" if ranges else ""


def _integers(index: Ref) -> None:
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
    if not x.rank or index.rank != 1:
        raise Unsupported("a scalar")
    return _rows(e, x, index, axis_of(a["dim"], x.rank), outs[0])


def _rows(e: Emitter, x: Ref, index: Ref, axis: int, out: Ref) -> Ref:
    _integers(index)
    _nonempty(x, [axis])
    e.check(index, "0", x.shape[axis])
    own = indices(out.rank)
    read = at("I", own[axis : axis + index.rank])
    where = [*own[:axis], read, *own[axis + index.rank :]]
    line = f"{at('Y', own)} = {at('X', where)}{_where(e, own, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], {"X": x, "I": index}, more=out.shape)[0]


def _nonempty(x: Ref, axes: Sequence[int]) -> None:
    if is_empty([x.shape[n] for n in axes]):
        raise Unsupported("an index into nothing")


@lowering("gather.default")
def gather(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Y[i,j] = X[I[i,j],j], along one dimension."""
    x, index, out = a["self"], a["index"], outs[0]
    if not x.rank or not index.rank:
        raise Unsupported("a scalar")
    _integers(index)
    axis = axis_of(a["dim"], x.rank)
    _nonempty(x, [axis])
    e.check(index, "0", x.shape[axis])
    own = indices(out.rank)
    where = [at("I", own) if n == axis else i for n, i in enumerate(own)]
    line = f"{at('Y', own)} = {at('X', where)}{_where(e, own, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], {"X": x, "I": index}, more=out.shape)[0]


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
        _integers(tensor)
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
        skip = rank - tensor.rank
        read = at(
            name,
            ["0" if s == 1 and shape[skip + n] != 1 else among[skip + n]
             for n, s in enumerate(tensor.shape)],
        )  # fmt: skip
        extent = e.extent(x.shape[axis])
        if a["name"] == "index.Tensor":
            e.check(tensor, f"-{extent}", x.shape[axis])
        where.append(f"select({read} < 0, {read} + {extent}, {read})")
    line = f"{at('Y', own)} = {at('X', where)}{_where(e, own, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], inputs, more=out.shape)[0]


def _few(index: Ref, axis: int, shapes: Sequence[tuple[Extent, Extent]]) -> int:
    """How many places an index has along a dimension.

    A program writes no place that depends on elements.  Where an index has few places, each element
    of the result looks for itself among them instead.

    shapes : pairs that must be equal

    Raises
    ------
    Unsupported : there are too many.
    """
    _integers(index)
    count = index.shape[axis] if index.rank else 1
    if not isinstance(count, int) or count > FEW or any(s != i for s, i in shapes):
        raise Unsupported("writes to places that depend on elements")
    return count


#: How the elements that meet at a place are combined.
_COMBINED = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "amax": "max({0}, {1})", "amin": "min({0}, {1})",
    "add": "{0} + {1}", "multiply": "{0} * {1}", "": "{1}", "mean": "{0} + {1}",
}  # fmt: skip


@lowering(
    "scatter.value", "scatter.src", "scatter_add.default", "scatter_reduce.two", "scatter.reduce"
)
def scatter(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with elements replaced, or combined, at places of a dimension that an index says."""
    x: Ref = a["self"]
    index, out = a["index"], outs[0]
    how = "add" if a["name"] == "scatter_add.default" else a.get("reduce") or ""
    if not a.get("include_self", True):
        raise Unsupported("a combination without what was there")
    if not x.rank or not index.rank or out.dtype == "bool" or how == "mean":
        raise Unsupported("a scalar, a bool or a mean")
    axis = axis_of(a["dim"], x.rank)
    shapes = [p for n, p in enumerate(zip(x.shape, index.shape, strict=True)) if n != axis]
    count = _few(index, axis, shapes)
    if is_empty(index.shape):
        return x
    e.check(index, "0", x.shape[axis])
    own = indices(x.rank)
    inputs = {"X": x, "I": index}
    value = at("X", own)
    for place in range(count):
        there = [str(place) if n == axis else i for n, i in enumerate(own)]
        if isinstance(a.get("src"), Ref):
            inputs["S"] = a["src"]
            new = converted(at("S", there), a["src"].dtype, out.dtype)
        else:
            new = Reads(e, {}, out).scalar(a["value"], out.dtype)
        if how in ("add", "sum"):
            value += f" + select({at('I', there)} == {own[axis]}, {new}, 0)"
        else:
            hit = f"{at('I', there)} == {own[axis]}"
            if count > FEW_NESTED and how:
                raise Unsupported("writes to places that depend on elements")
            value = f"select({hit}, {_COMBINED[how].format(value, new)}, {value})"
    line = f"{at('Y', own)} = {value}{_where(e, own, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], inputs, more=out.shape)[0]


@lowering("index_put.default", "_unsafe_index_put.default")
def index_put(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with elements replaced, or added to, at places that tensors say.

    Negative ones count from the end.
    """
    x: Ref = a["self"]
    values, out = a["values"], outs[0]
    given = [*a["indices"], *[None] * (x.rank - len(a["indices"]))]
    used = [n for n, t in enumerate(given) if t is not None]
    tensors = [given[n] for n in used]
    if not used or out.dtype == "bool" or is_empty(x.shape) or used != [*range(len(used))]:
        raise Unsupported("writes to places that depend on elements")
    shape = max((t.shape for t in tensors), key=len)
    places = 1
    for extent in shape:
        places *= extent if isinstance(extent, int) else FEW + 1
    if places > FEW or any(t.shape != shape for t in tensors):
        raise Unsupported("writes to places that depend on elements")
    if not places:
        return x
    for axis, tensor in zip(used, tensors, strict=True):
        _integers(tensor)
        if a["name"] == "index_put.default":
            e.check(tensor, f"-{e.extent(x.shape[axis])}", x.shape[axis])
    own = indices(x.rank)
    inputs = {"X": x, "V": values} | {f"I{n}": t for n, t in zip(used, tensors, strict=True)}
    source = [*shape, *(s for n, s in enumerate(x.shape) if n not in used)]
    value = at("X", own)
    for place in itertools.product(*map(range, shape)):
        there = {n: at(f"I{n}", place) for n in used}
        hits = [
            f"({i} == {own[n]} or {i} + {e.extent(x.shape[n])} == {own[n]})"
            for n, i in there.items()
        ]
        where = [*map(str, place), *(i for n, i in enumerate(own) if n not in used)]
        skip = len(source) - values.rank
        read = at("V", ["0" if s == 1 else where[skip + n] for n, s in enumerate(values.shape)])
        new = converted(read, values.dtype, out.dtype)
        hit = " and ".join(hits)
        if a.get("accumulate"):
            value += f" + select({hit}, {new}, 0)"
        else:
            value = f"select({hit}, {new}, {value})"
    line = f"{at('Y', own)} = {value}{_where(e, own, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], inputs, more=out.shape)[0]
