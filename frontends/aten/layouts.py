"""The order in which dimensions of torch's tensors lie in memory."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

#: The dimensions from the outermost in memory to the innermost; None: as they are.
Order = tuple[int, ...] | None


def order_of(tensor: Any) -> Order:
    """How a dense tensor lies in memory; None also for one with gaps or overlaps.

    >>> order_of(torch.empty(2, 3, 4, 5, memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    sizes, strides = ([_hint(v) for v in part] for part in (tensor.shape, tensor.stride()))
    if None in sizes or None in strides or math.prod(sizes) <= 1:
        return None
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
    expected: Any = 1
    for axis in reversed(order):
        size = tensor.shape[axis]
        if not hasattr(size, "node") and size == 1:
            continue
        if not _equal(tensor.stride(axis), expected):
            return None
        expected = size * expected
    large = [d for d in order if hasattr(tensor.shape[d], "node") or tensor.shape[d] != 1]
    return None if large == sorted(large) else tuple(order)


def _hint(value: Any) -> Any:
    """The number that a size of torch had when it was traced, None if it had none."""
    return value.node.hint if hasattr(value, "node") else value


def _equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever they are."""
    if not hasattr(a, "node") and not hasattr(b, "node"):
        return bool(a == b)
    symbolic = import_module("torch.fx.experimental.symbolic_shapes")
    return bool(symbolic.statically_known_true(a == b))
