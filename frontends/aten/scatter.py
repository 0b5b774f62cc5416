"""Operators that write to places that depend on elements.

A program writes no such place.  Instead, each element of the result looks for itself in the index,
which takes as many comparisons as both have elements together: where these are many, the operator
stays with torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontends.aten.emitter import Emitter, converted
from frontends.aten.index import integers
from frontends.aten.move import full_shape
from frontends.aten.pointwise import Reads, computed
from frontends.aten.reduce import reduced
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, axis_of, indices, is_empty, numel
from frontends.onnx.core.comprehension_text import at
from poly.ir.dtypes import DTYPES

#: The most comparisons.
MOST = 1 << 18

#: How what meets at a place is combined: the update, and what changes nothing.
_UPDATES = {
    "sum": ("+", "0"),
    "add": ("+", "0"),
    "mean": ("+", "0"),
    "prod": ("*", "1"),
    "multiply": ("*", "1"),
    "amax": ("max", "(-inf)"),
    "amin": ("min", "inf"),
}


@dataclass(frozen=True)
class Hits:
    """Which of `count` places k hit an element of the result.

    hit : the condition, over the element's indices and k
    new : what is written from the place that a text says
    reach : how far the element's indices go there
    inputs : by their names in both
    """

    count: Extent
    hit: str
    new: Callable[[str], str]
    reach: tuple[Extent, ...]
    inputs: dict[str, Ref]


def _worth(shape: Sequence[Extent], count: Extent) -> None:
    sizes = [*shape, count]
    known = all(isinstance(s, int) for s in sizes)
    if not known or math.prod(sizes) > MOST:
        raise Unsupported("writes to places that depend on elements")


def combined(e: Emitter, x: Ref, hits: Hits, how: str, has_self: bool = True) -> Ref:
    """X, with what hits its elements: the last of it, or combined.

    how : a name in `_UPDATES`, "" for the last
    has_self : whether what was there is combined, too
    """
    _worth(x.shape, hits.count)
    own = indices(x.rank)

    def every(text: str) -> str:
        return e.line(text, own, x.shape)

    def there(text: str) -> str:
        return e.line(text, [*own, "k"], [*hits.reach, hits.count])

    y, read, tally = at("Y", own), at("X", own), at("L", own)
    inputs = {"X": x, **hits.inputs}
    more = [*x.shape, *hits.reach, hits.count]
    outputs = [(x.dtype, x.shape)]
    if not how:
        lines = [
            every(f"{tally} = int64(-1)"),
            there(f"{tally} max= select({hits.hit}, int64(k), int64(-1))"),
            every(f"{y} = select({tally} >= 0, {hits.new(f'max({tally}, 0)')}, {read})"),
        ]
        return e.program(outputs, lines, inputs, [("L", "int64", x.shape)], more)[0]
    op, neutral = _UPDATES[how]
    if not x.is_float and "inf" in neutral:
        neutral = read if has_self else _extreme(x.dtype, least=op == "max")
    total = at("T", own)
    lines = [
        every(f"{total} = {read if has_self else neutral}"),
        there(f"{total} {op}= select({hits.hit}, {hits.new('k')}, {neutral})"),
    ]
    temps = [("T", x.dtype, x.shape)]
    if has_self and how != "mean":
        lines.append(every(f"{y} = {total}"))
        return e.program(outputs, lines, inputs, temps, more)[0]
    quotient = "/" if x.is_float else "//"
    value = f"{total} {quotient} {x.dtype}({tally})" if how == "mean" else total
    lines += [
        every(f"{tally} = {int(has_self)}"),
        there(f"{tally} += select({hits.hit}, 1, 0)"),
        every(f"{y} = select({tally} > 0, {value}, {read})"),
    ]
    temps.append(("L", "int64", x.shape))
    return e.program(outputs, lines, inputs, temps, more)[0]


def _extreme(dtype: str, least: bool) -> str:
    """The least or the greatest integer of a type."""
    kind = DTYPES[dtype]
    if kind.kind == "u":
        return "0" if least else f"{dtype}({(1 << kind.bits) - 1})"
    greatest = f"{dtype}({(1 << kind.bits - 1) - 1})"
    return f"(~{greatest})" if least else greatest


@lowering(
    "scatter.value", "scatter.src", "scatter_add.default", "scatter_reduce.two", "scatter.reduce",
    "scatter.value_reduce",
)  # fmt: skip
def scatter(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with elements replaced, or combined, at places of a dimension that an index says."""
    x, index, out = a["self"], a["index"], outs[0]
    how = "add" if a["name"] == "scatter_add.default" else a.get("reduce") or ""
    integers(index)
    dtype = "int32" if out.dtype == "bool" else out.dtype
    x = e.reshape(e.cast(x, dtype), x.shape or (1,))
    if is_empty(index.shape) or is_empty(x.shape):
        return e.reshape(e.cast(x, out.dtype), out.shape)
    index = e.reshape(index, index.shape or (1,))
    axis = axis_of(a["dim"], x.rank)
    e.check(index, "0", x.shape[axis])
    own = indices(x.rank)
    inputs = {"I": index}
    if isinstance(a.get("src"), Ref):
        inputs["S"] = e.reshape(e.cast(a["src"], dtype), a["src"].shape or (1,))

        def new(place: str) -> str:
            # Only elements that are hit are taken; others need a place, too.
            sides = zip(own, index.shape, strict=True)
            inside = [f"min({i}, {e.extent(s)} - 1)" for i, s in sides]
            return at("S", [place if n == axis else i for n, i in enumerate(inside)])
    else:
        scalar = a["value"] if "value" in a else a.get("src")
        text = Reads(e, {}, Ref("", dtype, ())).scalar(scalar, dtype)

        def new(place: str) -> str:
            return text

    hit = f"{at('I', ['k' if n == axis else i for n, i in enumerate(own)])} == {own[axis]}"
    reach = tuple(x.shape[n] if n == axis else s for n, s in enumerate(index.shape))
    hits = Hits(index.shape[axis], hit, new, reach, inputs)
    made = combined(e, x, hits, how, bool(a.get("include_self", True)))
    return e.reshape(e.cast(made, out.dtype), out.shape)


@lowering("index_put.default", "_unsafe_index_put.default")
def index_put(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with elements replaced, or added to, at places that tensors say.

    Negative ones count from the end.
    """
    x: Ref = a["self"]
    values, out = a["values"], outs[0]
    given = [*a["indices"], *[None] * (x.rank - len(a["indices"]))]
    used = [n for n, t in enumerate(given) if t is not None]
    if len(used) == 1 and given[used[0]].dtype == "bool" and not values.rank:
        mask = given[used[0]]
        shape = (*(1 for _ in range(used[0])), *mask.shape)
        if used[0] == 0:
            mask = e.reshape(mask, (*shape, *(1 for _ in range(x.rank - len(shape)))))
            if not a.get("accumulate"):
                arguments = {"m": mask, "v": values, "x": x}
                return computed(e, "select({m:bool}, {v}, {x})", arguments, out)
    if len(used) == 1 and given[used[0]].dtype == "bool" and not is_empty(x.shape):
        return _put_at_true(e, x, given[used[0]], used[0], values, bool(a.get("accumulate")))
    for n in used:
        integers(given[n])
    if is_empty(x.shape):
        return x
    tensors = {n: given[n] for n in used}
    shape = full_shape([t.shape for t in tensors.values()])
    count = math.prod(s if isinstance(s, int) else MOST for s in shape)
    _worth(x.shape, count)
    if not count:
        return x
    dtype = "int32" if out.dtype == "bool" else out.dtype
    for n, t in tensors.items():
        if a["name"] == "index_put.default":
            e.check(t, f"-{e.extent(x.shape[n])}", x.shape[n])
    flat = {
        f"I{n}": e.reshape(computed(e, "{t}", {"t": t}, Ref("", t.dtype, shape)), (count,))
        for n, t in tensors.items()
    }
    rest = [n for n in range(x.rank) if n not in used]
    together = used == [*range(used[0], used[-1] + 1)]
    begin = used[0] if together else 0
    free = [x.shape[n] for n in rest]
    wide = Ref("", dtype, (*free[:begin], *shape, *free[begin:]))
    spread = computed(e, "{v}", {"v": values}, wide)
    among = [*range(begin, begin + len(shape))]
    order = [*among, *(n for n in range(wide.rank) if n not in among)]
    rows = e.reshape(e.transpose(spread, order), (count, *free))
    own = indices(x.rank)
    hits = [f"(I{n}[k] == {own[n]} or I{n}[k] + {e.extent(x.shape[n])} == {own[n]})" for n in used]

    def new(place: str) -> str:
        return at("V", [place, *(own[n] for n in rest)])

    found = Hits(count, " and ".join(hits), new, x.shape, {**flat, "V": rows})
    made = combined(e, e.cast(x, dtype), found, "add" if a.get("accumulate") else "")
    return e.cast(made, out.dtype)


def _put_at_true(e: Emitter, x: Ref, mask: Ref, axis: int, values: Ref, accumulate: bool) -> Ref:
    """X with elements replaced, or added to, where a mask is true: by the values in order."""
    if accumulate and x.dtype == "bool":
        raise Unsupported("sums of bool")
    count = numel(mask.shape)
    flat = e.reshape(e.cast(mask, "int64"), (count,))
    sums = e.op("CumSum", flat, e.constant(0), dtype="int64", shape=(count,))
    own = indices(x.rank)
    end = axis + mask.rank
    here = at("N", own[axis:end])
    where = [*own[:axis], f"{here} - 1", *own[end:]]
    reads = [
        "0" if isinstance(s, int) and s == 1 else i
        for s, i in zip(values.shape, where[len(where) - values.rank :], strict=True)
    ]
    place = axis - len(where) + values.rank
    if place >= 0 and values.shape[place] != 1:
        length = values.shape[place]
        total = reduced(e, flat, [0], Ref("", "int64", ()), "+", "int64")
        bad = f"{{0}} != {e.extent(length)}"
        e.refuse(total, bad, RuntimeError, "shape mismatch: values for a mask", [length])
    new = converted(at("V", reads), values.dtype, x.dtype)
    kept = at("X", own)
    text = f"select({at('M', own[axis:end])}, {f'{kept} + {new}' if accumulate else new}, {kept})"
    numbers = e.reshape(sums, mask.shape)
    inputs = {"X": x, "M": mask, "N": numbers, "V": values}
    return e.each(x.dtype, x.shape, text, inputs, values.shape)


@lowering("put.default")
def put(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """`index_put` into all elements in order."""
    x, index, source = a["self"], a["index"], a["source"]
    count = numel(x.shape)
    length = math.prod(s if isinstance(s, int) else MOST for s in index.shape)
    given = {
        "name": "index_put.default", "self": e.reshape(x, (count,)),
        "indices": [e.reshape(index, (length,))], "values": e.reshape(source, (length,)),
        "accumulate": a.get("accumulate"),
    }  # fmt: skip
    return e.reshape(index_put(e, given, [Ref("", x.dtype, (count,))]), x.shape)
