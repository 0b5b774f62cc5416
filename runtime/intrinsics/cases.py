"""The operands on which an instruction is compared with its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from poly.ir.dtypes import DType
from poly.ir.intrinsics import VectorIntrinsic
from runtime.reference.scalar_semantics import Array

#: Cases of each kind, and bytes of all of them.
_SINGLE, _CONSTANT, _MIXED, _RANDOM = 256, 256, 192, 192
_MOST_BYTES = 4 << 20


def cases_for(intrinsic: VectorIntrinsic, seed: int = 0) -> dict[str, Array]:
    """Cases for all tensors of an instruction: an array with one more dimension for each.

    In this order: all elements distinct; one element not zero; each tensor full of one extreme
    value; extreme values mixed; any bits; moderate values.
    """
    rng = np.random.default_rng(seed)
    program = intrinsic.meaning
    tensors = [(name, d, intrinsic.shape(name)) for name, d in program.dtypes.items()]
    one = sum(int(np.prod(shape)) * d.bytes for _, d, shape in tensors)
    share = min(1.0, _MOST_BYTES / (one * (_SINGLE + _CONSTANT + _MIXED + 2 * _RANDOM)))
    single, constant, mixed, random = (
        max(16, int(n * share)) for n in (_SINGLE, _CONSTANT, _MIXED, _RANDOM)
    )
    found = [_distinct(tensors)]
    found += _few(list(_single(tensors)), single, rng)
    found += _few(list(_constant(tensors)), constant, rng)
    for n in range(mixed + random):
        found.append([_picked(d, shape, rng, n < mixed) for _, d, shape in tensors])
    found += [[_moderate(d, shape, rng) for _, d, shape in tensors] for _ in range(random)]
    columns = zip(*found, strict=True)
    return {name: np.stack(c) for (name, _, _), c in zip(tensors, columns, strict=True)}


_Tensors = Sequence[tuple[str, DType, tuple[int, ...]]]


def _few(cases: list[list[Array]], most: int, rng: np.random.Generator) -> list[list[Array]]:
    if len(cases) <= most:
        return cases
    return [cases[n] for n in sorted(rng.choice(len(cases), most, replace=False))]


def _counted(d: DType, shape: tuple[int, ...], first: int) -> Array:
    """Numbers from `first` on, which wrap around."""
    count = int(np.prod(shape))
    numbers = np.arange(first, first + count).reshape(shape)
    if d.kind == "b":
        return np.asarray(numbers % 2 == 0)
    return np.asarray(numbers.astype(d.numpy))


def _distinct(tensors: _Tensors) -> list[Array]:
    return [_counted(d, shape, 1 + 100 * n) for n, (_, d, shape) in enumerate(tensors)]


def _single(tensors: _Tensors) -> Iterator[list[Array]]:
    """All but one element of one tensor are zero."""
    for n, (_, d, shape) in enumerate(tensors):
        for at in np.ndindex(shape):
            arrays = _distinct(tensors)
            arrays[n] = np.zeros(shape, d.numpy)
            arrays[n][at] = 3
            yield arrays


def _constant(tensors: _Tensors) -> Iterator[list[Array]]:
    """Each tensor is full of one extreme value."""
    short = {n: extremes(d)[: 9 if len(tensors) < 4 else 5] for n, d, _ in tensors}
    for values in product(*(short[n] for n, _, _ in tensors)):
        yield [np.full(shape, v, d.numpy) for v, (_, d, shape) in zip(values, tensors, strict=True)]


def extremes(d: DType) -> Array:
    """The values of a type at which instructions differ, the most telling ones first."""
    if d.kind == "b":
        return np.array([False, True])
    if not d.is_float:
        low, high = int(np.iinfo(d.numpy).min), int(np.iinfo(d.numpy).max)
        numbers = [high, low, 0, 1, high - 1, low + 1, high // 2 + 1, 2, 127, 128, 255]
        kept = dict.fromkeys(n for n in [*numbers, *(-n for n in numbers)] if low <= n <= high)
        return np.array([*kept], d.numpy)
    whole = np.dtype(f"uint{d.bits}")
    digits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[d.name]
    infinity = ((1 << (d.bits - 1 - digits)) - 1) << digits
    one = int(np.ones(1, d.numpy).view(whole)[0])
    bits = [
        infinity | 1 << (digits - 1),  # NaN
        infinity, 0, one, 1, infinity - 1, (1 << digits) - 1,  # inf, 0, 1, subnormal, largest
        1 << digits, one + 1,  # smallest normal, next to 1
    ]  # fmt: skip
    sign = 1 << (d.bits - 1)
    ordered = [bits[0], bits[1], sign, bits[3], bits[4], infinity | sign, *bits[5:], *bits[2:3]]
    ordered += [b | sign for b in bits[3:]]
    return np.array([*dict.fromkeys(ordered)], whole).view(d.numpy)


def _picked(d: DType, shape: tuple[int, ...], rng: np.random.Generator, extreme: bool) -> Array:
    """Extreme values, or any bits."""
    if extreme:
        values = extremes(d)
        return np.asarray(values[rng.integers(0, len(values), shape)])
    if d.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    whole = np.dtype(f"uint{d.bits}")
    info = np.iinfo(whole)
    bits = rng.integers(0, int(info.max), shape, whole, endpoint=True)
    return np.asarray(bits).reshape(shape).view(d.numpy)


def _moderate(d: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if d.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if d.is_float:
        return np.asarray(rng.uniform(-2, 2, shape)).astype(d.numpy).reshape(shape)
    return np.asarray(rng.integers(0 if d.kind == "u" else -9, 10, shape)).astype(d.numpy)
