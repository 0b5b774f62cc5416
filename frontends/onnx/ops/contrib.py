"""Operators of ONNX Runtime's own domain on floats, which its optimiser writes.

Each is several standard operators in one, and becomes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from frontends.onnx.core.comprehension_text import literal
from frontends.onnx.core.node import Node, Result, Unsupported, Value
from frontends.onnx.ops.broadcasting import broadcast
from frontends.onnx.ops.contrib_schemas import DOMAIN, Body, contrib
from frontends.onnx.ops.elementwise import elementwise, gelu

_FLOATS = {"T": "float double float16 bfloat16"}
#: The opset of the operators that others become.
_OPSET = 20


# --- activations -------------------------------------------------------------------------------


@contrib("Gelu", "X:T", "Y:T", _FLOATS)
def plain_gelu(node: Node) -> Sequence[Result]:
    """x/2 * (1 + erf(x / sqrt(2)))"""
    return gelu(node)


@contrib("QuickGelu", "X:T", "Y:T", _FLOATS, alpha="float")
def quick_gelu(node: Node) -> Sequence[Result]:
    """x * sigmoid(alpha * x)"""
    alpha = literal(node.number("alpha", 1.702))
    return [elementwise("quick_gelu", node.required(0), f"{{0}} * sigmoid({alpha} * {{0}})")]


@contrib("BiasGelu", "A:T B:T", "C:T", _FLOATS)
@contrib("FastGelu", "X:T bias:T?", "Y:T", _FLOATS)
def biased_gelu(node: Node) -> Sequence[Result]:
    """Gelu of the operand plus a bias for each element of the last axis.

    FastGelu is the approximation with tanh.
    """
    x, bias, body = node.required(0), node.optional(1), Body(node)
    value = body.input(0)
    if bias is not None:
        if x.rank < 1 or bias.shape != x.shape[-1:]:
            raise node.fail(f"a bias of shape {list(bias.shape)} for {list(x.shape)}")
        value = body.add("Add", value, body.input(1))
    kind = "none" if node.operator == "BiasGelu" else "tanh"
    return [body.expanded(_OPSET, body.add("Gelu", value, approximate=kind))]


# --- products ----------------------------------------------------------------------------------


@contrib(
    "FusedMatMul", "A:T B:T", "Y:T", _FLOATS, alpha="float", transA="int", transB="int",
    transBatchA="int", transBatchB="int",
)  # fmt: skip
@contrib(
    "TransposeMatMul", "A:T B:T", "Y:T", _FLOATS, alpha="float", transA="int", transB="int"
)  # fmt: skip
def fused_matmul(node: Node) -> Sequence[Result]:
    """The product of two operands that are transposed before, times a number.

    With transBatch, the first axis comes behind those of the batch, before the last two are
    swapped.
    """
    body = Body(node)
    names = [_transposed(body, p, "AB"[p]) for p in (0, 1)]
    value = body.add("MatMul", *names)
    alpha = node.number("alpha", 1.0)
    if alpha != 1:
        # Multiplied in the type of the operands, which may be narrower than the number.
        factor = body.constant(np.array(alpha, np.float32))
        value = body.add("Mul", value, body.add("CastLike", factor, value))
    return [body.expanded(_OPSET, value)]


def _transposed(body: Body, position: int, letter: str) -> str:
    """An operand of a product, under the attributes of its letter."""
    node, rank = body.node, body.node.required(position).rank
    order = list(range(rank))
    if node.flag(f"transBatch{letter}"):
        if rank < 3 or node.required(1 - position).rank != rank:
            raise node.fail("transBatch needs two operands of the same rank, which is at least 3")
        order = [*order[1:-1], 0, order[-1]]
    if node.flag(f"trans{letter}") and rank > 1:  # vectors are what they are
        order[-2:] = order[:-3:-1]
    name = body.input(position)
    return name if order == sorted(order) else body.add("Transpose", name, perm=order)


#: Activations of FusedConv, and the attributes that its numbers are.
_OF_CONV = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip


@contrib(
    "FusedConv", "X:T W:T B:T? Z:T?", "Y:T", {"T": "float double float16"}, activation="string",
    activation_params="floats", auto_pad="string", dilations="ints", group="int",
    kernel_shape="ints", pads="ints", strides="ints",
)  # fmt: skip
def fused_conv(node: Node) -> Sequence[Result]:
    """A convolution, plus Z, and an activation of that."""
    body = Body(node)
    own: dict[str, Any] = {
        n: v for n, v in node.attributes.items() if not n.startswith("activation")
    }
    value = body.add("Conv", *(body.input(p) for p in range(3)), **own)
    if node.optional(3) is not None:
        value = body.add("Add", value, body.input(3))
    kind, numbers = node.word("activation", ""), node.attributes.get("activation_params", ())
    assert isinstance(numbers, tuple)
    if kind:
        if kind not in _OF_CONV:
            raise Unsupported(f"activation {kind!r}")
        if len(numbers) != len(_OF_CONV[kind]):
            raise node.fail(f"{len(numbers)} numbers for activation {kind}")
        value = _activated(body, kind, dict(zip(_OF_CONV[kind], numbers, strict=True)), value)
    return [body.expanded(_OPSET, value)]


def _activated(body: Body, kind: str, numbers: dict[str, Any], value: str) -> str:
    if kind != "Clip":
        return body.add(kind, value, **numbers)
    bounds = (body.constant(np.array(n, np.float32)) for n in numbers.values())
    return body.add("Clip", value, *(body.add("CastLike", b, value) for b in bounds))


_GEMM_TYPES = {"T": "float double float16 int32 int64 uint32 uint64"}
#: Activations of FusedGemm, and the attributes that they have.
_OF_GEMM = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "Elu": ("alpha",),
    "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip


@contrib(
    "FusedGemm", "A:T B:T C:T?", "Y:T", _GEMM_TYPES, activation="string",
    activation_alpha="float", activation_beta="float", activation_gamma="float", alpha="float",
    beta="float", transA="int", transB="int",
)  # fmt: skip
def fused_gemm(node: Node) -> Sequence[Result]:
    """Gemm and an activation of it."""
    body, prefix = Body(node), "activation"
    own: dict[str, Any] = {n: v for n, v in node.attributes.items() if not n.startswith(prefix)}
    value = body.add("Gemm", *(body.input(p) for p in range(3)), **own)
    kind = node.word(prefix, "")
    if kind:
        if kind not in _OF_GEMM:
            raise Unsupported(f"activation {kind!r}")
        given: dict[str, Any] = {n: node.attributes[f"{prefix}_{n}"] for n in _OF_GEMM[kind]
                 if f"{prefix}_{n}" in node.attributes}  # fmt: skip
        value = body.add(kind, value, **given)
    return [body.expanded(_OPSET, value)]


@contrib("GemmFastGelu", "X:T W:T bias:T?", "Y:T", {"T": "float float16 bfloat16"})
def gemm_fast_gelu(node: Node) -> Sequence[Result]:
    """FastGelu of a product and a bias."""
    body = Body(node)
    value = body.add("MatMul", body.input(0), body.input(1))
    found = body.add("FastGelu", value, body.input(2), domain=DOMAIN)
    return [body.expanded(_OPSET, found)]


# --- normalisations ----------------------------------------------------------------------------


@contrib(
    "BiasSoftmax", "data:T bias:T", "output:T", {"T": "float16 float double"}, axis="int",
    is_inner_broadcast="int!",
)  # fmt: skip
def bias_softmax(node: Node) -> Sequence[Result]:
    """Softmax of scores plus a bias, over all axes from one on.

    `is_inner_broadcast` says how the bias is broadcast, as its shape does.
    """
    x, bias = node.required(0), node.required(1)
    if broadcast(node, [x.shape, bias.shape]) != x.shape:
        raise node.fail(f"a bias of shape {list(bias.shape)} for {list(x.shape)}")
    body = Body(node)
    total = body.add("Add", body.input(0), body.input(1))
    # Until opset 12, Softmax counts all axes from its own on as one.
    return [body.expanded(11, body.add("Softmax", total, axis=node.integer("axis", 1)))]


_NORMALISED = {"T": "float float16 bfloat16", "U": "float"}
_SUMS = "output:T mean:U? inv_std_var:U? input_skip_bias_sum:T?"


@contrib(
    "SkipLayerNormalization", "input:T skip:T gamma:T beta:T? bias:T?", _SUMS, _NORMALISED,
    epsilon="float",
)  # fmt: skip
@contrib(
    "SkipSimplifiedLayerNormalization", "input:T skip:T gamma:T bias:T?", _SUMS, _NORMALISED,
    epsilon="float",
)  # fmt: skip
def skip_layer_normalization(node: Node) -> Sequence[Result]:
    """The sum of two operands and a bias, normalised along the last axis; the simplified one keeps
    the mean."""
    x, skip = node.required(0), node.required(1)
    if node.has_output(1) or node.has_output(2):
        raise Unsupported(f"the statistics that {node.operator} returns in training")
    if x.rank not in (2, 3) or broadcast(node, [skip.shape, x.shape]) != x.shape:
        raise node.fail(f"shapes {list(x.shape)} and {list(skip.shape)} do not fit")
    simple = node.operator == "SkipSimplifiedLayerNormalization"
    place = 3 if simple else 4
    for position in (2, 3, 4):
        _check_width(node, position, x)
    body, is_narrow = Body(node), x.dtype.bits == 16

    def wide(position: int) -> str:
        """An operand as float32: sums of half floats may be too large for those."""
        name = body.input(position)
        return body.add("Cast", name, to=TensorProto.FLOAT) if name and is_narrow else name

    total = body.add("Add", wide(0), wide(1))
    if node.optional(place) is not None:
        total = body.add("Add", total, wide(place))
    epsilon = node.number("epsilon", 1e-12)
    if simple:
        value = body.add("RMSNormalization", total, wide(2), epsilon=epsilon)
    else:
        value = body.add("LayerNormalization", total, wide(2), wide(3), epsilon=epsilon)
    if is_narrow:
        value, total = (body.add("CastLike", v, body.input(0)) for v in (value, total))
    return [body.expanded(23 if simple else _OPSET, value, "", "", total)]


def _check_width(node: Node, position: int, x: Value) -> None:
    """Check that an operand has a number for each element of the last axis."""
    value = node.optional(position)
    if value is not None and value.shape != x.shape[-1:]:
        raise node.fail(f"input number {position + 1} has shape {list(value.shape)}, "
                        f"not {list(x.shape[-1:])}")  # fmt: skip


@contrib(
    "SimplifiedLayerNormalization", "X:T scale:V", "Y:V inv_std_var:U?",
    {"T": "float16 float double bfloat16", "U": "float double",
     "V": "float16 float double bfloat16"},
    domain="", axis="int", epsilon="float", stash_type="int",
)  # fmt: skip
def simplified_layer_normalization(node: Node) -> Sequence[Result]:
    """RMSNormalization, which ONNX Runtime has in the default domain under this name."""
    if node.has_output(1):
        raise Unsupported("the statistics that SimplifiedLayerNormalization returns in training")
    x, scale = node.required(0), node.required(1)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    body, axis = Body(node), node.axis(node.integer("axis", -1), x.rank)
    value, factor = body.input(0), body.input(1)
    # The result has the type of the scale, in which values may be too large before.
    is_narrowed = x.dtype.bits > scale.dtype.bits
    if is_narrowed:
        factor = body.add("CastLike", factor, body.input(0))
    elif x.dtype != scale.dtype:
        value = body.add("CastLike", value, body.input(1))
    epsilon = node.number("epsilon", 1e-5)
    value = body.add("RMSNormalization", value, factor, axis=axis, epsilon=epsilon)
    if is_narrowed:
        value = body.add("CastLike", value, body.input(1))
    return [body.expanded(23, value)]


@contrib(
    "EmbedLayerNormalization",
    "input_ids:T1 segment_ids:T1? word_embedding:T position_embedding:T segment_embedding:T? "
    "gamma:T beta:T mask:T1? position_ids:T1?",
    "output:T mask_index:T1? embedding_sum:T?", {"T1": "int32", "T": "float float16"},
    epsilon="float", mask_index_type="int",
)  # fmt: skip
def embed_layer_normalization(node: Node) -> Sequence[Result]:
    """The sum of the embeddings of words, positions and segments, normalised.

    The second output counts the words of each sentence that the mask keeps, 0 without a mask.
    """
    ids, body = node.required(0), Body(node)
    if ids.rank != 2:
        raise node.fail(f"input_ids of rank {ids.rank}")
    if (node.optional(1) is None) != (node.optional(4) is None):
        raise node.fail("segment_ids and segment_embedding are only given together")
    for position in (5, 6):
        _check_width(node, position, node.required(2))
    at = body.constant
    length = body.add("Shape", body.input(0), start=1)
    if node.optional(8) is None:
        rows = body.add("Slice", body.input(3), at(np.array([0])), length, at(np.array([0])))
    else:
        rows = body.add("Gather", body.input(3), body.input(8), axis=0)
    total = body.add("Add", body.add("Gather", body.input(2), body.input(0), axis=0), rows)
    if node.optional(1) is not None:
        total = body.add("Add", total, body.add("Gather", body.input(4), body.input(1), axis=0))
    names, epsilon = (body.input(5), body.input(6)), node.number("epsilon", 1e-12)
    value = body.add("LayerNormalization", total, *names, epsilon=epsilon)
    count = ""
    if node.has_output(1):
        kept = body.input(7) or body.add("Mul", body.input(0), at(np.array(0, np.int32)))
        kept = body.add("Cast", body.add("Equal", kept, at(np.array(1, np.int32))), to=6)
        count = body.add("ReduceSum", kept, at(np.array([1])), keepdims=0)
    return [body.expanded(_OPSET, value, count, total)]


_QUANTISED = "word_embedding position_embedding segment_embedding gamma beta"


@contrib(
    "QEmbedLayerNormalization",
    "input_ids:T1 segment_ids:T1? word_embedding_quant:T2 position_embedding_quant:T2 "
    "segment_embedding:T2? gamma_quant:T2 beta_quant:T2 mask:T1? word_embedding_scale:T "
    "position_embedding_scale:T segment_embedding_scale:T? gamma_scale:T beta_scale:T "
    "word_embedding_zero_point:T2 position_embedding_zero_point:T2 "
    "segment_embedding_zero_point:T2? gamma_zero_point:T2 beta_zero_point:T2",
    "layernorm_out:T mask_index_out:T1", {"T1": "int32", "T2": "int8 uint8", "T": "float"},
    epsilon="float",
)  # fmt: skip
def quantised_embedding(node: Node) -> Sequence[Result]:
    """EmbedLayerNormalization of tables, scale and bias in 8 bits."""
    body = Body(node)
    names = [body.input(p) for p in range(8)]
    for n, position in enumerate(range(2, 7)):
        table, scale, zero = (node.optional(p) for p in (position, 8 + n, 13 + n))
        if table is None:
            continue
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            what = _QUANTISED.split()[n]
            raise node.fail(f"{what} needs one scale and one zero point")
        single = (body.add("Reshape", body.input(p), body.constant(np.zeros(0, np.int64)))
                  for p in (8 + n, 13 + n))  # fmt: skip
        names[position] = body.add("DequantizeLinear", names[position], *single)
    epsilon = node.number("epsilon", 1e-12)
    value = body.add(
        "EmbedLayerNormalization", *names, outputs=2, domain=DOMAIN, epsilon=epsilon
    )  # fmt: skip
    return [body.expanded(_OPSET, value, f"{value}_1")]
