"""Sizes that programs are tried with are small, and found wherever there are some."""

from __future__ import annotations

import math

import pytest

import farkas as fk
from farkas.kernels.example_sizes import checked_sizes, small_sizes


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 X[M]) -> (float32 Y[N]) { Y[i] = X[1000*i + 6] }",
        "def f(float32 X[M]) -> (Y) { Y[i] = X[i + 1000] }",
        "def f(float32 X[M]) -> (Y) { Y[i] = X[i + 300] where i in 0:1000 }",
        "def f(float32 X[N], float32 Z[M]) -> (Y) where 100*N + 37 == M { Y[i] = X[i] + Z[i] }",
        "def f(float32 X[N]) -> (Y) where N % 64 == 63, N > 200 { Y[i] = X[i] }",
        "def f(float32 X[N,M]) -> (Y) where N == 71*M, N > 0 { Y[i,j] = X[i,j] }",
    ],
)
def test_sizes_that_are_rare_are_found(text: str) -> None:
    kernel = fk.compile(text)
    sizes = small_sizes(kernel.program)
    assert checked_sizes(kernel.program, sizes) == sizes and min(sizes.values()) > 0
    assert kernel.verify().exact


def test_tensors_of_many_dimensions_are_small() -> None:
    indices = ",".join("abcdefghij")
    program = fk.parse(f"Y[{indices}] = X[{indices}]", "float32")
    sizes = small_sizes(program)
    assert min(sizes.values()) >= 2 and math.prod(sizes.values()) < 1 << 22


def test_what_is_large_at_any_sizes() -> None:
    text = "def f(float32 X[N,M]) -> (Y) where N > {0}, M > {0} {{ Y[i,j] = X[i,j] }}"
    assert small_sizes(fk.parse(text.format(4000))) == {"N": 4001, "M": 4001}
    with pytest.raises(fk.ArgumentError, match=r"no small sizes fit f; pass sizes"):
        small_sizes(fk.parse(text.format(10**6)))
    assert small_sizes(fk.parse("def f(float32 X[100000,100000]) -> (Y) { Y[i,j] = X[i,j] }")) == {}
