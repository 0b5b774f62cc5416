"""Values of an ATen graph while it is converted: their names, types and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poly.ir.dtypes import DTYPES

#: An int, or an expression of sympy over the sizes that torch left open.
Extent = Any


class Unsupported(Exception):  # noqa: N818 - a signal: the node stays with torch
    """An operator, or a use of one, without a lowering; never leaves this package and its user."""


@dataclass(frozen=True, eq=False)
class Ref:
    """A value by its name in the model."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_integer(self) -> bool:
        return self.dtype != "bool" and not self.is_float


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex value: two real ones of half the size, with its shape."""

    dtype: str
    re: Ref
    im: Ref

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.re.shape

    @property
    def rank(self) -> int:
        return self.re.rank


#: Complex element types, and those of their parts.
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def extent_of(size: Any) -> Extent:
    """A size of a shape: an int, or torch's expression for it."""
    node = getattr(size, "node", None)
    if node is None:
        return int(size)
    found = node.expr
    return int(found) if found.is_Integer else found


def dtype_name(dtype: Any) -> str:
    """Our name of an element type of torch.  Raises `Unsupported` if there is none."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Unsupported(f"{name} elements")
    return name


def described(name: str, tensor: Any) -> Ref | Complex:
    """The value that a fake tensor describes.  Raises `Unsupported`."""
    if not hasattr(tensor, "shape") or not hasattr(tensor, "layout"):
        raise Unsupported(f"a value of type {type(tensor).__name__}")
    if str(tensor.layout) != "torch.strided":
        raise Unsupported(f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}")
    if tensor.device.type != "cpu":
        raise Unsupported(f"a tensor on {tensor.device}")
    if getattr(tensor, "is_quantized", False):
        raise Unsupported("a quantised tensor")
    shape = tuple(map(extent_of, tensor.shape))
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in PARTS:
        re, im = (Ref(f"{name}.{part}", PARTS[dtype], shape) for part in ("re", "im"))
        return Complex(dtype, re, im)
    return Ref(name, dtype_name(tensor.dtype), shape)


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis as 0 … rank-1; of a scalar, 0."""
    return axis % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes as sorted numbers; None and an empty list are all of them."""
    if not rank:
        return ()
    if isinstance(axes, int):
        axes = [axes]
    if axes is None or not list(axes):
        return tuple(range(rank))
    return tuple(sorted({axis_of(a, rank) for a in axes}))


def indices(count: int, letter: str = "i") -> tuple[str, ...]:
    """Names of indices: i0, i1, …"""
    return tuple(f"{letter}{n}" for n in range(count))


def is_empty(shape: Sequence[Extent]) -> bool:
    """Whether a tensor is known to have no elements."""
    return any(isinstance(e, int) and e == 0 for e in shape)


def numel(shape: Sequence[Extent]) -> Extent:
    """The number of elements of a tensor."""
    count: Extent = 1
    for extent in shape:
        count = count * extent
    return int(count) if getattr(count, "is_Integer", False) else count


def wide(dtype: str) -> str:
    """The type in which torch computes: floats of 16 bits would lose most of a sum."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
