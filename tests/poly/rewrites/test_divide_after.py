"""Divisions of every term of a sum, which become one of the sum."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.rewrites.divide_after import divide_after
from runtime.reference.evaluate import run

HEAD = "def f(float32 X[N,M], float32 Z[N], float32 V[M,K]) -> (Y)"


def test_a_division_follows_the_sum() -> None:
    text = f"{HEAD} {{ P[i,j] = X[i,j] / Z[i]; Y[a,e] +=! V[k,e] * P[a,k] }}"
    program = fk.parse(text)
    made = divide_after(fk.parse("def f(float32 A[N,M], float32 Z[N], float32 V[M,K]) -> (Y) { "
                                 "X[i,j] = exp(A[i,j]); P[i,j] = X[i,j] / Z[i]; "
                                 "Y[a,e] +=! V[k,e] * P[a,k] }"))  # fmt: skip
    shown = str(made)
    assert "Y_sum[a, e] +=! V[k, e] * X[a, k]" in shown
    assert "Y[a, e] = Y_sum[a, e] / Z[a]" in shown and "P[" not in shown
    draw = np.random.default_rng(0)
    inputs = {"X": draw.random((4, 7)), "Z": 1 + draw.random(4), "V": draw.random((7, 3))}
    given = {n: a.astype(np.float32) for n, a in inputs.items()}
    sizes = {"N": 4, "M": 7, "K": 3}
    before, after = (run(p, given, sizes).values["Y"] for p in (program, divide_after(program)))
    np.testing.assert_allclose(after, before, 1e-6)


@pytest.mark.parametrize("body", [
    "P[i,j] = X[i,j] / Z[j]; Y[a,e] +=! V[k,e] * P[a,k] where j in 0:min(N, M), k in 0:min(N, M)",
    "P[i,j] = Z[i] / X[i,j]; Y[a,e] +=! V[k,e] * P[a,k]",  # by every term
    "P[i,j] = X[i,j] / Z[i]; Y[a,e] max=! V[k,e] * P[a,k]",
    "P[i,j] = X[i,j] / Z[i]; T[i] +=! P[i,j]; Y[a,e] +=! V[k,e] * P[a,k]",  # it is read twice
    "P[i,j] = X[i,j] * Z[i]; Y[a,e] +=! V[k,e] * P[a,k]",
    "P[i,j] = X[i,j] / Z[i]; Y[a,e] +=! V[k,e] + P[a,k]",
])  # fmt: skip
def test_others_stay(body: str) -> None:
    program = fk.parse(f"{HEAD} {{ {body} }}")
    assert divide_after(program) == program
