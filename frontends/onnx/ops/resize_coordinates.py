"""Coordinates in the input of the results of a resampling.

Coordinates are formulas over the output position p, the scale s and the extents n (in) and m (out).
They apply to numbers for known sizes and to `Formula` for open ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.onnx.core.symbolic_dims import Dim, Extent

#: Coordinate of output position p in the input, by mode: (p, scale, in, out) -> x.
COORDINATES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "half_pixel": lambda p, s, n, m: (p + 0.5) / s - 0.5,
    "asymmetric": lambda p, s, n, m: p / s,
    "align_corners": lambda p, s, n, m: p * (n - 1) / (m - 1) if m > 1 else p * 0.0,
    "pytorch_half_pixel": lambda p, s, n, m: (p + 0.5) / s - 0.5 if m > 1 else p * 0.0,
    "half_pixel_symmetric": lambda p, s, n, m: n / 2 * (1 - m / (n * s)) + (p + 0.5) / s - 0.5,
    "tf_half_pixel_for_nn": lambda p, s, n, m: (p + 0.5) / s,
}

#: For each mode, the element for a coordinate: of an array, and as text.
ROUNDINGS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "round_prefer_floor": (lambda c: np.ceil(c - 0.5), "ceil({} - 0.5)"),
    "round_prefer_ceil": (lambda c: np.floor(c + 0.5), "floor({} + 0.5)"),
    "floor": (np.floor, "floor({})"),
    "ceil": (np.ceil, "ceil({})"),
}


@dataclass(frozen=True)
class Formula:
    """The text of a number that the program computes; `of` is its size, if it is just a size."""

    text: str
    of: Extent = None

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Any) -> Formula:
        return Formula(f"({self} + {other})")

    def __sub__(self, other: Any) -> Formula:
        return Formula(f"({self} - {other})")

    def __rsub__(self, other: Any) -> Formula:
        return Formula(f"({other} - {self})")

    def __mul__(self, other: Any) -> Formula:
        return Formula(f"({self} * {other})")

    def __truediv__(self, other: Any) -> Formula:
        return Formula(f"({self} / {other})")

    def __rtruediv__(self, other: Any) -> Formula:
        return Formula(f"({other} / {self})")

    def __gt__(self, other: int) -> bool:
        return bool(self.of > other)


#: How much an axis grows; a `Formula` where that depends on open sizes.
Scale = float | Formula


def scaled(extent: Extent, scale: float) -> Extent:
    """``floor(extent * scale)``, of a product in float32, as scales are.

    An open extent stays open if the scale is a simple fraction.
    """
    numerator, denominator = scale.as_integer_ratio()
    if isinstance(extent, Dim) and denominator <= 1 << 16:
        return extent * numerator // denominator
    return int(np.float32(int(extent)) * np.float32(scale))


def ratio(size: Extent, extent: Extent) -> Scale:
    """The scale from an extent to a new size."""
    if isinstance(size, Dim) or isinstance(extent, Dim):
        return _size(size, "float64") / _size(extent, "float64")
    return float(size / extent)


def is_open(extent: Extent, out: Extent) -> bool:
    """Whether the coordinates of an axis have to be computed by the program."""
    return isinstance(extent, Dim) or isinstance(out, Dim)


def coordinate(mode: str, index: str, scale: Scale, extent: Extent, out: Extent, dtype: str) -> str:
    """The text of the coordinate of the output position `index`, where sizes are open."""
    sizes = (_size(extent, dtype), _size(out, dtype))
    return str(COORDINATES[mode](Formula(f"{dtype}({index})"), scale, *sizes))


def corner_coordinate(index: str, scale: float, extent: Extent, dtype: str) -> str:
    """The same between aligned corners, for the new size before it is rounded down, as in the
    standard's reference; ONNX Runtime takes the rounded one.
    """
    size = _size(extent, dtype)
    return str(Formula(f"{dtype}({index})") * (size - 1) / (size * scale - 1))


def _size(extent: Extent, dtype: str) -> Formula:
    return Formula(f"{dtype}({extent})", extent)


def whole_scale(scale: Scale, coordinates: str, rounding: str, index: str) -> str | None:
    """The source index for a whole scale, whatever the extent; None if there is no such text."""
    if isinstance(scale, Formula):
        return None
    if scale == 1:
        return index
    halves = coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    if not scale.is_integer() or not (
        (halves and rounding.startswith("round"))
        or (coordinates == "asymmetric" and rounding == "floor")
    ):
        return None
    return f"{index} // {int(scale)}"
