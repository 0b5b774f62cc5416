"""Resampling: nearest-neighbour as a copy by quasi-affine or tabulated indices, others as sums.

Interpolation runs over one axis after another: with tables I of elements and W of weights,
Y[p] is the sum over filter taps r of X[I[p,r]] * W[p,r].  For open sizes, the program computes the
tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import (
    at,
    declare,
    function,
    limited,
    line,
    literal,
    names,
)
from frontends.onnx.core.node import Compute, Node, Result, Same, Unsupported, Value, operator
from frontends.onnx.core.symbolic_dims import Extent, hint_of, same
from frontends.onnx.ops.broadcasting import result_shape
from frontends.onnx.ops.fill import nothing
from frontends.onnx.ops.resize_coordinates import (
    COORDINATES,
    ROUNDINGS,
    Formula,
    Scale,
    coordinate,
    corner_coordinate,
    is_open,
    ratio,
    scaled,
    whole_scale,
)
from poly.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT64, DType


def _table(text: np.ndarray, index: str, size: int) -> str | None:
    """Quasi-affine text for a table of source indices, None if no simple one fits."""
    out = len(text)
    positions = np.arange(out)
    for scale in {max(1, out // max(size, 1)), max(1, -(-out // max(size, 1)))}:
        if (positions // scale == text).all():
            return index if scale == 1 else f"{index} // {scale}"
    for scale in {max(1, size // max(out, 1)), max(1, -(-size // max(out, 1)))}:
        if (positions * scale == text).all():
            return index if scale == 1 else f"{scale}*{index}"
    return None


def _nearest(
    node: Node,
    x: Value,
    sizes: Sequence[Extent],
    scales: Sequence[Scale],
    coordinates: str,
    rounding: str,
    simple: bool = False,
) -> Result:
    """Y[p,q] = X[I0[p],I1[q]], with quasi-affine indices instead of tables where possible.

    simple : as until opset 10, when coordinates were rounded up along axes that shrink
    """
    shape = result_shape(node, sizes, x)
    indices = names(x.rank)
    inputs: list[str] = [declare("X", x.dtype, x.shape)]
    operands: list[Value | np.ndarray] = [x]
    sources, lines = [], []
    for axis, (extent, out, scale, i) in enumerate(
        zip(x.shape, shape, scales, indices, strict=True)
    ):
        table = f"I{axis}"
        own = "ceil" if simple and not isinstance(scale, Formula) and scale < 1 else rounding
        if is_open(extent, out):
            source = whole_scale(scale, coordinates, own, i)
            if source is None:
                where = coordinate(coordinates, i, scale, extent, out, "float32")
                nearest = ROUNDINGS[own][1].format(where)
                lines += [
                    declare(table, INT64, (out,)),
                    line(f"{table}[{i}] = int64({nearest})", {i: out}),
                ]
                source = f"{table}[{i}]"
        else:
            found = _nearest_indices(extent, out, scale, coordinates, own)
            source = _table(found, i, extent)
            if source is None:
                inputs.append(declare(table, INT64, (out,)))
                operands.append(found)
                source = f"min(max({table}[{i}], 0), {extent - 1})"
        sources.append(source)
    if same(shape, x.shape) and sources == list(indices):
        return Same(x)
    lines.append(
        line(f"{at('Y', indices)} = {at('X', sources)}", dict(zip(indices, shape, strict=True)))
    )
    program = function("resize_nearest", inputs, [declare("Y", x.dtype, shape)], lines)
    return Compute(program, tuple(operands))


def _nearest_indices(
    extent: int, out: int, scale: Scale, coordinates: str, rounding: str
) -> np.ndarray:
    """The source index of each output position of an axis of known sizes."""
    if out == extent and scale == 1:
        return np.arange(out)
    where = COORDINATES[coordinates](np.arange(out, dtype=np.float32), scale, extent, out)
    nearest = ROUNDINGS[rounding][0](np.asarray(where))
    return np.asarray(np.clip(nearest, 0, max(extent - 1, 0)), np.int64)


def _scales(node: Node, given: np.ndarray | None, x: Value) -> tuple[float, ...]:
    if given is None or given.ndim != 1 or given.size != x.rank or given.dtype.kind != "f":
        raise node.fail(f"scales must be {x.rank} floats")
    scales = [float(s) for s in given]
    if any(not 0 < s < 1e6 for s in scales):
        raise node.fail(f"scales {scales} are not positive")
    return tuple(scales)


@operator("Upsample")
def upsample(node: Node) -> Sequence[Result]:
    """Each element repeated."""
    x = node.required(0)
    mode = node.word("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise node.fail(f"mode {mode!r} does not exist")
    if node.opset < 7:
        scales = [1.0, 1.0, node.number("height_scale", 1.0), node.number("width_scale", 1.0)]
        given = np.array(scales)
    elif node.opset < 9:
        listed = node.attributes.get("scales")
        given = np.array(listed if isinstance(listed, tuple) else (), dtype=np.float64)
    else:
        known = node.known(1, "the scales")
        given = np.zeros(0) if known is None else known
    factors = _scales(node, given, x)
    shape = result_shape(node, [scaled(e, s) for e, s in zip(x.shape, factors, strict=True)], x)
    if mode != "nearest":
        return [_interpolated(node, x, shape, factors, "asymmetric", "linear")]
    return [_nearest(node, x, shape, factors, "asymmetric", "floor")]


@operator("Resize", since=10)
def resize(node: Node) -> Sequence[Result]:
    """Nearest-neighbour, linear and cubic resampling in all coordinate and rounding modes."""
    x = node.required(0)
    mode = node.word("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.fail(f"mode {mode!r} does not exist")
    if node.opset < 11:
        factors = _scales(node, node.known(1, "the scales"), x)
        scales: Sequence[Scale] = factors
        coordinates, rounding = "asymmetric", "floor"
        sizes = [scaled(e, s) for e, s in zip(x.shape, factors, strict=True)]
    else:
        coordinates = node.word("coordinate_transformation_mode", "half_pixel")
        rounding = node.word("nearest_mode", "round_prefer_floor")
        sizes, scales = _resize_sizes(node, x)
    if coordinates not in (*COORDINATES, "tf_crop_and_resize"):
        raise node.fail(f"coordinate_transformation_mode {coordinates!r} does not exist")
    if rounding not in ROUNDINGS:
        raise node.fail(f"nearest_mode {rounding!r} does not exist")
    sizes = list(result_shape(node, sizes, x))
    if x.size == 0 and all(sizes):
        raise node.fail("the operand is empty, so there is nothing to resize")
    if mode != "nearest":
        return [_interpolated(node, x, sizes, scales, coordinates, mode)]
    if coordinates == "tf_crop_and_resize":
        raise Unsupported("nearest-neighbour resampling of a cropped region")
    return [_nearest(node, x, sizes, scales, coordinates, rounding, simple=node.opset < 11)]


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """R. Keys' kernel (IEEE Transactions on Acoustics, Speech and Signal Processing, 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    found: np.ndarray = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return found


#: The kernels as text, of the distance and the coefficient.
_KERNELS = {
    "linear": "max(0.0, 1.0 - abs({d}))",
    "cubic": "select(abs({d}) <= 1.0, (({a} + 2.0) * abs({d}) - ({a} + 3.0)) * {d} * {d} + 1.0, "
    "select(abs({d}) < 2.0, (({a} * abs({d}) - 5.0 * {a}) * abs({d}) + 8.0 * {a}) * abs({d}) "
    "- 4.0 * {a}, 0.0))",
}


def _linear(distance: np.ndarray, a: float) -> np.ndarray:
    found: np.ndarray = np.maximum(0.0, 1 - np.abs(distance))
    return found


def _taps(
    node: Node, where: np.ndarray, extent: int, scale: float, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Elements and weights [output position, tap] for positions in the input."""
    kernel, radius = (_linear, 1) if mode == "linear" else (_cubic, 2)
    narrow = min(scale, 1.0) if node.flag("antialias") else 1.0
    reach = math.ceil(radius / narrow)
    if reach * len(where) > 1 << 24:
        raise node.fail(f"{2 * reach} filter taps for {len(where)} positions are too many")
    taps = np.arange(1 - reach, 1 + reach)
    elements = np.floor(where)[:, None] + taps
    weights = kernel((elements - where[:, None]) * narrow, node.number("cubic_coeff_a", -0.75))
    if node.flag("exclude_outside"):
        weights = np.where((elements >= 0) & (elements < extent), weights, 0.0)
    if narrow < 1 or node.flag("exclude_outside"):
        weights = weights / weights.sum(1, keepdims=True)
    used = np.flatnonzero(weights.any(0))  # without taps whose weights are all 0
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 1)
    inside = np.clip(elements, 0, extent - 1).astype(np.int64)
    return np.ascontiguousarray(inside[:, first:last]), np.ascontiguousarray(weights[:, first:last])


def _positions(
    extent: int, out: int, scale: float, coordinates: str, crop: tuple[float, float]
) -> np.ndarray:
    """The coordinates in the input of the output positions of an axis."""
    position = np.arange(out, dtype=np.float64)
    if coordinates == "tf_crop_and_resize":
        start, end = crop
        step = (end - start) * (extent - 1)
        across = position * step / (out - 1) if out > 1 else position + step / 2
        return np.asarray(start * (extent - 1) + across)
    if coordinates == "align_corners" and extent * scale > 1:
        return position * (extent - 1) / (extent * scale - 1)
    return np.asarray(COORDINATES[coordinates](position, scale, extent, out))


def _crops(node: Node, rank: int) -> dict[int, tuple[float, float]]:
    """The cropped part of each axis, in fractions of its extent."""
    given = node.known(1, "the region")
    listed = node.ints("axes")
    axes = range(rank) if listed is None else [node.axis(a, rank) for a in listed]
    if given is None or given.size != 2 * len(axes):
        raise node.fail("the region must have a start and an end for every axis")
    bounds = given.astype(np.float64).reshape(2, -1).T
    return {a: (float(b[0]), float(b[1])) for a, b in zip(axes, bounds, strict=True)}


class _Interpolation:
    """The program of an interpolation, as its axes are written."""

    def __init__(self, node: Node, x: Value, coordinates: str, mode: str) -> None:
        self.node, self.x, self.coordinates, self.mode = node, x, coordinates, mode
        wide = x.dtype == FLOAT64 or (x.dtype.is_integer and x.dtype.bits >= 32)
        self.kept = FLOAT64 if wide else FLOAT32
        self.rounds = x.dtype.is_integer and node.flag("antialias")
        self.crops = _crops(node, x.rank) if coordinates == "tf_crop_and_resize" else {}
        self.indices = list(names(x.rank))
        self.inputs = [declare("X", x.dtype, x.shape)]
        self.operands: list[Value | np.ndarray] = [x]
        self.lines: list[str] = []
        self.outside: list[str] = []
        self.shape, self.source, self.count = list(x.shape), "X", 0

    def axis(self, axis: int, out: Extent, scale: Scale) -> None:
        """Add the sum along one axis, unless the axis is unchanged."""
        extent, i, n = self.x.shape[axis], self.indices[axis], self.count
        unchanged = same([extent], [out]) and not isinstance(scale, Formula) and scale == 1
        if unchanged and axis not in self.crops:
            return
        computed = is_open(extent, out)
        if computed and (
            self.crops or (isinstance(scale, Formula) and self.node.flag("antialias"))
        ):
            extent, out, computed = int(extent), int(out), False
            scale = out / extent if isinstance(scale, Formula) else scale
        if computed:
            taps = self._computed(extent, out, scale, i)
        else:
            assert not isinstance(scale, Formula)
            crop = self.crops.get(axis, (0.0, 1.0))
            positions = _positions(extent, out, scale, self.coordinates, crop)
            if out == extent and np.array_equal(positions, np.arange(out)):
                return
            taps = self._tables(positions, extent, scale, i)
        self.shape[axis] = out
        read = [f"I{n}[{i},r]" if a == axis else index for a, index in enumerate(self.indices)]
        full = dict(zip(self.indices, self.shape, strict=True))
        ranges = full | {"r": taps}
        target, weighted = at(f"T{n}", self.indices), f"{at(self.source, read)} * W{n}[{i},r]"
        self.lines += [
            declare(f"T{n}", self.kept, self.shape),
            line(f"{target} +=! {weighted}", ranges),
        ]
        self.source, self.count = f"T{n}", n + 1
        if self.rounds:
            self.lines += [
                declare(f"R{n}", self.kept, self.shape),
                line(f"{at(f'R{n}', self.indices)} = {self._rounded(target)}", full),
            ]
            self.source = f"R{n}"

    def _rounded(self, value: str) -> str:
        """The nearest integer of the operand's type; of two the greater one, or with 32 bits and
        more the one that is further from 0, as for ONNX Runtime.
        """
        greater = f"floor({value} + 0.5)"
        if self.x.dtype.bits <= 16:
            return self._limited(greater)
        return self._limited(f"select({value} < 0, ceil({value} - 0.5), {greater})")

    def _limited(self, value: str) -> str:
        """The value that the operand's type can hold: a cubic goes beyond its points."""
        beyond = self.mode == "cubic" or self.outside
        return limited(value, self.x.dtype) if beyond else value

    def _operand(self, name: str, dtype: DType, array: np.ndarray) -> None:
        self.inputs.append(declare(name, dtype, array.shape))
        self.operands.append(array.astype(dtype.numpy))

    def _tables(self, positions: np.ndarray, extent: int, scale: float, i: str) -> int:
        """Elements and weights as constants; gives the number of taps."""
        elements, weights = _taps(self.node, positions, extent, scale, self.mode)
        self._operand(f"I{self.count}", INT64, elements)
        self._operand(f"W{self.count}", self.kept, weights)
        beyond = (positions < 0) | (positions > extent - 1)
        if self.crops and beyond.any():
            self._operand(f"E{self.count}", BOOL, beyond)
            self.outside.append(f"E{self.count}[{i}]")
        return len(elements[0])

    def _computed(self, extent: Extent, out: Extent, scale: Scale, i: str) -> int:
        """Elements and weights that the program computes; gives the number of taps."""
        n, node = self.count, self.node
        narrow, reach = 1.0, 1 if self.mode == "linear" else 2
        if node.flag("antialias") and not isinstance(scale, Formula):
            narrow = min(scale, 1.0)
            reach = math.ceil(reach / narrow)
        if self.coordinates == "align_corners" and not isinstance(scale, Formula) and out > 1:
            where = corner_coordinate(i, scale, extent, "float64")
        else:
            where = coordinate(self.coordinates, i, scale, extent, out, "float64")
        centre, element, weight = f"C{n}[{i}]", f"I{n}[{i},r]", f"W{n}[{i},r]"
        distance = f"((float64({element}) - {centre}) * {narrow!r})"
        a = literal(node.number("cubic_coeff_a", -0.75))
        value = _KERNELS[self.mode].format(d=distance, a=a)
        if node.flag("exclude_outside"):
            value = f"select(0 <= {element} and {element} < {extent}, {value}, 0.0)"
        every: dict[str, Extent] = {i: out, "r": 2 * reach}
        self.lines += [
            declare(f"C{n}", FLOAT64, (out,)),
            line(f"{centre} = {where}", {i: out}),
            declare(f"I{n}", INT64, (out, 2 * reach)),
            line(f"{element} = int64(floor({centre})) + r - {reach - 1}", every),
            declare(f"W{n}", self.kept, (out, 2 * reach)),
        ]
        if narrow == 1 and not node.flag("exclude_outside"):
            self.lines.append(line(f"{weight} = {self.kept}({value})", every))
            return 2 * reach
        self.lines += [
            declare(f"U{n}", FLOAT64, (out, 2 * reach)),
            line(f"U{n}[{i},r] = {value}", every),
            declare(f"S{n}", FLOAT64, (out,)),
            line(f"S{n}[{i}] +=! U{n}[{i},r]", every),
            line(f"{weight} = {self.kept}(U{n}[{i},r] / S{n}[{i}])", every),
        ]
        return 2 * reach

    def result(self) -> Result:
        """The program, or the operand if no axis changed."""
        if not self.count:
            return Same(self.x)
        x, value = self.x, at(self.source, self.indices)
        if self.outside:
            fill = literal(self.node.number("extrapolation_value", 0.0))
            value = f"select({' or '.join(self.outside)}, {fill}, {value})"
        if not x.dtype.is_float:
            value = f"{x.dtype}({self._limited(value)})"
        full = dict(zip(self.indices, self.shape, strict=True))
        lines = [*self.lines, line(f"{at('Y', self.indices)} = {value}", full)]
        outputs = [declare("Y", x.dtype, self.shape)]
        program = function(f"resize_{self.mode}", self.inputs, outputs, lines)
        return Compute(program, tuple(self.operands))


def _interpolated(
    node: Node,
    x: Value,
    sizes: Sequence[Extent],
    scales: Sequence[Scale],
    coordinates: str,
    mode: str,
) -> Result:
    """One sum for each axis, those that shrink first, to make later sums smaller; the last axis
    first if sums are rounded.
    """
    if x.dtype == BOOL:
        raise Unsupported(f"mode {mode} for tensors of bool")
    if x.size == 0 or any(e == 0 for e in sizes):
        return nothing(sizes, x.dtype)
    made = _Interpolation(node, x, coordinates, mode)
    grown = [hint_of(out) / hint_of(extent) for extent, out in zip(x.shape, sizes, strict=True)]
    last_first = range(x.rank - 1, -1, -1)
    for axis in last_first if made.rounds else sorted(range(x.rank), key=grown.__getitem__):
        made.axis(axis, sizes[axis], scales[axis])
    return made.result()


def _resize_sizes(node: Node, x: Value) -> tuple[list[Extent], list[Scale]]:
    axes_given = node.ints("axes")
    axes = (
        tuple(range(x.rank))
        if axes_given is None
        else tuple(node.axis(a, x.rank) for a in axes_given)
    )
    scales_given, sizes_given = node.known(2, "the scales"), node.known_ints(3, "the sizes")
    sizes: list[Extent] = list(x.shape)
    scales: list[Scale] = [1.0] * x.rank
    if scales_given is not None and scales_given.size:
        if scales_given.size != len(axes) or scales_given.dtype.kind != "f":
            raise node.fail(f"{scales_given.size} scales for {len(axes)} axes")
        for axis, value in zip(axes, scales_given.reshape(-1), strict=True):
            scale = scales[axis] = float(value)
            if not 0 < scale < 1e6:
                raise node.fail(f"scale {scale} is not positive")
            sizes[axis] = scaled(x.shape[axis], scale)
        return sizes, scales
    if not sizes_given or len(sizes_given) != len(axes):
        raise node.fail("either scales or sizes must be given for every axis")
    policy = node.word("keep_aspect_ratio_policy", "stretch")
    for axis, size in zip(axes, sizes_given, strict=True):
        if policy == "stretch" and same([size, x.shape[axis]], [0, 0]):
            continue
        if size < 1 or x.shape[axis] < 1:
            raise node.fail(f"size {size} from {x.shape[axis]}")
        sizes[axis], scales[axis] = size, ratio(size, x.shape[axis])
    if policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            raise node.fail(f"keep_aspect_ratio_policy {policy!r} does not exist")
        pick = min if policy == "not_larger" else max
        factor = pick(float(sizes[a] / x.shape[a]) for a in axes)
        for axis in axes:
            scales[axis] = factor
            sizes[axis] = math.floor(int(x.shape[axis]) * factor + 0.5)
    return sizes, scales
