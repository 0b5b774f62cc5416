"""RotaryEmbedding of ONNX Runtime's own domain."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import Extent, at, declare, function, line
from frontends.onnx.core.node import Compute, Node, Result, Unsupported, Value
from frontends.onnx.ops.contrib_schemas import contrib


@contrib(
    "RotaryEmbedding", "input:T position_ids:M cos_cache:T sin_cache:T", "output:T",
    {"T": "float float16 bfloat16", "M": "int64"}, interleaved="int", is_packed_batching="int",
    num_heads="int", rotary_embedding_dim="int", scale="float",
)  # fmt: skip
def rotary_embedding(node: Node) -> Sequence[Result]:
    """Pairs of numbers of each head are turned by an angle of their position.

    As in ONNX Runtime, `scale` changes nothing.
    """
    x, ids, cos, sin = (node.required(p) for p in range(4))
    if node.flag("is_packed_batching"):
        raise Unsupported("RotaryEmbedding of sentences one behind the other (is_packed_batching)")
    heads, width, turned = _sizes(node, x, cos)
    if cos.rank != 2 or sin.shape != cos.shape or 2 * cos.shape[1] != turned:
        raise node.fail(
            f"tables of shape {list(cos.shape)} and {list(sin.shape)} for {turned} numbers"
        )
    batch, rows = (x.shape[0], x.shape[1] if x.rank == 3 else x.shape[2])
    if ids.shape not in ((), (1,), (batch, rows)):
        raise node.fail(f"position_ids of shape {list(ids.shape)}, not [{batch}, {rows}]")
    position = {0: "P[] + s", 1: "P[0] + s", 2: "P[b,s]"}[ids.rank]
    angle = [f"min(max({position}, 0), {cos.shape[0] - 1})", "d"]
    cosine, sine = (f"float32({at(t, angle)})" for t in "CS")
    half = turned // 2
    first, second = ("2*d", "2*d + 1") if node.flag("interleaved") else ("d", f"d + {half}")
    a, b = (f"float32({_element('X', x, width, d)})" for d in (first, second))
    ranges: dict[str, Extent] = {"b": batch, "h": heads, "s": rows, "d": half}
    lines = [
        line(f"{_element('Y', x, width, first)} = {a} * {cosine} - {b} * {sine}", ranges),
        line(f"{_element('Y', x, width, second)} = {b} * {cosine} + {a} * {sine}", ranges),
    ]
    if turned < width:
        target, source = (_element(t, x, width, f"d + {turned}") for t in "YX")
        lines.append(line(f"{target} = {source}", ranges | {"d": width - turned}))
    operands = {"X": x, "P": ids, "C": cos, "S": sin}
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("rotary_embedding", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, tuple(operands.values()))]


def _sizes(node: Node, x: Value, cos: Value) -> tuple[int, int, int]:
    """The number of heads, their width, and how many numbers of it are turned."""
    heads, turned = node.integer("num_heads", 0), node.integer("rotary_embedding_dim", 0)
    if x.rank not in (3, 4) or cos.rank != 2:
        raise node.fail(f"an input of rank {x.rank} with tables of rank {cos.rank}")
    if turned and not heads:
        raise node.fail("rotary_embedding_dim needs num_heads")
    if x.rank == 4:
        heads, width = x.shape[1], x.shape[3]
    else:
        width = x.shape[2] // heads if heads > 0 else 2 * cos.shape[1]
        heads = x.shape[2] // width if width else 0
        if heads < 1 or heads * width != x.shape[2]:
            raise node.fail(f"{x.shape[2]} columns do not make heads of {width}")
    turned = turned or width
    if not 0 < turned <= width or turned % 2:
        raise node.fail(f"{turned} of {width} numbers cannot be turned in pairs")
    return heads, width, turned


def _element(tensor: str, x: Value, width: int, index: str) -> str:
    """An element of a head: heads are an axis, or side by side."""
    if x.rank == 4:
        return at(tensor, ["b", "h", "s", index])
    return at(tensor, ["b", "s", f"{width}*h + {index}"])
