"""Operators that move elements: each is a copy with other indices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import helper

from frontends.onnx.bodies.inline import constant_node
from frontends.onnx.core.comprehension_text import (
    affine,
    at,
    declare,
    function,
    line,
    literal,
    names,
)
from frontends.onnx.core.node import (
    Compute,
    Expanded,
    Node,
    Reshaped,
    Result,
    Same,
    Unsupported,
    Value,
    operator,
)
from frontends.onnx.core.symbolic_dims import Dim, Extent, is_one, same
from frontends.onnx.core.tensors import element_type
from frontends.onnx.ops.broadcasting import broadcast, operand, result_shape
from frontends.onnx.ops.fill import nothing
from poly.ir.dtypes import DType


def indexed(
    name: str,
    operands: Mapping[str, Value],
    dtype: DType,
    shape: Sequence[int],
    value: str,
) -> Compute:
    """Y[i,j,…] = value for every element of the output."""
    indices = names(len(shape))
    body = line(f"{at('Y', indices)} = {value}", dict(zip(indices, shape, strict=True)))
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function(name, inputs, [declare("Y", dtype, shape)], [body])
    return Compute(program, tuple(operands.values()))


@operator("Transpose")
def transpose(node: Node) -> Sequence[Result]:
    """Y[i,j] = X[j,i]; a view if only axes of extent 1 move."""
    x = node.required(0)
    perm = node.ints("perm")
    if perm is None:
        perm = tuple(reversed(range(x.rank)))
    if sorted(perm) != list(range(x.rank)):
        raise node.fail(f"{list(perm)} is not a permutation of {x.rank} axes")
    shape = tuple(x.shape[p] for p in perm)
    moving = [p for p in perm if not is_one(x.shape[p])]
    if moving == sorted(moving) or x.size == 0:
        return [Same(x) if same(shape, x.shape) else Reshaped(x, shape)]
    indices = names(x.rank)
    source = [""] * x.rank
    for axis, p in enumerate(perm):
        source[p] = indices[axis]
    return [indexed("transpose", {"X": x}, x.dtype, shape, at("X", source))]


@operator("Expand")
def expand(node: Node) -> Sequence[Result]:
    """The operand, broadcast with a shape."""
    x = node.required(0)
    given = node.known_ints(1, "the new shape")
    if given is None or any(e < 0 for e in given):
        raise node.fail("the new shape is missing or negative")
    shape = result_shape(node, broadcast(node, [x.shape, given]), x)
    if same(shape, x.shape):
        return [Same(x)]
    if same([math.prod(shape)], [x.size]):
        return [Reshaped(x, shape)]
    value = operand("X", x.shape, names(len(shape)), shape)
    return [indexed("expand", {"X": x}, x.dtype, shape, value)]


@operator("Tile")
def tile(node: Node) -> Sequence[Result]:
    """Y[a*size + i] = X[i] for each repetition a."""
    x = node.required(0)
    if node.opset < 6:
        tiles, axis = node.known_ints(1, "the repetitions"), node.known_ints(2, "the axis")
        if tiles is None or axis is None or len(tiles) != 1 or len(axis) != 1:
            raise node.fail("tiles and axis must be numbers")
        repeats = [1] * x.rank
        if x.rank == 0:
            raise node.fail("a scalar has no axis")
        repeats[node.axis(axis[0], x.rank)] = tiles[0]
    else:
        given = node.known_ints(1, "the repetitions")
        repeats = list(given or ())
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise node.fail(f"repetitions {repeats} do not fit {list(x.shape)}")
    shape = result_shape(node, [r * e for r, e in zip(repeats, x.shape, strict=True)], x)
    if same(shape, x.shape):
        return [Same(x)]
    if x.size == 0:
        return [nothing(shape, x.dtype)]
    moved = [e for r, e in zip(repeats, x.shape, strict=True) if not is_one(r)]
    if node.opset >= 6 and any(isinstance(e, Dim) for e in moved):
        return [_tiled_by_axes(node)]
    indices = names(x.rank)
    again = names(x.rank, ("a", "b", "d", "e", "f", "g"))
    ranges: dict[str, Extent] = {}
    target = []
    for r, extent, a, i in zip(repeats, x.shape, again, indices, strict=True):
        if r != 1:
            ranges[a] = r
        ranges[i] = extent
        target.append(i if r == 1 else affine([(extent, a), (1, i)]))
    body = line(f"{at('Y', target)} = {at('X', indices)}", ranges)
    inputs, outputs = [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, shape)]
    return [Compute(function("tile", inputs, outputs, [body]), (x,))]


def _tiled_by_axes(node: Node) -> Expanded:
    """Tiling by one new axis for each axis, since an open extent cannot be a factor of an index."""
    scope, rank = node.surroundings, node.required(0).rank
    (x, repeats, *_), (output, *_) = scope.proto.input, scope.proto.output
    make, at_ = helper.make_node, scope.prefix.__add__
    nodes = [
        constant_node(at_("axes"), np.arange(0, 2 * rank, 2)),
        make("Unsqueeze", [x, at_("axes")], [at_("apart")]),
        # For each axis the number of repetitions and 1.
        constant_node(at_("second"), np.array([1])),
        make("Unsqueeze", [repeats, at_("second")], [at_("times")]),
        constant_node(at_("ones"), np.ones((rank, 1), np.int64)),
        make("Concat", [at_("times"), at_("ones")], [at_("pairs")], axis=1),
        constant_node(at_("flat"), np.array([-1])),
        make("Reshape", [at_("pairs"), at_("flat")], [at_("shape")]),
        make("Expand", [at_("apart"), at_("shape")], [at_("again")]),
        make("Shape", [x], [at_("extents")]),
        make("Mul", [at_("extents"), repeats], [at_("result")]),
        make("Reshape", [at_("again"), at_("result")], [output]),
    ]
    return Expanded(tuple(nodes), {"": 13})


@operator("Concat")
def concat(node: Node) -> Sequence[Result]:
    """One statement for each operand, at its offset."""
    values = node.operands
    if not values or values[0].rank == 0:
        raise node.fail("nothing to concatenate")
    first = values[0]
    if node.opset >= 4 and "axis" not in node.attributes:
        raise node.fail("attribute axis is missing")
    axis = node.axis(node.integer("axis", 1), first.rank)
    indices = names(first.rank)
    offset, lines = 0, []
    local: dict[Value, str] = {}
    for value in values:
        if value.rank != first.rank or any(
            e != f
            for a, (e, f) in enumerate(zip(value.shape, first.shape, strict=True))
            if a != axis
        ):
            raise node.fail(f"{list(value.shape)} does not line up with {list(first.shape)}")
        target = [affine([(1, i)], offset if a == axis else 0) for a, i in enumerate(indices)]
        name = local.setdefault(value, f"X{len(local)}")
        body = f"{at('Y', target)} = {at(name, indices)}"
        lines.append(line(body, dict(zip(indices, value.shape, strict=True))))
        offset += value.shape[axis]
    if len(values) == 1:
        return [Same(first)]
    shape = result_shape(node, (*first.shape[:axis], offset, *first.shape[axis + 1 :]), first)
    inputs = [declare(name, v.dtype, v.shape) for v, name in local.items()]
    program = function("concat", inputs, [declare("Y", first.dtype, shape)], lines)
    return [Compute(program, tuple(local))]


@operator("Split")
def split(node: Node) -> Sequence[Result]:
    """One output for each part."""
    x = node.required(0)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis, count = node.axis(node.integer("axis", 0), x.rank), len(node.outputs)
    parts = (
        node.ints("split") or node.known_ints(1, "the parts")
        if node.opset < 13
        else node.known_ints(1, "the parts")
    )
    size = x.shape[axis]
    if parts is None:
        wanted = node.integer("num_outputs", count)
        if wanted != count:
            raise node.fail(f"num_outputs is {wanted}, but there are {count} outputs")
        if node.opset < 18 and size % count:
            raise node.fail(f"{size} elements do not split into {count} equal parts")
        each = -(-size // count)
        parts = tuple(max(0, min(each, size - each * n)) for n in range(count))
    if len(parts) != count or sum(parts) != size or any(p < 0 for p in parts):
        raise node.fail(f"parts {list(parts)} do not make {size} elements in {count} outputs")
    if count == 1:
        return [Same(x)]
    indices = names(x.rank)
    outputs, lines, offset = [], [], 0
    for n, part in enumerate(parts):
        shape = (*x.shape[:axis], part, *x.shape[axis + 1 :])
        source = [affine([(1, i)], offset if a == axis else 0) for a, i in enumerate(indices)]
        outputs.append(declare(f"Y{n}", x.dtype, shape))
        body = f"{at(f'Y{n}', indices)} = {at('X', source)}"
        lines.append(line(body, dict(zip(indices, shape, strict=True))))
        offset += part
    program = function("split", [declare("X", x.dtype, x.shape)], outputs, lines)
    return [Compute(program, (x,))]


@operator("Slice")
def slice_(node: Node) -> Sequence[Result]:
    """Y[i] = X[start + step*i]."""
    x = node.required(0)
    if node.opset < 10:
        starts, ends = node.ints("starts"), node.ints("ends")
        axes, steps = node.ints("axes"), None
    else:
        starts, ends = node.known_ints(1, "the starts"), node.known_ints(2, "the ends")
        axes, steps = node.known_ints(3, "the axes"), node.known_ints(4, "the steps")
    if starts is None or ends is None:
        raise node.fail("starts or ends are missing")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.fail("starts, ends, axes and steps have different lengths")
    node.axes(axes, x.rank)
    indices, shape = names(x.rank), list(x.shape)
    source = list(indices)
    for start, end, signed, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(signed, x.rank)
        if step == 0:
            raise node.fail("a step is 0")
        first, count = _sliced(start, end, step, x.shape[axis])
        shape[axis] = count
        source[axis] = affine([(step, indices[axis])], first)
        if is_one(count):
            source[axis] = str(first)
    if same(shape, x.shape) and source == list(indices):
        return [Same(x)]
    return [indexed("slice", {"X": x}, x.dtype, shape, at("X", source))]


#: What exporters write for "to the end".
_LARGEST = ((1 << 31) - 1, (1 << 63) - 1)


def _sliced(start: Extent, end: Extent, step: int, size: Extent) -> tuple[Extent, Extent]:
    """The first element and their number, by ONNX's rules: Python's, but that a slice that runs
    backwards begins with an element, and ends before the first one where it is to end at the
    largest number.
    """
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = _placed(start, 0, high, size), _placed(end, low, high, size)
    if step < 0 and not isinstance(end, Dim) and end in _LARGEST:
        last = -1
    span = last - first if step > 0 else first - last
    return first, max(-(-span // abs(step)), 0)


def _placed(bound: Extent, low: Extent, high: Extent, size: Extent) -> Extent:
    """A bound of a slice as the place of an element; no open size is as large as far ones."""
    if isinstance(size, Dim) and not isinstance(bound, Dim) and abs(bound) >= _LARGEST[0]:
        return high if bound > 0 else low
    return min(max(bound + size if bound < 0 else bound, low), high)


@operator("Gather")
def gather(node: Node) -> Sequence[Result]:
    """Y[.., i.., ..] = X[.., I[i..], ..]; known indices with a constant step become affine."""
    x, which = node.required(0), node.required(1)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis = node.axis(node.integer("axis", 0), x.rank)
    size = x.shape[axis]
    shape = (*x.shape[:axis], *which.shape, *x.shape[axis + 1 :])
    shape = result_shape(node, shape, x)
    indices = names(len(shape))
    inner = indices[axis : axis + which.rank]
    operands: dict[str, Value] = {"X": x}
    chosen = None
    if which.array is not None:
        flat = [i if isinstance(i, Dim) else int(i) for i in which.array.reshape(-1)]
        if flat and not -size <= min(flat) <= max(flat) < size:
            raise node.fail(f"an index is out of range for {size} elements")
        chosen = _progression([i + size if i < 0 else i for i in flat], inner)
    elif size == 0 and which.size:
        raise node.fail("the operand is empty, so there is nothing to gather")
    if chosen is None:
        operands["I"] = which
        chosen = within(at("I", inner), size)
    source = [*indices[:axis], chosen, *indices[axis + which.rank :]]
    return [indexed("gather", operands, x.dtype, shape, at("X", source))]


def within(index: str, size: int) -> str:
    """An index that is read from a tensor, clamped to it; negative ones count from the end."""
    return f"min(max(select({index} < 0, {index} + {size}, {index}), 0), {max(size - 1, 0)})"


def _progression(values: Sequence[Extent], indices: Sequence[str]) -> str | None:
    """The affine text for a scalar, or a vector with a constant step."""
    if not values:
        return "0"
    if len(values) == 1:
        return str(values[0])
    steps = {b - a for a, b in pairwise(values)}
    if len(indices) != 1 or len(steps) != 1 or any(isinstance(s, Dim) for s in steps):
        return None
    return affine([(int(*steps), indices[0])], values[0])


@operator("GatherElements")
def gather_elements(node: Node) -> Sequence[Result]:
    """Y[i,j] = X[I[i,j], j] for axis 0, and so on."""
    x, which = node.required(0), node.required(1)
    if x.rank == 0 or which.rank != x.rank:
        raise node.fail(f"indices of rank {which.rank} for an operand of rank {x.rank}")
    axis = node.axis(node.integer("axis", 0), x.rank)
    if any(e > f for a, (e, f) in enumerate(zip(which.shape, x.shape, strict=True)) if a != axis):
        raise node.fail(f"indices {list(which.shape)} exceed {list(x.shape)}")
    if x.shape[axis] == 0 and which.size:
        raise node.fail("the operand is empty, so there is nothing to gather")
    shape = result_shape(node, which.shape, x)
    indices = list(names(x.rank))
    chosen = within(at("I", indices), x.shape[axis])
    source = [*indices[:axis], chosen, *indices[axis + 1 :]]
    return [indexed("gather_elements", {"X": x, "I": which}, x.dtype, shape, at("X", source))]


@operator("GatherND")
def gather_nd(node: Node) -> Sequence[Result]:
    """Slices, each selected by a vector of indices."""
    x, which = node.required(0), node.required(1)
    batch = node.integer("batch_dims", 0)
    if which.rank == 0 or not 0 <= batch < min(x.rank, which.rank):
        raise node.fail(f"batch_dims {batch}, ranks {x.rank} and {which.rank}")
    depth = which.shape[-1]  # ONNX Runtime allows 0, which selects everything
    if not 0 <= depth <= x.rank - batch or x.shape[:batch] != which.shape[:batch]:
        raise node.fail(f"indices {list(which.shape)} do not fit {list(x.shape)}")
    shape = result_shape(node, (*which.shape[:-1], *x.shape[batch + depth :]), x)
    if math.prod(shape) and 0 in x.shape[batch : batch + depth]:
        raise node.fail("the operand is empty, so there is nothing to gather")
    indices = names(len(shape))
    head = indices[: which.rank - 1]
    source = [
        *indices[:batch],
        *(within(at("I", (*head, d)), x.shape[batch + d]) for d in range(depth)),
        *indices[which.rank - 1 :],
    ]
    return [indexed("gather_nd", {"X": x, "I": which}, x.dtype, shape, at("X", source))]


@operator("Pad")
def pad(node: Node) -> Sequence[Result]:
    """The operand with padding on all sides."""
    x = node.required(0)
    mode = node.word("mode", "constant")
    before, after = _pads(node, x)
    shape = result_shape(
        node, [b + e + a for b, e, a in zip(before, x.shape, after, strict=True)], x
    )
    if same(shape, x.shape) and not any(before):
        return [Same(x)]
    if mode == "constant":
        return [_pad_constant(node, x, before, shape)]
    if mode not in ("edge", "reflect", "wrap"):
        raise node.fail(f"mode {mode!r} does not exist")
    if 0 in shape:
        return [nothing(shape, x.dtype)]
    if x.size == 0:
        raise node.fail(f"mode {mode} cannot pad an empty operand")
    return [_pad_copy(node, x, mode, before, after, shape)]


def _pads(node: Node, x: Value) -> tuple[list[int], list[int]]:
    if node.opset < 2:
        pads = node.ints("paddings")
    else:
        pads = node.ints("pads") if node.opset < 11 else node.known_ints(1, "the pads")
    axes = node.known_ints(3, "the axes") if node.opset >= 18 else None
    if pads is None:
        raise node.fail("the pads are missing")
    where = tuple(range(x.rank)) if axes is None else tuple(node.axis(a, x.rank) for a in axes)
    if len(pads) != 2 * len(where) or len(set(where)) != len(where):
        raise node.fail(f"{len(pads)} pads for {len(where)} axes")
    before, after = [0] * x.rank, [0] * x.rank
    for n, axis in enumerate(where):
        before[axis], after[axis] = pads[n], pads[n + len(where)]
        if before[axis] + after[axis] + x.shape[axis] < 0:
            raise node.fail(f"axis {axis} would become negative")
    return before, after


def _pad_constant(node: Node, x: Value, before: Sequence[int], shape: Sequence[int]) -> Compute:
    operands: dict[str, Value] = {"X": x}
    fill = node.optional(2) if node.opset >= 11 else None
    zero = "false" if x.dtype.kind == "b" else "0"
    if node.opset < 11:
        value = node.number("value", 0.0)
        text = zero if value == 0 else literal(value if x.dtype.is_float else int(value))
    elif fill is None:
        text = zero
    elif fill.size != 1:
        raise node.fail("the fill value must be a scalar")
    else:
        operands["F"] = fill
        text = at("F", (0,) * fill.rank)
    indices = names(x.rank)
    inside: dict[str, Extent] = {}
    for i, b, extent, out in zip(indices, before, x.shape, shape, strict=True):
        inside[i] = (max(b, 0), max(min(b + extent, out), max(b, 0)))
    source = [affine([(1, i)], -b) for i, b in zip(indices, before, strict=True)]
    lines = [
        line(f"{at('Y', indices)} = {text}", dict(zip(indices, shape, strict=True))),
        line(f"{at('Y', indices)} = {at('X', source)}", inside),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("pad", inputs, [declare("Y", x.dtype, shape)], lines)
    return Compute(program, tuple(operands.values()))


def _pad_copy(
    node: Node,
    x: Value,
    mode: str,
    before: Sequence[int],
    after: Sequence[int],
    shape: Sequence[int],
) -> Compute:
    """One statement for each combination of regions, in which every index is affine."""
    indices = names(x.rank)
    regions: list[list[tuple[tuple[int, int], str]]] = []
    for i, b, a, extent, out in zip(indices, before, after, x.shape, shape, strict=True):
        kept = extent + min(b, 0) + min(a, 0)  # negative pads crop first
        if (b < 0 or a < 0) and (mode == "wrap" or kept < 1):
            raise Unsupported(f"negative pads in mode {mode} over {extent} elements")
        if mode == "reflect" and max(b, a) >= kept:
            raise Unsupported("reflection by more than the operand's extent")
        if mode == "wrap" and not (isinstance(extent, Dim) and b <= extent and a <= extent):
            shift = (-b) % extent
            shifted = i if shift == 0 else f"({i} + {shift})"
            inner = [((0, out), f"{shifted} % {extent}" if b or a else i)]
        else:
            low, high = {
                "edge": ("0", str(extent - 1)),
                "reflect": (affine([(-1, i)], b), affine([(-1, i)], 2 * (extent - 1) + b)),
                "wrap": (affine([(1, i)], extent - b), affine([(1, i)], -b - extent)),
            }[mode]
            inner = [((max(b, 0), max(b, 0) + kept), affine([(1, i)], -b))]
            inner += [((0, b), low)] if b > 0 else []
            inner += [((b + extent, out), high)] if a > 0 else []
        regions.append(inner)
    if math.prod(len(r) for r in regions) > 243:
        raise Unsupported(f"mode {mode} over more than five axes")
    combined: list[list[tuple[tuple[int, int], str]]] = [[]]
    for inner in regions:
        combined = [[*c, r] for c in combined for r in inner]
    lines = []
    for parts in combined:
        ranges: dict[str, Extent] = {i: p[0] for i, p in zip(indices, parts, strict=True)}
        lines.append(line(f"{at('Y', indices)} = {at('X', [p[1] for p in parts])}", ranges))
    inputs, outputs = [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, shape)]
    return Compute(function(f"pad_{mode}", inputs, outputs, lines), (x,))


@operator("DepthToSpace", "SpaceToDepth")
def blocks(node: Node) -> Sequence[Result]:
    """Blocks of pixels to channels or back."""
    x, b = node.required(0), node.integer("blocksize", 0)
    if x.rank != 4 or not 1 <= b < 1 << 20:
        raise node.fail(f"rank {x.rank} and blocksize {b}")
    n, c, h, w = x.shape
    ranges: dict[str, Extent]
    if node.operator == "DepthToSpace":
        if c % (b * b):
            raise node.fail(f"{c} channels do not make blocks of {b}")
        depth = c // (b * b)
        channel = (
            affine([(b * depth, "i"), (depth, "j"), (1, "c")])
            if node.word("mode", "DCR") == "DCR"
            else affine([(b * b, "c"), (b, "i"), (1, "j")])
        )
        shape = (n, depth, h * b, w * b)
        target, source = f"Y[n,c,{b}*p + i,{b}*q + j]", at("X", ["n", channel, "p", "q"])
        ranges = {"n": n, "c": depth, "p": h, "i": b, "q": w, "j": b}
    else:
        if h % b or w % b:
            raise node.fail(f"{h} x {w} pixels do not make blocks of {b}")
        shape = (n, c * b * b, h // b, w // b)
        channel = (
            affine([(b * c, "i"), (c, "j"), (1, "c")])
            if node.word("mode", "DCR") == "DCR"
            else affine([(b * b, "c"), (b, "i"), (1, "j")])
        )
        target = at("Y", ["n", channel, "p", "q"])
        source = f"X[n,c,{b}*p + i,{b}*q + j]"
        ranges = {"n": n, "i": b, "j": b, "c": c, "p": h // b, "q": w // b}
    inputs, outputs = [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, shape)]
    program = function(
        node.operator.lower(), inputs, outputs, [line(f"{target} = {source}", ranges)]
    )
    return [Compute(program, (x,))]


@operator("Trilu")
def trilu(node: Node) -> Sequence[Result]:
    """The upper or lower triangle, 0 elsewhere."""
    x = node.required(0)
    if x.rank < 2:
        raise node.fail(f"an operand of rank {x.rank} has no matrices")
    given = node.known_ints(1, "the diagonal")
    k = given[0] if given else 0
    # All diagonals outside the matrix are equivalent to the nearest one.
    k = min(max(k, -x.shape[-2] - 1), x.shape[-1] + 1)
    indices = names(x.rank)
    row, column = indices[-2:]
    symbol = ">=" if node.flag("upper", True) else "<="
    zero = "false" if x.dtype.kind == "b" else "0"
    value = f"select({column} {symbol} {affine([(1, row)], k)}, {at('X', indices)}, {zero})"
    return [indexed("trilu", {"X": x}, x.dtype, x.shape, value)]


@operator("EyeLike")
def eye_like(node: Node) -> Sequence[Result]:
    """Ones on a diagonal."""
    x = node.required(0)
    if x.rank != 2:
        raise node.fail(f"an operand of rank {x.rank} is not a matrix")
    to = node.integer("dtype", 0)
    dtype = element_type(to, node) if to else x.dtype
    k = min(max(node.integer("k", 0), -x.shape[0] - 1), x.shape[1] + 1)
    condition = f"j == {affine([(1, 'i')], k)}"
    value = condition if dtype.kind == "b" else f"select({condition}, 1, 0)"
    return [indexed("eye_like", {}, dtype, x.shape, value)]


@operator("OneHot")
def one_hot(node: Node) -> Sequence[Result]:
    """values[1] at the index that an element gives, values[0] elsewhere."""
    which, values = node.required(0), node.required(2)
    depth: Sequence[Extent] | np.ndarray | None
    if node.required(1).dtype.is_integer:
        depth = node.known_ints(1, "the depth")
    else:
        depth = node.known(1, "the depth")
    if depth is None or np.size(depth) != 1 or values.shape != (2,):
        raise node.fail("depth must be a number and values a pair")
    (given,) = np.reshape(depth, -1)
    count: Any = given if isinstance(given, Dim) else int(given)
    if count < 0:
        raise node.fail(f"depth {count} is negative")
    axis = node.axis(node.integer("axis", -1), which.rank + 1)
    shape = result_shape(node, (*which.shape[:axis], count, *which.shape[axis:]), values)
    indices = names(len(shape))
    index = at("I", [i for a, i in enumerate(indices) if a != axis])
    position = indices[axis]
    hit = f"int64({index}) == {position} or int64({index}) + {count} == {position}"
    value = f"select({hit}, V[1], V[0])"
    return [indexed("one_hot", {"I": which, "V": values}, values.dtype, shape, value)]
