"""Rows of a product that are adjacent in memory, as of `A[k,i]`: packed for many tiles."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from tests.machines import automatic


def text_of(m: int | str, k: int | str, n: int | str) -> str:
    return f"def f(float32 A[{k},{m}], float32 B[{k},{n}]) -> (C) {{ C[i,j] +=! A[k,i] * B[k,j] }}"


def test_they_are_packed_in_the_order_of_the_tile() -> None:
    steps = automatic(text_of(768, 1024, 768))
    assert "promote S0: i_p as A, local, 1, 0, 1x12" in steps


def test_columns_that_are_adjacent_are_not() -> None:
    text = "def f(float32 A[768,1024], float32 B[1024,768]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
    assert "x12" not in automatic(text)


@pytest.mark.parametrize("sizes", [(5, 130, 33), (257, 16, 70), (600, 300, 530), (100, 1, 64)])
def test_they_are_right(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    draw = np.random.default_rng(0)
    a = draw.integers(-4, 5, (k, m)).astype(np.float32)
    b = draw.integers(-4, 5, (k, n)).astype(np.float32)
    np.testing.assert_array_equal(fk.compile(text_of(m, k, n), threads=2)(a, b), a.T @ b)


def test_they_are_right_for_open_sizes() -> None:
    kernel = fk.compile(text_of("M", "K", "N"), threads=2)
    draw = np.random.default_rng(0)
    for m, k, n in ((1, 130, 33), (257, 1, 70), (600, 300, 530), (13, 7, 0), (13, 0, 5)):
        a = draw.integers(-4, 5, (k, m)).astype(np.float32)
        b = draw.integers(-4, 5, (k, n)).astype(np.float32)
        np.testing.assert_array_equal(kernel(a, b), a.T @ b)
