"""The order in which dimensions of torch's tensors lie in memory."""

from __future__ import annotations

from typing import Any

#: The dimensions from the outermost in memory to the innermost; None: as they are.
Order = tuple[int, ...] | None


def order_of(tensor: Any) -> Order:
    """How a dense tensor lies in memory; None also for one with gaps or overlaps.

    >>> order_of(torch.empty(2, 3, 4, 5, memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    if any(hasattr(v, "node") for v in (*tensor.shape, *tensor.stride())) or tensor.numel() <= 1:
        return None
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    expected = 1
    for axis in reversed(order):
        if tensor.shape[axis] == 1:
            continue
        if tensor.stride(axis) != expected:
            return None
        expected *= tensor.shape[axis]
    large = [d for d in order if tensor.shape[d] != 1]
    return None if large == sorted(large) else tuple(order)
