"""Elements of a few rows put next to each other: copies, and packed operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import farkas as fk

RNG = np.random.default_rng(0)


def rows(dtype: str, *shape: int) -> np.ndarray:
    """Any bits, NaN among them."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return RNG.integers(0, 256, (*shape, kind.itemsize)).astype(np.uint8).view(kind)[..., 0]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "bfloat16", "float16"])
@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("length", [7, 16, 40, 77, "N"])
def test_copies(dtype: str, group: int, length: int | str) -> None:
    text = f"""def f({dtype} A[{3 * group},{length}]) -> (Y) {{
        Y[b,i,g] = A[{group}*b + g,i] where b in 0:3, i in 0:{length}, g in 0:{group} }}"""
    kernel = fk.compile(text)
    assert length == 7 or f"fk_zip{group}_" in kernel.source
    for n in (1, 15, 16, 50) if length == "N" else (int(length),):
        a = rows(dtype, 3 * group, n)
        expected = a.reshape(3, group, n).transpose(0, 2, 1)
        assert kernel(a).tobytes() == expected.tobytes()


@pytest.mark.parametrize("types", ["uint8 int8 int32", "int16 int16 int32"])
@pytest.mark.parametrize("columns", [48, 50])
def test_packed_operands(types: str, columns: int) -> None:
    a, b, c = types.split()
    text = f"""def f({a} A[24,40], {b} B[40,{columns}]) -> (C) {{
        C[i,j] +=! {c}(A[i,k]) * {c}(B[k,j]) }}"""
    kernel = fk.compile(text)
    x, y = rows(a, 24, 40), rows(b, 40, columns)
    assert np.array_equal(kernel(x, y), (x.astype(np.int64) @ y.astype(np.int64)).astype(c))


def test_what_is_computed_is_put_between_too() -> None:
    text = """def f(uint8 A[8,32]) -> (int8 Y[4,32,2]) {
        Y[b,i,g] = int8(int32(A[2*b + g,i]) - 128) where b in 0:4, i in 0:32, g in 0:2 }"""
    kernel = fk.compile(text)
    assert "fk_zip2_i8x16" in kernel.source
    a = rows("uint8", 8, 32)
    expected = (a.astype(np.int32) - 128).astype(np.int8).reshape(4, 2, 32).transpose(0, 2, 1)
    assert np.array_equal(kernel(a), expected)


def test_an_element_that_is_read_is_not_overwritten_before() -> None:
    text = """def f(uint8 Y[4,16,2]) -> (Y) {
        Y[b,i,g] = Y[b,i,1 - g] where b in 0:4, i in 0:16, g in 0:2 }"""
    y = rows("uint8", 4, 16, 2)
    expected = y.copy()
    expected[..., 0] = y[..., 1]
    assert np.array_equal(fk.compile(text)(y), expected)


@pytest.mark.parametrize("length", [16, 28, 40])
def test_every_other_element(length: int) -> None:
    text = f"""def f(uint8 A[8,{2 * length}]) -> (Y) {{
        Y[b,i,g] = A[4*b + g,2*i] where b in 0:2, i in 0:{length}, g in 0:4 }}"""
    kernel = fk.compile(text)
    assert "fk_zip4_u8x16" in kernel.source and "fk_even_u8x16" in kernel.source
    a = rows("uint8", 8, 2 * length)
    expected = a[:, ::2].reshape(2, 4, length).transpose(0, 2, 1)
    assert np.array_equal(kernel(a), expected)
