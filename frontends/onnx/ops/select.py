"""Operators that select elements by value, at data-dependent indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import at, names
from frontends.onnx.core.node import InC, Node, Opaque, Result, Value, operator
from frontends.onnx.core.stages import Array, Body, OpaqueFunction
from frontends.onnx.core.symbolic_dims import Dim
from frontends.onnx.ops.move import indexed
from poly.ir.dtypes import INT64, DType

#: The part of at least so many elements from which on sorting is faster than a heap of the best.
SORTED, MANY = 0.25, 10_000


def opaque(
    inputs: Sequence[Value | None],
    types: Sequence[DType],
    run: OpaqueFunction,
    in_c: InC | None = None,
    decides: Value | None = None,
) -> Sequence[Result]:
    """The results of a node that numpy computes, or a routine in C."""
    return [Opaque(tuple(inputs), run, tuple(types), in_c=in_c, decides=decides)]


def given(arrays: Sequence[Array | None], position: int) -> Array | None:
    """The array of an operand, None if it is omitted."""
    return arrays[position] if position < len(arrays) else None


def taken(arrays: Sequence[Array | None], position: int) -> Array:
    """The array of an operand that is not omitted."""
    array = arrays[position]
    assert array is not None, "the schema was checked"
    return array


@operator("NonZero")
def non_zero(node: Node) -> Sequence[Result]:
    """The indices of the elements that are not zero, one in each column."""

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        x = np.atleast_1d(taken(arrays, 0))
        return [np.array(np.nonzero(x), np.int64)]

    return opaque([node.required(0)], [INT64], run)


@operator("Compress")
def compress(node: Node) -> Sequence[Result]:
    """The slices along an axis (or elements, without one) for which the condition holds."""
    x = node.required(0)
    axis = node.attributes.get("axis")
    along = None if axis is None else node.axis(node.integer("axis", 0), x.rank)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        return [np.compress(taken(arrays, 1), taken(arrays, 0), along)]

    return opaque([x, node.required(1)], [x.dtype], run)


@operator("Unique")
def unique(node: Node) -> Sequence[Result]:
    """Distinct elements or slices, their first indices, the inverse mapping, and their counts."""
    x = node.required(0)
    ordered = node.flag("sorted", True)
    axis = node.attributes.get("axis")
    along = None if axis is None else node.axis(node.integer("axis", 0), x.rank)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        found, first, inverse, counts = np.unique(taken(arrays, 0), True, True, True, axis=along)
        inverse = inverse.reshape(-1)
        if not ordered:
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            found = np.take(found, order, along or 0)
            first, inverse, counts = first[order], rank[inverse], counts[order]
        return [found, *(a.astype(np.int64) for a in (first, inverse, counts))]

    return opaque([x], [x.dtype, INT64, INT64, INT64], run)


@operator("TopK")
def top_k(node: Node) -> Sequence[Result]:
    """The k greatest (or least) elements along an axis, the first of equals, and their indices."""
    x = node.required(0)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis = node.axis(node.integer("axis", -1), x.rank)
    largest = node.flag("largest", True)
    operands = [x]
    if node.opset >= 10:
        operands.append(node.required(1))
    count = node.integer("k", 0)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        data = taken(arrays, 0)
        k = int(taken(arrays, 1).reshape(-1)[0]) if len(arrays) > 1 else count
        size = data.shape[axis]
        if not 0 <= k <= size:
            raise ValueError(f"{k} of {size} elements")
        if largest:
            # The last of the reversed order is the greatest, and of equals the first.
            backwards = np.argsort(np.flip(data, axis), axis, kind="stable")
            order = size - 1 - np.flip(backwards, axis)
        else:
            order = np.argsort(data, axis, kind="stable")
        chosen = np.take(order, np.arange(k), axis)
        return [np.take_along_axis(data, chosen, axis), chosen.astype(np.int64)]

    k = node.required(1).array if len(operands) > 1 else np.array([count])
    in_c = None
    if k is not None and k.size == 1 and 0 <= k.reshape(-1)[0] <= x.shape[axis]:
        most = k.reshape(-1)[0]
        most = most if isinstance(most, Dim) else int(most)
        shape = (*x.shape[:axis], most, *x.shape[axis + 1 :])
        arguments = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]), most
        mode = "greatest" if largest else "least"
        size = x.shape[axis]
        is_sorted = (
            isinstance(most, int) and isinstance(size, int) and most > max(SORTED * size, MANY)
        )
        in_c = InC("top_k", (shape, shape), arguments, mode, operands=1, is_slow=is_sorted)
    return opaque(operands, [x.dtype, INT64], run, in_c, None if k is not None else operands[1])


@operator("NonMaxSuppression")
def non_max_suppression(node: Node) -> Sequence[Result]:
    """For each batch and class, boxes of high scores that do not overlap a better one too much."""
    boxes, scores = node.required(0), node.required(1)
    if boxes.rank != 3 or boxes.shape[2] != 4 or scores.rank != 3:
        raise node.fail(f"boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    if boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
        raise node.fail(f"boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    centred = node.flag("center_point_box")

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        most, overlap, least = (_number(given(arrays, n)) for n in (2, 3, 4))
        found = []
        for batch, corners in enumerate(_corners(taken(arrays, 0), centred)):
            for kind, score in enumerate(taken(arrays, 1)[batch]):
                kept = _suppressed(corners, score, int(most or 0), overlap or 0.0, least)
                found += [(batch, kind, box) for box in kept]
        return [np.array(found, np.int64).reshape(-1, 3)]

    more = [node.optional(n) for n in (2, 3, 4)]
    return opaque([boxes, scores, *more], [INT64], run)


def _number(array: Array | None) -> float | None:
    return None if array is None or not array.size else float(array.reshape(-1)[0])


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as (y, x) of the lower and the upper corner."""
    if centred:
        centre, half = boxes[..., 1::-1], boxes[..., :1:-1] / 2
        return np.concatenate([centre - half, centre + half], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _suppressed(
    corners: Array, score: Array, most: int, overlap: float, least: float | None
) -> list[int]:
    """The indices of the boxes that are kept, best first."""
    order = np.argsort(-score, kind="stable")
    if least is not None:
        order = order[score[order] > least]
    areas = np.prod(corners[:, 2:] - corners[:, :2], -1)
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(corners[best, :2], corners[order, :2])
        high = np.minimum(corners[best, 2:], corners[order, 2:])
        common = np.prod(np.maximum(high - low, 0), -1)
        together = areas[best] + areas[order] - common
        ratio = np.divide(common, together, out=np.zeros_like(common), where=together > 0)
        order = order[ratio <= overlap]
    return kept


@operator("ReverseSequence")
def reverse_sequence(node: Node) -> Sequence[Result]:
    """The first L[b] elements of each sequence in reverse order."""
    x, lengths = node.required(0), node.required(1)
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if x.rank < 2 or {time, batch} != {0, 1} or lengths.shape != (x.shape[batch],):
        raise node.fail(
            f"axes {time} and {batch} of {list(x.shape)}, lengths {list(lengths.shape)}"
        )
    indices = names(x.rank)
    t, length = indices[time], f"L[{indices[batch]}]"
    reversed_ = f"select({t} < {length}, {length} - 1 - {t}, {t})"
    source = [reversed_ if a == time else i for a, i in enumerate(indices)]
    operands = {"X": x, "L": lengths}
    return [indexed("reverse_sequence", operands, x.dtype, x.shape, at("X", source))]
