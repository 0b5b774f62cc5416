"""Attention and QAttention of ONNX Runtime's own domain, which become standard operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.node import Node, Result, Unsupported, Value
from frontends.onnx.ops.contrib_schemas import DOMAIN, Body, contrib

_OPSET = 20
_PLAIN = {
    "num_heads": "int!", "unidirectional": "int", "scale": "float", "mask_filter_value": "float",
    "do_rotary": "int", "past_present_share_buffer": "int",
}  # fmt: skip


@contrib(
    "Attention",
    "input:T weights:T bias:T? mask_index:M? past:T? attention_bias:T? past_sequence_length:M?",
    "output:T present:T?", {"T": "float float16 bfloat16", "M": "int32"}, **_PLAIN,
    qkv_hidden_sizes="ints", rotary_embedding_dim="int",
)  # fmt: skip
def attention(node: Node) -> Sequence[Result]:
    """Queries, keys and values of one product; their attention with a mask and past states."""
    x, w, bias = node.required(0), node.required(1), node.optional(2)
    _check_product(node, x, w, bias)
    if node.optional(6) is not None:
        raise Unsupported("Attention with past_sequence_length")
    body = Body(node)
    value = body.add("MatMul", body.input(0), body.input(1))
    if bias is not None:
        value = body.add("Add", value, body.input(2))
    return _attention(body, value, node.ints("qkv_hidden_sizes"), mask=3, past=4, extra=5)


@contrib(
    "QAttention",
    "input:T1 weight:T2 bias:T3 input_scale:T3 weight_scale:T3 mask_index:T4? "
    "input_zero_point:T1? weight_zero_point:T2? past:T3?",
    "output:T3 present:T3?",
    {"T1": "int8 uint8", "T2": "int8 uint8", "T3": "float float16", "T4": "int32"}, **_PLAIN,
)  # fmt: skip
def quantised_attention(node: Node) -> Sequence[Result]:
    """The same with a product of integers."""
    _check_product(node, node.required(0), node.required(1), node.required(2))
    body = Body(node)
    places = (0, 1, 3, 4, 6, 7, 2)
    names = (body.input(p) for p in places)
    value = body.add("MatMulIntegerToFloat", *names, domain=DOMAIN)
    return _attention(body, value, None, mask=5, past=8, extra=9)


def _check_product(node: Node, x: Value, w: Value, bias: Value | None) -> None:
    if x.rank != 3 or w.rank != 2 or w.shape[0] != x.shape[2]:
        raise node.fail(f"shapes {list(x.shape)} and {list(w.shape)} do not multiply")
    if bias is not None and bias.shape != w.shape[1:]:
        raise node.fail(f"a bias of shape {list(bias.shape)} for {w.shape[1]} columns")


def _attention(
    body: Body, value: str, widths: tuple[int, ...] | None, mask: int, past: int, extra: int
) -> Sequence[Result]:
    """Attention of queries, keys and values that are the columns of `value`.

    widths : of each of the three; mask, past, extra : positions of inputs, the last of a bias
    """
    node = body.node
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.integer(name, 0):
            raise Unsupported(f"{node.operator} with {name}")
    heads, columns = node.integer("num_heads", 0), node.required(1).shape[1]
    if widths and len(widths) != 3:
        raise node.fail(f"qkv_hidden_sizes {list(widths)}: three numbers are needed")
    q, k, v = widths or (columns // 3,) * 3
    if heads < 1 or q != k or q % heads or v % heads or q + k + v != columns:
        raise node.fail(f"{columns} columns do not make queries, keys and values of {heads} heads")
    at = body.constant
    name = body.add("Split", value, at(np.array([q, k, v])), outputs=3, axis=2)
    parts = ((name, q), (f"{name}_1", k), (f"{name}_2", v))
    queries, *states = (in_heads(body, part, heads, width // heads) for part, width in parts)
    batch, rows = node.required(0).shape[:2]
    total, earlier = rows, node.optional(past)
    if earlier is not None:
        wanted = (2, batch, heads, q // heads)
        if v != q or earlier.rank != 5 or (*earlier.shape[:3], earlier.shape[4]) != wanted:
            raise node.fail(f"past states of shape {list(earlier.shape)}")
        total = earlier.shape[3] + rows
        for n in (0, 1):
            own = body.add("Gather", body.input(past), at(np.array(n)), axis=0)
            states[n] = body.add("Concat", own, states[n], axis=2)
    scores = scored(body, queries, states[0], q // heads)
    bias = node.optional(extra)
    if bias is not None:
        check_bias(node, bias, (batch, heads, rows, total))
        scores = body.add("Add", scores, body.input(extra))
    scores = masked(body, scores, mask, (batch, rows, total))
    found = body.add("MatMul", body.add("Softmax", scores, axis=-1), states[1])
    present = ""
    if node.has_output(1):
        if v != q:
            raise node.fail(f"present states of keys of {q} columns and values of {v}")
        first = at(np.array([0]))
        pair = [body.add("Unsqueeze", s, first) for s in states]
        present = body.add("Concat", *pair, axis=0)
    return [body.expanded(_OPSET, side_by_side(body, found, v), present)]


# --- what operators of attention share ---------------------------------------------------------


def check_bias(node: Node, extra: Value, sizes: tuple[int, int, int, int]) -> None:
    """Check a bias of scores: of all sentences or heads, or of each."""
    batch, heads, rows, total = sizes
    fits = extra.rank == 4 and extra.shape[2:] == (rows, total)
    if not fits or extra.shape[0] not in (1, batch) or extra.shape[1] not in (1, heads):
        raise node.fail(f"attention_bias of shape {list(extra.shape)} for {list(sizes)}")


def in_heads(body: Body, value: str, heads: int, width: int) -> str:
    """The columns of a value as heads, which come before the rows."""
    shaped = body.add("Reshape", value, body.constant(np.array([0, 0, heads, width])))
    return body.add("Transpose", shaped, perm=[0, 2, 1, 3])


def side_by_side(body: Body, value: str, columns: int) -> str:
    """The heads of a value as columns."""
    turned = body.add("Transpose", value, perm=[0, 2, 1, 3])
    return body.add("Reshape", turned, body.constant(np.array([0, 0, columns])))


def scored(body: Body, queries: str, keys: str, width: int, rank: int = 4) -> str:
    """The products of queries and keys of a width, scaled."""
    turned = body.add("Transpose", keys, perm=[*range(rank - 2), rank - 1, rank - 2])
    scale = body.node.number("scale", 0.0) or float(width) ** -0.5
    factor = body.add("CastLike", body.constant(np.array(scale, np.float32)), queries)
    return body.add("Mul", body.add("MatMul", queries, turned), factor)


def masked(body: Body, scores: str, position: int, sizes: tuple[int, int, int]) -> str:
    """Scores plus a mask, and with those of later positions left out.

    position : of the mask among the inputs; sizes : sentences, queries and keys of each
    """
    node, at = body.node, body.constant
    columns = positions(body, scores, -1)
    mask = node.optional(position)
    if mask is not None and not _is_dummy(mask, sizes):
        kept = _kept(body, columns, position, sizes)
        low = at(np.array(node.number("mask_filter_value", -10000.0), np.float32))
        zero = at(np.array(0, np.float32))
        added = body.add("CastLike", body.add("Where", kept, zero, low), scores)
        scores = body.add("Add", scores, added)
    if not node.flag("unidirectional"):
        return scores
    last = body.add("Unsqueeze", positions(body, scores, -2), at(np.array([1])))
    earlier = body.add("Sub", extent(body, scores, -1), extent(body, scores, -2))
    seen = body.add("LessOrEqual", columns, body.add("Add", last, earlier))
    return only(body, seen, scores)


def _is_dummy(mask: Value, sizes: tuple[int, int, int]) -> bool:
    """Whether a mask has only the shape of one, as ONNX Runtime's optimiser writes it."""
    batch, _, total = sizes
    return mask.shape in ((batch, 1), (1, 1)) and mask.shape != (batch, total)


def _kept(body: Body, columns: str, position: int, sizes: tuple[int, int, int]) -> str:
    """Which scores a mask keeps: elements of its own, or columns up to and from numbers."""
    at, name, (batch, rows, total) = body.constant, body.input(position), sizes
    mask = body.node.required(position)
    if mask.shape in ((batch, total), (batch, rows, total)):
        kept = body.add("Greater", name, at(np.array(0, np.int32)))
        return body.add("Unsqueeze", kept, at(np.array([1, 2] if mask.rank == 2 else [1])))
    if mask.shape not in ((batch,), (2 * batch,), (3 * batch + 2,)):
        raise Unsupported(f"{body.node.operator} with a mask of shape {list(mask.shape)}")
    wide, axes = body.add("Cast", name, to=7), at(np.array([1, 2, 3]))
    ends = body.add("Slice", wide, at(np.array([0])), _batch(body))
    kept = body.add("Less", columns, body.add("Unsqueeze", ends, axes))
    if mask.shape != (2 * batch,):
        return kept
    starts = body.add("Slice", wide, _batch(body), at(np.array([1 << 31])))
    starts = body.add("Unsqueeze", starts, axes)
    return body.add("And", kept, body.add("GreaterOrEqual", columns, starts))


def only(body: Body, kept: str, scores: str) -> str:
    """Scores that are kept; the others count for nothing."""
    least = body.add("CastLike", body.constant(np.array(-np.inf, np.float32)), scores)
    return body.add("Where", kept, scores, least)


def extent(body: Body, value: str, axis: int) -> str:
    """The extent of a value along an axis."""
    return body.add("Gather", body.add("Shape", value), body.constant(np.array(axis)))


def positions(body: Body, value: str, axis: int) -> str:
    """0, 1, … along an axis of a value."""
    at = body.constant
    return body.add("Range", at(np.array(0)), extent(body, value, axis), at(np.array(1)))


def _batch(body: Body) -> str:
    return body.add("Shape", body.input(0), start=0, end=1)
