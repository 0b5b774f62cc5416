"""Groups whose threads share the same loop run together along it."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.strategy.common.grouping import groups

#: A product, the maxima of its columns, and a second product by batch: three groups.
PRODUCTS = """
def f(float32 A[B,M,K], float32 C[B,K,N]) -> (Y) {
    T[b,i,j] +=! A[b,i,k] * C[b,k,j]
    most[b,j] max=! T[b,i,j]
    Y[b,k,j] +=! A[b,i,k] * T[b,i,j] * most[b,j]
}
"""
SIZES = {"B": 8, "M": 64, "K": 64, "N": 64}


def test_products_of_a_batch_share_its_loop() -> None:
    kernel = fk.compile(PRODUCTS, sizes=SIZES, schedule="auto", threads=2)
    assert len(groups(kernel.schedule)) == 1
    fused = [line for line in str(kernel.schedule).splitlines() if line.endswith(": b")]
    assert any(line.startswith("fuse") for line in fused), fused
    rng = np.random.default_rng(0)
    a, c = (rng.standard_normal(s).astype(np.float32) for s in ((8, 64, 64), (8, 64, 64)))
    t = np.einsum("bik,bkj->bij", a, c)
    expected = np.einsum("bik,bij,bj->bkj", a, t, t.max(1))
    np.testing.assert_allclose(kernel(a, c), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_value_of_another_iteration_keeps_groups_apart(threads: int) -> None:
    """The second product reads what another iteration of the batch made."""
    text = PRODUCTS.replace("T[b,i,j] * most", "T[7-b,i,j] * most")
    kernel = fk.compile(text, sizes=SIZES, schedule="auto", threads=threads)
    assert len(groups(kernel.schedule)) > 1
    rng = np.random.default_rng(0)
    a, c = (rng.standard_normal(s).astype(np.float32) for s in ((8, 64, 64), (8, 64, 64)))
    t = np.einsum("bik,bkj->bij", a, c)
    expected = np.einsum("bik,bij,bj->bkj", a, t[::-1], t.max(1))
    np.testing.assert_allclose(kernel(a, c), expected, rtol=1e-3, atol=1e-3)
