"""Resampling: nearest neighbours, as a copy with quasi-affine or tabulated indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from frontends.onnx.broadcasting import result_shape
from frontends.onnx.node import Compute, Node, Result, Same, Unsupported, Value, operator
from frontends.onnx.text import at, declare, function, line, names
from poly.dtypes import INT64


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


def _nearest(node: Node, x: Value, tables: Sequence[np.ndarray]) -> Result:
    shape = result_shape(node, [len(t) for t in tables], x)
    indices = names(x.rank)
    inputs, values = [declare("X", x.dtype, x.shape)], [x]
    operands: list[Value | np.ndarray] = list(values)
    places = []
    for axis, (table, i) in enumerate(zip(tables, indices, strict=True)):
        place = _table(table, i, x.shape[axis])
        if place is None:
            name = f"I{axis}"
            inputs.append(declare(name, INT64, (len(table),)))
            operands.append(table.astype(np.int64))
            place = f"min(max({name}[{i}], 0), {x.shape[axis] - 1})"
        places.append(place)
    if shape == x.shape and places == list(indices):
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
    if mode != "nearest":
        raise Unsupported(f"mode {mode}")
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
    tables = []
    for extent, s, out in zip(x.shape, factors, shape, strict=True):
        tables.append(np.minimum(np.floor(np.arange(out) / s).astype(np.int64), extent - 1))
    return [_nearest(node, x, tables)]


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
    """Nearest neighbours in all coordinate and rounding modes."""
    x = node.required(0)
    mode = node.word("mode", "nearest")
    if mode != "nearest":
        raise Unsupported(f"mode {mode}")
    if node.opset < 11:
        scales: list[float] = _scales(node, node.known(1, "the scales"), x)
        coordinates, rounding = "asymmetric", "floor"
        sizes = [math.floor(e * s) for e, s in zip(x.shape, scales, strict=True)]
    else:
        coordinates = node.word("coordinate_transformation_mode", "half_pixel")
        rounding = node.word("nearest_mode", "round_prefer_floor")
        sizes, scales = _resize_sizes(node, x)
    if coordinates not in _COORDINATES:
        raise Unsupported(f"coordinate_transformation_mode {coordinates}")
    if rounding not in _ROUNDINGS:
        raise node.fail(f"nearest_mode {rounding!r} does not exist")
    sizes = [int(e) for e in result_shape(node, sizes, x)]
    if x.size == 0 and all(sizes):
        raise node.fail("there is nothing to resize")
    tables = []
    for extent, out, scale in zip(x.shape, sizes, scales, strict=True):
        if out == extent and scale == 1:
            tables.append(np.arange(out))
            continue
        position = np.arange(out, dtype=np.float32)
        where = _COORDINATES[coordinates](position, scale, extent, out)
        nearest = _ROUNDINGS[rounding](where)
        tables.append(np.clip(nearest, 0, max(extent - 1, 0)).astype(np.int64))
    return [_nearest(node, x, tables)]


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
