"""Conversions of 16-bit floats: each form of their text gives the bits that numpy gives."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from codegen.c.type_names import PATTERNS
from tests.codegen.c.helpers_support import Load, address

LANES = (2, 4, 8, 16, 32)
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(bfloat16)}
EVERY = np.arange(1 << 16, dtype=np.uint16)


def code(name: str) -> str:
    """Functions that convert arrays: scalar by scalar (in 1 lane), or in vectors."""
    short, parts = PATTERNS[name], []
    for lanes in (1, *LANES):
        f32, f64, u16 = (f"fk_{k}x{lanes}" for k in ("f32", "f64", "u16"))
        load = f"fk_{short}_load(x[k])", f"fk_load_{short}_f32x{lanes}(*(const {u16}_u *)&x[k])"
        store = f"fk_{short}_store(x[k])", f"fk_store_{short}_f32x{lanes}(*(const {f32}_u *)&x[k])"
        once = (
            f"fk_{short}_store_f64(x[k])",
            f"fk_store_{short}_f64x{lanes}(*(const {f64}_u *)&x[k])",
        )
        made = [
            ("load", "float", f32, "uint16_t", load),
            ("store", "uint16_t", u16, "float", store),
        ]
        if name == "float16":
            made.append(("once", "uint16_t", u16, "double", once))
        for fn, result, vector, operand, (one, several) in made:
            head = f"void {fn}{lanes}({result} *y, const {operand} *x, int64_t n)"
            target, value = ("y[k]", one) if lanes == 1 else (f"*({vector}_u *)&y[k]", several)
            loop = f"for (int64_t k = 0; k < n; k += {lanes}) {target} = {value};"
            parts.append(f"{head};\n{head}\n{{ {loop} }}\n")
    return "".join(parts)


def edges(name: str, wide: type) -> np.ndarray:
    """Numbers around those that a 16-bit float holds: ties, their neighbours, the extremes."""
    with np.errstate(invalid="ignore", over="ignore"):
        held = EVERY.view(NUMPY[name]).astype(np.float64)
        held = np.sort(held[np.isfinite(held)])
        ties = (held[1:] + held[:-1]) / 2
        beyond = np.array([65519.999, 65520, 65535.9, 1e10, 1e38, 3.4e38, 1e-8, 2e-8, 2.98e-8, 3e-8,
                           1e-45, 1e-300, 1e300, 5.96e-08, np.inf, np.nan, 0.0])  # fmt: skip
        values = np.concatenate([held, ties, beyond, -beyond]).astype(wide)
        values = np.concatenate(
            [values, np.nextafter(values, wide(np.inf)), np.nextafter(values, wide(-np.inf))]
        )
    rng = np.random.default_rng(0)
    some = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32).astype(wide)
    values = np.concatenate([values, some])
    return values[: len(values) // 64 * 64]


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether bits agree; any NaN is as good as another."""
    bits = f"u{wanted.dtype.itemsize}"
    nan = np.isnan(wanted.astype(np.float64))
    agree = np.array_equal(found.view(bits)[~nan], wanted.view(bits)[~nan])
    return agree and bool(np.isnan(found[nan].astype(np.float64)).all())


@pytest.mark.parametrize("name", PATTERNS)
def test_conversions(load: Load, name: str) -> None:
    library, numpy = load(code(name)), NUMPY[name]
    with np.errstate(invalid="ignore", over="ignore"):
        for lanes in (1, *LANES):
            floats = np.empty(EVERY.size, np.float32)
            library[f"load{lanes}"](address(floats), address(EVERY), EVERY.size)
            assert same(floats, EVERY.view(numpy).astype(np.float32)), lanes
            for fn, wide in (("store", np.float32), ("once", np.float64)):
                if fn == "once" and name != "float16":
                    continue
                values = edges(name, wide)
                found = np.empty(values.size, np.uint16)
                library[f"{fn}{lanes}"](address(found), address(values), values.size)
                assert same(found.view(numpy), values.astype(numpy)), (fn, lanes)
