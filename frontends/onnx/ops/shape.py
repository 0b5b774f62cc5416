"""Operators on shapes: views, which cost nothing, and values that are known at compile time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import literal
from frontends.onnx.core.limits import MAX_GENERATED_BYTES, checked_shape
from frontends.onnx.core.node import (
    Known,
    Node,
    Reshaped,
    Result,
    Same,
    Unsupported,
    Value,
    operator,
)
from frontends.onnx.core.symbolic_dims import Dim, exact_array, same
from frontends.onnx.ops.fill import filled
from poly.ir.dtypes import INT64, dtype_of


def _view(node: Node, x: Value, shape: Sequence[int]) -> Result:
    target = checked_shape(shape, x.dtype, node.origin)
    if math.prod(target) != x.size:
        raise node.fail(f"{list(x.shape)} cannot become {list(target)}")
    return Same(x) if same(target, x.shape) else Reshaped(x, target)


@operator("Reshape")
def reshape(node: Node) -> Sequence[Result]:
    """Another shape; 0 copies an extent (unless allowzero), -1 takes the remaining elements."""
    x = node.required(0)
    given = node.ints("shape") if node.opset < 5 else node.known_ints(1, "the new shape")
    if given is None:
        raise node.fail("the new shape is missing")
    shape = list(given)
    if not node.flag("allowzero"):
        for axis, extent in enumerate(shape):
            if extent == 0:
                if axis >= x.rank:
                    raise node.fail(f"{shape} copies axis {axis} of rank {x.rank}")
                shape[axis] = x.shape[axis]
    if shape.count(-1) > 1 or any(e < -1 for e in shape):
        raise node.fail(f"{list(given)} is not a shape")
    if -1 in shape:
        known = math.prod(e for e in shape if e != -1)
        if known == 0 or x.size % known:
            raise node.fail(f"{list(x.shape)} cannot become {list(given)}")
        shape[shape.index(-1)] = x.size // known
    return [_view(node, x, shape)]


@operator("Flatten")
def flatten(node: Node) -> Sequence[Result]:
    """Two axes: the product of the extents before `axis`, and of the rest."""
    x = node.required(0)
    axis = node.integer("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank) if x.rank else 0
    return [_view(node, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


@operator("Squeeze")
def squeeze(node: Node) -> Sequence[Result]:
    """Without some axes of extent 1, all of them if none is given."""
    x = node.required(0)
    given = (node.ints("axes") or None) if node.opset < 13 else node.known_ints(1, "the axes")
    if given is None:
        axes = tuple(a for a, e in enumerate(x.shape) if e == 1)
    else:
        axes = node.axes(given, x.rank)
    if any(x.shape[a] != 1 for a in axes):
        raise node.fail(f"axes {list(axes)} of {list(x.shape)} are not all of extent 1")
    return [_view(node, x, [e for a, e in enumerate(x.shape) if a not in axes])]


@operator("Unsqueeze")
def unsqueeze(node: Node) -> Sequence[Result]:
    """With new axes of extent 1, numbered in the result."""
    x = node.required(0)
    given = node.ints("axes") if node.opset < 13 else node.known_ints(1, "the axes")
    if given is None:
        raise node.fail("the axes are missing")
    axes = node.axes(given, x.rank + len(given))
    rest = iter(x.shape)
    return [_view(node, x, [1 if a in axes else next(rest) for a in range(x.rank + len(axes))])]


@operator("Shape")
def shape_of(node: Node) -> Sequence[Result]:
    """The shape as a vector, or a part of it."""
    x = node.required(0)

    def clamp(position: int) -> int:
        return min(max(position + x.rank if position < 0 else position, 0), x.rank)

    start, end = clamp(node.integer("start", 0)), clamp(node.integer("end", x.rank))
    return [Known(exact_array(x.shape[start:end]), INT64)]


@operator("Size")
def size_of(node: Node) -> Sequence[Result]:
    """The number of elements."""
    return [Known(exact_array([node.required(0).size]).reshape(()), INT64)]


@operator("Constant")
def constant(node: Node) -> Sequence[Result]:
    """A tensor, number or list of numbers stored in the model."""
    attributes = {k: v for k, v in node.attributes.items() if k != "name"}
    if len(attributes) != 1:
        raise node.fail("exactly one value must be given")
    ((name, value),) = attributes.items()
    if name in ("value_string", "value_strings"):
        return [Known(np.array(value, object))]
    if name == "sparse_value":
        raise Unsupported("sparse tensors")
    if name == "value" and isinstance(value, Known):
        return [value]
    if name == "value" and isinstance(value, np.ndarray):
        return [Known(value)]
    if name in ("value_int", "value_ints") and isinstance(value, (int, tuple)):
        return [Known(np.array(value, dtype=np.int64))]
    if name in ("value_float", "value_floats") and isinstance(value, (float, tuple)):
        return [Known(np.array(value, dtype=np.float32))]
    raise node.fail(f"attribute {name} has the wrong type")


@operator("ConstantOfShape")
def constant_of_shape(node: Node) -> Sequence[Result]:
    """A tensor of one value, by default float32 zeros."""
    dims = node.known_ints(0, "the shape")
    if dims is None:
        raise node.fail("the shape is missing")
    value = node.attributes.get("value")
    item = np.zeros(1, np.float32) if value is None else value
    if not isinstance(item, np.ndarray) or item.size != 1:
        raise node.fail("value must be a tensor with one element")
    dtype = dtype_of(item.dtype)
    shape = checked_shape(dims, dtype, node.origin)
    is_open = any(isinstance(e, Dim) for e in shape)
    if is_open or math.prod(shape) * dtype.bytes > MAX_GENERATED_BYTES:
        number = item.reshape(-1)[0]
        text = literal(float(number)) if dtype.is_float else literal(int(number))
        return [filled(shape, dtype, text)]
    return [Known(np.full(shape, item.reshape(-1)[0], dtype=item.dtype))]
