"""Convolutions: any number of spatial axes, groups, strides, dilations, pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frontends.onnx.core.comprehension_text import Extent, affine, at, declare, function, line
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Node, Result, Value, operator
from frontends.onnx.ops.windows import axis_names, spatial, weights_kernel, windows
from poly.ir.dtypes import DType


def accumulator(dtype: DType) -> DType:
    """The type in which sums of `dtype` are kept."""
    return dtype.compute


@dataclass(frozen=True)
class Convolution:
    """The text of a convolution: Y[output] is a sum over `ranges` of products source * weight.

    shape : of the output; k : the filter's index; outer : ranges of the output's indices
    """

    shape: tuple[int, ...]
    output: tuple[str, ...]
    k: str
    source: str
    weight: str
    outer: Mapping[str, Extent]
    ranges: Mapping[str, Extent]
    guards: tuple[str, ...]

    def sum(self, tensor: str, left: str, right: str) -> str:
        """The statement that sums ``left * right``, formats over source and weight."""
        value = f"{left.format(self.source)} * {right.format(self.weight)}"
        return line(f"{at(tensor, self.output)} +=! {value}", self.ranges, self.guards)


def convolution(node: Node, x: Value, w: Value) -> Convolution:
    """The text of a node's convolution of X with W, under its attributes.

    Raises
    ------
    ModelError : if shapes and attributes do not match.
    """
    if x.rank < 3 or w.rank != x.rank:
        raise node.fail(f"an input of rank {x.rank} with weights of rank {w.rank}")
    group, filters, channels = node.integer("group", 1), w.shape[0], w.shape[1]
    if group < 1 or filters % group or channels * group != x.shape[1]:
        raise node.fail(
            f"{x.shape[1]} channels and {filters} filters of {channels} channels "
            f"do not make {group} groups"
        )
    rank = x.rank - 2
    kernel = weights_kernel(node, w.shape)
    axes = windows(node, x.shape[2:], kernel, spatial(node, "dilations", rank, 1))
    positions, taps = axis_names(node, rank)
    per_group = filters // group
    ranges: dict[str, Extent] = {"n": x.shape[0]}
    filter_terms: list[tuple[int, str]] = []
    channel_terms: list[tuple[int, str]] = []
    if group > 1:
        ranges["g"] = group
        filter_terms.append((per_group, "g"))
        channel_terms.append((channels, "g"))
    if per_group != 1 or group == 1:
        ranges["k"] = per_group
        filter_terms.append((1, "k"))
    ranges |= {p: a.out for p, a in zip(positions, axes, strict=True)}
    outer = dict(ranges)
    if channels != 1 or group == 1:
        ranges["c"] = channels
        channel_terms.append((1, "c"))
    guards: list[str] = []
    for a, p, r in zip(axes, positions, taps, strict=True):
        ranges |= a.ranges(r)
        guards += a.guards(p, r)
    k = affine(filter_terms)
    inside = [a.index(p, r) for a, p, r in zip(axes, positions, taps, strict=True)]
    tap = [r if a.has_taps else 0 for a, r in zip(axes, taps, strict=True)]
    shape = checked_shape((x.shape[0], filters, *(a.out for a in axes)), x.dtype, node.origin)
    return Convolution(
        shape,
        ("n", k, *positions),
        k,
        at("X", ["n", affine(channel_terms), *inside]),
        at("W", [k, "c" if "c" in ranges else 0, *tap]),
        outer,
        ranges,
        tuple(guards),
    )


@operator("Conv")
def conv(node: Node) -> Sequence[Result]:
    """Y[n,g*K+k,p] = B[g*K+k] + sum over c, r of X[n,g*C+c,s*p+d*r-pad] * W[g*K+k,c,r]."""
    x, w, b = node.required(0), node.required(1), node.optional(2)
    c = convolution(node, x, w)
    if b is not None and b.shape != (w.shape[0],):
        raise node.fail(f"a bias of shape {list(b.shape)} for {w.shape[0]} filters")
    y = at("Y", c.output)
    inputs = [declare("X", x.dtype, x.shape), declare("W", w.dtype, w.shape)]
    outputs = [declare("Y", x.dtype, c.shape)]
    if b is None and accumulator(x.dtype) == x.dtype:
        lines = [c.sum("Y", "{0}", "{0}")]
    else:
        lines = [
            declare("T", accumulator(x.dtype), c.shape),
            c.sum("T", "{0}", "{0}"),
            line(f"{y} = {at('T', c.output)}" + (f" + B[{c.k}]" if b else ""), c.outer),
        ]
    operands = (x, w)
    if b is not None:
        inputs.append(declare("B", b.dtype, b.shape))
        operands = (x, w, b)  # type: ignore[assignment]
    return [Compute(function("conv", inputs, outputs, lines), operands)]


@operator("ConvTranspose")
def conv_transpose(node: Node) -> Sequence[Result]:
    """Y[n,k,p] = B[k] + sum over c, r of X[n,c,(p+pad-d*r)/s] * W[c,k,r], where s divides it."""
    x, w, b = node.required(0), node.required(1), node.optional(2)
    if x.rank < 3 or w.rank != x.rank:
        raise node.fail(f"an input of rank {x.rank} with weights of rank {w.rank}")
    rank, group = x.rank - 2, node.integer("group", 1)
    if group < 1 or w.shape[0] != x.shape[1] or w.shape[0] % group:
        raise node.fail(f"{x.shape[1]} channels, weights {list(w.shape)}, {group} groups")
    per_group, channels = w.shape[1], w.shape[0] // group
    filters = per_group * group
    if b is not None and b.shape != (filters,):
        raise node.fail(f"a bias of shape {list(b.shape)} for {filters} filters")
    kernel = weights_kernel(node, w.shape)
    outs, begins = _transposed_sizes(node, x.shape[2:], kernel)
    strides = spatial(node, "strides", rank, 1)
    dilations = spatial(node, "dilations", rank, 1)
    positions, taps = axis_names(node, rank)
    sources, guards = [], []
    for a in range(rank):
        step, size = strides[a], x.shape[2 + a]
        scaled = affine([(1, positions[a]), (-dilations[a], taps[a])], begins[a])
        source = f"({scaled}) // {step}" if step > 1 else scaled
        guards += [f"({scaled}) % {step} == 0"] if step > 1 else []
        guards += [f"0 <= {source}", f"{source} < {size}"]
        sources.append(source)
    shape = checked_shape((x.shape[0], filters, *outs), x.dtype, node.origin)
    ranges: dict[str, Extent] = {"n": x.shape[0]}
    if group > 1:
        ranges["g"] = group
    ranges |= {"k": per_group, **dict(zip(positions, outs, strict=True))}
    outer = dict(ranges)
    ranges |= {"c": channels, **dict(zip(taps, kernel, strict=True))}
    groups = [(per_group, "g"), (1, "k")] if group > 1 else [(1, "k")]
    k = affine(groups)
    c = affine([(channels, "g"), (1, "c")] if group > 1 else [(1, "c")])
    value = f"{at('X', ['n', c, *sources])} * {at('W', [c, 'k', *taps])}"
    y, t = at("Y", ["n", k, *positions]), at("T", ["n", k, *positions])
    if b is None and accumulator(x.dtype) == x.dtype:
        lines = [line(f"{y} +=! {value}", ranges, guards)]
    else:
        lines = [
            declare("T", accumulator(x.dtype), shape),
            line(f"{t} +=! {value}", ranges, guards),
            line(f"{y} = {t}" + (f" + B[{k}]" if b else ""), outer),
        ]
    values = (x, w) if b is None else (x, w, b)
    inputs = [declare(s, v.dtype, v.shape) for s, v in zip("XWB", values, strict=False)]
    program = function("conv_transpose", inputs, [declare("Y", x.dtype, shape)], lines)
    return [Compute(program, values)]


def _transposed_sizes(
    node: Node, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Output sizes and leading pads, as the operator's documentation defines them."""
    rank = len(sizes)
    strides, dilations = spatial(node, "strides", rank, 1), spatial(node, "dilations", rank, 1)
    extra = node.ints("output_padding") or (0,) * rank
    wanted = node.ints("output_shape")
    pads = node.ints("pads") or (0,) * (2 * rank)
    auto = node.word("auto_pad", "NOTSET") or "NOTSET"
    if len(extra) != rank or len(pads) != 2 * rank or (wanted and len(wanted) < rank):
        raise node.fail("pads, output_padding or output_shape has the wrong length")
    if any(not 0 <= v < 1 << 31 for v in (*extra, *pads, *(wanted or ()))):
        raise node.fail("pads, output_padding or output_shape is negative")
    outs, begins = [], []
    for a in range(rank):
        full = strides[a] * (sizes[a] - 1) + extra[a] + (kernel[a] - 1) * dilations[a] + 1
        if wanted or auto in ("SAME_UPPER", "SAME_LOWER"):
            out = wanted[a - rank] if wanted else min(sizes[a] * strides[a], full)
            total = max(0, full - out)
            # Pads that are given beside an output_shape are ignored.
            begin = total - total // 2 if auto != "SAME_UPPER" else total // 2
        else:
            begin, end = (pads[a], pads[a + rank]) if auto == "NOTSET" else (0, 0)
            out = full - begin - end
        if out < 0:
            raise node.fail("the pads are larger than the output")
        outs.append(out)
        begins.append(begin)
    return outs, begins
