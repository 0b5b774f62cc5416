"""Lanes that nothing uses: of registers, and of vectors of a packed operand."""

from __future__ import annotations

import re

import numpy as np
import pytest

import farkas as fk

PRODUCT = "def f(float32 A[I,K], float32 B[K,J]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"


@pytest.fixture(scope="module")
def product() -> fk.Kernel:
    return fk.compile(PRODUCT)


def test_packed_operands_are_computed_with_as_whole_vectors(product: fk.Kernel) -> None:
    """The lanes beyond the last column are set to zero when B is packed, so no update is masked."""
    lines = product.source.splitlines()
    updates = [x for x in lines if re.search(r"C_r\[\w+\]\[\w+\] \+=", x)]
    packing = [x for x in lines if re.search(r"B_p\[B_p_e0\].* = ", x)]
    assert updates and not any("fk_take" in x or "fk_among" in x for x in updates)
    assert any("fk_take" in x for x in packing) and not any("fk_put" in x for x in packing)
    assert len(lines) < 300


@pytest.mark.parametrize("columns", [1, 7, 16, 17, 31, 40, 63])
def test_lanes_that_nothing_uses_do_not_matter(product: fk.Kernel, columns: int) -> None:
    """What an earlier call has left in the packed block is not seen, not even NaN."""
    rng = np.random.default_rng(columns)
    nan = np.full((64, 64), np.nan, np.float32)
    product(nan, nan)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((13, 64), (64, columns)))
    with np.errstate(all="raise"):
        assert np.array_equal(product(a, b), a @ b)
