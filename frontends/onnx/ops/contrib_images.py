"""Operators of ONNX Runtime's own domain on images, mostly with their channels last.

Each becomes the standard operator, on images whose channels come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.node import Node, Result, Value
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
