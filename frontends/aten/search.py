"""Places of values in sorted sequences, and counts of values between edges."""

from __future__ import annotations

import math

from frontends.aten.emitter import Emitter, converted
from frontends.aten.pointwise import computed, promoted
from frontends.aten.reduce import reduced
from frontends.aten.registry import Arguments, lowering
from frontends.aten.steps import Steps
from frontends.aten.values import Ref, Unsupported, is_empty
from frontends.onnx.core.comprehension_text import at

#: The most elements a sequence of an open size may have: 2 to the power of this.
_BITS = 38
#: The most comparisons of elements with bins.
_MOST = 1 << 28


@lowering("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar")
def search(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """How many elements of a sequence are less than each value (or not greater), by bisection."""
    sequence = a["boundaries"] if "boundaries" in a else a["sorted_sequence"]
    value, out = a["self"], outs[0]
    right = bool(a.get("right")) or a.get("side") == "right"
    if is_empty(sequence.shape):
        return computed(e, "0", {}, out)
    dtype = promoted(sequence, value)
    dtype = "int32" if dtype == "bool" else dtype
    sorter = a.get("sorter")
    s = Steps(e, {"value": value}, out)
    s.reads.inputs["B"] = sequence
    if sorter is not None:
        s.reads.inputs["O"] = sorter
    v = s.let(s.read("value", dtype), dtype)
    rows = s.own[: sequence.rank - 1]
    n = s.size(sequence.shape[-1])

    def element(place: str) -> str:
        if sorter is not None:
            place = at("O", [*rows, place])
        return converted(at("B", [*rows, place]), sequence.dtype, dtype)

    begin, end, middle = s.let("0", "int64"), s.let(f"int64({n})", "int64"), s.let("0", "int64")
    before = "{m} <= {v}" if right else "{m} < {v}"
    after = before.replace("<=", ">").replace("<", ">=")
    # As in torch, what is not comparable is before.
    beyond = f"not ({after.format(m=element(middle), v=v)})"
    length = sequence.shape[-1]
    steps = length.bit_length() if isinstance(length, int) else _BITS
    s.loop(
        "k", 0, steps,
        [
            (middle, f"({begin} + {end}) // 2"),
            (begin, f"select({begin} < {end} and {beyond}, {middle} + 1, {begin})"),
            (end, f"select({begin} <= {middle}, min({end}, {middle}), {end})"),
        ],
    )  # fmt: skip
    return s.result(begin)


# --- histograms -----------------------------------------------------------------------------------


def _summed(e: Emitter, places: Ref, weight: Ref | None, out: Ref) -> Ref:
    """The sum of weights (or the number) of elements with each place; -1 is none."""
    (n,), (bins,) = places.shape, out.shape
    if n * bins > _MOST:
        raise Unsupported(f"more than {_MOST} comparisons of elements with bins")
    one = f"{out.dtype}(1)" if weight is None else "W[i0]"
    given = {"P": places} if weight is None else {"P": places, "W": e.reshape(weight, (n,))}
    line = e.line(f"Y[b] +=! select(P[i0] == b, {one}, 0)", ["b", "i0"], [bins, n])
    return e.program([(out.dtype, (bins,))], [line], given)[0]


def _length(x: Ref) -> int:
    """The number of elements."""
    if not all(isinstance(s, int) for s in x.shape):
        raise Unsupported("a histogram of an open size")
    return math.prod(x.shape)


def _range(
    e: Emitter, x: Ref, least: float | None, most: float | None, wider: float
) -> tuple[Ref, Ref]:
    """The range of a histogram: what is given, or that of the elements, wider if it is a point."""
    if least is None or most is None:
        if is_empty(x.shape):
            return _range(e, x, 0.0, 1.0, wider)
        ends = [
            reduced(e, x, range(x.rank), Ref("", x.dtype, ()), op, x.dtype) for op in ("min", "max")
        ]
    else:
        ends = [computed(e, repr(float(v)), {}, Ref("", x.dtype, ())) for v in (least, most)]
    shift = f"select({{low}} == {{high}}, {wider}, 0)"
    names = {"low": ends[0], "high": ends[1]}
    scalar = Ref("", x.dtype, ())
    low = computed(e, f"{{low}} - {shift}", names, scalar)
    return low, computed(e, f"{{high}} + {shift}", names, scalar)


@lowering("histc.default")
def histc(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """How many elements are in each of so many equal parts of a range."""
    x, bins, out = a["self"], a["bins"], outs[0]
    least, most = a.get("min", 0), a.get("max", 0)
    low, high = _range(e, x, None if least == most == 0 else least, most, 1)
    if is_empty(x.shape):
        return computed(e, "0", {}, out)

    n = _length(x)
    part = f"int64((X[i0] - L[]) * {x.dtype}({bins}) / (H[] - L[]))"
    value = f"select(X[i0] >= L[] and X[i0] <= H[], min({part}, {bins - 1}), -1)"
    given = {"X": e.reshape(x, (n,)), "L": low, "H": high}
    return _summed(e, e.each("int64", (n,), value, given), None, out)


@lowering("histogram.bin_ct", "histogram.bins_tensor")
def histogram(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The sum of weights in each bin, and the edges of bins."""
    x, out = a["self"], outs[0]
    count = out.shape[0]
    if isinstance(a["bins"], Ref):
        edges = a["bins"]
    else:
        least, most = a.get("range") or (None, None)
        low, high = _range(e, x, least, most, 0.5)
        edges = _edges(e, low, high, count)
    found = _binned(e, x, edges, a.get("weight"), not isinstance(a["bins"], Ref), out)
    if a.get("density"):
        total = reduced(e, found, [0], Ref("", out.dtype, ()), "+", out.dtype)
        width = "(E[i0 + 1] - E[i0])"
        inputs = {"X": found, "E": edges, "T": total}
        found = e.each(out.dtype, out.shape, f"X[i0] / T[] / {width}", inputs)
    return [found, edges]


def _edges(e: Emitter, low: Ref, high: Ref, bins: int) -> Ref:
    """Equal parts, from both ends to the middle."""
    step = f"(H[] - L[]) / {bins}"
    value = f"select(i0 < {(bins + 1) // 2}, L[] + {step} * i0, H[] - {step} * ({bins} - i0))"
    return e.each(low.dtype, (bins + 1,), value, {"L": low, "H": high})


def _binned(e: Emitter, x: Ref, edges: Ref, weight: Ref | None, equal: bool, out: Ref) -> Ref:
    """The sum of weights between edges; the last bin has its right edge, too."""
    bins = edges.shape[0] - 1
    if is_empty(x.shape) or bins < 1:
        return computed(e, "0", {}, out)
    n = _length(x)
    flat = e.reshape(x, (n,))
    if equal:
        first = f"int64((X[i0] - E[0]) * {bins} / (E[{bins}] - E[0]))"
        near = [f"select(K[i0] + {d} <= {bins}, E[K[i0] + {d}], inf)" for d in range(3)]
        lines = [
            e.line(f"K[i0] = max(min({first}, {bins}) - 1, 0)", ["i0"], [n]),
            e.line(
                "Y[i0] = K[i0] - 1 + " + " + ".join(f"int64({v} <= X[i0])" for v in near),
                ["i0"], [n],
            ),
        ]  # fmt: skip
        inputs = {"X": flat, "E": edges}
        (where,) = e.program([("int64", (n,))], lines, inputs, [("K", "int64", (n,))])
    else:
        given = {"name": "", "self": flat, "boundaries": edges, "right": True}
        after = search(e, given, [Ref("", "int64", (n,))])
        where = e.each("int64", (n,), "X[i0] - 1", {"X": after})
    inputs = {"X": flat, "E": edges, "P": where}
    inside = f"X[i0] >= E[0] and X[i0] <= E[{bins}]"
    own = e.each("int64", (n,), f"select({inside}, min(P[i0], {bins - 1}), -1)", inputs)
    return _summed(e, own, weight, out)
