"""Samples of images at places that a grid says, and their gradients, in operators of torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

torch: Any = import_module("torch")


@dataclass(frozen=True)
class Coordinate:
    """Where samples lie along one dimension of `size`, and how that grows with the grid."""

    place: Any
    slope: Any
    size: int


def coordinates(grid: Any, sizes: Sequence[int], border: int, aligned: bool) -> list[Coordinate]:
    """The coordinates of a grid, of which the last is that of the first dimension.

    border : 0 is around by zeros, 1 by the outermost elements, 2 mirrors
    """
    found = []
    for axis, size in enumerate(sizes):
        given = grid[..., len(sizes) - 1 - axis]
        factor = (size - 1) / 2 if aligned else size / 2
        place = given * factor + (size - 1) / 2
        slope = torch.full_like(place, factor)
        if border == 2:
            place, slope = _mirrored(place, slope, size, aligned)
        if border:
            slope = torch.where((place > 0) & (place < size - 1), slope, 0)
            place = place.clamp(0, size - 1)
        found.append(Coordinate(place, slope, size))
    return found


def _mirrored(place: Any, slope: Any, size: int, aligned: bool) -> tuple[Any, Any]:
    low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
    if not span:
        return torch.zeros_like(place), torch.zeros_like(slope)
    away = (place - low).abs()
    rest = torch.fmod(away, span)
    even = torch.fmod((away / span).floor(), 2) == 0
    slope = torch.where((place < low) != even, slope, -slope)
    return torch.where(even, rest, span - rest) + low, slope


@dataclass(frozen=True)
class Corner:
    """An element near each sample.

    index : in the image as a vector; inside : whether it is one
    weights, signs : along each dimension, and how they grow with the coordinate
    """

    index: Any
    inside: Any
    weights: list[Any]
    signs: list[float]

    def weight(self, without: int | None = None) -> Any:
        """The product of weights, of one dimension its slope instead."""
        parts = [w for n, w in enumerate(self.weights) if n != without]
        found = math.prod(parts, start=torch.ones_like(self.weights[0]))
        return found if without is None else found * self.signs[without]


def corners(where: Sequence[Coordinate], nearest: bool) -> Iterator[Corner]:
    """The elements of which a sample is made."""
    for ends in [(0,) * len(where)] if nearest else product((0, 1), repeat=len(where)):
        index, inside = None, None
        weights: list[Any] = []
        for c, end in zip(where, ends, strict=True):
            near = c.place.round() if nearest else c.place.floor() + end
            there = (near >= 0) & (near <= c.size - 1)
            rest = (near - c.place).abs()
            weights.append(torch.ones_like(rest) if nearest else 1 - rest)
            place = torch.where(there, near, 0).to(torch.int64)
            index = place if index is None else index * c.size + place
            inside = there if inside is None else inside & there
        yield Corner(index, inside, weights, [1.0 if end else -1.0 for end in ends])


def _flat(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1)


def _wide(index: Any, channels: int) -> Any:
    """An index for all channels, of an image as a vector."""
    rows = index.reshape(index.shape[0], 1, -1)
    return rows.expand(rows.shape[0], channels, rows.shape[2])


def sample(x: Any, grid: Any, mode: int, border: int, aligned: bool) -> Any:
    """The image at the grid's places; `mode` is 0 for linear, 1 for nearest."""
    where = coordinates(grid, x.shape[2:], border, aligned)
    flat, channels = _flat(x), x.shape[1]
    total = None
    for corner in corners(where, mode == 1):
        weight = torch.where(corner.inside, corner.weight(), 0)
        part = flat.gather(2, _wide(corner.index, channels)) * _wide(weight, channels)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


def sample_backward(
    grad: Any, x: Any, grid: Any, mode: int, border: int, aligned: bool
) -> tuple[Any, Any]:
    """The gradients of the image and the grid."""
    where = coordinates(grid, x.shape[2:], border, aligned)
    flat, channels, given = _flat(x), x.shape[1], _flat(grad)
    of_image, of_places = torch.zeros_like(flat), [torch.zeros_like(c.place) for c in where]
    for corner in corners(where, mode == 1):
        index = _wide(corner.index, channels)
        weight = torch.where(corner.inside, corner.weight(), 0)
        of_image = of_image.scatter_add(2, index, given * _wide(weight, channels))
        if mode == 1:
            continue
        along = (flat.gather(2, index) * given).sum(1).reshape(weight.shape)
        along = torch.where(corner.inside, along, 0)
        of_places = [total + along * corner.weight(n) for n, total in enumerate(of_places)]
    slopes = [total * c.slope for total, c in zip(of_places, where, strict=True)]
    return of_image.reshape(x.shape), torch.stack(slopes[::-1], -1)
