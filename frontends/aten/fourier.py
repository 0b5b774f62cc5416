"""Fourier transforms, by factors of the length.

Stockham's order: a length of a times b is a transform of length a of every b-th element, a twist of
its results, and transforms of length b; each has its results where the next one reads them, so that
nothing is put in order afterwards.  The small transforms are products with a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.aten.emitter import Emitter
from frontends.aten.move import filled, part
from frontends.aten.pointwise import computed
from frontends.aten.registry import Arguments, complex_lowering
from frontends.aten.values import Complex, Extent, Ref, Unsupported, axis_of, is_empty

#: The largest prime factor of a length, and what factors are joined up to.
MOST_PRIME, TOGETHER = 128, 32


def factors_of(length: int) -> list[int]:
    """Factors of a length, joined up to `TOGETHER`.  Raises `Unsupported` for large primes.

    >>> factors_of(1024), factors_of(60), factors_of(1)
    ([32, 32], [30, 2], [])
    """
    primes, rest, prime = [], length, 2
    while rest > 1:
        if prime * prime > rest:
            prime = rest
        while rest % prime == 0:
            primes.append(prime)
            rest //= prime
        prime += 1
    if primes and primes[-1] > MOST_PRIME:
        raise Unsupported(f"a Fourier transform of a length with the prime factor {primes[-1]}")
    found: list[int] = []
    for p in reversed(primes):
        place = next((n for n, f in enumerate(found) if f * p <= TOGETHER), None)
        if place is None:
            found.append(p)
        else:
            found[place] *= p
    return found


def _turns(rows: int, columns: int, length: int, forward: bool) -> tuple[np.ndarray, np.ndarray]:
    """The parts of exp(∓2πi j k / length), for j in rows and k in columns."""
    numbers = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = (-2 if forward else 2) * np.pi / length * numbers
    return np.cos(angles), np.sin(angles)


def _table(e: Emitter, values: np.ndarray, dtype: str) -> Ref:
    return Ref(e.constant(values, dtype), dtype, values.shape)


def _stage(e: Emitter, re: Ref, im: Ref | None, forward: bool) -> tuple[Ref, Ref]:
    """Transforms [l,a,b,q] along a, twisted by place in b, to [l,b,a,q]."""
    lead, a, b, rest = re.shape
    dtype = re.dtype
    turns = (*_turns(a, a, a, forward), *_turns(b, a, a * b, forward))
    inputs = {"X": re} | {n: _table(e, t, dtype) for n, t in zip("CSUV", turns, strict=True)}
    real, imaginary = "C[p,k]*X[l,p,j,q]", "S[p,k]*X[l,p,j,q]"
    if im is not None:
        inputs["Z"] = im
        real, imaginary = f"{real} - S[p,k]*Z[l,p,j,q]", f"{imaginary} + C[p,k]*Z[l,p,j,q]"
    names, shape = ("l", "j", "k", "q"), (lead, b, a, rest)
    sums = [(f"A[l,j,k,q] +=! {real}"), (f"B[l,j,k,q] +=! {imaginary}")]
    lines = [e.line(text, [*names, "p"], [*shape, a]) for text in sums]
    values = ("A[l,j,k,q]", "B[l,j,k,q]")
    if b > 1:
        first, second = values
        values = (
            f"{first} * U[j,k] - {second} * V[j,k]",
            f"{first} * V[j,k] + {second} * U[j,k]",
        )
    else:
        del inputs["U"], inputs["V"]
    lines += [
        e.line(f"{y}[l,j,k,q] = {value}", names, shape)
        for y, value in zip(("Y", "Y1"), values, strict=True)
    ]
    temps = [("A", dtype, shape), ("B", dtype, shape)]
    found = e.program([(dtype, shape)] * 2, lines, inputs, temps, [*shape, lead, rest])
    return found[0], found[1]


def transformed(e: Emitter, x: Complex | Ref, axis: int, forward: bool) -> tuple[Ref, Ref]:
    """The transform along a dimension, not normalised, of complex or real elements."""
    re, im = (x.re, x.im) if isinstance(x, Complex) else (x, None)
    shape = re.shape
    length = _length(shape[axis])
    lead, rest = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    done, left = 1, length
    for factor in factors_of(length):
        left //= factor
        wide = (lead, factor, left, rest * done)
        parts = (e.reshape(re, wide), None if im is None else e.reshape(im, wide))
        re, im = _stage(e, *parts, forward)
        done *= factor
    whole = filled(e, re, 0) if im is None else im
    return e.reshape(re, shape), e.reshape(whole, shape)


def _length(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise Unsupported("a Fourier transform of an open size")
    return extent


def _normalised(e: Emitter, x: Ref, mode: int, lengths: Sequence[Extent]) -> Ref:
    """Divided by nothing, the root of the number of elements, or the number."""
    count = math.prod(map(_length, lengths))
    scale = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode]
    return x if scale == 1 else computed(e, "{x} * {scale}", {"x": x, "scale": scale}, x)


def _nothing(e: Emitter, out: Complex) -> Complex:
    return Complex(out.dtype, filled(e, out.re, 0), filled(e, out.im, 0))


@complex_lowering("_fft_c2c.default", "prims.fft_c2c.default")
def complex_transform(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """The transform along some dimensions."""
    x: Complex = a["self"]
    if is_empty(x.shape):
        return _nothing(e, outs[0])
    axes = [axis_of(d, x.rank) for d in a["dim"]]
    for axis in axes:
        x = Complex(x.dtype, *transformed(e, x, axis, bool(a["forward"])))
    mode, lengths = a.get("normalization", 0), [x.shape[axis] for axis in axes]
    re, im = (_normalised(e, part, mode, lengths) for part in (x.re, x.im))
    return Complex(x.dtype, re, im)


@complex_lowering("_fft_r2c.default", "prims.fft_r2c.default")
def real_transform(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """The transform of real elements, of which half is returned if that says all."""
    x, out = a["self"], outs[0]
    if is_empty(x.shape):
        return _nothing(e, out)
    axes = [axis_of(d, x.rank) for d in a["dim"]]
    last = axes[-1]
    lengths = [x.shape[axis] for axis in axes]
    halves = list(transformed(e, x, last, True))
    if a["onesided"]:
        keeps = out.re.shape[last]
        short = Ref("", x.dtype, (*x.shape[:last], keeps, *x.shape[last + 1 :]))
        halves = [part(e, {"self": h, "dim": last, "end": keeps}, [short]) for h in halves]
    found = Complex(out.dtype, *halves)
    for axis in axes[:-1]:
        found = Complex(out.dtype, *transformed(e, found, axis, True))
    re, im = (
        _normalised(e, half, a.get("normalization", 0), lengths) for half in (found.re, found.im)
    )
    return Complex(out.dtype, re, im)


@complex_lowering("_fft_c2r.default", "prims.fft_c2r.default")
def transform_to_real(e: Emitter, a: Arguments, outs: list[Any]) -> Ref:
    """The transform back of a half, whose other half is its conjugate."""
    x, out = a["self"], outs[0]
    if is_empty(x.shape) or is_empty(out.shape):
        return filled(e, out, 0)
    axes = [axis_of(d, x.rank) for d in a["dim"]]
    last = axes[-1]
    for axis in axes[:-1]:
        x = Complex(x.dtype, *transformed(e, x, axis, False))
    length = _length(out.shape[last])
    if x.shape[last] != length // 2 + 1:
        raise Unsupported("a Fourier transform of another half")
    re, _ = transformed(e, _mirrored(e, x, last, length), last, False)
    return _normalised(e, re, a.get("normalization", 0), [out.shape[axis] for axis in axes])


def _mirrored(e: Emitter, x: Complex, axis: int, length: int) -> Complex:
    """All of what is its own conjugate backwards; what has to be real is taken as real."""
    own = [f"i{n}" for n in range(x.rank)]
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    i = own[axis]
    there = f"min({i}, {length} - {i})"
    read = f"X[{','.join(there if n == axis else o for n, o in enumerate(own))}]"
    re = e.each(x.re.dtype, shape, read, {"X": x.re})
    signed = f"select({i} == 0 or 2*{i} == {length}, 0, select(2*{i} < {length}, {read}, -{read}))"
    return Complex(x.dtype, re, e.each(x.re.dtype, shape, signed, {"X": x.im}))
