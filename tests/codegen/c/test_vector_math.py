"""Our own functions of float32 beside numpy's in float64."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np

from tests.codegen.c.helpers_support import Load, address

LANES = 16
ODD = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5,
       1e-45, -1e-45, 1e-38, 3e38, -3e38, 2.0**24, 2.0**24 - 1, -(2.0**24) + 1, 2.0**23 + 1,
       2.0**25, 3e-39, 127.5, -149.0, 0.99999994, -1.0000001]  # fmt: skip


def _pairs(fn: str, load: Load, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A function of two operands, for arrays whose length is a multiple of the lanes."""
    v = f"fk_f32x{LANES}"
    run = load(
        "void all(long n, const float *a, const float *b, float *y) {\n"
        f"  for (long k = 0; k < n; k += {LANES})\n"
        f"    *({v}_u *)&y[k] = fk_{fn}_f32x{LANES}("
        f"*(const {v}_u *)&a[k], *(const {v}_u *)&b[k]);\n}}"
    )
    y = np.empty_like(a)
    run.all(len(a), address(a), address(b), address(y))
    return y


def _ulps(found: np.ndarray, exact: np.ndarray) -> float:
    """The greatest distance, in units in the last place of the rounded exact value."""
    near = exact.astype(np.float32)
    kept = np.isfinite(near)
    assert np.array_equal(found[~kept], near[~kept], equal_nan=True)
    unit = np.spacing(np.abs(near[kept])).astype(np.float64)
    return float((np.abs(found[kept] - exact[kept]) / unit).max(initial=0))


def test_powers(load: Load) -> None:
    random = np.random.default_rng(0)
    a = np.exp(random.normal(0, 12, 1 << 16)).astype(np.float32)
    b = random.normal(0, 12, 1 << 16).astype(np.float32)
    a[:2], b[:2] = (0.70718366, 1.4136758), (-255.9803, 254.0)
    a[3::3] = random.uniform(0.5, 2, len(a[3::3]))
    b[5::5], b[6::5] = -0.75, random.integers(-40, 40, len(b[6::5]))
    a[6::5] *= random.choice([-1, 1], len(a[6::5]))
    with np.errstate(over="ignore", under="ignore"):
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
        assert _ulps(_pairs("near_pow", load, a, b), exact) < 0.51


def test_powers_of_special_values(load: Load) -> None:
    a, b = (np.array(x, np.float32) for x in zip(*itertools.product(ODD, ODD), strict=True))
    rest = -len(a) % LANES
    a, b = np.pad(a, (0, rest)), np.pad(b, (0, rest))
    found = _pairs("near_pow", load, a, b)
    with np.errstate(all="ignore"):
        expected = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    wrong = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    wrong |= (np.signbit(found) != np.signbit(expected)) & ~np.isnan(expected)
    assert not wrong.any(), [*zip(a[wrong], b[wrong], found[wrong], expected[wrong], strict=True)]


def test_powers_of_scalars(load: Load) -> None:
    run = load("float one(float a, float b) { return fk_near_pow_f32(a, b); }").one
    run.argtypes, run.restype = [ctypes.c_float] * 2, ctypes.c_float
    assert run(-2.0, 3.0) == -8
    assert run(9.0, 0.5) == 3
