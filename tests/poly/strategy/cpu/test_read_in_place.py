"""Operands that are adjacent along the lanes, and that few rows use, are not packed."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.deps.scop import build_scop
from poly.strategy.cpu.register_tile import find_contraction
from tests.machines import AVX512, automatic


def product(
    m: int | str, k: int | str, n: int | str, b: str = "k,j", dtype: str = "float32"
) -> str:
    shape = f"{k},{n}" if b == "k,j" else f"{n},{k}"
    return f"def f({dtype} A[{m},{k}], {dtype} B[{shape}]) -> (C) {{ C[i,j] +=! A[i,k] * B[{b}] }}"


def is_packed(text: str) -> bool:
    return "as B, local" in automatic(text)


@pytest.mark.parametrize("rows", [16, 64, 256])
def test_a_copy_does_not_pay_for_few_rows(rows: int) -> None:
    assert not is_packed(product(rows, 200, 272))


def test_lanes_are_not_kept_from_where_nothing_is_copied() -> None:
    """If a copy of B were counted, lanes would be along the rows, and each result transposed."""
    scop = build_scop(fk.parse(product(48, 200, 272)))
    found = find_contraction(scop, scop.by_name["S0"], AVX512)
    assert found is not None and found.v == "j"


def test_a_copy_pays_for_many_rows() -> None:
    assert is_packed(product(1000, 200, 272))


def test_or_where_rows_meet_in_the_cache() -> None:
    assert is_packed(product(64, 200, 1024))
    assert not is_packed(product(32, 200, 1024)), "for that, too, there have to be some"


def test_or_to_bring_elements_next_to_each_other() -> None:
    assert is_packed(product(256, 200, 272, "j,k"))


def test_or_for_an_unknown_number_of_rows() -> None:
    assert is_packed(product("M", 200, 272))


def test_or_to_convert_elements_once() -> None:
    assert is_packed(product(64, 200, 272, dtype="float16"))


@pytest.mark.parametrize(
    "sizes", [(13, 40, 37), (5, 130, 272), (64, 1, 50), (32, 64, 1024), (100, 33, 15), (9, 7, 100)]
)
def test_they_are_right(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    draw = np.random.default_rng(0)
    a = draw.integers(-4, 5, (m, k)).astype(np.float32)
    b = draw.integers(-4, 5, (k, n)).astype(np.float32)
    np.testing.assert_array_equal(fk.compile(product(m, k, n), threads=2)(a, b), a @ b)
