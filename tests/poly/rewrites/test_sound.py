"""Programs of which a rewrite once computed something else, or might have, as small as they go."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from runtime.reference.evaluate import run
from tests.differential.machines import FORMS, Form

#: What a rewrite overlooked, and the program.
OVERLOOKED = {
    "elements that several terms are added to": (
        "def f(float32 A[64,64], float32 B[64,64], float32 C[64]) -> (float32 Y[127]) "
        "{ Y[i+j] +=! A[i,k] * B[i,k] * C[j] }"
    ),
    "rows of a result that two sums share": (
        "def f(uint8 A[16,32], int8 B[32,16]) -> (int32 Y[8,16]) "
        "{ Y[i//2,j] +=! (int32(A[i,k]) - 3) * int32(B[k,j]) }"
    ),
    "elements that a scattered sum does not reach": (
        "def f(float32 X[8], float32 W[3]) -> (float32 Y[20]) { Y[i] = 7\nY[p+r] +=! X[p] * W[r] }"
    ),
    "a remainder that is none": (
        "def f(float32 X[12], float32 W[4]) -> (float32 Y[8]) "
        "{ Y[x] +=! X[x+r] * W[r] where x in 0:8, r in 0:4, (x+r) % 2 == 3 }"
    ),
    "elements that a strided sum is added to twice": (
        "def f(float32 X[4,4], float32 W[3], float32 Y[9,2]) -> (Y) { Y[x,i//2] += "
        "X[i,(x-r)//2] * W[r] where x in 0:9, i in 0:4, r in 0:3, (x-r) % 2 == 0, "
        "0 <= (x-r)//2, (x-r)//2 < 4 }"
    ),
    "a block that changes what it is made of": (
        "def f(int8 A[16,32], int8 B[32,16], float32 X[8,16]) -> (C, Y) {\n"
        "C[i,j] +=! int32(A[i,k]) * int32(B[k,j])\nS[i] = 0 where i in 0:16\n"
        "for t in 0:8 { S[i] = S[i] + X[t,i]\nT[t,i] = 2 * S[i] }\nY[t,i] = T[t,i] }"
    ),
    "a step that reads what another made": (
        "def f(int8 A[16,32], int8 B[32,16], float32 X[8,16]) -> (C, Y) {\n"
        "C[i,j] +=! int32(A[i,k]) * int32(B[k,j])\nS[i] = 0 where i in 0:16\n"
        "T[0,i] = 0 where i in 0:16\n"
        "for t in 0:8 { S[i] = S[i] + X[t,i]\nT[t+1,i] = 2 * S[i]\nY[t,i] = T[t,i] } }"
    ),
    "the beginning of a range": (
        "def f(int16 A[8,7], int16 B[16,7], int16 W[16,16]) -> (Y) {\n"
        "int16 T[16,7]\nT[k,p] = A[k,p] where k in 0:8\nT[k,p] = B[k,p] where k in 8:16\n"
        "Y[n,p] +=! int32(W[n,k]) * int32(T[k,p]) }"
    ),
    "half a zero point": (
        "def f(int8 A[16,32], int8 B[32,16]) -> (C) "
        "{ C[i,j] +=! (int32(A[i,k]) - 0.5) * int32(B[k,j]) }"
    ),
    "a zero point beyond 8 bits, at a border": (
        "def f(uint8 X[16,32], int8 W[16,3,32], int16 Z[1]) -> (Y) { Y[k,p] +=! "
        "(int32(X[p+r-1,c]) - int32(Z[0])) * int32(W[k,r,c]) where p in 0:16, r in 0:3, "
        "0 <= p+r-1, p+r-1 < 16 }"
    ),
    "a divisor that changes before the sum": (
        "def f(float32 E[4,8], float32 G[4,8], float32 V[8,5]) -> (O) { Z[i] +=! E[i,j]\n"
        "P[i,j] = E[i,j] / Z[i]\nZ[i] += E[i,j] * G[i,j]\nO[i,e] +=! P[i,j] * V[j,e] }"
    ),
}


def drawn(program: fk.Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Small whole numbers, so that every order of a sum gives the same; 300 for a zero point."""
    rng = np.random.default_rng(seed)
    found = {}
    for t in program.inputs:
        shape = tuple(int(str(e)) for e in t.shape)
        found[t.name] = rng.integers(1, 9, shape).astype(t.dtype.numpy)
    return found | {n: np.full((1,), 300, np.int16) for n in found if n == "Z"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.name))
@pytest.mark.parametrize("text", OVERLOOKED.values(), ids=OVERLOOKED)
def test_what_was_overlooked(text: str, form: Form) -> None:
    program = fk.parse(text.replace("\\\n", "\n"))
    given = drawn(program)
    made = CPU.prepare(program, form.machine, False)
    expected, found = (run(p, given, {}).values for p in (program, made))
    for t in program.outputs:
        np.testing.assert_allclose(found[t.name], expected[t.name], rtol=1e-5, err_msg=str(made))


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_a_quotient_of_nothing(columns: int) -> None:
    program = fk.parse(
        "def f(float32 E[I,J], float32 V[J,K]) -> (O) { Z[i] +=! E[i,j]\n"
        "P[i,j] = E[i,j] / Z[i]\nO[i,k] +=! P[i,j] * V[j,k] }"
    )
    rng = np.random.default_rng(0)
    e, v = rng.random((3, columns), np.float32), rng.random((columns, 4), np.float32)
    expected = (e / e.sum(1, keepdims=True)) @ v
    np.testing.assert_allclose(fk.compile(program)(e, v), expected, rtol=1e-5)
