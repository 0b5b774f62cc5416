"""Numpy's broadcasting, as index text."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import at
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Node, Value
from frontends.onnx.core.symbolic_dims import Dim, Extent


def broadcast(node: Node, shapes: Sequence[Sequence[Extent]]) -> tuple[Extent, ...]:
    """The common shape; an open size is treated as different from 1.

    Raises
    ------
    ModelError : if there is none.
    """
    rank = max((len(s) for s in shapes), default=0)
    result = []
    for axis in range(rank):
        all_extents = [s[axis - rank] for s in shapes if rank - axis <= len(s)]
        extents = [e for e in all_extents if isinstance(e, Dim) or e != 1]
        extents.sort(key=lambda e: isinstance(e, Dim))  # prefer a number to an open size
        if any(e != extents[0] for e in extents):
            raise node.fail(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
        result.append(extents[0] if extents else 1)
    return tuple(result)


def operand(tensor: str, shape: Sequence[int], indices: Sequence[str], out: Sequence[int]) -> str:
    """The read of a tensor that is broadcast to `out`, whose element is at `indices`.

    >>> operand("B", (1, 5), ("i", "j", "k"), (3, 4, 5))
    'B[0,k]'
    """
    skip = len(out) - len(shape)
    return at(
        tensor,
        [
            0 if _repeats(extent, out[skip + axis]) else indices[skip + axis]
            for axis, extent in enumerate(shape)
        ],
    )


def _repeats(extent: Extent, out: Extent) -> bool:
    """Whether an axis of one element is broadcast."""
    if isinstance(extent, Dim):
        return bool(extent != out)
    return extent == 1 and (isinstance(out, Dim) or out != 1)


def legacy_pair(node: Node, a: Value, b: Value) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Output shape, B's shape as declared and B's first axis in A, before opset 7.

    Raises
    ------
    ModelError : if the shapes do not fit the attributes `broadcast` and `axis`.
    """
    if not node.flag("broadcast"):
        if a.shape != b.shape:
            raise node.fail(f"shapes {list(a.shape)} and {list(b.shape)} differ")
        return a.shape, b.shape, 0
    suffix = a.rank - b.rank
    axis = node.integer("axis", suffix) if "axis" in node.attributes else suffix
    if axis < 0:
        axis += a.rank
    if not 0 <= axis <= suffix:
        raise node.fail(f"{list(b.shape)} does not fit into {list(a.shape)} at axis {axis}")
    covered = a.shape[axis : axis + b.rank]
    if any(e not in (1, c) for e, c in zip(b.shape, covered, strict=True)):
        raise node.fail(f"{list(b.shape)} does not fit into {list(a.shape)} at axis {axis}")
    return a.shape, b.shape, axis


def result_shape(node: Node, shape: Sequence[int], value: Value) -> tuple[int, ...]:
    """`shape`, checked against the limits for a tensor of the type of `value`."""
    return checked_shape(shape, value.dtype, node.origin)
