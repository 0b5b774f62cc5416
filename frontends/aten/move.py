"""Operators that move elements: views, slices, joins, pads; and tensors made of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from frontends.aten.emitter import Emitter
from frontends.aten.layouts import Order, order_of
from frontends.aten.pointwise import Reads, computed
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, axis_of, extent_of, indices, is_empty
from frontends.onnx.core.comprehension_text import at

#: A bound that lies behind every element.
_END = (1 << 63) - 1


@lowering(
    "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "view_copy.default", "unsqueeze_copy.default",
)  # fmt: skip
def view(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The same elements in order, under the shape of the result."""
    if a["self"].dtype != outs[0].dtype:
        raise Unsupported("the bits of a tensor as another type")
    return e.reshape(a["self"], outs[0].shape)


@lowering("permute.default", "permute_copy.default")
def permute(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The dimensions in another order."""
    x: Ref = a["self"]
    order = [axis_of(d, x.rank) for d in a["dims"]]
    return e.transpose(x, order)


@lowering("transpose.int", "t.default")
def transpose(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Two dimensions exchanged."""
    x = a["self"]
    order = [*range(x.rank)]
    if x.rank > 1:
        first, second = axis_of(a.get("dim0", 0), x.rank), axis_of(a.get("dim1", 1), x.rank)
        order[first], order[second] = second, first
    return permute(e, {"self": x, "dims": order}, outs)


@lowering("expand.default", "expand_copy.default")
def expand(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The elements repeated along dimensions of one."""
    x: Ref = a["self"]
    return x if x.shape == outs[0].shape else computed(e, "{self}", {"self": x}, outs[0])


def full_shape(shapes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
    """The shape to which tensors broadcast, of which torch knows that they do."""
    rank = max(map(len, shapes), default=0)
    found: list[Extent] = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, start=rank - len(shape)):
            if extent != 1:
                found[axis] = extent
    return tuple(found)


@lowering("slice.Tensor")
def part(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Every `step`-th element from `start` to `end` along a dimension."""
    x: Ref = a["self"]
    axis = axis_of(a.get("dim", 0), x.rank)
    if x.shape == outs[0].shape:
        return x
    bounds = []
    for name, default in (("start", 0), ("end", _END), ("step", 1)):
        value = a.get(name, default)
        value = default if value is None else extent_of(value)
        one = e.constant([0])
        known = isinstance(value, int)
        bounds.append(e.constant([value]) if known else e.add("Unsqueeze", e.size(value), one)[0])
    start, end, step = bounds
    return e.op(
        "Slice", x, start, end, e.constant([axis]), step, dtype=x.dtype, shape=outs[0].shape
    )


@lowering("select.int", "select_copy.int")
def select(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """One place of a dimension, which vanishes."""
    x = a["self"]
    axis = axis_of(a["dim"], x.rank)
    own, index, more = indices(outs[0].rank), extent_of(a["index"]), []
    if isinstance(index, int) and index >= 0:
        place = str(index)
    elif isinstance(index, int):
        place = f"{e.extent(x.shape[axis])} - {-index}"
    else:
        place, more = e.extent(index), [index]
    where = [*own[:axis], place, *own[axis:]]
    return e.each(outs[0].dtype, outs[0].shape, at("X", where), {"X": x}, more)


@lowering("cat.default")
def join(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Tensors one after the other; torch ignores empty vectors."""
    out = outs[0]
    parts = [e.cast(t, out.dtype) for t in a["tensors"] if t.rank == out.rank]
    axis = axis_of(a.get("dim", 0), out.rank)
    parts = [p for p in parts if not is_empty([p.shape[axis]])]
    if not parts:
        return filled(e, out, 0)
    if len(parts) == 1:
        return parts[0]
    return e.op("Concat", *parts, dtype=out.dtype, shape=out.shape, axis=axis)


@lowering("constant_pad_nd.default")
def pad(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """A border of a number; where it is negative, elements are left out."""
    x, out = a["self"], outs[0]
    before: list[Extent] = [0] * x.rank
    given = [extent_of(p) for p in a["pad"]]
    for n in range(len(given) // 2):
        before[x.rank - 1 - n] = given[2 * n]
    border = Reads(e, {}, out).scalar(a.get("value", 0) or 0, out.dtype)
    own = indices(x.rank)
    names = indices(x.rank, "j")
    more = [*x.shape, *(b for b in before if not isinstance(b, int))]
    # Y[i + before] = X[i], where that lies inside.
    places = [
        f"{i} + {b}" if isinstance(b, int) and b > 0 else
        f"{i} - {-b}" if isinstance(b, int) and b < 0 else
        i if isinstance(b, int) else f"{i} + {e.extent(b)}"
        for i, b in zip(own, before, strict=True)
    ]  # fmt: skip
    guards = [
        f"0 <= {place} < {e.extent(s)}" for place, i, s in zip(places, own, out.shape, strict=True)
        if place != i or s not in x.shape
    ]  # fmt: skip
    lines = [
        e.line(f"{at('Y', names)} = {border}", names, out.shape),
        e.line(f"{at('Y', places)} = {at('X', own)}", own, x.shape, guards),
    ]
    return e.program([(out.dtype, out.shape)], lines, {"X": x}, more=[*out.shape, *more])[0]


@lowering("flip.default")
def flip(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Dimensions backwards."""
    x = a["self"]
    axes = {axis_of(d, x.rank) for d in a["dims"]}
    where = [
        f"{e.extent(s)} - 1 - {i}" if n in axes else i
        for n, (i, s) in enumerate(zip(indices(x.rank), x.shape, strict=True))
    ]
    return e.each(outs[0].dtype, outs[0].shape, at("X", where), {"X": x})


@lowering("repeat.default")
def repeat(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The tensor beside itself, so many times."""
    x, out = a["self"], outs[0]
    whole = e.reshape(x, (1,) * (out.rank - x.rank) + x.shape)
    where = [
        i if s == o else "0" if s == 1 else f"{i} % {e.extent(s)}"
        for i, s, o in zip(indices(out.rank), whole.shape, out.shape, strict=True)
    ]
    if any("%" in w and not isinstance(s, int) for w, s in zip(where, whole.shape, strict=True)):
        raise Unsupported("a repetition of an open size")
    return e.each(out.dtype, out.shape, at("X", where), {"X": whole})


@lowering("diagonal.default", "diagonal_copy.default")
def diagonal(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Elements whose places in two dimensions differ by `offset`."""
    x, offset = a["self"], a.get("offset", 0)
    first, second = axis_of(a.get("dim1", 0), x.rank), axis_of(a.get("dim2", 1), x.rank)
    own = list(indices(outs[0].rank))
    along = own.pop()
    where: list[str] = []
    for axis in range(x.rank):
        if axis == first:
            where.append(f"{along} + {max(-offset, 0)}")
        elif axis == second:
            where.append(f"{along} + {max(offset, 0)}")
        else:
            where.append(own.pop(0))
    return e.each(outs[0].dtype, outs[0].shape, at("X", where), {"X": x})


@lowering("as_strided.default")
def strided(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Elements by their places in memory, of a tensor that is dense there."""
    flat, place, _ = _in_memory(e, a, outs[0])
    return e.each(outs[0].dtype, outs[0].shape, at("X", [place]), {"X": flat})


@lowering("prims.as_strided_scatter.default", "as_strided_scatter.default")
def put_strided(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The tensor with elements replaced by their places in memory."""
    source = a["src"]
    flat, place, order = _in_memory(e, a, Ref("", source.dtype, source.shape))
    reach = sorted(zip(map(int, a["stride"]), source.shape, strict=True))
    inner = 0  # the last place of what has the lesser strides
    for stride, extent in reach:
        if extent > 1 and stride <= inner:
            raise Unsupported("places in memory that are written several times")
        inner += stride * (extent - 1)
    made = _replaced(e, flat, source, [place], Ref("", outs[0].dtype, flat.shape))
    x = a["self"]
    if order is None:
        return e.reshape(made, outs[0].shape)
    ordered = e.reshape(made, [x.shape[axis] for axis in order])
    return e.transpose(ordered, [order.index(axis) for axis in range(x.rank)])


def _in_memory(e: Emitter, a: Arguments, part: Ref) -> tuple[Ref, str, Order]:
    """A tensor as it lies in memory, where a strided part of it is, and the order of dimensions."""
    x = a["self"] if "self" in a else a["input"]
    memory = a["memory"]
    order, offset = order_of(memory), a.get("storage_offset")
    numbers = [*a["size"], *a["stride"], offset or 0, *x.shape]
    dense = order is not None or memory.is_contiguous()
    if not dense or not all(isinstance(n, int) for n in numbers) or is_empty(part.shape):
        raise Unsupported("places in memory that are not known")
    ordered = x if order is None else e.transpose(x, order)
    flat = e.reshape(ordered, (math.prod(x.shape),))
    # A view of a part of a storage is given as the part; torch counts from the storage's start.
    terms = [f"{s}*{i}" for i, s in zip(indices(len(a["size"])), a["stride"], strict=True)]
    return flat, " + ".join([*terms, str((offset or 0) - memory.storage_offset())]), order


@lowering("unfold.default")
def windows(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Windows of a dimension, each as a new last dimension."""
    x = a["self"]
    if not x.rank:
        return e.reshape(x, outs[0].shape)
    axis = axis_of(a["dimension"], x.rank)
    own = list(indices(outs[0].rank))
    where = [f"{i} * {a['step']} + {own[-1]}" if n == axis else i for n, i in enumerate(own[:-1])]
    return e.each(outs[0].dtype, outs[0].shape, at("X", where), {"X": x})


@lowering("unfold_backward.default")
def windows_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Each element collects the gradients of the windows that it is in."""
    grad, out, step = a["grad_in"], outs[0], a["step"]
    if not out.rank:
        return e.reshape(grad, ())
    if is_empty(grad.shape):
        return filled(e, out, 0)
    axis, own = axis_of(a["dim"], out.rank), indices(out.rank)
    begin = f"{own[axis]} - r"  # of the window of which the element is at r
    window = begin if step == 1 else f"({begin}) // {step}"
    guards = [f"0 <= {window} < {e.extent(grad.shape[axis])}"]
    if step != 1:
        guards.append(f"({begin}) % {step} == 0")
    where = [window if n == axis else i for n, i in enumerate(own)]
    ranges = e.ranges([*own, "r"], [*out.shape, grad.shape[-1]])
    text = f"{at('Y', own)} +=! {at('G', [*where, 'r'])} where {', '.join([ranges, *guards])}"
    return e.program([(out.dtype, out.shape)], [text], {"G": grad})[0]


@lowering("split_with_sizes.default", "split.Tensor", "unbind.int", "split_with_sizes_copy.default")
def split(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Parts along a dimension."""
    x = a["self"]
    axis = axis_of(a.get("dim", 0), x.rank)
    parts: list[Ref | None] = []
    begin = 0
    for out in outs:
        if a["name"] == "unbind.int":
            parts.append(select(e, {"self": x, "dim": axis, "index": len(parts)}, [out]))
            continue
        size = out.shape[axis]
        if not isinstance(size, int):
            raise Unsupported("parts of an open size")
        bounds = {"self": x, "dim": axis, "start": begin, "end": begin + size}
        parts.append(part(e, bounds, [out]))
        begin += size
    return parts


@lowering("slice_scatter.default")
def put_slice(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The tensor with every `step`-th element from `start` replaced."""
    x, source = a["self"], e.cast(a["src"], outs[0].dtype)
    axis = axis_of(a.get("dim", 0), x.rank)
    start, step = a.get("start") or 0, a.get("step", 1)
    start = extent_of(start)
    if not isinstance(start, int) or not isinstance(x.shape[axis], int):
        raise Unsupported("a part at an open place")
    start = min(max(start + (x.shape[axis] if start < 0 else 0), 0), x.shape[axis])
    own = indices(x.rank)
    place = [f"{i} * {step} + {start}" if n == axis else i for n, i in enumerate(own)]
    return _replaced(e, x, source, place, outs[0])


@lowering("select_scatter.default")
def put_one(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The tensor with one place of a dimension replaced."""
    x, source = a["self"], e.cast(a["src"], outs[0].dtype)
    axis, index = axis_of(a["dim"], x.rank), extent_of(a["index"])
    if not isinstance(index, int):
        raise Unsupported("a part at an open place")
    own = indices(source.rank)
    where = str(index) if index >= 0 else f"{e.extent(x.shape[axis])} - {-index}"
    return _replaced(e, x, source, [*own[:axis], where, *own[axis:]], outs[0])


@lowering("diagonal_scatter.default")
def put_diagonal(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The tensor with a diagonal replaced."""
    x, offset = a["self"], a.get("offset", 0)
    source = e.cast(a["src"], outs[0].dtype)
    first, second = axis_of(a.get("dim1", 0), x.rank), axis_of(a.get("dim2", 1), x.rank)
    own = list(indices(source.rank))
    along = own[-1]
    rest = iter(own[:-1])
    shift = {first: max(-offset, 0), second: max(offset, 0)}
    where = [f"{along} + {shift[n]}" if n in shift else next(rest) for n in range(x.rank)]
    return _replaced(e, x, source, where, outs[0])


def _replaced(e: Emitter, x: Ref, source: Ref, place: Sequence[str], out: Ref) -> Ref:
    """Y = X, then Y[place] = S."""
    own = indices(x.rank)
    there = indices(source.rank)
    lines = [
        e.line(f"{at('Y', own)} = {at('X', own)}", own, x.shape),
        e.line(f"{at('Y', place)} = {at('S', there)}", there, source.shape),
    ]
    inputs = {"X": x, "S": source}
    if is_empty(source.shape):
        del lines[1], inputs["S"]
    more = [*out.shape, *source.shape]
    return e.program([(out.dtype, out.shape)], lines, inputs, more=more)[0]


# --- tensors made of numbers ----------------------------------------------------------------------


def filled(e: Emitter, out: Ref, value: Any) -> Ref:
    """One number everywhere."""
    reads = Reads(e, {}, out)
    return e.each(out.dtype, out.shape, reads.scalar(value, out.dtype), {}, reads.more)


@lowering(
    "full.default", "full_like.default", "scalar_tensor.default", "new_full.default",
)  # fmt: skip
def full(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """One number everywhere."""
    name = "s" if a["name"] == "scalar_tensor.default" else "fill_value"
    return filled(e, outs[0], a[name])


@lowering(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format",
    "empty_like.default", "new_empty.default", "empty_permuted.default", "empty_strided.default",
    "new_empty_strided.default",
)  # fmt: skip
def zeros(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Zeros, also where torch leaves memory as it is."""
    return filled(e, outs[0], 0)


@lowering("ones.default", "ones_like.default", "new_ones.default")
def ones(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Ones."""
    return filled(e, outs[0], 1)


@lowering("arange.start_step")
def arange(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """start + i * step"""
    return _steps(e, a["start"], a.get("step", 1), outs[0])


@lowering("prims.iota.default")
def iota(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """start + i * step, of integers."""
    return _steps(e, a["start"], a["step"], outs[0])


def _steps(e: Emitter, start: Any, step: Any, out: Ref) -> Ref:
    reads = Reads(e, {}, out)
    if out.dtype == "bool":
        raise Unsupported("a range of bool")
    text, up = f"{out.dtype}(i0)", isinstance(step, (int, float)) and step > 0
    if not up or step != 1:
        text += f" * {reads.scalar(step, out.dtype)}"
    if not up or not isinstance(start, (int, float)) or start != 0:  # 0 * -1.0 is -0.0
        text = f"{reads.scalar(start, out.dtype)} + {text}"
    return e.each(out.dtype, out.shape, text, {}, reads.more)
