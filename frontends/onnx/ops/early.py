"""Experimental operators of ONNX's first opsets, which ONNX Runtime knows until opset 9."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import literal
from frontends.onnx.core.node import Node, Result, find_operator
from frontends.onnx.ops.contrib_schemas import Body, contrib
from frontends.onnx.ops.elementwise import elementwise

#: The opset of the operators that others become.
_OPSET = 13
_FLOATS = {"T": "float16 float double"}
_of_today = find_operator("ThresholdedRelu", _OPSET)
assert _of_today is not None
_ALL = (
    "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float double string bool "
    "complex64 complex128"
)


def _check_opset(node: Node) -> None:
    if node.opset > 9:
        raise node.fail("the operator was withdrawn in opset 10")


@contrib("Affine", "X:T", "Y:T", _FLOATS, domain="", alpha="float", beta="float")
@contrib("ScaledTanh", "input:T", "output:T", _FLOATS, domain="", alpha="float", beta="float")
@contrib("Scale", "input:T", "output:T", _FLOATS, domain="", scale="float")
def function_of_elements(node: Node) -> Sequence[Result]:
    """alpha * x + beta, alpha * tanh(beta * x), and scale * x"""
    _check_opset(node)
    factor = node.number("scale" if node.operator == "Scale" else "alpha", 1.0)
    text = f"{literal(factor)} * {{0}}"
    if node.operator == "Affine":
        text += f" + {literal(node.number('beta', 0.0))}"
    elif node.operator == "ScaledTanh":
        text = f"{literal(factor)} * tanh({literal(_given(node, 'beta'))} * {{0}})"
    return [elementwise(node.operator.lower(), node.required(0), text)]


@contrib("ParametricSoftplus", "X:T", "Y:T", _FLOATS, domain="", alpha="float", beta="float")
def parametric_softplus(node: Node) -> Sequence[Result]:
    """alpha * log(1 + exp(beta * x))"""
    _check_opset(node)
    body, kind = Body(node), node.required(0).dtype.numpy
    alpha, beta = (body.constant(np.array(_given(node, n), kind)) for n in ("alpha", "beta"))
    value = body.add("Softplus", body.add("Mul", body.input(0), beta))
    return [body.expanded(_OPSET, body.add("Mul", value, alpha))]


def _given(node: Node, name: str) -> float:
    """A number that has no default."""
    if name not in node.attributes:
        raise node.fail(f"attribute {name} is missing")
    return node.number(name, 0.0)


@contrib("ImageScaler", "input:T", "output:T", _FLOATS, domain="", bias="floats", scale="float")
def image_scaler(node: Node) -> Sequence[Result]:
    """A factor, and then a bias for each channel."""
    _check_opset(node)
    x, bias = node.required(0), node.attributes.get("bias", ())
    assert isinstance(bias, tuple)
    if x.rank != 4 or len(bias) != x.shape[1]:
        raise node.fail(f"{len(bias)} numbers for an image of shape {list(x.shape)}")
    body = Body(node)
    kind = x.dtype.numpy
    factor = body.constant(np.array(node.number("scale", 1.0), kind))
    shift = body.constant(np.array(bias, kind)[:, None, None])
    value = body.add("Add", body.add("Mul", body.input(0), factor), shift)
    return [body.expanded(_OPSET, value)]


@contrib("Crop", "input:T", "output:T", _FLOATS, domain="", border="ints!", scale="ints")
def crop(node: Node) -> Sequence[Result]:
    """An image without borders (left, top, right, bottom), or of a size behind the first two."""
    _check_opset(node)
    x, border, size = node.required(0), node.ints("border") or (), node.ints("scale")
    if x.rank != 4 or len(border) != 4 or (size is not None and len(size) != 2):
        raise node.fail(f"borders {list(border)} of an image of rank {x.rank}")
    left, top, right, bottom = border
    rows, columns = (int(e) for e in x.shape[2:])
    ends = (rows - bottom, columns - right)
    if size is not None:
        ends = (top + size[0], left + size[1])
    if min(border) < 0 or ends[0] > rows or ends[1] > columns or ends[0] < top or ends[1] < left:
        raise node.fail(f"borders {list(border)} of an image of shape {list(x.shape)}")
    body = Body(node)
    first, last, axes = (body.constant(np.array(n)) for n in ((top, left), ends, (2, 3)))
    value = body.add("Slice", body.input(0), first, last, axes)
    return [body.expanded(_OPSET, value)]


# ONNX describes it since opset 10.
contrib("ThresholdedRelu", "X:T", "Y:T", _FLOATS, domain="", alpha="float")(_of_today)


@contrib(
    "MeanVarianceNormalization", "input:T", "output:T", _FLOATS, domain="",
    across_channels="int", normalize_variance="int",
)  # fmt: skip
def mean_variance_normalization(node: Node) -> Sequence[Result]:
    """(X - mean) / standard deviation of each channel or of everything; opset 9 has axes."""
    x, body = node.required(0), Body(node)
    if x.rank != 4:
        raise node.fail(f"an image has rank 4, not {x.rank}")
    axes = [0, 1, 2, 3] if node.flag("across_channels") else [0, 2, 3]
    if node.flag("normalize_variance", True):
        value = body.add("MeanVarianceNormalization", body.input(0), axes=axes)
    else:
        mean = body.add("ReduceMean", body.input(0), axes=axes)
        value = body.add("Sub", body.input(0), mean)
    return [body.expanded(_OPSET, value)]


@contrib(
    "DynamicSlice", "data:T starts:Tind ends:Tind axes:Tind?", "output:T",
    {"T": _ALL, "Tind": "int32 int64"}, domain="",
)  # fmt: skip
def dynamic_slice(node: Node) -> Sequence[Result]:
    """Slice, whose bounds are operands."""
    _check_opset(node)
    body = Body(node)
    names = (body.input(p) for p in range(len(node.inputs)))
    return [body.expanded(_OPSET, body.add("Slice", *names))]
