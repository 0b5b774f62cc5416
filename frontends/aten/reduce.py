"""Sums, maxima and other reductions, and prefix sums."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.aten.emitter import Emitter, converted
from frontends.aten.pointwise import LOG1P
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import (
    Ref,
    Unsupported,
    axes_of,
    axis_of,
    indices,
    is_empty,
    numel,
    wide,
)
from frontends.onnx.core.comprehension_text import at


def _kept(x: Ref, axes: Sequence[int], out: Ref) -> list[str]:
    """The indices of an element of the result; those of `axes` are 0 or missing."""
    own = indices(x.rank)
    if out.rank == x.rank:
        return ["0" if n in axes else i for n, i in enumerate(own)]
    return [i for n, i in enumerate(own) if n not in axes]


def reduced(e: Emitter, x: Ref, axes: Sequence[int], out: Ref, op: str, dtype: str) -> Ref:
    """``Y[kept] op=! X[i]`` over all elements, in `dtype`."""
    own = indices(x.rank)
    read = converted(at("X", own), x.dtype, dtype)
    line = e.line(f"{at('Y', _kept(x, axes, out))} {op}=! {read}", own, x.shape)
    return e.program([(dtype, out.shape)], [line], {"X": x}, more=x.shape)[0]


def _count(e: Emitter, x: Ref, axes: Sequence[int], dtype: str) -> str:
    """How many elements are reduced, as text."""
    extents = [x.shape[n] for n in axes]
    known = 1
    text = ""
    for extent in extents:
        if isinstance(extent, int):
            known *= extent
        else:
            text += f" * {dtype}({e.extent(extent)})"
    return f"({dtype}({known}){text})"


@lowering("sum.default", "sum.dim_IntList")
def total(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The sum, in the type of the result."""
    x, out = a["self"], outs[0]
    return reduced(e, x, axes_of(a.get("dim"), x.rank), out, "+", out.dtype)


@lowering("prod.default", "prod.dim_int")
def product(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The product, in the type of the result."""
    x, out = a["self"], outs[0]
    if out.dtype == "bool":
        return e.cast(product(e, a, [Ref("", "int32", out.shape)]), "bool")
    return reduced(e, x, axes_of(a.get("dim"), x.rank), out, "*", out.dtype)


@lowering("mean.default", "mean.dim")
def mean(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The sum over the count."""
    x, out = a["self"], outs[0]
    return _mean(e, x, axes_of(a.get("dim"), x.rank), out)


def _mean(e: Emitter, x: Ref, axes: Sequence[int], out: Ref) -> Ref:
    kind = wide(out.dtype)
    summed = reduced(e, x, axes, out, "+", kind)
    read = at("X", indices(out.rank))
    value = f"{out.dtype}({read} / {_count(e, x, axes, kind)})"
    return e.each(out.dtype, out.shape, value, {"X": summed}, x.shape)


@lowering("amax.default", "max.default")
def largest(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The maximum."""
    return _extreme(e, a, outs[0], "max")


@lowering("amin.default", "min.default")
def smallest(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The minimum."""
    return _extreme(e, a, outs[0], "min")


def _extreme(e: Emitter, a: Arguments, out: Ref, op: str) -> Ref:
    x = a["self"]
    axes = axes_of(a.get("dim"), x.rank)
    _not_empty(x, axes)
    dtype = "int32" if x.dtype == "bool" else x.dtype
    return e.cast(reduced(e, x, axes, out, op, dtype), out.dtype)


def _not_empty(x: Ref, axes: Sequence[int]) -> None:
    if is_empty([x.shape[n] for n in axes]):
        raise Unsupported("an extreme of nothing")


@lowering("any.default", "any.dim", "any.dims")
def some(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether any element is not 0."""
    return _quantified(e, a, outs[0], "max")


@lowering("all.default", "all.dim", "all.dims")
def every(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether no element is 0."""
    return _quantified(e, a, outs[0], "min")


def _quantified(e: Emitter, a: Arguments, out: Ref, op: str) -> Ref:
    x = a["self"]
    axes = axes_of(a.get("dim"), x.rank)
    if is_empty([x.shape[n] for n in axes]):
        raise Unsupported("a statement about nothing")
    truth = e.cast(x, "bool")
    found = reduced(e, truth, axes, out, op, "int32")
    return e.cast(found, out.dtype)


@lowering("argmax.default", "argmin.default", "max.dim", "min.dim")
def place(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
    """The first place of the maximum or minimum, or of the first NaN; and that element."""
    x, dim = a["self"], a.get("dim")
    op = "min" if a["name"] in ("argmin.default", "min.dim") else "max"
    out = outs[-1]
    if dim is None:
        x = e.reshape(x, [numel(x.shape)])
        if out.rank:
            raise Unsupported("a place that keeps dimensions")
    axis = axis_of(dim or 0, x.rank)
    axes = [axis] if x.rank else []
    _not_empty(x, axes)
    dtype = "int32" if x.dtype == "bool" else x.dtype
    best = reduced(e, x, axes, out, op, dtype)
    read = converted(at("X", indices(x.rank)), x.dtype, dtype)
    own = at("B", _kept(x, axes, out))
    hit = f"{read} == {own}" + (f" or isnan({read})" if x.is_float else "")
    where = indices(x.rank)[axis] if x.rank else "0"
    last = e.extent(x.shape[axis]) if x.rank else "1"
    line = e.line(
        f"{at('Y', _kept(x, axes, out))} min=! select({hit}, int64({where}), int64({last}))",
        indices(x.rank), x.shape,
    )  # fmt: skip
    (found,) = e.program([("int64", out.shape)], [line], {"X": x, "B": best}, more=x.shape)
    if len(outs) == 1:
        return found
    return [e.cast(best, outs[0].dtype), found]


@lowering("var.correction", "var_mean.correction")
def variance(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
    """sum (x - mean)^2 / (count - correction), and the mean."""
    given: Ref = a["self"]
    x = e.cast(given, wide(given.dtype))
    out = Ref("", x.dtype, outs[0].shape)
    axes = axes_of(a.get("dim"), x.rank)
    correction = a.get("correction")
    if correction is None:
        correction = 1
    middle = _mean(e, x, axes, out)
    own = indices(x.rank)
    rest = f"{at('X', own)} - {at('M', _kept(x, axes, out))}"
    line = e.line(f"{at('Y', _kept(x, axes, out))} +=! ({rest}) * ({rest})", own, x.shape)
    (summed,) = e.program([(x.dtype, out.shape)], [line], {"X": x, "M": middle}, more=x.shape)
    count = f"max({_count(e, x, axes, out.dtype)} - {float(correction)!r}, 0)"
    value = f"{at('X', indices(out.rank))} / {count}"
    found = e.each(out.dtype, out.shape, value, {"X": summed}, x.shape)
    results = e.casts([found, middle][: len(outs)], outs)
    return results[0] if len(outs) == 1 else [*results]


@lowering("cumsum.default")
def prefix_sums(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Sums of all elements up to each."""
    x, out = e.cast(a["self"], outs[0].dtype), outs[0]
    if not x.rank:
        return x
    axis = e.constant(axis_of(a["dim"], x.rank))
    return e.op("CumSum", x, axis, dtype=out.dtype, shape=out.shape)


class _Along:
    """A recurrence along a dimension: the first element, and each next one from that before."""

    def __init__(self, e: Emitter, x: Ref, axis: int) -> None:
        self.e, self.x, self.axis = e, x, axis
        self.own = list(indices(x.rank))
        self.step = self.own[axis]
        self.here, self.before = at("X", self.own), self.preceding("Y")

    def preceding(self, name: str) -> str:
        """The element before this one."""
        return self._at(name, f"{self.step} - 1")

    def _at(self, name: str, place: str) -> str:
        return at(name, [*self.own[: self.axis], place, *self.own[self.axis + 1 :]])

    def lines(self, name: str, first: str, following: str) -> list[str]:
        """The statements for a tensor; `first` may have ``{x}``, the element of X there."""
        e, extents = self.e, [*self.x.shape]
        size = extents.pop(self.axis)
        others = [i for i in self.own if i != self.step]
        start = f"{self._at(name, '0')} = {first.format(x=self._at('X', '0'))}"
        again = f"{at(name, self.own)} = {following}"
        where = f"{self.step} in 1:{e.extent(size)}"
        return [e.line(start, others, extents), e.line(again, others, extents, [where])]


@lowering("cumprod.default")
def prefix_products(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Products of all elements up to each."""
    out = outs[0]
    x = e.cast(a["self"], wide(out.dtype))
    axis = axis_of(a["dim"], x.rank)
    if not x.rank or is_empty([x.shape[axis]]):
        return e.cast(x, out.dtype)
    along = _Along(e, x, axis)
    lines = along.lines("Y", "{x}", f"{along.before} * {along.here}")
    return e.cast(e.program([(x.dtype, out.shape)], lines, {"X": x}, more=x.shape)[0], out.dtype)


@lowering("logcumsumexp.default")
def prefix_log_sums(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """log of the sums of exp of all elements up to each: max + log(1 + exp(-|difference|))."""
    given: Ref = a["self"]
    out = outs[0]
    if not out.rank or is_empty(out.shape):
        return given
    # Of float32, too, the sum is kept in float64, as in torch: the gradient is its exponential.
    x = e.cast(given, "float64")
    along = _Along(e, x, axis_of(a["dim"], x.rank))
    high, low = (f"{fn}({along.here}, {along.before})" for fn in ("max", "min"))
    more = LOG1P.format(self=f"exp({low} - {high})")
    lines = along.lines("Y", "{x}", f"select(isinf({high}), {high}, {high} + {more})")
    return e.cast(e.program([(x.dtype, out.shape)], lines, {"X": x}, more=x.shape)[0], out.dtype)


@lowering("cummax.default", "cummin.default")
def prefix_extremes(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The maximum or minimum of all elements up to each, and its last place."""
    given, shape = a["self"], a["self"].shape or (1,)
    if is_empty(shape):
        return [e.each(o.dtype, o.shape, f"{o.dtype}(0)", {}) for o in outs]
    x = e.reshape(e.cast(given, "int32") if given.dtype == "bool" else given, shape)
    op, symbol = ("max", ">=") if a["name"] == "cummax.default" else ("min", "<=")
    along = _Along(e, x, axis_of(a["dim"], x.rank))
    hit = f"{along.here} {symbol} {along.before}"
    if x.is_float:
        hit = f"isnan({along.here}) or ({hit})"
    place = f"select({hit}, int64({along.step}), {along.preceding('Y1')})"
    lines = [
        *along.lines("Y", "{x}", f"{op}({along.before}, {along.here})"),
        *along.lines("Y1", "int64(0)", place),
    ]
    outputs = [(x.dtype, x.shape), ("int64", x.shape)]
    values, places = e.program(outputs, lines, {"X": x}, more=x.shape)
    return [e.reshape(e.cast(values, given.dtype), given.shape), e.reshape(places, given.shape)]
