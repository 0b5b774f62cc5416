"""Operators that write to given indices, which may be known only while the model runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import Extent, affine, at, declare, function, line
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, InC, Node, Result, Value, operator
from frontends.onnx.core.stages import Array, Body
from frontends.onnx.ops.select import given, opaque, taken
from frontends.onnx.ops.windows import axis_names, spatial
from poly.ir.dtypes import DType

OUT_OF_RANGE = "an index is out of range"
_UPDATES = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _update(y: Array, indices: tuple[Array, ...], values: Array, how: str) -> None:
    """Update elements at indices; of two values for one element, the last one is kept."""
    if how == "none":
        y[indices] = values
    else:
        _UPDATES[how].at(y, indices, values)


def _mode(how: str, dtype: DType) -> str | None:
    """The mode of a routine in C, None if there is none for the type."""
    if how == "none":
        return ""
    return how if dtype.compute == dtype and dtype.kind != "b" else None


def _in_c(
    kind: str, x: Value, arguments: Sequence[Extent | tuple[Extent, ...]], mode: str | None
) -> InC | None:
    """The routine that updates elements of X, None if there is none for the mode."""
    if mode is None:
        return None
    return InC(kind, (x.shape,), tuple(arguments), mode, failure=OUT_OF_RANGE)


def _reduction(node: Node) -> str:
    how = node.word("reduction", "none")
    if how != "none" and how not in _UPDATES:
        raise node.fail(f"reduction = {how!r} does not exist")
    return how


@operator("Scatter", "ScatterElements")
def scatter_elements(node: Node) -> Sequence[Result]:
    """Y = X, then Y[I[i,j], j] = U[i,j] for axis 0, and so on."""
    x, which, updates = node.required(0), node.required(1), node.required(2)
    if x.rank == 0 or which.rank != x.rank or which.shape != updates.shape:
        raise node.fail(
            f"indices {list(which.shape)} and updates {list(updates.shape)} for {list(x.shape)}"
        )
    axis, how = node.axis(node.integer("axis", 0), x.rank), _reduction(node)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        y, index = taken(arrays, 0).copy(), taken(arrays, 1)
        indices: list[Array] = list(np.indices(index.shape, sparse=True))
        indices[axis] = index
        _update(y, tuple(indices), taken(arrays, 2), how)
        return [y]

    mode = _mode(how, x.dtype)
    arguments = x.rank, x.shape, which.shape, axis
    in_c = _in_c("scatter_elements", x, arguments, mode)
    return opaque([x, which, updates], [x.dtype], run, in_c)


@operator("ScatterND")
def scatter_nd(node: Node) -> Sequence[Result]:
    """Y = X, then slices, each selected by a vector of indices, are updated."""
    x, which, updates = node.required(0), node.required(1), node.required(2)
    depth = which.shape[-1] if which.rank else 0
    if not 1 <= depth <= x.rank or updates.shape != (*which.shape[:-1], *x.shape[depth:]):
        raise node.fail(
            f"indices {list(which.shape)} and updates {list(updates.shape)} for {list(x.shape)}"
        )
    how = _reduction(node)

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        y = taken(arrays, 0).copy()
        _update(y, tuple(np.moveaxis(taken(arrays, 1), -1, 0)), taken(arrays, 2), how)
        return [y]

    mode = _mode(how, x.dtype)
    arguments = (
        math.prod(which.shape[:-1]), depth, math.prod(x.shape[depth:]), x.shape[:depth]
    )  # fmt: skip
    in_c = _in_c("scatter_nd", x, arguments, mode)
    return opaque([x, which, updates], [x.dtype], run, in_c)


@operator("TensorScatter")
def tensor_scatter(node: Node) -> Sequence[Result]:
    """Y = X with U written from W[batch] on along an axis, wrapping around if circular."""
    x, updates = node.required(0), node.required(1)
    axis = node.axis(node.integer("axis", -2), x.rank)
    mode = node.word("mode", "linear")
    fits = updates.rank == x.rank and all(
        u == e if a != axis else u <= e
        for a, (u, e) in enumerate(zip(updates.shape, x.shape, strict=False))
    )
    if not fits or axis == 0 or mode not in ("linear", "circular"):
        raise node.fail(f"{list(updates.shape)} into {list(x.shape)} on axis {axis}, {mode}")

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        y, new = taken(arrays, 0).copy(), taken(arrays, 1)
        starts = given(arrays, 2)
        size, count = y.shape[axis], new.shape[axis]
        for batch in range(len(y)):
            start = 0 if starts is None else int(starts[batch])
            written = np.arange(start, start + count)
            if mode == "circular":
                written %= size
            elif count and not 0 <= start <= size - count:
                raise ValueError(f"{count} elements from {start} on exceed {size}")
            row = np.moveaxis(y[batch], axis - 1, 0)
            row[written] = np.moveaxis(new[batch], axis - 1, 0)
        return [y]

    start = node.optional(2)
    if start is not None and start.shape != x.shape[:1]:
        raise node.fail(f"{list(start.shape)} positions for {x.shape[0]} batches")
    in_c = None
    if start is not None or isinstance(x.shape[0], int):
        arguments = (
            x.shape[0], math.prod(x.shape[1:axis]), x.shape[axis], updates.shape[axis],
            math.prod(x.shape[axis + 1 :]), int(mode == "circular"),
        )  # fmt: skip
        tables = () if start is not None else (np.zeros(x.shape[0], np.int64),)
        failure = "elements are written beyond the end of the axis"
        in_c = InC("tensor_scatter", (x.shape,), arguments, tables=tables, failure=failure)
    return opaque([x, updates, start], [x.dtype], run, in_c)


@operator("MaxUnpool")
def max_unpool(node: Node) -> Sequence[Result]:
    """Zeros, with each element of X at the index where MaxPool found it."""
    x, which = node.required(0), node.required(1)
    rank = x.rank - 2
    kernel = node.ints("kernel_shape") or ()
    pads = node.ints("pads") or (0,) * (2 * rank)
    if rank < 1 or len(kernel) != rank or len(pads) != 2 * rank or which.shape != x.shape:
        raise node.fail(
            f"values {list(x.shape)} at {list(which.shape)}, kernel_shape {list(kernel)}, "
            f"{len(pads)} pads"
        )
    strides = spatial(node, "strides", rank, 1)

    def inferred(shape: Sequence[Any]) -> list[Any]:
        ends = zip(shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
        return [*shape[:2], *((n - 1) * step - low - high + k for n, step, k, low, high in ends)]

    # Indices are those in the output shape if it is given, as for ONNX Runtime and torch, so that
    # this undoes a MaxPool of any padding; ONNX's own test has them in the inferred shape.
    wanted = node.known_ints(2, "the output's shape") or inferred(x.shape)
    full = checked_shape(wanted, x.dtype, node.origin)
    if len(full) != x.rank:
        raise node.fail(f"an output of shape {list(full)} for rank {x.rank}")

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        data = taken(arrays, 0)
        asked = given(arrays, 2)
        made = inferred(data.shape) if asked is None else asked.reshape(-1).tolist()
        y = np.zeros(made, data.dtype)
        y.reshape(-1)[taken(arrays, 1).reshape(-1)] = data.reshape(-1)
        return [y]

    arguments = math.prod(full), math.prod(x.shape)
    in_c = InC("max_unpool", (full,), arguments, operands=2, failure=OUT_OF_RANGE)
    return opaque([x, which, node.optional(2)], [x.dtype], run, in_c)


@operator("Col2Im")
def col_to_im(node: Node) -> Sequence[Result]:
    """Y[n,c,s*p+d*r-pad] += X[n,c*R+r,p]: blocks are added where they overlap."""
    x = node.required(0)
    image = node.known_ints(1, "the image's shape")
    block = node.known_ints(2, "the block's shape")
    if not image or not block or len(image) != len(block) or x.rank != 3:
        raise node.fail(f"image {image}, block {block}, operand of rank {x.rank}")
    rank = len(image)
    strides, dilations = spatial(node, "strides", rank, 1), spatial(node, "dilations", rank, 1)
    pads = node.ints("pads") or (0,) * (2 * rank)
    if len(pads) != 2 * rank or any(b < 1 for b in block) or x.shape[1] % math.prod(block):
        raise node.fail(f"{x.shape[1]} channels do not make blocks of {list(block)}")
    counts = [
        (image[a] + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a in range(rank)
    ]
    if math.prod(counts) != x.shape[2] or any(c < 1 for c in counts):
        raise node.fail(f"{x.shape[2]} blocks, but the image has {counts}")
    channels = x.shape[1] // math.prod(block)
    positions, taps = axis_names(node, rank)
    spread = ("h", "w", "v")[:rank] if rank <= 3 else tuple(f"h{a}" for a in range(rank))
    shape = checked_shape((x.shape[0], channels, *image), x.dtype, node.origin)
    everywhere: dict[str, Extent] = {"n": x.shape[0], "c": channels}
    ranges = everywhere | dict(zip((*positions, *taps), (*counts, *block), strict=True))
    terms = [(math.prod(block), "c")]
    terms += [(math.prod(block[a + 1 :]), r) for a, r in enumerate(taps)]
    where = [(math.prod(counts[a + 1 :]), p) for a, p in enumerate(positions)]
    target = [
        affine([(strides[a], positions[a]), (dilations[a], taps[a])], -pads[a]) for a in range(rank)
    ]
    guards = [g for p, e in zip(target, image, strict=True) for g in (f"0 <= {p}", f"{p} < {e}")]
    source = at("X", ["n", affine(terms), affine(where)])
    lines = [
        line(
            f"{at('Y', ['n', 'c', *spread])} = 0",
            everywhere | dict(zip(spread, image, strict=True)),
        ),
        line(f"{at('Y', ['n', 'c', *target])} += {source}", ranges, guards),
    ]
    program = function(
        "col2im", [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, shape)], lines
    )
    return [Compute(program, (x,))]
