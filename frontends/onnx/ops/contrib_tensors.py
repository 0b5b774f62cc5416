"""Operators of ONNX Runtime's own domain that differ little from standard ones, or became them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import declare, function, line
from frontends.onnx.core.node import Compute, Node, Result, Unsupported, Value
from frontends.onnx.ops.broadcasting import result_shape
from frontends.onnx.ops.contrib_schemas import Body, contrib
from frontends.onnx.ops.matmul import of_matrices, product
from poly.ir.dtypes import INT32, UINT16, UINT32

_FLOATS = "float double float16"
_NUMBERS = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float double"
_PLAIN = f"{_NUMBERS} bool"
_ALL = f"{_PLAIN} string complex64 complex128"
_OPSET = 17


# --- what moves --------------------------------------------------------------------------------


@contrib("Trilu", "X:T k:K?", "Y:T", {"T": f"{_PLAIN} bfloat16", "K": "int64"}, upper="int")
@contrib(
    "GridSample", "X:T1 Grid:T1", "Y:T2", {"T1": _ALL, "T2": _FLOATS}, align_corners="int",
    mode="string", padding_mode="string",
)  # fmt: skip
def as_standard(node: Node) -> Sequence[Result]:
    """The standard operator of the same name."""
    body = Body(node)
    own: dict[str, Any] = dict(node.attributes)
    names = (body.input(p) for p in range(len(node.inputs)))
    return [body.expanded(_OPSET, body.add(node.operator, *names, **own))]


@contrib("GatherND", "data:T indices:I", "output:T", {"T": _ALL, "I": "int32 int64"})
def gather_nd(node: Node) -> Sequence[Result]:
    """The standard operator, with indices of 32 bits, too."""
    body = Body(node)
    index = body.add("Cast", body.input(1), to=7)
    return [body.expanded(_OPSET, body.add("GatherND", body.input(0), index))]


@contrib("ExpandDims", "X:T axis:A", "Y:T", {"T": _ALL, "A": "int32"})
def expand_dims(node: Node) -> Sequence[Result]:
    """An axis of one element; the number of it is an operand."""
    if node.required(1).size != 1:
        raise node.fail(f"an axis of shape {list(node.required(1).shape)}")
    body = Body(node)
    axis = body.add("Reshape", body.input(1), body.constant(np.array([1])))
    axis = body.add("Cast", axis, to=7)
    return [body.expanded(_OPSET, body.add("Unsqueeze", body.input(0), axis))]


@contrib("Range", "start:T limit:T delta:T?", "Y:T", {"T": "float double int16 int32 int64"})
def arange(node: Node) -> Sequence[Result]:
    """Numbers from one to another, in steps of 1 if none is given."""
    body = Body(node)
    one = body.constant(np.array(1, node.required(0).dtype.numpy))
    step = body.input(2) or one
    return [body.expanded(_OPSET, body.add("Range", body.input(0), body.input(1), step))]


@contrib(
    "Pad", "data:T pads:P value:T?", "output:T", {"T": _FLOATS, "P": "int64"}, mode="string"
)  # fmt: skip
def pad(node: Node) -> Sequence[Result]:
    """Padding by an operand, which may be a matrix of one row."""
    body, pads = Body(node), node.required(1)
    if pads.rank not in (1, 2) or (pads.rank == 2 and pads.shape[0] != 1):
        raise node.fail(f"pads of shape {list(pads.shape)}")
    own: dict[str, Any] = dict(node.attributes)
    flat = body.add("Reshape", body.input(1), body.constant(np.array([-1])))
    return [body.expanded(_OPSET, body.add("Pad", body.input(0), flat, body.input(2), **own))]


@contrib("Unique", "x:T", "y:T idx:N counts:N", {"T": _ALL, "N": "int64"})
def unique(node: Node) -> Sequence[Result]:
    """Distinct elements as they come, the number of each element among them, and their counts."""
    if node.required(0).rank != 1:
        raise node.fail(f"an operand of rank {node.required(0).rank}")
    body = Body(node)
    found = body.add("Unique", body.input(0), outputs=4, sorted=0)
    return [body.expanded(_OPSET, found, f"{found}_2", f"{found}_3")]


@contrib(
    "UnfoldTensor",
    "input:T",
    "output:T",
    {"T": f"{_ALL} bfloat16"},
    dim="int",
    size="int!",
    step="int",
)
def unfold(node: Node) -> Sequence[Result]:
    """All slices of a size along an axis, whose elements become the last axis."""
    x, size, step = node.required(0), node.integer("size", 0), node.integer("step", 1)
    axis = node.axis(node.integer("dim", -1), x.rank)
    if x.rank == 0 or step < 1 or not 1 <= size <= x.shape[axis]:
        raise node.fail(f"slices of {size} elements in steps of {step} of {list(x.shape)}")
    count = int((x.shape[axis] - size) // step) + 1
    body = Body(node)
    index = step * np.arange(count)[:, None] + np.arange(size)
    value = body.add("Gather", body.input(0), body.constant(index), axis=axis)
    order = [a for a in range(x.rank + 1) if a != axis + 1]
    return [body.expanded(_OPSET, body.add("Transpose", value, perm=[*order, axis + 1]))]


# --- products and distances --------------------------------------------------------------------


@contrib(
    "MatMulInteger16", "A:T1 B:T2", "Y:T3",
    {"T1": "int16 uint16", "T2": "int16 uint16", "T3": "int32 uint32"},
)  # fmt: skip
def matmul_integer16(node: Node) -> Sequence[Result]:
    """The product of integers of 16 bits, in 32."""
    a, b = node.required(0), node.required(1)
    p = product(node, a, b)
    to = UINT32 if a.dtype == b.dtype == UINT16 else INT32
    inputs = [declare("A", a.dtype, a.shape), declare("B", b.dtype, b.shape)]
    lines = [p.sum("Y", f"{to}({{0}})", f"{to}({{0}})")]
    program = function("matmul_integer16", inputs, [declare("Y", to, p.shape)], lines)
    return [Compute(program, (a, b))]


@contrib(
    "MulInteger", "A:T A_zero_point:T? B:T B_zero_point:T?", "C:T1",
    {"T": "uint8 int8", "T1": "int32"},
)  # fmt: skip
def mul_integer(node: Node) -> Sequence[Result]:
    """The products of 8-bit numbers from which their zero points are subtracted."""
    body, parts = Body(node), []
    for position in (0, 2):
        part = body.add("Cast", body.input(position), to=6)
        zero = node.optional(position + 1)
        if zero is not None:
            if zero.size != 1:
                raise node.fail(f"a zero point of shape {list(zero.shape)}")
            shift = body.add("Cast", body.input(position + 1), to=6)
            part = body.add("Sub", part, shift)
        parts.append(part)
    return [body.expanded(_OPSET, body.add("Mul", *parts))]


@contrib("CDist", "A:T B:T", "C:T", {"T": "float double"}, metric="string")
def distances(node: Node) -> Sequence[Result]:
    """The distance of each row of A from each row of B, or its square."""
    a, b, metric = node.required(0), node.required(1), node.word("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise Unsupported(f"CDist with metric {metric!r}")
    if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[1]:
        raise node.fail(f"rows of {list(a.shape)} and {list(b.shape)}")
    shape = result_shape(node, (a.shape[0], b.shape[0]), a)
    outer = {"i": shape[0], "j": shape[1]}
    total = "D[i,j] +=! (A[i,k] - B[j,k]) * (A[i,k] - B[j,k])"
    found = "D[i,j]" if metric == "sqeuclidean" else "sqrt(D[i,j])"
    lines = [
        declare("D", a.dtype, shape),
        line(total, outer | {"k": a.shape[1]}),
        line(f"C[i,j] = {found}", outer),
    ]
    inputs = [declare("A", a.dtype, a.shape), declare("B", b.dtype, b.shape)]
    program = function("distances", inputs, [declare("C", a.dtype, shape)], lines)
    return [Compute(program, (a, b))]


@contrib("Inverse", "X:T", "Y:T", {"T": _FLOATS})
def inverse(node: Node) -> Sequence[Result]:
    """The inverses of matrices."""
    return of_matrices(node, np.linalg.inv, "inverse")


# --- elementwise -------------------------------------------------------------------------------

_HALF = {"T": "float16 float"}


def _check_columns(node: Node, position: int, x: Value) -> None:
    value = node.required(position)
    if x.rank < 1 or value.shape != x.shape[-1:]:
        raise node.fail(f"a bias of shape {list(value.shape)} for {list(x.shape)}")


@contrib("BiasAdd", "X:T bias:T skip:T", "Y:T", _HALF)
def bias_add(node: Node) -> Sequence[Result]:
    """Two operands of the same shape and a bias for each element of the last axis."""
    x, skip = node.required(0), node.required(2)
    _check_columns(node, 1, x)
    if skip.shape != x.shape:
        raise node.fail(f"shapes {list(x.shape)} and {list(skip.shape)} differ")
    body = Body(node)
    total = body.add("Add", body.input(0), body.input(1))
    return [body.expanded(_OPSET, body.add("Add", total, body.input(2)))]


@contrib("BiasSplitGelu", "X:T bias:T", "Y:T", _HALF)
def bias_split_gelu(node: Node) -> Sequence[Result]:
    """The left half of each row times Gelu of the right half, after a bias is added."""
    x = node.required(0)
    _check_columns(node, 1, x)
    if x.shape[-1] % 2:
        raise node.fail(f"{x.shape[-1]} columns have no halves")
    body = Body(node)
    total = body.add("Add", body.input(0), body.input(1))
    left = body.add("Split", total, outputs=2, axis=-1, num_outputs=2)
    right = body.add("Gelu", f"{left}_1")
    return [body.expanded(20, body.add("Mul", left, right))]
