"""Maxima that cancel have no gradient, and only these."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.gradients.cancelling import cancelling

SOFTMAX = "E[i,j] = exp(X[i,j] - m[i])\nt[i] +=! E[i,j]"


@pytest.mark.parametrize(
    ("rest", "cancels"),
    [
        (f"{SOFTMAX}\nY[i,j] = E[i,j] / t[i]", True),
        (f"{SOFTMAX}\nY[i,j] = X[i,j] - m[i] - log(t[i])", True),
        (f"{SOFTMAX}\nY[i] = log(t[i]) + m[i]", True),
        (f"{SOFTMAX}\nY[i,j] = select(isnan(E[i,j] / t[i]), 0, E[i,j] / t[i])", True),
        (f"{SOFTMAX}\nY[i,j] = E[i,j] * E[i,j] / (t[i] * t[i])", True),
        (f"{SOFTMAX}\nY[i,j] = sqrt(E[i,j]) * rsqrt(t[i])", True),
        (f"{SOFTMAX}\nY[i,j] = E[i,j]", False),
        (f"{SOFTMAX}\nY[i,j] = E[i,j] / (t[i] + 1)", False),
        (f"{SOFTMAX}\nY[i,j] = E[i,j] * E[i,j] / t[i]", False),
        ("E[i,j] = exp(X[i,j] - 2 * m[i])\nt[i] +=! E[i,j]\nY[i,j] = E[i,j] / t[i]", True),
        ("E[i,j] = exp(X[i,j] - m[j])\nt[i] +=! E[i,j]\nY[i,j] = E[i,j] / t[i]", False),
        (f"{SOFTMAX}\nY[i,j] = select(E[i,j] > 0.5, E[i,j] / t[i], 0)", False),
        (f"{SOFTMAX}\nY[i] = log(t[i]) - m[i]", False),
        (
            "S[i,0] = exp(X[i,0] - m[i])\nS[i,j+1] = S[i,j] + exp(X[i,j+1] - m[i])\n"
            "Y[i,j] = S[i,j] / S[i,N-1]",
            True,
        ),
        (
            "S[i,0] = 0 where i in 0:N\nS[i,j+1] = S[i,j] * S[i,j] + exp(X[i,j] - m[i])\n"
            "Y[i,j] = S[i,j] / S[i,N]",
            False,
        ),
        ("t[i] +=! X[i,j] - m[i]\nY[i,j] = X[i,j] - t[i] + m[i]", False),
        ("Y[i,j] = max(X[i,j] - m[i] + 1, 0) + m[i]", False),
        ("Y[i,j] = max(X[i,j] - m[i], -inf) + m[i]", True),
        (f"{SOFTMAX}\nY[i,j] = max(E[i,j], 0) / t[i]", True),
    ],
)
def test_what_cancels(rest: str, cancels: bool) -> None:
    text = f"def f(float64 X[N,N]) -> (Y) {{ m[i] max=! X[i,j]\n{rest} }}"
    assert cancelling(fk.parse(text), ["Y"]) == (frozenset({"m"}) if cancels else frozenset())


def test_two_maxima_in_one_temporary() -> None:
    """E over F does not change with a maximum that both have in common, of which there is none."""
    text = """def f(float64 A[N,M], float64 B[N,M]) -> (Y) {
        m[i] max=! A[i,j]
        E[i] = exp(A[i,0] - m[i])
        m[i] max=! B[i,j]
        F[i] = exp(B[i,0] - m[i])
        Y[i] = E[i] / F[i] }"""
    gradient = fk.grad(text, wrt="A", of="Y")
    given = {"A": np.array([[1.0, 3]]), "B": np.array([[1.0, 5]]), "dY": np.ones(1)}
    (found,) = fk.evaluate(gradient, given).values()
    np.testing.assert_allclose(found, np.exp(2) * np.array([[1, -1]]))


@pytest.mark.parametrize("factor", ["* inf", "* nan", "/ 0.0"])
def test_factors_that_scale_to_no_number(factor: str) -> None:
    text = f"def f(float32 X[N,M]) -> (Y) {{ m[i] max=! X[i,j]\nY[i] = m[i] {factor} }}"
    assert "dX" in str(fk.grad(text))
