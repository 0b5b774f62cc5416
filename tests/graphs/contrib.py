"""Operators of com.microsoft, which ONNX Runtime's tools write."""

from __future__ import annotations

import numpy as np

from tests.graphs.draft import Draft, Value
from tests.graphs.elementwise import partner

DOMAIN = "com.microsoft"


def rows_of_floats(draft: Draft, *ranks: int) -> Value | None:
    """A value of float32 whose last extent is the same in all trials, and not 0."""

    def suits(value: Value) -> bool:
        known = value.rank in ranks and value.shape[-1] not in (None, 0)
        return value.type == "float32" and known and value.all(lambda a: a.size > 0)

    return draft.pick(suits)


def floats(draft: Draft, *shape: int) -> Value:
    return draft.operand(draft.random_array("float32", shape))


def width(value: Value) -> int:
    """The last extent of `rows_of_floats`."""
    extent = value.shape[-1]
    assert extent is not None
    return extent


def activation(draft: Draft) -> None:
    value = rows_of_floats(draft, 1, 2, 3, 4)
    if value is None:
        return
    kind = draft.rng.choice(("Gelu", "FastGelu", "FastGelu", "QuickGelu", "BiasGelu"))
    has_bias = kind == "BiasGelu" or (kind == "FastGelu" and draft.rng.random() < 0.5)
    bias = [floats(draft, width(value))] if has_bias else []
    draft.add(kind, [value, *bias], domain=DOMAIN)


def product(draft: Draft) -> None:
    value = rows_of_floats(draft, 2, 3, 4)
    if value is None:
        return
    shape, is_transposed = (width(value), draft.rng.randint(1, 5)), draft.rng.random() < 0.5
    weight = floats(draft, *(shape[::-1] if is_transposed else shape))
    draft.add(
        "FusedMatMul", [value, weight], domain=DOMAIN, transB=int(is_transposed),
        alpha=draft.rng.choice((0.5, 1.0, 2.0)),
    )  # fmt: skip


def normalised(draft: Draft) -> None:
    value = rows_of_floats(draft, 2, 3)
    if value is None:
        return
    scale = floats(draft, width(value))
    kind = draft.rng.randrange(3)
    if kind == 0:
        draft.add("SimplifiedLayerNormalization", [value, scale], axis=-1, epsilon=0.1)
        return
    shapes = [a.shape for a in value.arrays]
    skip = draft.pick(lambda v: v.type == "float32" and [a.shape for a in v.arrays] == shapes)
    other = [floats(draft, width(value)) if draft.rng.random() < 0.6 else None for _ in range(2)]
    if kind == 1:
        operands = [value, skip or value, scale, *other]
        draft.add("SkipLayerNormalization", operands, domain=DOMAIN, epsilon=0.1)
    else:
        operands = [value, skip or value, scale, other[1]]
        draft.add("SkipSimplifiedLayerNormalization", operands, domain=DOMAIN, epsilon=0.1)


def quantised(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type in ("int8", "uint8") and v.rank > 0)
    if value is None:
        return

    def scaled() -> list[Value]:
        scale = np.array(draft.rng.choice((0.25, 0.5, 1)), np.float32)
        zero = np.array(draft.rng.randint(0, 3), value.type)
        return [draft.operand(scale), draft.operand(zero)]

    kind = draft.rng.choice(("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"))
    if kind in ("QLinearAdd", "QLinearMul"):
        operands = [value, *scaled(), partner(draft, value), *scaled(), *scaled()]
        draft.add(kind, operands, domain=DOMAIN)
    else:
        slope = {"alpha": 0.25} if kind == "QLinearLeakyRelu" else {}
        draft.add(kind, [value, *scaled(), *scaled()], domain=DOMAIN, **slope)


def blocks(draft: Draft) -> None:
    """Weights of few bits, in blocks."""
    rng = draft.rng
    made = np.random.default_rng(rng.randrange(1 << 30))
    bits, size = rng.choice((4, 4, 8)), 16
    value = rows_of_floats(draft, 2, 3)
    if value is not None and rng.random() < 0.5:
        columns, inner = rng.randint(1, 5), width(value)
        count = -(-inner // size)
        packed = made.integers(0, 256, (columns, count, size * bits // 8), np.uint8)
        scales = floats(draft, columns * count)
        draft.add(
            "MatMulNBits", [value, draft.operand(packed), scales], domain=DOMAIN, K=inner,
            N=columns, bits=bits, block_size=size,
        )  # fmt: skip
        return
    rows, inner = rng.randint(2, 5), rng.choice((16, 32, 40))
    which = draft.pick(
        lambda v: v.type in ("int32", "int64") and v.all(lambda a: ((a >= 0) & (a < rows)).all())
    )
    if which is None:
        return
    packed = made.integers(0, 256, (rows, inner * bits // 8), np.uint8)
    scales = floats(draft, rows, -(-inner // size))
    draft.add(
        "GatherBlockQuantized", [draft.operand(packed), which, scales], domain=DOMAIN, bits=bits,
        block_size=size, quantize_axis=1,
    )  # fmt: skip


def heads(draft: Draft) -> None:
    """Attention with heads of its own, of values or of their products with weights."""
    rng = draft.rng
    value = rows_of_floats(draft, 3)
    if value is None:
        return
    hidden = width(value)
    count = 2 if hidden % 2 == 0 and rng.random() < 0.7 else 1
    if rng.random() < 0.5:
        weights = [floats(draft, hidden, 3 * hidden), floats(draft, 3 * hidden)]
        causal = int(rng.random() < 0.3)
        draft.add(
            "Attention", [value, *weights], domain=DOMAIN, num_heads=count, unidirectional=causal
        )
        return
    batches = [a.shape[0] for a in value.arrays]

    def suits(other: Value) -> bool:
        return (
            other.type == "float32" and other.rank == 3 and other.shape[-1] == hidden
            and [a.shape[0] for a in other.arrays] == batches and other.all(lambda a: a.size > 0)
        )  # fmt: skip

    keys = draft.pick(suits) or value
    lengths = [a.shape[1] for a in keys.arrays]
    values = draft.pick(lambda v: suits(v) and [a.shape[1] for a in v.arrays] == lengths) or keys
    draft.add("MultiHeadAttention", [value, keys, values], domain=DOMAIN, num_heads=count)


ALL = {activation: 3, product: 2, normalised: 2, quantised: 2, blocks: 2, heads: 2}
