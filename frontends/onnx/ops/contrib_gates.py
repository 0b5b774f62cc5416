"""Gates of ONNX Runtime's own domain: an operand decides how much of another counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.node import Node, Result, Unsupported
from frontends.onnx.ops.contrib_schemas import Body, contrib

_FLOATS = "float float16 bfloat16"
_OPSET = 23


@contrib(
    "GatedRMSNorm", "X:T scale:T gate:T", "Y:T", {"T": _FLOATS}, activation="string",
    epsilon="float",
)  # fmt: skip
def gated_rms_norm(node: Node) -> Sequence[Result]:
    """RMSNormalization of parts of each row, times an activation of the gate, in float32."""
    x, scale, gate = node.required(0), node.required(1), node.required(2)
    kind = node.word("activation", "silu")
    if kind not in ("silu", "swish", "sigmoid"):
        raise node.fail(f"activation {kind!r} does not exist")
    if gate.shape != x.shape:
        raise node.fail(f"a gate of shape {list(gate.shape)} for {list(x.shape)}")
    if x.rank < 1 or scale.rank != 1 or not scale.size or x.shape[-1] % scale.size:
        raise node.fail(f"a scale of shape {list(scale.shape)} for {list(x.shape)}")
    body = Body(node)
    value, factor, wide = (body.add("Cast", body.input(p), to=1) for p in range(3))
    parts = [body.add("Shape", value, start=0, end=-1), body.constant(np.array([-1, scale.size]))]
    rows = body.add("Reshape", value, body.add("Concat", *parts, axis=0))
    epsilon = node.number("epsilon", 1e-5)
    rows = body.add("RMSNormalization", rows, factor, epsilon=epsilon)
    value = body.add("Reshape", rows, body.add("Shape", value))
    active = body.add("Sigmoid", wide)
    if kind != "sigmoid":
        active = body.add("Mul", wide, active)
    value = body.add("Mul", value, active)
    return [body.expanded(_OPSET, body.add("CastLike", value, body.input(0)))]


@contrib("GatedAdd", "X:T Y:T gate:T gate_weight:T?", "output:T", {"T": _FLOATS})
def gated_add(node: Node) -> Sequence[Result]:
    """X + Y * gate, with one gate for each row."""
    x, y, gate = node.required(0), node.required(1), node.required(2)
    if node.optional(3) is not None:
        raise Unsupported("GatedAdd with gate_weight")
    if x.rank < 1 or y.shape != x.shape or gate.shape != (*x.shape[:-1], 1):
        shapes = ", ".join(str(list(v.shape)) for v in (x, y, gate))
        raise node.fail(f"shapes {shapes} do not fit")
    body = Body(node)
    value = body.add("Mul", body.input(1), body.input(2))
    return [body.expanded(_OPSET, body.add("Add", body.input(0), value))]


@contrib(
    "ScaledSiLU", "X:T scale:M?", "Y:T", {"T": _FLOATS, "M": _FLOATS}, alpha="float"
)  # fmt: skip
def scaled_silu(node: Node) -> Sequence[Result]:
    """z * sigmoid(z), where z is the operand times a number, in the type of the operand."""
    body, scale = Body(node), node.optional(1)
    if scale is None:
        factor = body.constant(np.array(node.number("alpha", 1.0), np.float32))
    elif scale.rank == 0:
        factor = body.add("Cast", body.input(1), to=1)
    else:
        raise node.fail(f"a scale of shape {list(scale.shape)}")
    value = body.add("Mul", body.add("Cast", body.input(0), to=1), factor)
    value = body.add("CastLike", value, body.input(0))
    return [body.expanded(_OPSET, body.add("Mul", value, body.add("Sigmoid", value)))]
