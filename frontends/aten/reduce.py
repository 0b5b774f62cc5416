"""Sums, maxima and other reductions, and prefix sums."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.aten.emitter import Emitter, converted
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, at, axes_of, axis_of, indices, is_empty


def _kept(x: Ref, axes: Sequence[int], out: Ref) -> list[str]:
    """The indices of an element of the result; those of `axes` are 0 or missing."""
    own = indices(x.rank)
    if out.rank == x.rank:
        return ["0" if n in axes else i for n, i in enumerate(own)]
    return [i for n, i in enumerate(own) if n not in axes]


def _where(e: Emitter, shape: Sequence[Extent]) -> str:
    ranges = e.ranges(indices(len(shape)), shape)
    return f" where {ranges}" if ranges else ""


def reduced(
    e: Emitter, x: Ref, axes: Sequence[int], out: Ref, op: str, dtype: str, value: str = "{0}"
) -> Ref:
    """``Y[kept] op=! value`` over all elements, in `dtype`."""
    read = value.format(converted(at("X", indices(x.rank)), x.dtype, dtype))
    line = f"{at('Y', _kept(x, axes, out))} {op}=! {read}{_where(e, x.shape)}"
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
    summed = reduced(e, x, axes, out, "+", out.dtype)
    read = at("X", indices(out.rank))
    return e.each(out.dtype, out.shape, f"{read} / {_count(e, x, axes, out.dtype)}", X=summed)


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
        x = e.reshape(x, [_product(x.shape)])
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
    line = (
        f"{at('Y', _kept(x, axes, out))} min=! select({hit}, int64({where}), int64({last}))"
        f"{_where(e, x.shape)}"
    )
    (found,) = e.program([("int64", out.shape)], [line], {"X": x, "B": best}, more=x.shape)
    if len(outs) == 1:
        return found
    return [e.cast(best, outs[0].dtype), found]


def _product(shape: Sequence[Extent]) -> Extent:
    count: Extent = 1
    for extent in shape:
        count = count * extent
    return int(count) if getattr(count, "is_Integer", False) else count


@lowering("var.correction", "var_mean.correction")
def variance(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
    """sum (x - mean)^2 / (count - correction), and the mean."""
    x, out = a["self"], outs[0]
    axes = axes_of(a.get("dim"), x.rank)
    correction = a.get("correction")
    if correction is None:
        correction = 1
    middle = _mean(e, x, axes, out)
    own = indices(x.rank)
    rest = f"{at('X', own)} - {at('M', _kept(x, axes, out))}"
    line = f"{at('Y', _kept(x, axes, out))} +=! ({rest}) * ({rest}){_where(e, x.shape)}"
    (summed,) = e.program([(x.dtype, out.shape)], [line], {"X": x, "M": middle}, more=x.shape)
    count = f"max({_count(e, x, axes, out.dtype)} - {float(correction)!r}, 0)"
    extents = [x.shape[n] for n in axes]
    found = _over(e, summed, out, count, extents)
    return found if len(outs) == 1 else [found, middle]


def _over(e: Emitter, x: Ref, out: Ref, count: str, more: Sequence[Extent]) -> Ref:
    own = indices(out.rank)
    line = f"{at('Y', own)} = {at('X', own)} / {count}{_where(e, out.shape)}"
    return e.program([(out.dtype, out.shape)], [line], {"X": x}, more=[*out.shape, *more])[0]


@lowering("cumsum.default")
def prefix_sums(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Sums of all elements up to each."""
    x, out = e.cast(a["self"], outs[0].dtype), outs[0]
    if not x.rank:
        return x
    axis = e.constant(axis_of(a["dim"], x.rank))
    return e.op("CumSum", x, axis, dtype=out.dtype, shape=out.shape)


@lowering("cumprod.default")
def prefix_products(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Products of all elements up to each."""
    x, out = e.cast(a["self"], outs[0].dtype), outs[0]
    if not x.rank:
        return x
    axis = axis_of(a["dim"], x.rank)
    if is_empty([x.shape[axis]]):
        return x
    own = list(indices(x.rank))
    step = own[axis]
    others = [(i, s) for n, (i, s) in enumerate(zip(own, x.shape, strict=True)) if n != axis]
    ranges = [f"{i} in 0:{e.extent(s)}" for i, s in others]

    def there(place: str) -> list[str]:
        return [place if i == step else i for i in own]

    first = f"{at('Y', there('0'))} = {at('X', there('0'))}"
    if ranges:
        first += f" where {', '.join(ranges)}"
    next_ = f"{at('Y', own)} = {at('Y', there(f'{step} - 1'))} * {at('X', own)} where " + ", ".join(
        [*ranges, f"{step} in 1:{e.extent(x.shape[axis])}"]
    )
    return e.program([(out.dtype, out.shape)], [first, next_], {"X": x}, more=x.shape)[0]


@lowering("logcumsumexp.default")
def prefix_log_sums(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """log of the sums of exp of all elements up to each: max + log(1 + exp(-|difference|))."""
    x, out = a["self"], outs[0]
    if not x.rank or is_empty(x.shape):
        raise Unsupported("sums of nothing")
    axis = axis_of(a["dim"], x.rank)
    own = list(indices(x.rank))
    step = own[axis]
    others = [f"{i} in 0:{e.extent(s)}" for i, s in zip(own, x.shape, strict=True) if i != step]

    def there(name: str, place: str) -> str:
        return at(name, [place if i == step else i for i in own])

    first = f" where {', '.join(others)}" if others else ""
    rest = ", ".join([*others, f"{step} in 1:{e.extent(x.shape[axis])}"])
    here, before = at("X", own), there("Y", f"{step} - 1")
    high, low = f"max({here}, {before})", f"min({here}, {before})"
    t = f"exp({low} - {high})"
    # log(1 + t), precise for small t, see `log1p`.
    more = f"select(1 + {t} == 1, {t}, log(1 + {t}) * ({t} / ((1 + {t}) - 1)))"
    value = f"select(isinf({high}), {high}, {high} + {more})"
    lines = [
        f"{there('Y', '0')} = {there('X', '0')}{first}",
        f"{at('Y', own)} = {value} where {rest}",
    ]
    return e.program([(out.dtype, out.shape)], lines, {"X": x}, more=x.shape)[0]


@lowering("cummax.default", "cummin.default")
def prefix_extremes(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The maximum or minimum of all elements up to each, and its last place."""
    x = a["self"]
    if not x.rank or is_empty(x.shape) or x.dtype == "bool":
        raise Unsupported("extremes of nothing")
    axis = axis_of(a["dim"], x.rank)
    op, symbol = ("max", ">=") if a["name"] == "cummax.default" else ("min", "<=")
    own = list(indices(x.rank))
    step = own[axis]
    others = [f"{i} in 0:{e.extent(s)}" for i, s in zip(own, x.shape, strict=True) if i != step]

    def there(name: str, place: str) -> str:
        return at(name, [place if i == step else i for i in own])

    first = f" where {', '.join(others)}" if others else ""
    rest = ", ".join([*others, f"{step} in 1:{e.extent(x.shape[axis])}"])
    here, before = at("X", own), there("Y", f"{step} - 1")
    hit, last = f"{here} {symbol} {before}", there("Y1", f"{step} - 1")
    if x.is_float:
        hit = f"isnan({here}) or ({hit})"
    lines = [
        f"{there('Y', '0')} = {there('X', '0')}{first}",
        f"{at('Y', own)} = {op}({before}, {here}) where {rest}",
        f"{there('Y1', '0')} = int64(0){first}",
        f"{at('Y1', own)} = select({hit}, int64({step}), {last}) where {rest}",
    ]
    outputs = [(x.dtype, x.shape), ("int64", x.shape)]
    return [*e.program(outputs, lines, {"X": x}, more=x.shape)]
