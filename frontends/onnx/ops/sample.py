"""Operators that sample images at data-dependent coordinates.

Sampling along one axis is a sum over filter taps: I[..,r] is the element that tap r reads, W[..,r]
its weight, which is 0 outside of an image that is padded by zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import (
    Extent,
    affine,
    at,
    declare,
    function,
    limited,
    line,
    real,
)
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, InC, Node, Result, Unsupported, Value, operator
from frontends.onnx.core.stages import Array, Body
from frontends.onnx.ops.select import opaque, taken
from frontends.onnx.ops.windows import Window, axis_names, spatial, weights_kernel, windows
from poly.ir.dtypes import BOOL, FLOAT32, FLOAT64, DType

FLOATS = (FLOAT32, FLOAT64)
NO_REGION = "a region is of no image, or too far from it"
_MODES = {"nearest": 1, "linear": 2, "cubic": 4}


@dataclass(frozen=True)
class Axis:
    """A sampled axis: its extent, its padding, and whether -1 is the centre of an element.

    cubic : as in PyTorch, the elements beyond a border are padded then, not the coordinate
    """

    size: Any  # an int or open
    padding: str
    aligned: bool
    cubic: bool = False

    def in_elements(self, coordinate: str) -> str:
        """A coordinate between -1 and 1, converted to elements."""
        if self.aligned:
            return f"({coordinate} + 1) * {real(self.size - 1, 0.5)}"
        return f"(({coordinate} + 1) * {real(self.size)} - 1) * 0.5"

    def padded(self, coordinate: str) -> str:
        """A coordinate, moved into the image unless elements outside are zeros."""
        if self.padding == "border" and not self.cubic:
            return f"min(max({coordinate}, 0.0), {real(self.size - 1)})"
        if self.padding == "reflection":
            low, span = (0.0, self.size - 1) if self.aligned else (-0.5, self.size)
            if not span:
                return f"{coordinate} * 0.0"
            away, twice = f"abs({coordinate} - {low!r})", real(2 * span)
            rest = f"({away} - {twice} * floor({away} / {twice}))"
            return f"({low!r} + min({rest}, {twice} - {rest}))"
        return coordinate

    def element(self, index: str) -> str:
        """The element that an integer index reads: outside the nearest or the mirrored one."""
        if self.padding == "border" and self.cubic:
            return f"min(max({index}, 0), {self.size - 1})"
        if self.padding != "reflection" or self.size == 1:
            return index
        period = 2 * (self.size - 1) if self.aligned else 2 * self.size
        rest = f"({index}) % {period}"
        return f"min({rest}, {period if self.aligned else period - 1} - {rest})"

    def counts(self, index: str, weight: str) -> str:
        """The weight of an element, 0 outside of an image that is padded by zeros."""
        if self.padding != "zeros":
            return weight
        return f"select(0 <= {index} and {index} < {self.size}, {weight}, 0.0)"


def _kind(x: Value) -> DType:
    """The type of coordinates that come from floats."""
    return FLOAT64 if x.dtype == FLOAT64 else FLOAT32


def _weight(taps: int, rest: str, tap: str, kind: DType) -> str:
    """The weight of a tap; `rest` is the distance from the element of tap 0 (cubic: of tap 1)."""
    if taps == 1:
        return "1.0"
    if taps == 2:
        return f"select({tap} == 0, 1.0 - {rest}, {rest})"
    d = f"abs({rest} + 1.0 - {kind}({tap}))"  # R. Keys' kernel with a = -0.75
    near = f"(1.25 * {d} - 2.25) * {d} * {d} + 1.0"
    far = f"((-0.75 * {d} + 3.75) * {d} - 6.0) * {d} + 3.0"
    return f"select({d} <= 1.0, {near}, {far})"


def _sampling(
    axes: Sequence[Axis],
    coordinates: Sequence[str],
    taps: Sequence[str],
    count: int,
    outer: dict[str, Extent],
    exact: bool,
    kind: DType,
) -> tuple[list[str], list[str], str]:
    """Statements for the elements and weights of each axis, their reads, product of the weights.

    coordinates : in elements, as text over the indices of `outer`; exact : round to an element
    kind : the type of coordinates and weights
    """
    lines, reads, weights = [], [], []
    shape = [e[1] - e[0] if isinstance(e, tuple) else e for e in outer.values()]
    indices = list(outer)
    for n, (axis, coordinate, tap) in enumerate(zip(axes, coordinates, taps, strict=True)):
        g, i, w = at(f"G{n}", indices), at(f"I{n}", [*indices, tap]), at(f"W{n}", [*indices, tap])
        moved = axis.padded(f"round({coordinate})" if exact else coordinate)
        ranges: dict[str, Extent] = outer | {tap: count}
        base = f"int64({'round' if exact else 'floor'}({g}))"
        index = base if count == 1 else f"({base} + {tap} - {count // 2 - 1})"
        rest = f"({g} - floor({g}))"
        lines += [
            f"{kind} {at(f'G{n}', shape)}",
            f"int64 {at(f'I{n}', [*shape, count])}",
            f"{kind} {at(f'W{n}', [*shape, count])}",
            line(f"{g} = {moved}", outer),
            line(f"{i} = {axis.element(index)}", ranges),
            line(f"{w} = {axis.counts(index, _weight(count, rest, tap, kind))}", ranges),
        ]
        reads.append(i)
        weights.append(w)
    return lines, reads, " * ".join(weights)


@operator("GridSample")
def grid_sample(node: Node) -> Sequence[Result]:
    """Y[n,c,p,q] = sum over r, s of X[n,c,I0[n,p,q,r],I1[n,p,q,s]] * W0[n,p,q,r] * W1[n,p,q,s]."""
    x, grid = node.required(0), node.required(1)
    rank = x.rank - 2
    if rank < 1 or grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise node.fail(f"a grid of shape {list(grid.shape)} for {list(x.shape)}")
    mode = node.word("mode", "linear" if node.opset >= 20 else "bilinear").removeprefix("bi")
    padding, aligned = node.word("padding_mode", "zeros"), node.flag("align_corners")
    if mode not in _MODES or padding not in ("zeros", "border", "reflection"):
        raise node.fail(f"mode {mode!r}, padding_mode {padding!r}")
    if 0 in x.shape[2:]:
        raise node.fail("the image is empty, so there is nothing to sample")
    if x.dtype == BOOL:
        raise Unsupported("images of bool")
    count = _MODES[mode]
    positions, taps = axis_names(node, rank)
    outer: dict[str, Extent] = {"n": x.shape[0]}
    outer |= dict(zip(positions, grid.shape[1:-1], strict=True))
    axes = [Axis(size, padding, aligned, count == 4) for size in x.shape[2:]]
    kind = _kind(grid) if x.dtype.is_float else FLOAT64
    coordinates = [
        axis.in_elements(f"{kind}({at('N', ['n', *positions, rank - 1 - a])})")
        for a, axis in enumerate(axes)
    ]
    exact = mode == "nearest"
    lines, reads, weight = _sampling(axes, coordinates, taps, count, outer, exact, kind)
    shape = checked_shape((*x.shape[:2], *grid.shape[1:-1]), x.dtype, node.origin)
    free: dict[str, Extent] = dict(zip(("n", "c", *positions), shape, strict=True))
    read, total = at("X", ["n", "c", *reads]), at("S", free)
    kept, value = x.dtype.compute, f"{read} * {weight}"
    if not x.dtype.is_float and exact:
        value = f"select({weight} != 0, {read}, 0)"
    elif not x.dtype.is_float:
        kept, value = FLOAT64, f"{FLOAT64}({read}) * {weight}"
    result = total if kept == x.dtype.compute else f"{x.dtype}({limited(total, x.dtype)})"
    lines += [
        declare("S", kept, shape),
        line(f"{total} +=! {value}", free | dict.fromkeys(taps, count)),
        line(f"{at('Y', free)} = {result}", free),
    ]
    inputs = [declare("X", x.dtype, x.shape), declare("N", grid.dtype, grid.shape)]
    program = function("grid_sample", inputs, [declare("Y", x.dtype, shape)], lines)
    return [Compute(program, (x, grid))]


@dataclass(frozen=True)
class _Deformed:
    """The coordinates at which the taps of a DeformConv read X, and statements over these reads.

    Attributes
    ----------
    parts : groups of channels, each with its own offsets
    positions, taps : names of indices, by axis
    """

    x: Value
    parts: int
    windows: tuple[Window, ...]
    positions: tuple[str, ...]
    taps: tuple[str, ...]

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(s.kernel for s in self.windows)

    @property
    def outs(self) -> tuple[Any, ...]:
        return tuple(s.out for s in self.windows)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the sampled values: channel, tap and position."""
        return (*self.x.shape[:2], *self.kernel, *self.outs)

    @property
    def tap_number(self) -> list[tuple[int, str]]:
        """The number of a tap, as affine terms."""
        return [(math.prod(self.kernel[a + 1 :]), r) for a, r in enumerate(self.taps)]

    def ranges(self, **channels: Extent) -> dict[str, Extent]:
        """The ranges of the indices of elements that are read."""
        extents = zip((*self.taps, *self.positions), (*self.kernel, *self.outs), strict=True)
        return {"n": self.x.shape[0], **channels, **dict(extents)}

    def read(self, tensor: str) -> str:
        """A sampled value, of channel c of part h."""
        channel = affine([(self.x.shape[1] // self.parts, "h"), (1, "c")])
        return at(tensor, ["n", channel, *self.taps, *self.positions])

    def coordinates(self) -> list[str]:
        """The coordinate that a tap reads on each axis, as text."""
        rank, found = len(self.taps), []
        count = math.prod(self.kernel)
        for a, (s, p, r) in enumerate(zip(self.windows, self.positions, self.taps, strict=True)):
            terms = [
                (count * rank, "h"),
                *((rank * factor, name) for factor, name in self.tap_number),
            ]
            offset = at("D", ["n", affine(terms, a), *self.positions])
            here = affine([(s.stride, p), (s.dilation, r)], -s.before)
            kind = _kind(self.x)
            found.append(f"{kind}({here}) + {kind}({offset})")
        return found

    def sampled(self) -> list[str]:
        """Statements for S, the sampled values."""
        axes = [Axis(size, "zeros", True) for size in self.x.shape[2:]]
        corners = tuple(f"a{a}" for a in range(len(axes)))
        outer = self.ranges(h=self.parts)
        lines, reads, weight = _sampling(
            axes, self.coordinates(), corners, 2, outer, exact=False, kind=_kind(self.x)
        )
        per_part = self.x.shape[1] // self.parts
        x = at("X", ["n", affine([(per_part, "h"), (1, "c")]), *reads])
        ranges = self.ranges(h=self.parts, c=per_part) | dict.fromkeys(corners, 2)
        return [
            *lines,
            declare("S", self.x.dtype.compute, self.shape),
            line(f"{self.read('S')} +=! {x} * {weight}", ranges),
        ]

    def masked(self) -> list[str]:
        """Statements for SM, the sampled values times the mask of their taps."""
        number = affine([(math.prod(self.kernel), "h"), *self.tap_number])
        factor = at("M", ["n", number, *self.positions])
        ranges = self.ranges(h=self.parts, c=self.x.shape[1] // self.parts)
        return [
            declare("SM", self.x.dtype.compute, self.shape),
            line(f"{self.read('SM')} = {self.read('S')} * {factor}", ranges),
        ]

    def convolved(self, source: str, weights: Value, group: int, has_bias: bool) -> list[str]:
        """Statements for Y: sampled values times F, summed over taps and channels, and the bias."""
        filters, channels = weights.shape[:2]
        k = affine([(filters // group, "g"), (1, "k")])
        channel = affine([(channels, "g"), (1, "c")])
        value = at(source, ["n", channel, *self.taps, *self.positions])
        product = f"{value} * {at('F', [k, 'c', *self.taps])}"
        free: dict[str, Extent] = {"n": self.x.shape[0], "g": group, "k": filters // group}
        free |= dict(zip(self.positions, self.outs, strict=True))
        summed = free | {"c": channels} | dict(zip(self.taps, self.kernel, strict=True))
        t, y = at("T", ["n", k, *self.positions]), at("Y", ["n", k, *self.positions])
        return [
            declare("T", self.x.dtype.compute, (self.x.shape[0], filters, *self.outs)),
            line(f"{t} +=! {product}", summed),
            line(f"{y} = {t}" + (f" + B[{k}]" if has_bias else ""), free),
        ]


@operator("DeformConv")
def deform_conv(node: Node) -> Sequence[Result]:
    """A convolution, each tap of which reads X at coordinates moved by an offset."""
    x, w, offset = node.required(0), node.required(1), node.required(2)
    bias, mask = node.optional(3), node.optional(4)
    rank = x.rank - 2
    group, parts = node.integer("group", 1), node.integer("offset_group", 1)
    if rank < 1 or w.rank != x.rank or min(group, parts) < 1 or x.shape[1] % parts:
        raise node.fail(
            f"shapes {list(x.shape)} and {list(w.shape)}, {group} groups, {parts} offset groups"
        )
    filters, channels = w.shape[0], w.shape[1]
    if filters % group or channels * group != x.shape[1]:
        raise node.fail(f"{x.shape[1]} channels and {filters} filters in {group} groups")
    kernel = weights_kernel(node, w.shape)
    steps = windows(node, x.shape[2:], kernel, spatial(node, "dilations", rank, 1))
    outs, count = tuple(s.out for s in steps), math.prod(kernel)
    if offset.shape != (x.shape[0], parts * count * rank, *outs):
        raise node.fail(f"offsets of shape {list(offset.shape)} for {list(x.shape)}")
    if mask is not None and mask.shape != (x.shape[0], parts * count, *outs):
        raise node.fail(f"a mask of shape {list(mask.shape)} for {list(x.shape)}")
    deformed = _Deformed(x, parts, steps, *axis_names(node, rank))
    shape = checked_shape((x.shape[0], filters, *outs), x.dtype, node.origin)
    lines = deformed.sampled()
    if mask is not None:
        lines += deformed.masked()
    source = "S" if mask is None else "SM"
    lines += deformed.convolved(source, w, group, bias is not None)
    named = [("X", x), ("F", w), ("D", offset), ("B", bias), ("M", mask)]
    values = [(n, v) for n, v in named if v is not None]
    inputs = [declare(n, v.dtype, v.shape) for n, v in values]
    program = function("deform_conv", inputs, [declare("Y", x.dtype, shape)], lines)
    return [Compute(program, tuple(v for _, v in values))]


@operator("RoiAlign")
def roi_align(node: Node) -> Sequence[Result]:
    """The mean (or maximum) of samples in each cell of a grid over each region."""
    x, rois, batch = node.required(0), node.required(1), node.required(2)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
        raise node.fail(f"regions {list(rois.shape)}, batches {list(batch.shape)}")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = node.word("coordinate_transformation_mode", default) == "half_pixel"
    mode = node.word("mode", "avg")
    rows, columns = node.integer("output_height", 1), node.integer("output_width", 1)
    ratio, scale = node.integer("sampling_ratio", 0), node.number("spatial_scale", 1.0)
    if mode not in ("avg", "max") or rows < 1 or columns < 1 or ratio < 0:
        raise node.fail(f"mode {mode!r}, {rows} x {columns} cells, ratio {ratio}")
    checked_shape((rois.shape[0], x.shape[1], rows, columns), x.dtype, node.origin)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        image, regions, which = (taken(arrays, n) for n in range(3))
        y = np.zeros((len(regions), image.shape[1], rows, columns), image.dtype)
        for n, region in enumerate(regions.astype(np.result_type(regions, np.float32))):
            x0, y0, x1, y1 = region * scale - (0.5 if half else 0.0)
            height, width = y1 - y0, x1 - x0
            if not half:
                height, width = np.maximum((height, width), 1).astype(region.dtype)
            ys = _roi_axis(y0, height, rows, ratio, image.shape[2])
            xs = _roi_axis(x0, width, columns, ratio, image.shape[3])
            y[n] = _roi_cells(image[int(which[n])], ys, xs, mode)
        return [y]

    shape = (rois.shape[0], x.shape[1], rows, columns)
    arguments = (
        rois.shape[0], *x.shape, rows, columns, ratio, scale, 0.5 if half else 0.0,
        int(mode == "max"),
    )  # fmt: skip
    in_c = InC("roi_align", (shape,), arguments, failure=NO_REGION)
    return opaque([x, rois, batch], [x.dtype], run, in_c if x.dtype in FLOATS else None)


def _roi_axis(
    start: float, extent: float, cells: int, ratio: int, size: int
) -> tuple[Array, Array, Array]:
    """Elements and weights [cell, sample, 2] along an axis, and which samples are inside."""
    samples = ratio or max(math.ceil(extent / cells), 0)
    cell = np.arange(cells)[:, None]
    coordinate = start + (cell + (np.arange(samples) + 0.5) / max(samples, 1)) * extent / cells
    inside = (coordinate >= -1) & (coordinate <= size)
    coordinate = np.clip(coordinate, 0, size - 1)
    low = np.minimum(coordinate.astype(np.int64), size - 1)
    rest = coordinate - low
    elements = np.stack([low, np.minimum(low + 1, size - 1)], -1)
    return elements, np.stack([1 - rest, rest], -1), inside


def _roi_cells(
    image: Array,
    ys: tuple[Array, Array, Array],
    xs: tuple[Array, Array, Array],
    mode: str,
) -> Array:
    """The cells [channel, row, column] of one region."""
    rows, columns = ys[0][:, None, :, None, :, None], xs[0][None, :, None, :, None, :]
    corners = image[:, rows, columns].astype(np.float64)
    weights = ys[1][:, None, :, None, :, None] * xs[1][None, :, None, :, None, :]
    inside = ys[2][:, None, :, None, None, None] & xs[2][None, :, None, :, None, None]
    parts = corners * np.where(inside, weights, 0)
    samples = parts.shape[3] * parts.shape[4]
    if not samples:
        found: Array = np.zeros(parts.shape[:3])
    elif mode == "avg":
        found = parts.sum((3, 4, 5, 6)) / samples
    else:
        found = parts.max((3, 4, 5, 6))
    return found.astype(image.dtype)


@operator("MaxRoiPool")
def max_roi_pool(node: Node) -> Sequence[Result]:
    """The maximum in each cell of a grid over each region."""
    x, rois = node.required(0), node.required(1)
    cells = node.ints("pooled_shape") or ()
    scale = node.number("spatial_scale", 1.0)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(cells) != 2 or min(cells) < 1:
        raise node.fail(f"regions {list(rois.shape)}, pooled_shape {list(cells)}")
    checked_shape((rois.shape[0], x.shape[1], *cells), x.dtype, node.origin)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        image, regions = taken(arrays, 0), taken(arrays, 1)
        y = np.zeros((len(regions), image.shape[1], *cells), image.dtype)
        for n, region in enumerate(regions.astype(np.float64)):
            x0, y0, x1, y1 = np.floor(region[1:] * scale + 0.5).astype(np.int64)
            height, width = max(y1 - y0 + 1, 1), max(x1 - x0 + 1, 1)
            for row in range(cells[0]):
                top = min(max(y0 + math.floor(row * height / cells[0]), 0), image.shape[2])
                end = min(max(y0 + math.ceil((row + 1) * height / cells[0]), 0), image.shape[2])
                for column in range(cells[1]):
                    left = x0 + math.floor(column * width / cells[1])
                    stop = x0 + math.ceil((column + 1) * width / cells[1])
                    left, stop = (min(max(v, 0), image.shape[3]) for v in (left, stop))
                    if end > top and stop > left:
                        cell = image[int(region[0]), :, top:end, left:stop]
                        y[n, :, row, column] = cell.max((1, 2))
        return [y]

    shape = (rois.shape[0], x.shape[1], *cells)
    arguments = rois.shape[0], *x.shape, *cells, scale
    in_c = InC("max_roi_pool", (shape,), arguments, failure=NO_REGION)
    return opaque([x, rois], [x.dtype], run, in_c if x.dtype in FLOATS else None)
