"""MultiHeadAttention of ONNX Runtime's own domain, which becomes standard operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.node import Node, Result, Unsupported, Value
from frontends.onnx.ops.contrib_attention import (
    check_bias,
    in_heads,
    masked,
    scored,
    side_by_side,
)
from frontends.onnx.ops.contrib_schemas import Body, contrib

_OPSET = 20
_QUERY, _KEY, _VALUE, _BIAS, _MASK, _EXTRA, _PAST_KEY, _PAST_VALUE = range(8)


@contrib(
    "MultiHeadAttention",
    "query:T key:T? value:T? bias:T? key_padding_mask:M? attention_bias:T? past_key:T? "
    "past_value:T? past_sequence_length:M? cache_indirection:M?",
    "output:T present_key:T? present_value:T? qk:QK?",
    {"T": "float float16 bfloat16", "QK": "float float16 bfloat16", "M": "int32"},
    num_heads="int!", scale="float", mask_filter_value="float", unidirectional="int",
)  # fmt: skip
def multi_head_attention(node: Node) -> Sequence[Result]:
    """Queries that attend to keys, with a mask and past states.

    The last output is the masked scores, as ONNX Runtime computes them.
    """
    query, heads = node.required(_QUERY), node.integer("num_heads", 0)
    if node.optional(8) is not None or node.optional(9) is not None:
        raise Unsupported("MultiHeadAttention with states in buffers that are shared")
    if heads < 1:
        raise node.fail(f"num_heads is {heads}")
    body = Body(node)
    parts, widths, length = _parts(body, heads)
    past = _past(node, heads, widths)
    if past is not None:
        for n, position in ((1, _PAST_KEY), (2, _PAST_VALUE)):
            parts[n] = body.add("Concat", body.input(position), parts[n], axis=2)
    batch, rows = query.shape[:2]
    total = length if past is None else past.shape[2] + length
    if node.flag("unidirectional") and rows != length:
        raise Unsupported(f"unidirectional attention of {rows} queries to {length} keys")
    scores = scored(body, parts[0], parts[1], widths[0])
    extra, mask = node.optional(_EXTRA), node.optional(_MASK)
    if extra is not None:
        check_bias(node, extra, (batch, heads, rows, total))
        scores = body.add("Add", scores, body.input(_EXTRA))
    if mask is not None and mask.shape == (2 * batch,):
        raise node.fail(f"a mask of shape {list(mask.shape)} for {batch} sentences")
    scores = masked(body, scores, _MASK, (batch, rows, total))
    found = body.add("MatMul", body.add("Softmax", scores, axis=-1), parts[2])
    found = side_by_side(body, found, heads * widths[1])
    return [body.expanded(_OPSET, found, parts[1], parts[2], scores)]


def _parts(body: Body, heads: int) -> tuple[list[str], tuple[int, int], int]:
    """Queries, keys and values in heads; the widths of a head's keys and values; their number."""
    node, query, key, value = body.node, *(body.node.optional(p) for p in range(3))
    assert query is not None, "the schema was checked"
    if query.rank == 5:
        return _packed(body, heads, _QUERY, 3)
    if query.rank != 3 or query.shape[2] % heads:
        raise node.fail(f"a query of shape {list(query.shape)} for {heads} heads")
    width = query.shape[2] // heads
    if key is None or (value is None) != (key.rank == 5):
        raise node.fail("keys and values are given apart, or in one operand of rank 5")
    if key.rank == 5:
        packed, widths, length = _packed(body, heads, _KEY, 2)
        if widths[0] != width:
            raise node.fail(f"queries of {width} numbers and keys of {widths[0]}")
        return [in_heads(body, body.input(_QUERY), heads, width), *packed], widths, length
    assert value is not None
    batch = query.shape[0]
    if key.rank == 4:
        length, own = key.shape[2], value.shape[-1]
        fits = key.shape == (batch, heads, length, width)
        fits = fits and value.shape == (batch, heads, length, own)
    else:
        length, own = key.shape[1], value.shape[-1] // heads
        fits = key.shape == (batch, length, heads * width)
        fits = fits and value.shape == (batch, length, heads * own)
    if not fits:
        shapes = " and ".join(str(list(v.shape)) for v in (key, value))
        raise node.fail(f"keys and values of shape {shapes} for queries {list(query.shape)}")
    biased = _biased(body, (width * heads, width * heads, own * heads), key.rank == 4)
    parts = [in_heads(body, biased[0], heads, width)]
    for name, part in zip(biased[1:], (width, own), strict=True):
        parts.append(name if key.rank == 4 else in_heads(body, name, heads, part))
    return parts, (width, own), length


def _packed(
    body: Body, heads: int, position: int, count: int
) -> tuple[list[str], tuple[int, int], int]:
    """The parts of an operand of shape [batch, length, heads, count, width]."""
    node, value = body.node, body.node.required(position)
    if node.optional(_BIAS) is not None:
        raise Unsupported("MultiHeadAttention with a bias of operands that share a tensor")
    if value.shape[2:4] != (heads, count):
        raise node.fail(f"an operand of shape {list(value.shape)} for {heads} heads")
    at, parts = body.constant, []
    for n in range(count):
        part = body.add("Gather", body.input(position), at(np.array(n)), axis=3)
        parts.append(body.add("Transpose", part, perm=[0, 2, 1, 3]))
    return parts, (value.shape[4], value.shape[4]), value.shape[1]


def _biased(body: Body, columns: tuple[int, int, int], ready: bool) -> list[str]:
    """Queries, keys and values plus their bias, which keys and values of rank 4 have already."""
    node, bias = body.node, body.node.optional(_BIAS)
    names = [body.input(p) for p in (_QUERY, _KEY, _VALUE)]
    if bias is None:
        return names
    if bias.shape != (sum(columns),):
        raise node.fail(f"a bias of shape {list(bias.shape)} for {sum(columns)} columns")
    sizes = body.constant(np.array(columns))
    split = body.add("Split", body.input(_BIAS), sizes, outputs=3, axis=0)
    for n in range(1 if ready else 3):
        names[n] = body.add("Add", names[n], f"{split}_{n}" if n else split)
    return names


def _past(node: Node, heads: int, widths: tuple[int, int]) -> Value | None:
    """The past keys, None if there are none."""
    key, value = node.optional(_PAST_KEY), node.optional(_PAST_VALUE)
    if key is None and value is None:
        return None
    if key is None or value is None:
        raise node.fail("past_key and past_value are only given together")
    batch, length = node.required(_QUERY).shape[0], key.shape[2] if key.rank == 4 else 0
    for past, width in ((key, widths[0]), (value, widths[1])):
        if past.shape != (batch, heads, length, width):
            raise node.fail(f"past states of shape {list(past.shape)}")
    return key
