"""Convolutions of images of known sizes: how many there are does not matter for their tiles."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from tests.machines import automatic

#: Channels, filters, taps, stride and rows of the image, and the loop of the lanes.
CASES = {
    (64, 128, 3, 2, 57): "k", (64, 64, 3, 1, 58): "q", (64, 128, 1, 2, 55): "k",
    (3, 64, 7, 2, 229): "k",
}  # fmt: skip


def text_of(c: int, k: int, taps: int, stride: int, rows: int, n: str) -> str:
    return (
        f"def f(float32 X[{n},{c},{rows},{rows}], float32 F[{k},{c},{taps},{taps}]) -> (Y) {{ "
        f"Y[n,k,p,q] +=! X[n,c,{stride}*p+r,{stride}*q+s] * F[k,c,r,s] "
        f"where p in 0:{(rows - taps) // stride + 1}, q in 0:{(rows - taps) // stride + 1} }}"
    )


@pytest.mark.parametrize("case", CASES)
def test_they_are_tiled_as_if_their_number_were_known(
    case: tuple[int, int, int, int, int],
) -> None:
    steps = []
    for n in ("N", "8"):
        script = automatic(text_of(*case, n))
        steps.append({line for line in script.splitlines() if "vectorize" in line})
    assert steps[0] == steps[1]
    assert any(f"vectorize S0: {CASES[case]}_i" in line for line in steps[0])


def test_they_are_right() -> None:
    kernel = fk.compile(text_of(5, 32, 3, 2, 15, "N"), threads=2)
    draw = np.random.default_rng(0)
    f = draw.integers(-8, 9, (32, 5, 3, 3)).astype(np.float32)
    for n in (0, 1, 3):
        x = draw.integers(-8, 9, (n, 5, 15, 15)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
        np.testing.assert_array_equal(kernel(x, f), np.einsum("ncpqrs,kcrs->nkpq", windows, f))
