"""Lanes of a tile follow the element that leaves it, which may be another statement's."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.deps.scop import build_scop
from poly.strategy.common.queries import result_of
from poly.strategy.cpu.register_tile import find_contraction, find_update
from tests.machines import AVX512, automatic

HEAD = "def f(float32 X[C,P], float32 W[96,C]) -> (float32 Y"
TAIL = """ {
    float32 T[96,P]
    T[k,p] +=! X[c,p] * W[k,c]
"""
BLOCKS = "[6,P,16])" + TAIL + "    Y[k // 16, p, k % 16] = max(T[k,p], 0) where k in 0:96\n}"
ROWS = "[96,P])" + TAIL + "    Y[k,p] = max(T[k,p], 0)\n}"
CHAIN = (
    "[6,P,16])" + TAIL.replace("T[k,p] +=!", "float32 U[96,P]\n    T[k,p] +=!")
    + "    U[a,b] = T[a,b] + 1\n"
    + "    Y[k // 16, p, k % 16] = max(U[k,p], 0) where k in 0:96\n}"
)  # fmt: skip
TRANSPOSED = "[P,96])" + TAIL + "    Y[j,i] = max(T[i,j], 0)\n}"


def tile(text: str) -> tuple[str, str]:
    """The result of the update, and its vector loop where weights may have any layout."""
    scop = build_scop(fk.parse(HEAD + text))
    update = scop.by_name["S0"]
    found = find_contraction(scop, update, AVX512, ("W",))
    assert found is not None
    return str(result_of(scop, update)), found.v


@pytest.mark.parametrize(
    ("text", "result", "lanes"),
    [
        (ROWS, "Y[k, p]", "p"),
        (BLOCKS, "Y[k // 16, p, k % 16]", "k"),
        (CHAIN, "Y[k // 16, p, k % 16]", "k"),
        (TRANSPOSED, "Y[p, k]", "k"),
    ],
)
def test_lanes_go_along_the_result(text: str, result: str, lanes: str) -> None:
    assert tile(text) == (result, lanes)


@pytest.mark.parametrize(
    "last",
    [
        "Y[k,p] = T[k,p] * T[95 - k,p]",
        "Y[k,p] +=! T[k,q] * X[0,p]",
        "Y[k,p] = X[0,p]",
    ],
)
def test_a_temporary_that_is_read_elsewhere_is_the_result(last: str) -> None:
    assert tile("[96,P])" + TAIL + f"    {last}\n}}")[0] == "T[k, p]"


def test_an_output_is_the_result_even_if_it_is_read() -> None:
    text = (
        "def f(float32 X[C,P], float32 W[96,C]) -> (float32 T[96,P], float32 Y[P,96]) {\n"
        "    T[k,p] +=! X[c,p] * W[k,c]\n    Y[p,k] = T[k,p]\n}"
    )
    scop = build_scop(fk.parse(text))
    assert str(result_of(scop, scop.by_name["S0"])) == "T[k, p]"


@pytest.mark.parametrize("text", [ROWS, BLOCKS, CHAIN, TRANSPOSED])
def test_results(text: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, 37)), rng.standard_normal((96, 7))
    found = fk.compile(HEAD + text)(x.astype(np.float32), w.astype(np.float32))
    wanted = np.maximum(w @ x + (text == CHAIN), 0)
    if found.ndim == 3:
        found = found.transpose(0, 2, 1).reshape(96, 37)
    elif text == TRANSPOSED:
        found = found.T
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_rows_of_a_tile_fit_the_blocks_of_the_result() -> None:
    """12 rows divide 48, but not 16: a tile would begin in the middle of a block."""
    text = """def f(float32 X[48,3136], float32 W[48,48]) -> (float32 Y[3,3136,16]) {
        Y[k // 16, p, k % 16] +=! X[c,p] * W[k,c] where k in 0:48, p in 0:3136, c in 0:48
    }"""
    scop = build_scop(fk.parse(text))
    update = find_update(scop, scop.by_name["S0"], AVX512)
    assert update is not None
    made = update.with_vector("p")
    assert made is not None and made[1].w == "k" and 16 % made[1].rows == 0
    assert "vectorize" in automatic(text)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((48, 3136), (48, 48)))
    found = fk.compile(text)(x, w)
    np.testing.assert_array_equal(found.transpose(0, 2, 1).reshape(48, 3136), w @ x)
