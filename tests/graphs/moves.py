"""Operators that move elements, and those whose results depend on data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.graphs.draft import Draft, Value
from tests.graphs.reductions import some_axis
from tests.graphs.shapes import shape_of


def reshape(draft: Draft) -> None:
    value = draft.pick()
    if value is None:
        return
    rng = draft.rng
    kind = rng.randrange(4)
    if kind == 0 and value.is_fixed:
        size = math.prod(e or 0 for e in value.shape)
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        one = rng.choice(divisors) if divisors else 1
        target = [one, rng.choice((-1, size // one))]
    elif kind == 1:
        target = [0] * value.rank
        if target:
            target[rng.randrange(value.rank)] = -1
    elif kind == 2:
        target = [0, -1] if value.rank > 1 else [-1, 1]
    else:
        found = shape_of(draft, value)
        if found is not None:
            draft.add("Reshape", [value, found])
        return
    draft.add("Reshape", [value, draft.numbers(*target)])


def transpose(draft: Draft) -> None:
    value = draft.pick()
    if value is not None:
        order = draft.rng.sample(range(value.rank), value.rank)
        draft.add("Transpose", [value], **({"perm": order} if draft.rng.random() < 0.8 else {}))


def squeeze(draft: Draft) -> None:
    value = draft.pick(lambda v: 1 in v.shape)
    if value is None:
        return
    ones = [a for a, e in enumerate(value.shape) if e == 1]
    axes = draft.rng.sample(ones, draft.rng.randint(1, len(ones)))
    draft.add("Squeeze", [value, draft.numbers(*axes)] if draft.rng.random() < 0.8 else [value])


def expand(draft: Draft) -> None:
    value = draft.pick()
    other = draft.pick()
    if value is None or other is None:
        return
    if draft.rng.random() < 0.5:
        target = shape_of(draft, other)
    else:
        shape = [draft.rng.choice((1, 1, 2, 3)), *(e or 1 for e in value.shape)]
        target = draft.numbers(*shape)
    if target is not None:
        draft.add("Expand", [value, target])


def tile(draft: Draft) -> None:
    value = draft.pick()
    if value is not None:
        counts = [draft.rng.choice((1, 1, 2, 3)) for _ in range(value.rank)]
        draft.add("Tile", [value, draft.numbers(*counts)])


def concat(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    axis = some_axis(draft, value)

    def suits(other: Value) -> bool:
        if other.type != value.type or other.rank != value.rank:
            return False
        rest = [a for a in range(value.rank) if a != axis % value.rank]
        pairs = zip(value.arrays, other.arrays, strict=True)
        return all(a.shape[r] == b.shape[r] for a, b in pairs for r in rest)

    parts = [value]
    for _ in range(draft.rng.randint(0, 2)):
        parts.append(draft.pick(suits) or value)
    draft.rng.shuffle(parts)
    draft.add("Concat", parts, axis=axis)


def split(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    axis = some_axis(draft, value)
    extent = value.shape[axis]
    if extent is None or extent < 2:
        return
    first = draft.rng.randint(1, extent - 1)
    if draft.opset >= 18 and draft.rng.random() < 0.5:
        count = draft.rng.randint(2, min(3, extent))
        draft.add("Split", [value], count, axis=axis, num_outputs=count)
    else:
        draft.add("Split", [value, draft.numbers(first, extent - first)], 2, axis=axis)


def slices(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    rng = draft.rng
    axes = rng.sample(range(value.rank), rng.randint(1, min(2, value.rank)))
    steps = [rng.choice((1, 1, 2, -1, -2)) for _ in axes]
    starts = [rng.choice((0, 1, -2)) if s > 0 else rng.choice((-1, 3)) for s in steps]
    ends = [rng.choice((2, -1, 1 << 40)) if s > 0 else rng.choice((0, -(1 << 40))) for s in steps]
    operands = [draft.numbers(*starts), draft.numbers(*ends)]
    if rng.random() < 0.3 and len(axes) == 1:
        found = draft.pick(lambda v: v.type == "int64" and v.shape == (1,))
        operands[1] = found or operands[1]
    if axes != list(range(len(axes))) or rng.random() < 0.7:
        operands.append(draft.numbers(*axes))
        if set(steps) != {1}:
            operands.append(draft.numbers(*steps))
    draft.add("Slice", [value, *operands])


def pad(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    rng = draft.rng
    amounts = [rng.choice((0, 0, 1, 2, -1)) for _ in range(2 * value.rank)]
    mode = rng.choice(("constant", "constant", "reflect", "edge"))
    operands = [value, draft.numbers(*amounts)]
    if mode == "constant" and rng.random() < 0.5:
        operands.append(draft.operand(np.array(1, value.type)))
    draft.add("Pad", operands, mode=mode)


def indices_for(draft: Draft, value: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """Indices along an axis that are in bounds in every trial."""
    least = min(a.shape[axis] for a in value.arrays)
    made = np.random.default_rng(draft.rng.randrange(1 << 30))
    low = -least if draft.rng.random() < 0.3 else 0
    dtype = draft.rng.choice(("int64", "int64", "int32"))
    return draft.operand(made.integers(low, max(least, 1), shape).astype(dtype))


def gather(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    axis, rng = some_axis(draft, value), draft.rng
    found = draft.pick(lambda v: v.type in ("int64", "int32")) if rng.random() < 0.4 else None
    shape = rng.choice(((), (1,), (2,), (2, 2)))
    at = found or indices_for(draft, value, axis, shape)
    kind = rng.random()
    if kind < 0.6:
        draft.add("Gather", [value, at], axis=axis)
    elif kind < 0.8:
        if found is None:
            at = indices_for(draft, value, axis, tuple(min(e or 1, 2) for e in value.shape))
        draft.add("GatherElements", [value, at], axis=axis)
    else:
        at = found or draft.operand(np.zeros((2, rng.randint(1, value.rank)), np.int64))
        draft.add("GatherND", [value, at])


def scatter(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank > 0 and v.is_fixed)
    if value is None:
        return
    rng = draft.rng
    extents = tuple(e or 0 for e in value.shape)
    reduction = rng.choice(("none", "none", "add", "mul")) if draft.opset >= 16 else "none"
    chosen: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
    if rng.random() < 0.5:
        axis = some_axis(draft, value)
        ones = [1] * value.rank
        ones[axis] = extents[axis]
        at = np.arange(extents[axis]).reshape(ones)
        updates = draft.operand(draft.random_array(value.type, at.shape))
        draft.add("ScatterElements", [value, draft.operand(at), updates], axis=axis, **chosen)
    else:
        at = np.array([[rng.randrange(max(extents[0], 1))]])
        updates = draft.operand(draft.random_array(value.type, (1, *extents[1:])))
        draft.add("ScatterND", [value, draft.operand(at), updates], **chosen)


def onehot(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type in ("int64", "int32", "float32"))
    if value is not None:
        depth = draft.operand(np.array(draft.rng.choice((2, 3)), np.int64))
        pair = draft.operand(np.array([0, 2], draft.rng.choice(("float32", "int64"))))
        draft.add("OneHot", [value, depth, pair], axis=draft.rng.choice((-1, 0)))


def resize(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type == "float32" and 3 <= v.rank <= 4)
    if value is None:
        return
    rng = draft.rng
    mode = rng.choice(("nearest", "linear", "cubic"))
    way = rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    shared = {"mode": mode, "coordinate_transformation_mode": way}
    if rng.random() < 0.5 and value.is_fixed:
        sizes = [*value.shape[:2], *(rng.randint(1, 5) for _ in value.shape[2:])]
        draft.add("Resize", [value, None, None, draft.numbers(*sizes)], **shared)
    else:
        scales = [1.0, 1.0, *(rng.choice((0.5, 1.5, 2.0)) for _ in value.shape[2:])]
        draft.add("Resize", [value, None, draft.operand(np.array(scales, np.float32))], **shared)


def blocks(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank == 4)
    if value is not None:
        draft.add(draft.rng.choice(("DepthToSpace", "SpaceToDepth")), [value], blocksize=2)


def trilu(draft: Draft) -> None:
    value = draft.pick(lambda v: v.rank >= 2)
    if value is not None:
        diagonal = [draft.operand(np.array(draft.rng.randint(-1, 1)))]
        keep = diagonal if draft.rng.random() < 0.5 else []
        draft.add("Trilu", [value, *keep], upper=draft.rng.randrange(2))


def data_dependent(draft: Draft) -> None:
    """What only the elements say: which are not zero, which are kept, which are distinct."""
    kind = draft.rng.choice(("NonZero", "NonZero", "Compress", "Unique"))
    value = draft.pick(lambda v: v.rank > 0)
    if value is None:
        return
    if kind == "NonZero":
        draft.add("NonZero", [value])
    elif kind == "Compress":
        axis = some_axis(draft, value)
        extent = min(a.shape[axis] for a in value.arrays)
        mask = draft.pick(
            lambda v: v.type == "bool" and v.all(lambda a: a.size <= extent and a.ndim == 1)
        )
        if mask is None or draft.rng.random() < 0.5:
            mask = draft.operand(draft.random_array("bool", (extent,)))
        draft.add("Compress", [value, mask], axis=axis)
    else:
        draft.add("Unique", [value], draft.rng.choice((1, 2, 4)), sorted=1)


ALL = {
    reshape: 6, transpose: 3, squeeze: 3, expand: 3, tile: 2, concat: 4, split: 3, slices: 4,
    pad: 2, gather: 5, scatter: 2, onehot: 1, resize: 1, blocks: 1, trilu: 1, data_dependent: 6,
}  # fmt: skip
