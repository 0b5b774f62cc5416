"""Operators that compute along axes: reductions, products, convolutions, normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graphs.draft import Draft, Value

REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSumExp SumSquare".split()
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool")


def some_axis(draft: Draft, value: Value) -> int:
    return draft.rng.randrange(-value.rank, value.rank)


def reduce(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type != "bool")
    if value is None:
        return
    name = draft.rng.choice(REDUCTIONS)
    if name == "LogSumExp" and not value.is_float:
        name = "Sum"  # ONNX Runtime rounds every term of integers
    count = draft.rng.randint(0, value.rank)
    axes = draft.rng.sample(range(value.rank), count)
    axes = [a - value.rank if draft.rng.random() < 0.3 else a for a in axes]
    attributes: dict[str, Any] = {"keepdims": draft.rng.randrange(2)}
    operands: list[Value | None] = [value]
    if draft.opset >= 18 or name == "Sum":
        if axes:
            operands.append(draft.numbers(*axes))
        elif draft.rng.random() < 0.5:
            attributes["noop_with_empty_axes"] = draft.rng.randrange(2)
    elif axes:
        attributes["axes"] = axes
    draft.add(f"Reduce{name}", operands, **attributes)


def along(draft: Draft) -> None:
    """One axis: extrema, sorting, running sums, softmax."""
    value = draft.pick(lambda v: v.rank > 0 and v.type != "bool")
    if value is None:
        return
    axis, rng = some_axis(draft, value), draft.rng
    kind = rng.choice(("ArgMax", "ArgMin", "TopK", "CumSum", "Softmax", "LogSoftmax", "Hardmax"))
    if kind == "TopK":
        least = min(a.shape[axis] for a in value.arrays)
        count = draft.numbers(rng.randint(0 if rng.random() < 0.1 else 1, max(1, least)))
        draft.add("TopK", [value, count], 2, axis=axis, largest=rng.randrange(2))
    elif kind == "CumSum":
        at = draft.operand(np.array(axis, rng.choice(("int32", "int64"))))
        draft.add("CumSum", [value, at], exclusive=rng.randrange(2), reverse=rng.randrange(2))
    elif kind.startswith("Arg"):
        last = {"select_last_index": 1} if rng.random() < 0.3 else {}
        draft.add(kind, [value], axis=axis, keepdims=rng.randrange(2), **last)
    else:
        draft.add(kind, [value], axis=axis)


def matmul(draft: Draft) -> None:
    left = draft.pick(lambda v: v.rank >= 1 and v.type != "bool" and v.shape[-1] is not None)
    if left is None:
        return

    def suits(v: Value) -> bool:
        inner = v.shape[-2] if v.rank > 1 else v.shape[-1] if v.rank else None
        return v.type == left.type and inner is not None and inner == left.shape[-1]

    right = draft.pick(suits) if draft.rng.random() < 0.5 else None
    if right is None:
        shape = [left.shape[-1], draft.rng.choice((1, 2, 3))][: draft.rng.choice((1, 2, 2))]
        right = draft.operand(draft.random_array(left.type, shape))
    if left.rank == right.rank == 2 and draft.rng.random() < 0.4:
        bias = [draft.operand(draft.random_array(left.type, right.shape[1:]))] if (
            right.shape[1] is not None and draft.rng.random() < 0.6
        ) else []  # fmt: skip
        draft.add("Gemm", [left, right, *bias], alpha=0.5, beta=draft.rng.choice((1.0, 2.0)))
    else:
        draft.add("MatMul", [left, right])


def einsum(draft: Draft) -> None:
    one = draft.pick(lambda v: v.is_float and v.rank == 2)
    if one is None:
        return
    equation = draft.rng.choice(("ij->ji", "ij->i", "ij->", "ii->i", "ij,ij->i", "ij,kj->ik"))
    operands = [one]
    if "," in equation:
        other = draft.pick(lambda v: v.type == one.type and v.rank == 2)
        operands.append(one if other is None else other)
    draft.add("Einsum", operands, equation=equation)


def conv(draft: Draft) -> None:
    value = draft.pick(lambda v: v.is_float and 3 <= v.rank <= 4 and v.shape[1] is not None)
    if value is None:
        return
    rng, spatial, channels = draft.rng, value.rank - 2, value.shape[1]
    kernel = [rng.choice((1, 2, 3)) for _ in range(spatial)]
    transposed = rng.random() < 0.3
    group = channels if rng.random() < 0.3 else 1
    made = group if transposed else group * rng.choice((1, 2))
    shape = [channels, rng.choice((1, 2))] if transposed else [made, (channels or 1) // group]
    weight = draft.operand(draft.random_array(value.type, [*shape, *kernel]))
    operands = [value, weight]
    if rng.random() < 0.5:
        length = group * shape[1] if transposed else made
        operands.append(draft.operand(draft.random_array(value.type, [length])))
    attributes: dict[str, Any] = {"group": group}
    if rng.random() < 0.6:
        attributes["pads"] = [rng.randrange(2) for _ in range(2 * spatial)]
    elif rng.random() < 0.3:
        attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if rng.random() < 0.5:
        attributes["strides"] = [rng.choice((1, 2)) for _ in range(spatial)]
    if rng.random() < 0.2:
        attributes["dilations"] = [rng.choice((1, 2)) for _ in range(spatial)]
    draft.add("ConvTranspose" if transposed else "Conv", operands, **attributes)


def pool(draft: Draft) -> None:
    value = draft.pick(lambda v: v.is_float and 3 <= v.rank <= 4)
    if value is None:
        return
    rng, spatial = draft.rng, value.rank - 2
    kind = rng.choice(POOLS)
    if kind.startswith("Global"):
        draft.add(kind, [value])
        return
    fits = [value.all(lambda a, axis=axis: a.shape[axis + 2] > 1) for axis in range(spatial)]
    kernel = [rng.choice((1, 2, 2)) if f else 1 for f in fits]  # else the result is empty
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.5:
        attributes["strides"] = [rng.choice((1, 2)) for _ in range(spatial)]
    if rng.random() < 0.5:
        attributes["pads"] = [rng.randrange(2) for _ in range(2 * spatial)]
    if kind != "LpPool" and rng.random() < 0.3:
        attributes["ceil_mode"] = 1
    if kind == "AveragePool" and rng.random() < 0.5:
        attributes["count_include_pad"] = 1
    draft.add(kind, [value], 2 if kind == "MaxPool" and rng.random() < 0.3 else 1, **attributes)


def normalise(draft: Draft) -> None:
    value = draft.pick(lambda v: v.is_float and v.rank >= 2)
    if value is None:
        return
    rng = draft.rng

    def vector(extent: int | None, low: float = -1.0) -> Value:
        values = np.linspace(low, 2, extent or 1).astype(value.type)
        return draft.operand(values)

    kind = rng.choice(("batch", "layer", "instance", "lrn", "lp"))
    if kind == "layer" and draft.opset < 17:
        kind = "instance"
    if kind == "layer":
        last = value.shape[-1]
        bias = [vector(last)] if rng.random() < 0.5 else []
        draft.add("LayerNormalization", [value, vector(last), *bias], epsilon=0.01)
    elif kind == "lp":
        draft.add("LpNormalization", [value], axis=some_axis(draft, value), p=rng.choice((1, 2)))
    elif kind == "lrn":
        draft.add("LRN", [value], size=3)
    else:
        count = 4 if kind == "batch" else 2
        operands = [vector(value.shape[1], 0.5) for _ in range(count)]
        name = "BatchNormalization" if kind == "batch" else "InstanceNormalization"
        draft.add(name, [value, *operands], epsilon=0.01)


ALL = {reduce: 6, along: 5, matmul: 4, einsum: 1, conv: 3, pool: 2, normalise: 2}
