"""GroupQueryAttention of ONNX Runtime's own domain, which becomes standard operators.

Each head of keys and values serves a group of queries' heads.  Sentences of a batch may have
different lengths: new states go behind the earlier ones of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.onnx.core.node import Node, Result, Unsupported
from frontends.onnx.ops.contrib_attention import (
    check_bias,
    extent,
    in_heads,
    only,
    positions,
    scored,
)
from frontends.onnx.ops.contrib_schemas import DOMAIN, Body, contrib

_OPSET = 20
_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LENGTHS, _TOTAL = range(7)
_COS, _SIN, _PLACES, _EXTRA, _SINK, _KEY_SCALE = range(7, 13)


@dataclass(frozen=True)
class _Sizes:
    """The sizes of attention: sentences, new rows, earlier ones, all, and those of the buffers."""

    batch: Any
    rows: Any
    past: Any
    total: Any
    buffer: Any
    heads: int
    groups: int
    width: int


@contrib(
    "GroupQueryAttention",
    "query:T key:T? value:T? past_key:C? past_value:C? seqlens_k:M total_sequence_length:M "
    "cos_cache:T? sin_cache:T? position_ids:P? attention_bias:T? head_sink:T? k_scale:S? "
    "v_scale:S? q_norm_weight:T? k_norm_weight:T? query_seqlens:M?",
    "output:T present_key:C? present_value:C? output_qk:T?",
    {
        "T": "float float16 bfloat16", "C": "float float16 bfloat16 uint8 int8 float8e4m3fn",
        "M": "int32", "P": "int64", "S": "float",
    },
    num_heads="int!", kv_num_heads="int!", scale="float", softcap="float", do_rotary="int",
    rotary_interleaved="int", causal="int", local_window_size="int", sliding_window_cache="int",
    smooth_softmax="int", qk_output="int", k_quant_type="string", v_quant_type="string",
    kv_cache_bit_width="int", qk_norm_epsilon="float", q_norm_epsilon="float",
    k_norm_epsilon="float",
)  # fmt: skip
def group_query_attention(node: Node) -> Sequence[Result]:
    """Queries that attend to keys of their own and of earlier steps, each up to its position."""
    _refuse(node)
    sizes, body = _sizes(node), Body(node)
    queries, keys, values = _parts(body, sizes)
    earlier = _earlier(body, sizes)
    if node.flag("do_rotary"):
        queries, keys = (_turned(body, part, earlier) for part in (queries, keys))
    keys, values = (_appended(body, p, s, earlier, sizes)
                    for p, s in ((_PAST_KEY, keys), (_PAST_VALUE, values)))  # fmt: skip
    found = _attended(body, queries, (keys, values), earlier, sizes)
    return [body.expanded(_OPSET, found, keys, values)]


def _refuse(node: Node) -> None:
    """Refuse what is not supported."""
    what = {
        "sliding_window_cache": node.integer("sliding_window_cache", 0),
        "qk_output": node.integer("qk_output", 0) or node.has_output(3),
        "8-bit states": node.word("k_quant_type", "NONE") != "NONE"
        or node.word("v_quant_type", "NONE") != "NONE"
        or any(node.optional(p) is not None for p in (_KEY_SCALE, _KEY_SCALE + 1)),
        "norms of queries and keys": any(node.optional(p) is not None for p in (14, 15)),
        "query_seqlens": node.optional(16) is not None,
    }
    for name, given in what.items():
        if given:
            raise Unsupported(f"GroupQueryAttention with {name}")


def _sizes(node: Node) -> _Sizes:
    """The sizes of a node's operands, checked."""
    query, key, value = node.required(_QUERY), node.optional(_KEY), node.optional(_VALUE)
    heads, groups = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    if heads < 1 or groups < 1 or heads % groups:
        raise node.fail(f"{heads} heads of queries, {groups} of keys and values")
    if query.rank != 3 or (key is None) != (value is None):
        raise node.fail("a query of rank 3 is needed, and both of key and value or neither")
    batch, rows, columns = query.shape
    parts = heads + (2 * groups if key is None else 0)
    if columns % parts:
        raise node.fail(f"{columns} columns do not make {parts} heads")
    width = columns // parts
    for own in (key, value):
        if own is not None and own.shape != (batch, rows, groups * width):
            raise node.fail(f"keys or values of shape {list(own.shape)}, not "
                            f"{[batch, rows, groups * width]}")  # fmt: skip
    past, other = node.optional(_PAST_KEY), node.optional(_PAST_VALUE)
    if (past is None) != (other is None):
        raise node.fail("past_key and past_value are only given together")
    length: Any = 0
    if past is not None and other is not None:
        length = past.shape[2] if past.rank == 4 else 0
        if past.shape != (batch, groups, length, width) or other.shape != past.shape:
            raise node.fail(f"past states of shape {list(past.shape)} and {list(other.shape)}")
        if past.dtype != query.dtype or other.dtype != query.dtype:
            raise Unsupported(f"GroupQueryAttention with states of {past.dtype}")
    total = (node.known_ints(_TOTAL, "total_sequence_length") or (0,))[0]
    if (total != length + rows and total > length) or total < rows:
        raise node.fail(
            f"total_sequence_length is {total}, but there are {length} earlier states and "
            f"{rows} new"
        )
    if node.required(_LENGTHS).shape not in ((batch,), (batch, 1)):
        raise node.fail(f"seqlens_k of shape {list(node.required(_LENGTHS).shape)}")
    return _Sizes(batch, rows, length, total, max(total, length), heads, groups, width)


def _parts(body: Body, sizes: _Sizes) -> list[str]:
    """Queries, keys and values in heads."""
    counts = (sizes.heads, sizes.groups, sizes.groups)
    names = [body.input(p) for p in (_QUERY, _KEY, _VALUE)]
    if not names[1]:
        columns = body.constant(np.array([c * sizes.width for c in counts]))
        split = body.add("Split", names[0], columns, outputs=3, axis=2)
        names = [split, f"{split}_1", f"{split}_2"]
    return [in_heads(body, n, c, sizes.width) for n, c in zip(names, counts, strict=True)]


def _earlier(body: Body, sizes: _Sizes) -> str:
    """How many states each sentence has before the new ones, of shape [batch, 1]."""
    at = body.constant
    ends = body.add("Reshape", body.input(_LENGTHS), at(np.array([-1, 1])))
    ends = body.add("Cast", ends, to=7)
    if sizes.rows == sizes.total:  # the first step, whose rows may be padded behind
        return body.add("Mul", ends, at(np.array(0)))
    rows = body.add("Shape", body.input(_QUERY), start=1, end=2)
    return body.add("Sub", body.add("Add", ends, at(np.array(1))), rows)


def _turned(body: Body, part: str, earlier: str) -> str:
    """Queries or keys under a rotary embedding."""
    node, cos, sin = body.node, body.node.optional(_COS), body.node.optional(_SIN)
    if cos is None or sin is None or cos.rank != 2:
        raise node.fail("do_rotary needs cos_cache and sin_cache, of rank 2")
    places = body.input(_PLACES) or body.add("Add", earlier, positions(body, part, 2))
    return body.add(
        "RotaryEmbedding", part, places, body.input(_COS), body.input(_SIN), domain=DOMAIN,
        interleaved=node.integer("rotary_interleaved", 0),
        num_heads=1, rotary_embedding_dim=2 * cos.shape[1],
    )  # fmt: skip


def _appended(body: Body, past: int, new: str, earlier: str, sizes: _Sizes) -> str:
    """New states behind the earlier ones of each sentence; zeros behind those."""
    if body.node.optional(past) is None:
        return new
    at = body.constant
    both = body.add("Concat", body.input(past), new, axis=2)
    is_longer = sizes.total == sizes.past + sizes.rows
    place = positions(body, both if is_longer else body.input(past), 2)
    is_old = body.add("Less", place, earlier)
    length = extent(body, body.input(past), 2)
    moved = body.add("Add", body.add("Sub", place, earlier), length)
    index = body.add("Where", is_old, place, moved)
    last = body.add("Sub", extent(body, both, 2), at(np.array(1)))
    index = body.add("Unsqueeze", body.add("Min", index, last), at(np.array([2])))
    rows = body.add("Transpose", both, perm=[0, 2, 1, 3])
    found = body.add("GatherND", rows, index, batch_dims=1)
    is_used = body.add("Less", place, body.add("Add", earlier, extent(body, new, 2)))
    is_used = body.add("Unsqueeze", is_used, at(np.array([2, 3])))
    zero = body.add("CastLike", at(np.array(0, np.float32)), new)
    found = body.add("Where", is_used, found, zero)
    return body.add("Transpose", found, perm=[0, 2, 1, 3])


def _attended(
    body: Body, queries: str, states: tuple[str, str], earlier: str, sizes: _Sizes
) -> str:
    """The attention of each head of queries to its keys and values, as columns."""
    at, share = body.constant, sizes.heads // sizes.groups
    if sizes.total != sizes.buffer:
        count = body.add("Reshape", body.input(_TOTAL), at(np.array([1])))
        count = body.add("Cast", count, to=7)
        bounds = (at(np.array([0])), count, at(np.array([2])))
        states = (body.add("Slice", states[0], *bounds), body.add("Slice", states[1], *bounds))
    keys, values = (body.add("Unsqueeze", s, at(np.array([2]))) for s in states)
    grouped = _grouped(body, queries, 1, sizes.groups, share)
    scores = _limited(body, scored(body, grouped, keys, sizes.width, rank=5))
    extra = body.node.optional(_EXTRA)
    if extra is not None:
        check_bias(body.node, extra, (sizes.batch, sizes.heads, sizes.rows, sizes.total))
        shared = extra.shape[1] != sizes.heads
        parts = (1, 1) if shared else (sizes.groups, share)
        scores = body.add("Add", scores, _grouped(body, body.input(_EXTRA), 1, *parts))
    weights = _weights(body, only(body, _kept(body, scores, earlier), scores), sizes)
    found = body.add("MatMul", weights, values)
    turned = body.add("Transpose", found, perm=[0, 3, 1, 2, 4])
    return body.add("Reshape", turned, at(np.array([0, 0, sizes.heads * sizes.width])))


def _grouped(body: Body, value: str, axis: int, *counts: int) -> str:
    """A value with an axis as several."""
    sizes = [
        body.add("Shape", value, start=0, end=axis),
        body.constant(np.array(counts)),
        body.add("Shape", value, start=axis + 1),
    ]
    return body.add("Reshape", value, body.add("Concat", *sizes, axis=0))


def _limited(body: Body, scores: str) -> str:
    """Scores that a hyperbolic tangent limits, if the node says so."""
    cap = body.node.number("softcap", 0.0)
    if cap == 0:
        return scores
    factor = body.add("CastLike", body.constant(np.array(cap, np.float32)), scores)
    return body.add("Mul", body.add("Tanh", body.add("Div", scores, factor)), factor)


def _kept(body: Body, scores: str, earlier: str) -> str:
    """Which scores count: of keys up to the query's position, and in its window."""
    at, node = body.constant, body.node
    axes = at(np.array([1, 2, 3]))
    columns = positions(body, scores, -1)
    ends = body.add("Cast", body.input(_LENGTHS), to=7)
    ends = body.add("Unsqueeze", body.add("Reshape", ends, at(np.array([-1, 1]))), axes)
    kept = body.add("LessOrEqual", columns, ends)
    window = node.integer("local_window_size", -1)
    if not node.flag("causal", True):
        if window > 0:
            raise node.fail("a window (local_window_size) needs causal attention")
        return kept
    rows = body.add("Unsqueeze", positions(body, scores, -2), at(np.array([1])))
    last = body.add("Add", body.add("Unsqueeze", earlier, axes), rows)
    kept = body.add("LessOrEqual", columns, last)
    if window > 0:
        first = body.add("Sub", last, at(np.array(window)))
        kept = body.add("And", kept, body.add("Greater", columns, first))
    return kept


def _weights(body: Body, scores: str, sizes: _Sizes) -> str:
    """Softmax of scores, to which each head may have another one that no value belongs to."""
    node, at = body.node, body.constant
    sink = node.optional(_SINK)
    if sink is None and node.integer("smooth_softmax", -1) != 1:
        return body.add("Softmax", scores, axis=-1)
    shape = [1, sizes.groups, sizes.heads // sizes.groups, 1, 1]
    if sink is None:
        more = body.add("CastLike", at(np.zeros([1] * 5, np.float32)), scores)
    elif sink.shape != (sizes.heads,):
        raise node.fail(f"head_sink of shape {list(sink.shape)} for {sizes.heads} heads")
    else:
        more = body.add("Reshape", body.input(_SINK), at(np.array(shape)))
    ends = [body.add("Shape", scores, start=0, end=-1), at(np.array([1]))]
    more = body.add("Expand", more, body.add("Concat", *ends, axis=0))
    weights = body.add("Softmax", body.add("Concat", scores, more, axis=-1), axis=-1)
    return body.add("Slice", weights, at(np.array([0])), at(np.array([-1])), at(np.array([-1])))
