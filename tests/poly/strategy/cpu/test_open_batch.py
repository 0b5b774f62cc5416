"""Convolutions of an open number of images, and products of rows that no tile divides."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.deps.scop import build_scop
from poly.strategy.cpu.choose_tile import find_tile
from poly.strategy.cpu.register_tile import find_contraction
from poly.strategy.cpu.stencil_tile import Stencil
from tests.machines import AVX512, automatic

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


@pytest.mark.parametrize(("channels", "filters", "rows", "taps", "stored", "kind"), [
    (20, 200, 96, 96, "F[k,c,r,s]", "k"), (20, 200, 96, 96, "F[k // 32,c,r,s,k % 32]", "k"),
    (1, 20, 100, 5, "F[k,c,r,s]", "stencil along q"),
])  # fmt: skip
def test_lanes_do_not_go_along_a_batch_where_rows_are_open_too(
    channels: int, filters: int, rows: int, taps: int, stored: str, kind: str
) -> None:
    """Signals of open length with padding: there may be one or two of them."""
    last = min(taps, 5)
    shape = f"F[{filters},{channels},{taps},{last}]"
    if "//" in stored:
        shape = f"F[{filters // 32 + 1},{channels},{taps},{last},32]"
    scop = build_scop(fk.parse(
        f"def f(float32 X[N,{channels},{rows},T], float32 {shape}) -> (float32 Y[N,{filters},Q,T])"
        f" {{ Y[n,k,p,q] +=! X[n,c,p+r,q+s-{last // 2}] * {stored} where n in 0:N, "
        f"k in 0:{filters}, p in 0:{rows - taps + 1}, q in 0:T, r in 0:{taps}, s in 0:{last}, "
        f"c in 0:{channels}, 0 <= q + s - {last // 2}, q + s - {last // 2} < T }}"
        .replace("Q", str(rows - taps + 1))
    ))  # fmt: skip
    found = find_tile(scop, scop.by_name["S0"], AVX512, ("F",))
    assert found is not None
    along = "stencil along " if isinstance(found, Stencil) else ""
    assert f"{along}{found.v}" == kind


@pytest.mark.parametrize(("text", "lanes"), [
    ("A[I,K], float32 B[K,J]) -> (Y) { Y[i,j] +=! A[i,k] * B[k,j] }", "j"),
    ("A[I,K], float32 B[J,K]) -> (Y) { Y[i,j] +=! A[i,k] * B[j,k] }", "j"),
    ("A[K,I], float32 B[J,K]) -> (Y) { Y[i,j] +=! A[k,i] * B[j,k] }", "j"),
    ("A[K,I], float32 B[K,J]) -> (Y) { Y[i,j] +=! A[k,i] * B[k,j] }", "j"),
    ("A[64,8], float32 B[J,8]) -> (Y) { Y[i,j] +=! A[i,k] * B[j,k] }", "j"),
    ("A[B,16,I,64], float32 B1[B,16,J,64]) -> (Y) "
     "{ Y[b,h,i,j] +=! A[b,h,i,d] * B1[b,h,j,d] }", "j"),
    ("A[N,64,Q], float32 B[64,64]) -> (Y) { Y[n,k,q] +=! A[n,c,q] * B[k,c] }", "q"),
    ("A[N,64,P,Q], float32 B[64,64,5,5]) -> (Y) { Y[n,k,p,q] +=! A[n,c,p+r,q+s] * B[k,c,r,s] }",
     "q"),
])  # fmt: skip
def test_adjacent_results_are_in_lanes(text: str, lanes: str) -> None:
    """Also where their number is unknown, and operands are packed for it."""
    scop = build_scop(fk.parse(f"def f(float32 {text}"))
    found = find_contraction(scop, scop.by_name["S0"], AVX512)
    assert found is not None
    assert found.v == lanes


@pytest.mark.parametrize("rows", [50, 197, 257, 577])
@pytest.mark.parametrize(("terms", "columns"), [(384, 1536), (1536, 384), (768, 3072)])
def test_rows_that_no_tile_divides_are_not_transposed(rows: int, terms: int, columns: int) -> None:
    """Products of vision transformers, whose weights are stored as a tile reads them."""
    scop = build_scop(fk.parse(
        f"def f(float32 X[{rows},{terms}], float32 W[{columns // 48},{terms},48]) -> (Y) {{ "
        f"Y[i,j] +=! X[i,k] * W[j // 48,k,j % 48] where j in 0:{columns} }}"
    ))  # fmt: skip
    found = find_contraction(scop, scop.by_name["S0"], AVX512)
    assert found is not None
    assert found.v == "j"


def test_they_are_right() -> None:
    kernel = fk.compile(text_of(5, 32, 3, 2, 15, "N"), threads=2)
    draw = np.random.default_rng(0)
    f = draw.integers(-8, 9, (32, 5, 3, 3)).astype(np.float32)
    for n in (0, 1, 3):
        x = draw.integers(-8, 9, (n, 5, 15, 15)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
        np.testing.assert_array_equal(kernel(x, f), np.einsum("ncpqrs,kcrs->nkpq", windows, f))
