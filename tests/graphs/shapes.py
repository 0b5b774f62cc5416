"""Arithmetic of extents: what exporters write where a shape is open."""

from __future__ import annotations

import numpy as np

from tests.graphs.draft import Draft, Value


def shape_of(draft: Draft, value: Value) -> Value | None:
    """A vector that is the shape of a value, or says the same: made in one of many ways."""
    rng = draft.rng
    kind = rng.randrange(4)
    if kind == 0:
        return draft.operand(*(np.array(a.shape, np.int64) for a in value.arrays))
    found = draft.add("Shape", [value])
    if found is None or kind == 1 or value.rank == 0:
        return found[0] if found else None
    parts: list[Value] = []
    for axis in range(value.rank):
        part = extent(draft, found[0], axis)
        if part is None:
            return found[0]
        parts.append(part)
    if kind == 3:
        parts[rng.randrange(len(parts))] = draft.numbers(-1)
    made = draft.add("Concat", parts, axis=0)
    return made[0] if made else None


def extent(draft: Draft, shape: Value, axis: int) -> Value | None:
    """One element of a shape as a vector."""
    if draft.rng.random() < 0.4:
        ends = draft.numbers(axis), draft.numbers(axis + 1)
        cut = draft.add("Slice", [shape, *ends, draft.numbers(0)])
        return cut[0] if cut else None
    one = draft.add("Gather", [shape, draft.operand(np.array(axis))], axis=0)
    if one and draft.rng.random() < 0.4:
        more = draft.rng.choice(("Add", "Mul", "Sub"))
        neutral = np.array(1 if more == "Mul" else 0)
        one = draft.add(more, [one[0], draft.operand(neutral)])
    lifted = draft.add("Unsqueeze", [one[0], draft.numbers(0)]) if one else None
    return lifted[0] if lifted else None


def shape(draft: Draft) -> None:
    value = draft.pick()
    if value is None:
        return
    rng = draft.rng
    if rng.random() < 0.2:
        draft.add("Size", [value])
    elif rng.random() < 0.3 and draft.opset >= 15 and value.rank:
        draft.add("Shape", [value], start=rng.randrange(-value.rank, value.rank))
    else:
        draft.add("Shape", [value])


def lifted_extent(draft: Draft) -> None:
    """An extent of a value as a scalar and as a vector: what is known without being computed."""
    value = draft.pick(lambda v: v.rank > 0)
    found = draft.add("Shape", [value]) if value is not None else None
    if found and value is not None:
        extent(draft, found[0], draft.rng.randrange(value.rank))


def filled(draft: Draft) -> None:
    value = draft.pick()
    target = shape_of(draft, value) if value is not None else None
    if target is not None:
        draft.add("ConstantOfShape", [target])


def ranges(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type in ("int64", "int32", "float32") and v.rank == 0)
    if value is not None:
        start, step = (draft.operand(np.array(n, value.type)) for n in (0, 1))
        draft.add("Range", [start, value, step])


def flattened(draft: Draft) -> None:
    """A product of extents, which a Reshape then has as its target."""
    value = draft.pick(lambda v: v.rank > 1)
    found = draft.add("Shape", [value]) if value is not None else None
    if not found or value is None:
        return
    parts = [extent(draft, found[0], a) for a in (0, 1)]
    if None in parts:
        return
    product = draft.add("Mul", parts)
    rest = draft.numbers(-1)
    target = draft.add("Concat", [product[0], rest], axis=0) if product else None
    if target:
        draft.add("Reshape", [value, target[0]])


ALL = {shape: 3, lifted_extent: 4, filled: 2, ranges: 2, flattened: 2}
