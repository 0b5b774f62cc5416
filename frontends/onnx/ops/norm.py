"""Normalisations and the softmax family."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from frontends.onnx.core.comprehension_text import (
    Extent,
    at,
    count_text,
    declare,
    function,
    line,
    literal,
    names,
)
from frontends.onnx.core.node import Compute, Node, Result, Unsupported, Value, operator
from frontends.onnx.ops.broadcasting import broadcast, operand
from frontends.onnx.ops.contrib_schemas import contrib
from frontends.onnx.ops.reduce import Reduction, first_at
from poly.ir.dtypes import INT64


@operator("BatchNormalization")
def batch_normalization(node: Node) -> Sequence[Result]:
    """Y[n,c] = (X[n,c] - M[c]) * A[c] + B[c] with A = S / sqrt(V + epsilon)."""
    x = node.required(0)
    rest = tuple(node.required(p) for p in range(1, 5))
    training = node.opset >= 14 and bool(node.flag("training_mode"))
    if not training and any(node.outputs[1:]):
        raise Unsupported("BatchNormalization in training mode, before opset 14")
    if x.rank < 1:
        raise node.fail("the input is a scalar, and has no channels")
    channels = x.shape[1] if x.rank > 1 else 1
    spatial = node.opset >= 9 or node.flag("spatial", True)
    expected = (channels,) if spatial else x.shape[1:]
    for value in rest:
        if value.shape != expected:
            raise node.fail(f"a parameter has shape {list(value.shape)}, not {list(expected)}")
    indices = ("n", "c", *names(x.rank - 2, ("p", "q", "u")))[: x.rank]
    ranges: dict[str, Extent] = dict(zip(indices, x.shape, strict=True))
    index: tuple[str | int, ...] = indices[1:2] if spatial else indices[1:]
    outer: dict[str, Extent] = {str(i): ranges[str(i)] for i in index}
    if x.rank == 1:
        index, outer = (0,), {}
    epsilon = literal(node.number("epsilon", 1e-5))
    compute = x.dtype.compute
    if training:
        return _batch_normalization_in_training(node, x, rest, indices, ranges)
    a, b = at("A", index), at("B", index)
    mean = at("M", index)
    scale = f"{at('S', index)} / sqrt({at('V', index)} + {epsilon})"
    lines = [
        declare("A", compute, expected),
        line(f"{a} = {scale}", outer),
        line(f"{at('Y', indices)} = ({at('X', indices)} - {mean}) * {a} + {b}", ranges),
    ]
    inputs = [declare(name, v.dtype, v.shape) for name, v in zip("XSBMV", (x, *rest), strict=True)]
    program = function("batch_normalization", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x, *rest))]


def _batch_normalization_in_training(
    node: Node, x: Value, rest: Sequence[Value], indices: Sequence[str],
    ranges: dict[str, Extent],
) -> Sequence[Result]:  # fmt: skip
    """Y[n,c] = (X[n,c] - m[c]) * S[c] / sqrt(v[c] + epsilon) + B[c] with the batch's own mean m and
    variance v, and what running ones become: M[c] * momentum + m[c] * (1 - momentum).
    """
    if x.rank < 2:
        raise Unsupported("BatchNormalization of one dimension in training mode")
    compute, channels = x.dtype.compute, x.shape[1]
    count = count_text(prod(e for n, e in enumerate(x.shape) if n != 1))
    epsilon, momentum = literal(node.number("epsilon", 1e-5)), node.number("momentum", 0.9)
    own, every = {"c": channels}, at("X", indices)
    kept, new = literal(momentum), literal(1 - momentum)
    lines = [
        *(declare(n, compute, (channels,)) for n in ("s", "m", "t", "v", "A")),
        line(f"s[c] +=! {every}", ranges),
        line(f"m[c] = s[c] / {count}", own),
        line(f"t[c] +=! ({every} - m[c]) * ({every} - m[c])", ranges),
        line(f"v[c] = t[c] / {count}", own),
        line(f"A[c] = S[c] / sqrt(v[c] + {epsilon})", own),
        line(f"{at('Y', indices)} = ({every} - m[c]) * A[c] + B[c]", ranges),
        line(f"M2[c] = M[c] * {kept} + m[c] * {new}", own),
        line(f"V2[c] = V[c] * {kept} + v[c] * {new}", own),
    ]
    inputs = [declare(name, v.dtype, v.shape) for name, v in zip("XSBMV", (x, *rest), strict=True)]
    outputs = [
        declare("Y", x.dtype, x.shape), declare("M2", rest[2].dtype, (channels,)),
        declare("V2", rest[3].dtype, (channels,)),
    ]  # fmt: skip
    program = function("batch_normalization", inputs, outputs, lines)
    return [Compute(program, (x, *rest))]


def _softmax_axes(node: Node, x: Value) -> tuple[int, ...]:
    """One axis since opset 13; in older opsets all axes from the given one on."""
    if node.opset >= 13:
        if x.rank == 0:
            raise node.fail("a scalar has no axis")
        return (node.axis(node.integer("axis", -1), x.rank),)
    axis = node.integer("axis", 1)
    if axis == x.rank:
        return ()
    return tuple(range(node.axis(axis, x.rank), x.rank))


@operator("Softmax", "LogSoftmax")
def softmax(node: Node) -> Sequence[Result]:
    """exp(X - max) / sum of exp(X - max), or its logarithm."""
    x = node.required(0)
    r = Reduction(x, _softmax_axes(node, x), keepdims=False)
    compute = x.dtype.compute
    peak, total = r.inner("M"), r.inner("S")
    y, e = at("Y", r.indices), at("E", r.indices)
    lines = [
        declare("M", x.dtype, r.inner_shape),
        line(f"{peak} max=! {r.source}", r.ranges),
    ]
    if node.operator == "Softmax":
        lines += [
            declare("E", compute, x.shape),
            line(f"{e} = exp({r.source} - {peak})", r.ranges),
            declare("S", compute, r.inner_shape),
            line(f"{total} +=! {e}", r.ranges),
            line(f"{y} = {e} / {total}", r.ranges),
        ]
    else:
        lines += [
            declare("S", compute, r.inner_shape),
            line(f"{total} +=! exp({r.source} - {peak})", r.ranges),
            line(f"{y} = {r.source} - {peak} - log({total})", r.ranges),
        ]
    program = function(
        node.operator.lower(), [r.declaration], [declare("Y", x.dtype, x.shape)], lines
    )
    return [Compute(program, (x,))]


@operator("Hardmax")
def hardmax(node: Node) -> Sequence[Result]:
    """1 at the first maximum, 0 elsewhere."""
    x = node.required(0)
    axes = _softmax_axes(node, x)
    r = Reduction(x, axes, keepdims=False)
    flat = "0"
    for axis in axes:
        flat = f"({flat})*{x.shape[axis]} + {r.indices[axis]}" if flat != "0" else r.indices[axis]
    lines = [
        declare("M", x.dtype, r.inner_shape),
        line(f"{r.inner('M')} max=! {r.source}", r.ranges),
        declare("I", INT64, r.inner_shape),
        line(
            f"{r.inner('I')} min=! {first_at(r.source, r.inner('M'), flat, str(r.count), x.dtype)}",
            r.ranges,
        ),
        line(f"{at('Y', r.indices)} = select({r.inner('I')} == {flat}, 1.0, 0.0)", r.ranges),
    ]
    program = function("hardmax", [r.declaration], [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x,))]


def _moments(r: Reduction) -> list[str]:
    """Statements for the mean M and the variance V over the reduced axes, in two passes."""
    compute = r.x.dtype.compute
    m, v = r.inner("M"), r.inner("V")
    total, square, count = r.inner("T"), r.inner("Q"), count_text(r.count)
    return [
        declare("T", compute, r.inner_shape),
        line(f"{total} +=! {r.source}", r.ranges),
        declare("M", compute, r.inner_shape),
        line(f"{m} = {total} / {count}", r.outer),
        declare("Q", compute, r.inner_shape),
        line(f"{square} +=! ({r.source} - {m}) * ({r.source} - {m})", r.ranges),
        declare("V", compute, r.inner_shape),
        line(f"{v} = {square} / {count}", r.outer),
    ]


@operator("InstanceNormalization")
def instance_normalization(node: Node) -> Sequence[Result]:
    """Each channel of each sample gets mean 0 and variance 1, then scale and bias."""
    x, s, b = node.required(0), node.required(1), node.required(2)
    if x.rank < 3 or s.shape != (x.shape[1],) or b.shape != s.shape:
        raise node.fail(f"shapes {list(x.shape)}, {list(s.shape)}, {list(b.shape)} do not fit")
    r = Reduction(x, tuple(range(2, x.rank)), keepdims=False)
    epsilon = literal(node.number("epsilon", 1e-5))
    channel = r.indices[1]
    value = (
        f"({r.source} - {r.inner('M')}) / sqrt({r.inner('V')} + {epsilon})"
        f" * S[{channel}] + B[{channel}]"
    )
    lines = [*_moments(r), line(f"{at('Y', r.indices)} = {value}", r.ranges)]
    inputs = [declare(n, v.dtype, v.shape) for n, v in (("X", x), ("S", s), ("B", b))]
    program = function("instance_normalization", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x, s, b))]


@operator("GroupNormalization", since=18)
def group_normalization(node: Node) -> Sequence[Result]:
    """Each group of channels gets mean 0 and variance 1, then scale and bias."""
    x, s, b = node.required(0), node.required(1), node.required(2)
    groups = node.integer("num_groups", 0)
    if x.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise node.fail(f"{groups} groups of an input of shape {list(x.shape)}")
    expected = (groups,) if node.opset < 21 else (x.shape[1],)
    if s.shape != expected or b.shape != expected:
        raise node.fail(f"scale and bias must have shape {list(expected)}")
    width = x.shape[1] // groups
    where = "g" if node.opset < 21 else f"g*{width} + c"
    spatial = names(x.rank - 2, ("p", "q", "u"))
    element = ("n", f"g*{width} + c", *spatial)
    outer: dict[str, Extent] = {"n": x.shape[0], "g": groups}
    ranges = outer | {"c": width} | dict(zip(spatial, x.shape[2:], strict=True))
    count = 1
    for extent in (width, *x.shape[2:]):
        count *= extent
    compute, shape, source = x.dtype.compute, (x.shape[0], groups), at("X", element)
    epsilon = literal(node.number("epsilon", 1e-5))
    value = f"({source} - M[n,g]) / sqrt(V[n,g] + {epsilon}) * S[{where}] + B[{where}]"
    lines = [
        declare("T", compute, shape),
        line(f"T[n,g] +=! {source}", ranges),
        declare("M", compute, shape),
        line(f"M[n,g] = T[n,g] / {count_text(count)}", outer),
        declare("Q", compute, shape),
        line(f"Q[n,g] +=! ({source} - M[n,g]) * ({source} - M[n,g])", ranges),
        declare("V", compute, shape),
        line(f"V[n,g] = Q[n,g] / {count_text(count)}", outer),
        line(f"{at('Y', element)} = {value}", ranges),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in (("X", x), ("S", s), ("B", b))]
    program = function("group_normalization", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x, s, b))]


def _scaled(
    node: Node, x: Value, value: str, indices: Sequence[str], scale: Value, bias: Value | None
) -> tuple[str, list[str], list[Value]]:
    """`value` times a broadcast scale plus a broadcast bias, with their declarations."""
    inputs, values = [], []
    for name, symbol, v in (("S", "*", scale), ("B", "+", bias)):
        if v is None:
            continue
        if broadcast(node, [v.shape, x.shape]) != x.shape:
            raise node.fail(f"{list(v.shape)} does not broadcast to {list(x.shape)}")
        value = f"{value} {symbol} {operand(name, v.shape, indices, x.shape)}"
        inputs.append(declare(name, v.dtype, v.shape))
        values.append(v)
    return value, inputs, values


# ONNX Runtime's optimiser writes it into models of any opset, where ONNX has it since 17.
@contrib(
    "LayerNormalization", "X:T Scale:T B:T?", "Y:T Mean:U? InvStdDev:U?",
    {"T": "float16 float double bfloat16", "U": "float double"},
    domain="", axis="int", epsilon="float", stash_type="int",
)  # fmt: skip
def layer_normalization(node: Node) -> Sequence[Result]:
    """The trailing axes get mean 0 and variance 1, then scale and bias."""
    x, scale, bias = node.required(0), node.required(1), node.optional(2)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis = node.axis(node.integer("axis", -1), x.rank)
    r = Reduction(x, tuple(range(axis, x.rank)), keepdims=True)
    compute = x.dtype.compute
    epsilon = literal(node.number("epsilon", 1e-5))
    value = f"({r.source} - {r.inner('M')}) * {r.inner('R')}"
    value, inputs, values = _scaled(node, x, value, r.indices, scale, bias)
    lines = [
        *_moments(r),
        declare("R", compute, r.inner_shape),
        line(f"{r.inner('R')} = 1 / sqrt({r.inner('V')} + {epsilon})", r.outer),
        line(f"{at('Y', r.indices)} = {value}", r.ranges),
    ]
    outputs = [declare("Y", x.dtype, x.shape)]
    for position, (name, source) in enumerate((("U", "M"), ("D", "R")), start=1):
        if any(node.outputs[position:]):
            outputs.append(declare(name, compute, r.shape))
            lines.append(line(f"{r.target(name)} = {r.inner(source)}", r.outer))
    program = function("layer_normalization", [r.declaration, *inputs], outputs, lines)
    return [Compute(program, (x, *values))]


@operator("RMSNormalization", since=23)
def rms_normalization(node: Node) -> Sequence[Result]:
    """The trailing axes get a mean square of 1, then a scale."""
    x, scale = node.required(0), node.required(1)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis = node.axis(node.integer("axis", -1), x.rank)
    r = Reduction(x, tuple(range(axis, x.rank)), keepdims=False)
    epsilon = literal(node.number("epsilon", 1e-5))
    q = r.inner("Q")
    value = f"{r.source} / sqrt({q} / {count_text(r.count)} + {epsilon})"
    value, inputs, values = _scaled(node, x, value, r.indices, scale, None)
    lines = [
        declare("Q", x.dtype.compute, r.inner_shape),
        line(f"{q} +=! {r.source} * {r.source}", r.ranges),
        line(f"{at('Y', r.indices)} = {value}", r.ranges),
    ]
    outputs = [declare("Y", x.dtype, x.shape)]
    program = function("rms_normalization", [r.declaration, *inputs], outputs, lines)
    return [Compute(program, (x, *values))]


@operator("LpNormalization")
def lp_normalization(node: Node) -> Sequence[Result]:
    """X / (sum of |X|^p)^(1/p) along an axis, 0 where the norm is 0."""
    x = node.required(0)
    p = node.integer("p", 2)
    if x.rank == 0 or p not in (1, 2):
        raise node.fail(f"rank {x.rank} and p = {p}")
    r = Reduction(x, (node.axis(node.integer("axis", -1), x.rank),), keepdims=False)
    each, norm = (
        (f"abs({r.source})", "{0}") if p == 1 else (f"{r.source} * {r.source}", "sqrt({0})")
    )
    total = norm.format(r.inner("T"))
    lines = [
        declare("T", x.dtype.compute, r.inner_shape),
        line(f"{r.inner('T')} +=! {each}", r.ranges),
        line(
            f"{at('Y', r.indices)} = select({r.inner('T')} == 0, 0, {r.source} / {total})", r.ranges
        ),
    ]
    program = function("lp_normalization", [r.declaration], [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x,))]


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Node) -> Sequence[Result]:
    """(X - mean) / (standard deviation + 1e-9) over the given axes."""
    x = node.required(0)
    axes = node.axes(node.ints("axes") or (0, 2, 3), x.rank)
    r = Reduction(x, axes, keepdims=False)
    value = f"({r.source} - {r.inner('M')}) / (sqrt({r.inner('V')}) + 1e-9)"
    lines = [*_moments(r), line(f"{at('Y', r.indices)} = {value}", r.ranges)]
    program = function(
        "mean_variance_normalization", [r.declaration], [declare("Y", x.dtype, x.shape)], lines
    )
    return [Compute(program, (x,))]
