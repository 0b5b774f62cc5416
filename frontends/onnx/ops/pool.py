"""Pooling, sliding and global."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import (
    Extent,
    affine,
    at,
    count_text,
    declare,
    function,
    line,
    literal,
    names,
)
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Node, Result, Value, operator
from frontends.onnx.ops.reduce import first_at
from frontends.onnx.ops.windows import Window, axis_names, spatial, windows
from poly.ir.dtypes import INT64


class _Pool:
    """Shared by all sliding pools: windows, names, ranges and the read of the input."""

    def __init__(self, node: Node) -> None:
        x = node.required(0)
        if x.rank < 3:
            raise node.fail(f"an input of rank {x.rank} has no spatial axis")
        rank = x.rank - 2
        if node.ints("kernel_shape") is None:
            raise node.fail("kernel_shape is missing")
        kernel = spatial(node, "kernel_shape", rank, 1)
        dilations = spatial(node, "dilations", rank, 1)
        self.x = x
        self.axes: tuple[Window, ...] = windows(
            node, x.shape[2:], kernel, dilations, node.flag("ceil_mode")
        )
        self.positions, self.taps = axis_names(node, rank)
        self.shape = checked_shape(
            (*x.shape[:2], *(a.out for a in self.axes)), x.dtype, node.origin
        )
        self.outer: dict[str, Extent] = dict(
            zip(("n", "c", *self.positions), self.shape, strict=True)
        )
        self.ranges = dict(self.outer)
        self.guards: list[str] = []
        for a, p, r in zip(self.axes, self.positions, self.taps, strict=True):
            self.ranges |= a.ranges(r)
            self.guards += a.guards(p, r)
        self.inside = [
            a.index(p, r) for a, p, r in zip(self.axes, self.positions, self.taps, strict=True)
        ]
        self.source = at("X", ["n", "c", *self.inside])
        self.inputs = [declare("X", x.dtype, x.shape)]

    def at(self, tensor: str) -> str:
        return at(tensor, ["n", "c", *self.positions])


@operator("MaxPool")
def max_pool(node: Node) -> Sequence[Result]:
    """Y[n,c,p] max=! X[n,c,s*p+d*r-pad]; the optional Indices are those of the first maximum."""
    pool = _Pool(node)
    x = pool.x
    outputs = [declare("Y", x.dtype, pool.shape)]
    lines = [line(f"{pool.at('Y')} max=! {pool.source}", pool.ranges, pool.guards)]
    if node.has_output(1):
        outputs.append(declare("I", INT64, pool.shape))
        flat = _flat(list(zip(pool.inside, x.shape[2:], strict=True)))
        whole = f"(n*{x.shape[1]} + c)*{_spatial_count(x)}"
        best = first_at(pool.source, pool.at("Y"), flat, str(x.size), x.dtype)
        lines += [
            declare("J", INT64, pool.shape),
            line(f"{pool.at('J')} min=! {best}", pool.ranges, pool.guards),
        ]
        position = pool.at("J")
        if node.integer("storage_order", 0):
            # The first maximum in row-major order, but its index in column-major order.
            parts, rest = [], position
            for size in reversed(x.shape[2:]):
                parts.append((f"({rest} % {size})", size))
                rest = f"({rest} // {size})"
            position = _flat(parts)
        lines.append(line(f"{pool.at('I')} = {whole} + {position}", pool.outer))
    return [Compute(function("max_pool", pool.inputs, outputs, lines), (x,))]


def _flat(axes: Sequence[tuple[str, int]]) -> str:
    """The flat index of an element, from its index along each axis."""
    text = ""
    for index, size in axes:
        text = f"({text})*{size} + ({index})" if text else f"({index})"
    return text


@operator("AveragePool")
def average_pool(node: Node) -> Sequence[Result]:
    """Y = sum of the window / number of elements, counted in closed form at the borders."""
    pool = _Pool(node)
    x = pool.x
    with_padding = node.flag("count_include_pad")
    counts = [a.count(p, with_padding) for a, p in zip(pool.axes, pool.positions, strict=True)]
    constant, varying = 1, []
    for count in counts:
        if count.isdigit():
            constant *= int(count)
        else:
            varying.append(count)
    if varying:
        factors = [str(constant), *varying] if constant != 1 else varying
        divisor = f"{x.dtype.compute}({' * '.join(factors)})"
    else:
        divisor = str(constant)
    lines = [
        declare("T", x.dtype.compute, pool.shape),
        line(f"{pool.at('T')} +=! {pool.source}", pool.ranges, pool.guards),
        line(f"{pool.at('Y')} = {pool.at('T')} / {divisor}", pool.outer),
    ]
    outputs = [declare("Y", x.dtype, pool.shape)]
    return [Compute(function("average_pool", pool.inputs, outputs, lines), (x,))]


@operator("LpPool")
def lp_pool(node: Node) -> Sequence[Result]:
    """Y = (sum of |x|^p over the window)^(1/p)."""
    pool = _Pool(node)
    x = pool.x
    power, root = _powers(node)
    lines = [
        declare("T", x.dtype.compute, pool.shape),
        line(f"{pool.at('T')} +=! {power.format(pool.source)}", pool.ranges, pool.guards),
        line(f"{pool.at('Y')} = {root.format(pool.at('T'))}", pool.outer),
    ]
    outputs = [declare("Y", x.dtype, pool.shape)]
    return [Compute(function("lp_pool", pool.inputs, outputs, lines), (x,))]


def _powers(node: Node) -> tuple[str, str]:
    """Formats of |x|^p and of its inverse, whose gradient at 0 is 0 and not infinite."""
    default = 2
    p = node.number("p", 2.0) if node.opset < 2 else float(node.integer("p", default))
    if not 0 < p < float("inf"):
        raise node.fail(f"p = {p} is not the exponent of a norm; it must be finite and positive")
    if p == 1:
        return "abs({0})", "{0}"
    if p == 2:
        return "{0} * {0}", "select({0} == 0, 0, sqrt({0}))"
    root = f"pow({{0}}, {literal(1.0 / p)})"
    return f"pow(abs({{0}}), {literal(p)})", f"select({{0}} == 0, 0, {root})"


def _global(node: Node, name: str, op: str, each: str, final: str) -> Sequence[Result]:
    x = node.required(0)
    if x.rank < 3:
        raise node.fail(f"an input of rank {x.rank} has no spatial axis")
    indices = ("n", "c", *names(x.rank - 2, ("p", "q", "u")))
    ranges: dict[str, Extent] = dict(zip(indices, x.shape, strict=True))
    outer: dict[str, Extent] = {"n": x.shape[0], "c": x.shape[1]}
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    y = at("Y", ["n", "c", *(0 for _ in x.shape[2:])])
    value = each.format(at("X", indices))
    lines = [
        declare("T", x.dtype.compute, x.shape[:2]),
        line(f"T[n,c] {op} {value}", ranges),
        line(f"{y} = {final.format('T[n,c]')}", outer),
    ]
    inputs = [declare("X", x.dtype, x.shape)]
    return [Compute(function(name, inputs, [declare("Y", x.dtype, shape)], lines), (x,))]


def _spatial_count(x: Value) -> int:
    count = 1
    for extent in x.shape[2:]:
        count *= extent
    return count


@operator("GlobalAveragePool")
def global_average_pool(node: Node) -> Sequence[Result]:
    """The mean over all spatial axes."""
    count = _spatial_count(node.required(0))
    return _global(node, "global_average_pool", "+=!", "{0}", f"{{0}} / {count_text(count)}")


@operator("GlobalMaxPool")
def global_max_pool(node: Node) -> Sequence[Result]:
    """The maximum over all spatial axes."""
    return _global(node, "global_max_pool", "max=!", "{0}", "{0}")


@operator("GlobalLpPool")
def global_lp_pool(node: Node) -> Sequence[Result]:
    """The p-norm over all spatial axes."""
    power, root = _powers(node)
    return _global(node, "global_lp_pool", "+=!", power, root)


@operator("LRN")
def lrn(node: Node) -> Sequence[Result]:
    """Y[n,c] = X[n,c] / (bias + alpha/size * sum of squares of nearby channels)^beta."""
    x = node.required(0)
    size = node.integer("size", 0)
    if x.rank < 2 or not 1 <= size < 1 << 31:
        raise node.fail(f"size {size} and an input of rank {x.rank}; at least 1 and 2 are needed")
    before, after = (size - 1) // 2, size // 2
    channels = x.shape[1]
    indices = ["n", "c", *names(x.rank - 2, ("p", "q", "u"))]
    outer: dict[str, Extent] = dict(zip(indices, x.shape, strict=True))
    guards = []
    if size > 1:
        channel = affine([(1, "c"), (1, "j")], -before)
        ranges = outer | {"j": before + after + 1}
        guards = [f"0 <= {channel}", f"{channel} < {channels}"]
    else:
        channel, ranges = "c", outer
    source = at("X", ["n", channel, *indices[2:]])
    scale = literal(node.number("alpha", 1e-4) / size)
    bias, beta = literal(node.number("bias", 1.0)), literal(node.number("beta", 0.75))
    t = at("T", indices)
    lines = [
        declare("T", x.dtype.compute, x.shape),
        line(f"{t} +=! {source} * {source}", ranges, guards),
        line(
            f"{at('Y', indices)} = {at('X', indices)} / pow({bias} + {scale} * {t}, {beta})", outer
        ),
    ]
    inputs, outputs = [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, x.shape)]
    return [Compute(function("lrn", inputs, outputs, lines), (x,))]
