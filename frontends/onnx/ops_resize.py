"""Resampling: nearest neighbours as a copy with quasi-affine or tabulated indices, others as sums.

Interpolation runs over one axis after the other: with tables I of elements and W of weights,
Y[p] is the sum over taps r of X[I[p,r]] * W[p,r].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from frontends.onnx.broadcasting import result_shape
from frontends.onnx.dims import Dim, Extent, same
from frontends.onnx.node import Compute, Node, Result, Same, Unsupported, Value, operator
from frontends.onnx.text import at, declare, function, line, literal, names
from poly.dtypes import BOOL, FLOAT32, FLOAT64, INT64


def _table(text: np.ndarray, index: str, size: int) -> str | None:
    """Quasi-affine text for a table of source positions, if a simple one fits."""
    out = len(text)
    positions = np.arange(out)
    for scale in {max(1, out // max(size, 1)), max(1, -(-out // max(size, 1)))}:
        if (positions // scale == text).all():
            return index if scale == 1 else f"{index} // {scale}"
    for scale in {max(1, size // max(out, 1)), max(1, -(-size // max(out, 1)))}:
        if (positions * scale == text).all():
            return index if scale == 1 else f"{scale}*{index}"
    return None


def _repeated(scale: float, coordinates: str, rounding: str, index: str) -> str | None:
    """The source position for a whole scale, whatever the extent; None if there is no such text."""
    if scale == 1:
        return index
    halves = coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    if not float(scale).is_integer() or not (
        (halves and rounding.startswith("round"))
        or (coordinates == "asymmetric" and rounding == "floor")
    ):
        return None
    return f"{index} // {int(scale)}"


def _nearest(
    node: Node, x: Value, sizes: Sequence[Extent], tables: Sequence[np.ndarray | str]
) -> Result:
    """Y[p,q] = X[table[p],table[q]]; a table is text if it is the same for all extents."""
    shape = result_shape(node, sizes, x)
    indices = names(x.rank)
    inputs, values = [declare("X", x.dtype, x.shape)], [x]
    operands: list[Value | np.ndarray] = list(values)
    places = []
    for axis, (table, i) in enumerate(zip(tables, indices, strict=True)):
        place = table if isinstance(table, str) else _table(table, i, x.shape[axis])
        if place is None:
            assert not isinstance(table, str)
            name = f"I{axis}"
            inputs.append(declare(name, INT64, (len(table),)))
            operands.append(table.astype(np.int64))
            place = f"min(max({name}[{i}], 0), {x.shape[axis] - 1})"
        places.append(place)
    if same(shape, x.shape) and places == list(indices):
        return Same(x)
    body = line(f"{at('Y', indices)} = {at('X', places)}", dict(zip(indices, shape, strict=True)))
    program = function("resize_nearest", inputs, [declare("Y", x.dtype, shape)], [body])
    return Compute(program, tuple(operands))


def _scales(node: Node, given: np.ndarray | None, x: Value) -> list[float]:
    if given is None or given.ndim != 1 or given.size != x.rank or given.dtype.kind != "f":
        raise node.fail(f"scales must be {x.rank} floats")
    scales = [float(s) for s in given]
    if any(not 0 < s < 1e6 for s in scales):
        raise node.fail(f"scales {scales} are not positive")
    return scales


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
    shape = result_shape(
        node, [math.floor(e * s) for e, s in zip(x.shape, factors, strict=True)], x
    )
    if mode != "nearest":
        return [_interpolated(node, x, shape, factors, "asymmetric", "linear")]
    tables: list[np.ndarray | str] = []
    for extent, s, out, i in zip(x.shape, factors, shape, names(x.rank), strict=True):
        text = _repeated(s, "asymmetric", "floor", i) if isinstance(extent, Dim) else None
        if text is not None:
            tables.append(text)
            continue
        tables.append(np.minimum(np.floor(np.arange(out) / s).astype(np.int64), extent - 1))
    return [_nearest(node, x, shape, tables)]


#: Coordinate of output position p in the input, by mode: (p, scale, in, out) -> x.
_COORDINATES: dict[str, Callable[[np.ndarray, float, int, int], np.ndarray]] = {
    "half_pixel": lambda p, s, n, m: (p + 0.5) / s - 0.5,
    "asymmetric": lambda p, s, n, m: p / s,
    "align_corners": lambda p, s, n, m: p * ((n - 1) / (m - 1)) if m > 1 else p * 0.0,
    "pytorch_half_pixel": lambda p, s, n, m: (p + 0.5) / s - 0.5 if m > 1 else p * 0.0,
    "half_pixel_symmetric": lambda p, s, n, m: n / 2 * (1 - m / (n * s)) + (p + 0.5) / s - 0.5,
    "tf_half_pixel_for_nn": lambda p, s, n, m: (p + 0.5) / s,
}

_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda c: np.ceil(c - 0.5),
    "round_prefer_ceil": lambda c: np.floor(c + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@operator("Resize", since=10)
def resize(node: Node) -> Sequence[Result]:
    """Nearest neighbours, linear and cubic interpolation in all coordinate and rounding modes."""
    x = node.required(0)
    mode = node.word("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.fail(f"mode {mode!r} does not exist")
    if node.opset < 11:
        scales: list[float] = _scales(node, node.known(1, "the scales"), x)
        coordinates, rounding = "asymmetric", "floor"
        sizes = [math.floor(e * s) for e, s in zip(x.shape, scales, strict=True)]
    else:
        coordinates = node.word("coordinate_transformation_mode", "half_pixel")
        rounding = node.word("nearest_mode", "round_prefer_floor")
        sizes, scales = _resize_sizes(node, x)
    if coordinates not in (*_COORDINATES, "tf_crop_and_resize"):
        raise node.fail(f"coordinate_transformation_mode {coordinates!r} does not exist")
    if rounding not in _ROUNDINGS:
        raise node.fail(f"nearest_mode {rounding!r} does not exist")
    sizes = list(result_shape(node, sizes, x))
    if x.size == 0 and all(sizes):
        raise node.fail("there is nothing to resize")
    if mode != "nearest":
        return [_interpolated(node, x, sizes, scales, coordinates, mode)]
    if coordinates == "tf_crop_and_resize":
        raise Unsupported("nearest neighbours of a crop")
    tables: list[np.ndarray | str] = []
    for extent, out, scale, i in zip(x.shape, sizes, scales, names(x.rank), strict=True):
        if isinstance(extent, Dim):
            text = _repeated(scale, coordinates, rounding, i)
            if text is not None:
                tables.append(text)
                continue
        if out == extent and scale == 1:
            tables.append(np.arange(out))
            continue
        position = np.arange(out, dtype=np.float32)
        where = _COORDINATES[coordinates](position, scale, extent, out)
        nearest = _ROUNDINGS[rounding](where)
        tables.append(np.clip(nearest, 0, max(extent - 1, 0)).astype(np.int64))
    return [_nearest(node, x, sizes, tables)]


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """R. Keys' kernel (IEEE Transactions on Acoustics, Speech and Signal Processing, 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    found: np.ndarray = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return found


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
        raise node.fail(f"{2 * reach} taps for {len(where)} positions")
    taps = np.arange(1 - reach, 1 + reach)
    elements = np.floor(where)[:, None] + taps
    weights = kernel((elements - where[:, None]) * narrow, node.number("cubic_coeff_a", -0.75))
    if node.flag("exclude_outside"):
        weights = np.where((elements >= 0) & (elements < extent), weights, 0.0)
    if narrow < 1 or node.flag("exclude_outside"):
        weights = weights / weights.sum(1, keepdims=True)
    used = np.flatnonzero(weights.any(0))  # without taps that never count
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 1)
    inside = np.clip(elements, 0, extent - 1).astype(np.int64)
    return np.ascontiguousarray(inside[:, first:last]), np.ascontiguousarray(weights[:, first:last])


def _positions(
    node: Node, x: Value, sizes: Sequence[int], scales: Sequence[float], coordinates: str
) -> list[np.ndarray]:
    """For each axis, where in the input the output positions lie."""
    crop: dict[int, tuple[float, float]] = {}
    if coordinates == "tf_crop_and_resize":
        given = node.known(1, "the region")
        listed = node.ints("axes")
        axes = range(x.rank) if listed is None else [node.axis(a, x.rank) for a in listed]
        if given is None or given.size != 2 * len(axes):
            raise node.fail("the region must have a start and an end for every axis")
        bounds = given.astype(np.float64).reshape(2, -1).T
        crop = {a: (float(b[0]), float(b[1])) for a, b in zip(axes, bounds, strict=True)}
    found = []
    for axis, (extent, out, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
        position = np.arange(out, dtype=np.float64)
        if coordinates == "tf_crop_and_resize":
            start, end = crop.get(axis, (0.0, 1.0))
            step = (end - start) * (extent - 1)
            across = position * step / (out - 1) if out > 1 else position + step / 2
            found.append(start * (extent - 1) + across)
        elif coordinates == "align_corners" and extent * scale > 1:
            found.append(position * ((extent - 1) / (extent * scale - 1)))
        else:
            found.append(_COORDINATES[coordinates](position, scale, extent, out))
    return found


def _interpolated(
    node: Node,
    x: Value,
    sizes: Sequence[int],
    scales: Sequence[float],
    coordinates: str,
    mode: str,
) -> Result:
    """One sum an axis; what shrinks first makes the later ones smaller."""
    places = _positions(node, x, sizes, scales, coordinates)
    moved = [
        a
        for a, (extent, out) in enumerate(zip(x.shape, sizes, strict=True))
        if out != extent or not np.array_equal(places[a], np.arange(out))
    ]
    moved.sort(key=lambda a: sizes[a] / x.shape[a])
    if not moved:
        return Same(x)
    kept = FLOAT64 if x.dtype == FLOAT64 else FLOAT32
    indices = list(names(x.rank))
    inputs, operands = [declare("X", x.dtype, x.shape)], [x]
    tables: list[np.ndarray] = []
    lines, shape, source = [], list(x.shape), "X"
    outside: list[str] = []
    for n, axis in enumerate(moved):
        elements, weights = _taps(node, places[axis], x.shape[axis], scales[axis], mode)
        inputs.append(declare(f"I{n}", INT64, elements.shape))
        inputs.append(declare(f"W{n}", kept, weights.shape))
        tables += [elements, weights.astype(kept.numpy)]
        i = indices[axis]
        shape[axis] = sizes[axis]
        read = [f"I{n}[{i},r]" if a == axis else index for a, index in enumerate(indices)]
        ranges = dict(zip(indices, shape, strict=True))
        lines += [
            declare(f"T{n}", kept, shape),
            line(
                f"{at(f'T{n}', indices)} +=! {at(source, read)} * W{n}[{i},r]",
                ranges | {"r": elements.shape[1]},
            ),
        ]
        source = f"T{n}"
        beyond = (places[axis] < 0) | (places[axis] > x.shape[axis] - 1)
        if coordinates == "tf_crop_and_resize" and beyond.any():
            inputs.append(declare(f"E{n}", BOOL, beyond.shape))
            tables.append(beyond)
            outside.append(f"E{n}[{i}]")
    value = at(source, indices)
    if outside:
        fill = literal(node.number("extrapolation_value", 0.0))
        value = f"select({' or '.join(outside)}, {fill}, {value})"
    if not x.dtype.is_float:
        value = f"{x.dtype}({value})"
    full = dict(zip(indices, shape, strict=True))
    lines.append(line(f"{at('Y', indices)} = {value}", full))
    program = function(f"resize_{mode}", inputs, [declare("Y", x.dtype, shape)], lines)
    return Compute(program, (*operands, *tables))


def _resize_sizes(node: Node, x: Value) -> tuple[list[int], list[float]]:
    axes_given = node.ints("axes")
    axes = (
        tuple(range(x.rank))
        if axes_given is None
        else tuple(node.axis(a, x.rank) for a in axes_given)
    )
    scales_given, sizes_given = node.known(2, "the scales"), node.known_ints(3, "the sizes")
    sizes, scales = list(x.shape), [1.0] * x.rank
    if scales_given is not None and scales_given.size:
        if scales_given.size != len(axes) or scales_given.dtype.kind != "f":
            raise node.fail(f"{scales_given.size} scales for {len(axes)} axes")
        for axis, value in zip(axes, scales_given.reshape(-1), strict=True):
            scales[axis] = float(value)
            if not 0 < scales[axis] < 1e6:
                raise node.fail(f"scale {scales[axis]} is not positive")
            sizes[axis] = math.floor(x.shape[axis] * scales[axis])
        return sizes, scales
    if not sizes_given or len(sizes_given) != len(axes):
        raise node.fail("either scales or sizes must be given for every axis")
    policy = node.word("keep_aspect_ratio_policy", "stretch")
    for axis, size in zip(axes, sizes_given, strict=True):
        if size < 1 or x.shape[axis] < 1:
            raise node.fail(f"size {size} from {x.shape[axis]}")
        sizes[axis], scales[axis] = size, size / x.shape[axis]
    if policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            raise node.fail(f"keep_aspect_ratio_policy {policy!r} does not exist")
        pick = min if policy == "not_larger" else max
        factor = pick(scales[a] for a in axes)
        for axis in axes:
            scales[axis] = factor
            sizes[axis] = math.floor(x.shape[axis] * factor + 0.5)
    return sizes, scales
