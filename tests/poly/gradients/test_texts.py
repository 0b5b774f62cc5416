"""What gradients look like: they are read, and scheduled, by people."""
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import replace

import pytest

import farkas as fk
from poly.gradients.tidy import tidied

TEXTS = {
    "product": (
        "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        """\
def f(float32 A[M,K], float32 B[K,N], float32 dC[M,N]) -> (float32 dA[M,K], float32 dB[K,N]) {
    dA[i, k] +=! dC[i, j] * B[k, j] where i in 0:M, k in 0:K, j in 0:N
    dB[k, j] +=! dC[i, j] * A[i, k] where k in 0:K, j in 0:N, i in 0:M
}""",
    ),
    # Both are sums without zeros before them; what the padding would read is in the guards.
    "padded convolution": (
        "def f(float32 X[C,W], float32 F[K,C,3]) -> (Y) "
        "{ Y[k,p] +=! X[c,p+r-1] * F[k,c,r] where p in 0:W, 0 <= p+r-1 < W }",
        """\
def f(float32 X[C,W], float32 F[K,C,3], float32 dY[K,W]) -> (float32 dX[C,W], float32 dF[K,C,3]) {
    dX[c, x] +=! dY[k, x - r + 1] * F[k, c, r] where c in 0:C, x in 0:W, k in 0:K, r in 0:3, 0 <= x - r + 1, x - r + 1 < W
    dF[k, c, r] +=! dY[k, p] * X[c, p + r - 1] where k in 0:K, c in 0:C, r in 0:3, p in 0:W, 0 <= p + r - 1, p + r - 1 < W
}""",
    ),
    # The maximum cancels: nothing is computed of it.
    "softmax": (
        "def f(float32 X[N,M]) -> (Y) { top[i] max=! X[i,j]\nE[i,j] = exp(X[i,j] - top[i])\n"
        "total[i] +=! E[i,j]\nY[i,j] = E[i,j] / total[i] }",
        """\
def f(float32 X[N,M], float32 dY[N,M]) -> (float32 dX[N,M]) {
    float32 top[N]
    float32 E[N,M]
    float32 total[N]
    float32 dE[N,M]
    float32 dtotal[N]
    float32 Y[N,M]
    top[i] max=! X[i, j] where i in 0:N, j in 0:M
    E[i, j] = exp(X[i, j] - top[i]) where i in 0:N, j in 0:M
    total[i] +=! E[i, j] where i in 0:N, j in 0:M
    Y[i, j] = E[i, j] / total[i] where i in 0:N, j in 0:M
    dtotal[i] +=! -(dY[i, j] * (Y[i, j] / total[i])) where i in 0:N, j in 0:M
    dE[i, j] = dY[i, j] / total[i] + dtotal[i] where i in 0:N, j in 0:M
    dX[i, j] = dE[i, j] * E[i, j] where i in 0:N, j in 0:M
}""",
    ),
    # Backwards in time.
    "prefix sums": (
        "def f(float32 X[N]) -> (S) { S[0] = 0\nS[i+1] = S[i] + X[i] }",
        """\
def f(float32 X[N], float32 dS[N + 1]) -> (float32 dX[N]) {
    float32 dS_[N + 1]
    dS_[i0] = dS[i0] where i0 in 0:N + 1
    dS_[N - i - 1] += dS_[N - i] where i in 0:N
    dX[i] = dS_[i + 1] where i in 0:N
}""",
    ),
    # What steps add around a ring is read around it, and needs no zeros.
    "ring": (
        "def f(float32 U0[8], float32 a[8]) -> (L) { float32 U[5,8]\nU[0,i] = U0[i]\n"
        "for t in 0:4 { U[t+1,i] = U[t,i] + a[i] * (U[t,(i+1)%8] - U[t,(i+6)%8]) where i in 0:8 }\n"
        "L[] +=! U[4,i] }",
        """\
def f(float32 U0[8], float32 a[8]) -> (float32 dU0[8], float32 da[8]) {
    float32 U[5,8]
    float32 dU[5,8]
    U[0, i] = U0[i] where i in 0:8
    for t in 0:4 {
        U[t + 1, i] = U[t, i] + a[i] * (U[t, (i + 1) % 8] - U[t, (i + 6) % 8]) where i in 0:8
    }
    dU[4, i] = float32(1.0) where i in 0:8
    for t in 0:4 {
        dU[-t + 3, i] = dU[-t + 4, i] + dU[-t + 4, (i + 7) % 8] * a[(i + 7) % 8] - dU[-t + 4, (i + 2) % 8] * a[(i + 2) % 8] where i in 0:8
    }
    dU0[i] = dU[0, i] where i in 0:8
    da[i] +=! dU[t + 1, i] * (U[t, (i + 1) % 8] - U[t, (i + 6) % 8]) where i in 0:8, t in 0:4
}""",
    ),
    # So do states that each step overwrites.
    "overwritten states": (
        "def f(float32 X[T,M], float32 h0[M]) -> (float32 h[M]) { h[j] = h0[j]\n"
        "for t in 0:T { h[j] = h[j] * X[t,j] } }",
        """\
def f(float32 X[T,M], float32 h0[M], float32 dh[M]) -> (float32 dX[T,M], float32 dh0[M]) {
    float32 h_steps[T + 1,M]
    float32 dh_[M]
    float32 dh_steps[T + 1,M]
    float32 h[M]
    h[j] = h0[j] where j in 0:M
    h_steps[0, i0] = h[i0] where i0 in 0:M
    for t in 0:T {
        h_steps[t + 1, j] = h_steps[t, j] * X[t, j] where j in 0:M
    }
    dh_[i0] = dh[i0] where i0 in 0:M
    dh_steps[T, i0] = dh_[i0] where i0 in 0:M
    for t in 0:T {
        dh_steps[T - t - 1, j] = dh_steps[T - t, j] * X[T - t - 1, j] where j in 0:M
    }
    dh_[i0] = dh_steps[0, i0] where i0 in 0:M
    dX[t, j] = dh_steps[t + 1, j] * h_steps[t, j] where t in 0:T, j in 0:M
    dh0[j] = dh_[j] where j in 0:M
}""",
    ),
    "embedding": (
        "def f(float32 E[V,D], int32 t[N]) -> (Y) { Y[n,d] = E[t[n],d] }",
        """\
def f(float32 E[V,D], int32 t[N], float32 dY[N,D]) -> (float32 dE[V,D]) where V >= 1 or N == 0 or D == 0 {
    dE[i0, i1] = 0 where i0 in 0:V, i1 in 0:D
    dE[t[n], d] += dY[n, d] where n in 0:N, d in 0:D
}""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    text, expected = TEXTS[name]
    assert str(fk.grad(text)) == expected


def test_values_come_first() -> None:
    made = fk.value_and_grad("def f(float32 X[N]) -> (L) { L[] +=! X[i] * X[i] }")
    assert [t.name for t in made.outputs] == ["L", "dX"]
    assert [t.name for t in made.inputs] == ["X"]


def test_one_of_many() -> None:
    text = "def f(float32 A[N], float32 B[N]) -> (P, Q) { P[i] = A[i] * B[i]\nQ[i] = A[i] + B[i] }"
    made = fk.grad(text, wrt="B", of="P")
    assert [t.name for t in made.inputs] == ["A", "B", "dP"]
    assert [t.name for t in made.outputs] == ["dB"]


def test_names_that_are_taken() -> None:
    made = fk.grad("def f(float32 X[N], float32 dX[N]) -> (dY) { dY[i] = X[i] * dX[i] }")
    assert [t.name for t in made.outputs] == ["dX_", "ddX"]
    assert [t.name for t in made.inputs] == ["X", "dX", "ddY"]


def test_labels_stay() -> None:
    made = fk.value_and_grad("def f(float32 X[N]) -> (Y) { square: Y[i] = X[i] * X[i] }")
    assert [s.name for s in made.statements] == ["square", "S1"]


def test_gradients_that_others_read_come_before_these() -> None:
    """Statements made for dB and dA, of which dB reads dA: only dB waits."""
    program = fk.parse(
        "def f(float32 X[N]) -> (dB, dA, Z) { dA[i] = 2 * X[i]\ndB[i] = 3 * dA[i]\nZ[i] = X[i] }"
    )
    made = tuple(replace(s, name=f"__{n}") for n, s in enumerate(program.statements))
    found = tidied(replace(program, statements=made, text=None))
    order = [s.target.tensor for s in found.statements]
    assert order.index("dA") < order.index("dB")
