"""Sums of 16-bit floats in float32: which are rewritten, and that they are rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

import farkas as fk
from poly.ir.program import Program
from poly.rewrites.widen_sums import widen_sums
from runtime.reference.evaluate import run


def rewritten(text: str) -> Program:
    return widen_sums(fk.parse(text))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f(float16 X[N,M]) -> (Y) { Y[i] +=! X[i,j] }",
         ["Y_wide[i] +=! X[i, j]", "Y[i] = Y_wide[i]"]),
        ("def f(bfloat16 X[N,M], bfloat16 Y[N]) -> (Y) { Y[i] *= X[i,j] }",
         ["Y_wide[i] = Y[i]", "Y_wide[i] *= X[i, j]", "Y[i] = Y_wide[i]"]),
        ("def f(float16 X[N,M]) -> (Y) { T[i] max=! X[i,j]; Y[i] = T[i] * 2 }",
         ["float32 T[N]", "T[i] max=! X[i, j]", "Y[i] = T[i] * 2"]),
        ("def f(float16 X[N]) -> (Y) { T[i] = X[i] * X[i]; Y[i] = T[i] + 1 }",
         ["float32 T[N]", "T[i] = X[i] * X[i]"]),
        ("def f(float16 X[4,N]) -> (Y) { for t in 0:4 { Y[t] +=! X[t,i] } }",
         ["Y_wide[t] +=! X[t, i]", "Y[t] = Y_wide[t]"]),
    ],
)  # fmt: skip
def test_what_is_rewritten(text: str, lines: list[str]) -> None:
    made = str(rewritten(text))
    for line in lines:
        assert line in made
    assert str(fk.parse(made)) == made


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 X[N,M]) -> (Y) { Y[i] +=! X[i,j] }",
        "def f(float16 X[N]) -> (Y) { Y[i] = X[i] * 2 }",
        "def f(float16 X[N], float16 Y[N]) -> (Y) { Y[i] += X[i] }",  # one term
        "def f(float16 X[N,M]) -> (Y) { T[j,i] = X[i,j]; Y[i] = T[i,i] where i in 0:min(N, M) }",
        "def f(float16 X[N], float16 Y[1]) -> (Y) { Y[0] += X[i] * Y[0] }",  # it reads the target
        "def f(int16 X[N,M]) -> (Y) { Y[i] +=! X[i,j] }",
    ],
)
def test_what_stays(text: str) -> None:
    program = fk.parse(text)
    assert widen_sums(program) is program


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_sums_are_rounded_once(dtype: type) -> None:
    ones = np.ones((3, 5000), dtype)
    text = f"def f({np.dtype(dtype).name} X[3,5000]) -> (Y) {{ Y[i] +=! X[i,j] }}"
    assert fk.compile(text)(X=ones).tolist() == [float(dtype(5000))] * 3
    exact = fk.compile(text, exact=True)(X=ones)
    assert np.array_equal(exact, run(fk.parse(text), {"X": ones}, {}).values["Y"])
    assert exact[0] < 4096  # each term is less than half of the last bit


def test_elements_without_terms_keep_their_values() -> None:
    text = """def f(float16 X[8,8], float16 Y[8]) -> (Y) {
        Y[i] += X[i,j] where 2 <= i, j < i - 3
    }"""
    rng = np.random.default_rng(0)
    values = {
        "X": rng.standard_normal((8, 8)).astype(np.float16),
        "Y": np.arange(8, dtype=np.float16),
    }
    made = fk.compile(text)(**values)
    assert np.array_equal(made[:4], np.arange(4, dtype=np.float16))
    wanted = run(fk.parse(text), values, {}).values["Y"]
    np.testing.assert_allclose(made.astype(float), wanted.astype(float), rtol=2e-3)
