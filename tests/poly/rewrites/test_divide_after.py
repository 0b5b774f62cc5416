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
    assert "Y[a, e] = select(M <= 0, 0.0, Y_sum[a, e] / Z[a])" in shown and "P[" not in shown
    draw = np.random.default_rng(0)
    inputs = {"X": draw.random((4, 7)), "Z": 1 + draw.random(4), "V": draw.random((7, 3))}
    given = {n: a.astype(np.float32) for n, a in inputs.items()}
    sizes = {"N": 4, "M": 7, "K": 3}
    before, after = (run(p, given, sizes).values["Y"] for p in (program, divide_after(program)))
    np.testing.assert_allclose(after, before, 1e-6)


SOFTMAX = "X[i,j] = exp(A[i,j]); Z[i] +=! X[i,j]"
GUARDED = "P[i,j] = select(isnan(X[i,j] / Z[i]), 0.0, X[i,j] / Z[i]); Y[a,e] +=! P[a,k] * V[k,e]"


def test_quotients_that_are_no_numbers_are_left_out_after_the_sum() -> None:
    program = fk.parse(f"def f(float32 A[N,M], float32 V[M,K]) -> (Y) {{ {SOFTMAX}; {GUARDED} }}")
    made = divide_after(program)
    assert "select(M <= 0, 0.0, select(isnan(Z[a] / Z[a]), 0.0, Y_sum[a, e] / Z[a]))" in str(made)
    a = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    a[1, 2], a[2], a[3], a[4, 3] = np.nan, -np.inf, 100, np.inf
    given = {"A": a, "V": np.ones((7, 3), np.float32)}
    with np.errstate(all="ignore"):
        before, after = (
            run(p, given, {"N": 5, "M": 7, "K": 3}).values["Y"] for p in (program, made)
        )
    np.testing.assert_allclose(after, before, 1e-6)
    assert (after[:4].sum(1) == [3, 0, 0, 0]).all()


@pytest.mark.parametrize(("old", "new"), [
    ("exp(A[i,j])", "sin(A[i,j])"), ("0.0,", "1.0,"), ("+=! X[i,j]", "+=! X[i,j] * 2"),
    ("+=! X[i,j]", "max=! X[i,j]"), ("isnan(X[i,j] / Z[i])", "isnan(X[i,j])"),
])  # fmt: skip
def test_other_choices_stay(old: str, new: str) -> None:
    body = f"{SOFTMAX}; {GUARDED}".replace(old, new, 1)
    program = fk.parse(f"def f(float32 A[N,M], float32 V[M,K]) -> (Y) {{ {body} }}")
    assert divide_after(program) == program


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
