"""Operators of ONNX Runtime's own domain on images, mostly with their channels last.

Each becomes the standard operator, on images whose channels come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, real
from frontends.onnx.core.node import Compute, Node, Result, Value
from frontends.onnx.ops.broadcasting import result_shape
from frontends.onnx.ops.contrib_schemas import DOMAIN, Body, contrib

_OPSET = 20
_WINDOWS = {
    "auto_pad": "string", "dilations": "ints", "kernel_shape": "ints", "pads": "ints",
    "strides": "ints",
}  # fmt: skip


def _image(node: Node, position: int) -> Value:
    """An image with spatial axes."""
    x = node.required(position)
    if x.rank < 3:
        raise node.fail(f"input number {position + 1} of rank {x.rank} has no spatial axis")
    return x


def _first(body: Body, name: str, rank: int) -> str:
    """An image with its channels moved to axis 1."""
    return body.add("Transpose", name, perm=[0, rank - 1, *range(1, rank - 1)]) if name else ""


def _last(body: Body, name: str, rank: int) -> str:
    """An image with its channels moved to the last axis."""
    return body.add("Transpose", name, perm=[0, *range(2, rank), 1])


# --- windows -----------------------------------------------------------------------------------


@contrib(
    "NhwcMaxPool", "x:T", "y:T", {"T": "int8 uint8"}, ceil_mode="int",
    **_WINDOWS | {"kernel_shape": "ints!"},
)  # fmt: skip
def max_pool(node: Node) -> Sequence[Result]:
    """The greatest element of each window."""
    body, rank = Body(node), _image(node, 0).rank
    own: dict[str, Any] = dict(node.attributes)
    value = body.add("MaxPool", _first(body, body.input(0), rank), **own)
    return [body.expanded(_OPSET, _last(body, value, rank))]


@contrib(
    "NhwcConv", "X:T W:T B:T?", "Y:T", {"T": "float float16 double"}, group="int", **_WINDOWS
)  # fmt: skip
@contrib(
    "NhwcFusedConv", "X:T W:T B:T? Z:T?", "Y:T", {"T": "float16 float"}, group="int",
    activation="string", activation_params="floats", **_WINDOWS,
)  # fmt: skip
def conv(node: Node) -> Sequence[Result]:
    """A convolution, maybe plus an image, and with an activation; filters are as in Conv."""
    body, rank = Body(node), _image(node, 0).rank
    image, other = (_first(body, body.input(p), rank) for p in (0, 3))
    own: dict[str, Any] = dict(node.attributes)
    names = (image, body.input(1), body.input(2), other)
    value = body.add("FusedConv", *names, domain=DOMAIN, **own)
    return [body.expanded(_OPSET, _last(body, value, rank))]


@contrib(
    "QLinearConv",
    "x:T1 x_scale:F x_zero_point:T1 w:T2 w_scale:F w_zero_point:T2 y_scale:F y_zero_point:T3 B:T4?",
    "y:T3",
    {"T1": "int8 uint8", "T2": "int8 uint8", "T3": "int8 uint8", "T4": "int32", "F": "float"},
    channels_last="int", group="int", **_WINDOWS,
)  # fmt: skip
def qlinear_conv(node: Node) -> Sequence[Result]:
    """The standard operator, of images whose channels may come last."""
    body, rank, last = Body(node), _image(node, 0).rank, node.flag("channels_last")
    own: dict[str, Any] = {n: v for n, v in node.attributes.items() if n != "channels_last"}
    names = [body.input(p) for p in range(9)]
    if last:
        names[0] = _first(body, names[0], rank)
    value = body.add("QLinearConv", *names, **own)
    return [body.expanded(_OPSET, _last(body, value, rank) if last else value)]


@contrib(
    "ConvTransposeWithDynamicPads", "X:T W:T Pads:P? B:T?", "Y:T",
    {"T": "float16 float double", "P": "int64"}, group="int", output_padding="ints",
    **{n: kind for n, kind in _WINDOWS.items() if n != "pads"},
)  # fmt: skip
def conv_transpose(node: Node) -> Sequence[Result]:
    """A transposed convolution whose pads are an operand, which must be known."""
    body, pads = Body(node), node.known_ints(2, "the pads")
    own: dict[str, Any] = dict(node.attributes)
    if pads is not None:
        own["pads"] = [int(p) for p in pads]
    value = body.add("ConvTranspose", *(body.input(p) for p in (0, 1, 3)), **own)
    return [body.expanded(_OPSET, value)]


# --- crops -------------------------------------------------------------------------------------


@contrib(
    "CropAndResize", "X:T1 rois:T1 batch_indices:T2 crop_size:T2", "Y:T1",
    {"T1": "float16 float double", "T2": "int32"}, extrapolation_value="float", mode="string",
)  # fmt: skip
def crop_and_resize(node: Node) -> Sequence[Result]:
    """Boxes (y1, x1, y2, x2, between 0 and 1) of images, sampled to one size.

    Samples lie on the edges of a box, or in its centre if there is only one.
    """
    x, boxes, which = (node.required(p) for p in range(3))
    mode, sizes = node.word("mode", "bilinear"), node.known_ints(3, "the size of crops")
    if x.rank != 4 or boxes.rank != 2 or boxes.shape[1] != 4 or which.shape != boxes.shape[:1]:
        shapes = ", ".join(str(list(v.shape)) for v in (x, boxes, which))
        raise node.fail(f"shapes {shapes} do not fit")
    if sizes is None or len(sizes) != 2 or min(sizes) < 1 or mode not in ("bilinear", "nearest"):
        raise node.fail(f"crops of size {list(sizes or ())} in mode {mode!r}")
    if 0 in x.shape:
        raise node.fail("the images are empty, so there is nothing to sample")
    shape = result_shape(node, (boxes.shape[0], x.shape[1], *sizes), x)
    ranges: dict[str, Any] = dict(zip(("r", "c", "y", "x"), shape, strict=True))
    lines, inside, indices, rests = [], [], [], []
    for axis, (index, count, size) in enumerate(zip("yx", sizes, x.shape[2:], strict=True)):
        place = f"P{axis}[r,{index}]"
        low, high = f"float32(R[r,{axis}])", f"float32(R[r,{axis + 2}])"
        last = real(size - 1)
        text = f"({low} + {high}) * 0.5 * {last}"
        if count > 1:
            text = (
                f"{low} * {last} + float32({index}) * (({high} - {low}) * {last} / {count - 1}.0)"
            )
        own = {"r": boxes.shape[0], index: count}
        lines += [f"float32 P{axis}[{boxes.shape[0]},{count}]", line(f"{place} = {text}", own)]
        inside.append(f"{place} >= 0.0 and {place} <= {last}")
        shifted = place if mode == "bilinear" else f"{place} + 0.5"
        first = f"min(max(int64(floor({shifted})), 0), {size - 1})"
        indices.append((first, f"min({first} + 1, {size - 1})"))
        rests.append(f"({place} - floor({place}))")
    image = f"min(max(B[r], 0), {x.shape[0] - 1})"
    read = [[at("X", [image, "c", a, b]) for b in indices[1]] for a in indices[0]]
    value = read[0][0]
    if mode == "bilinear":
        top, bottom = (f"(float32({p}) + (float32({q}) - float32({p})) * {rests[1]})"
                       for p, q in read)  # fmt: skip
        value = f"{top} + ({bottom} - {top}) * {rests[0]}"
    outside = literal(node.number("extrapolation_value", 0.0))
    chosen = f"select({' and '.join(inside)}, float32({value}), {outside})"
    lines.append(line(f"Y[r,c,y,x] = {x.dtype}({chosen})", ranges))
    operands = {"X": x, "R": boxes, "B": which}
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("crop_and_resize", inputs, [declare("Y", x.dtype, shape)], lines)
    return [Compute(program, tuple(operands.values()))]


# --- normalisations ----------------------------------------------------------------------------

_NORMALISED = {"T": "float16 float", "M": "float16 float"}
_GROUPS = {
    "activation": "int!", "channels_last": "int", "epsilon": "float", "groups": "int!",
}  # fmt: skip


@contrib("GroupNorm", "X:T gamma:M beta:M", "Y:T", _NORMALISED, **_GROUPS)
@contrib(
    "SkipGroupNorm", "X:T gamma:M beta:M skip:T bias:T?", "Y:T S:T?", _NORMALISED, **_GROUPS
)  # fmt: skip
def group_norm(node: Node) -> Sequence[Result]:
    """The sum of images and a bias; groups of its channels normalised; SiLU of that.

    skip : also of one pixel, or without spatial axes
    """
    body, x, last = Body(node), _image(node, 0), node.flag("channels_last", True)
    channels = x.shape[-1 if last else 1]
    for position in (1, 2, 4):
        own = node.optional(position)
        if own is not None and own.shape != (channels,):
            raise node.fail(f"input number {position + 1} has shape {list(own.shape)}, "
                            f"not {[channels]}")  # fmt: skip
    total = _summed(body, x, last)
    value = body.add("Cast", total, to=1)
    value = _first(body, value, x.rank) if last else value
    names = (body.add("Cast", body.input(p), to=1) for p in (1, 2))
    epsilon, groups = node.number("epsilon", 1e-5), node.integer("groups", 0)
    value = body.add("GroupNormalization", value, *names, epsilon=epsilon, num_groups=groups)
    if node.flag("activation"):
        value = body.add("Mul", value, body.add("Sigmoid", value))
    value = _last(body, value, x.rank) if last else value
    return [body.expanded(21, body.add("CastLike", value, body.input(0)), total)]


def _summed(body: Body, x: Value, last: bool) -> str:
    """The image plus `skip` and `bias`, as far as these are given."""
    node, total, skip = body.node, body.input(0), body.node.optional(3)
    inner = np.arange(1, x.rank - 1) if last else np.arange(2, x.rank)
    if skip is not None:
        name = body.input(3)
        if skip.rank == 2:
            name = body.add("Unsqueeze", name, body.constant(inner))
        total = body.add("Add", total, name)
    if node.optional(4) is not None:
        name = body.input(4)
        if not last:
            name = body.add("Unsqueeze", name, body.constant(np.arange(1, x.rank - 1)))
        total = body.add("Add", total, name)
    return total
