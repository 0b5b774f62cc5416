"""Which programs have the same integers on every machine."""

from __future__ import annotations

import pytest

from frontends.language.parse_program import parse_program
from poly.ir.rounding import rounds_to_integers


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float32 A[N], float32 B[N]) -> (Y) { Y[i] = int8(round(A[i] * 3.0 + B[i])) }", True),
        ("(float32 A[N], float32 B[8]) -> (Y) { Y[i] = B[int32(A[i] * 2.0 + 1.0)] }", True),
        ("(int8 A[N,K], float32 S[N]) -> (Y) { int32 T[N]; T[i] +=! int32(A[i,k]) * int32(A[i,k]);"
         "  Y[i] = int8(round(float32(T[i]) * S[i] + 1.0)) }", True),
        # Nothing is rounded to an integer.
        ("(float32 A[N], float32 B[N]) -> (Y) { Y[i] = A[i] * 3.0 + B[i] }", False),
        ("(int8 A[N]) -> (Y) { Y[i] = int32(A[i]) * 3 + 1 }", False),
        # A sum of floats, and a function that libraries round differently.
        ("(float32 A[N,K]) -> (Y) { float32 T[N]; T[i] +=! A[i,k] * A[i,k];"
         "  Y[i] = int8(round(T[i])) }", False),
        ("(float32 A[N]) -> (Y) { Y[i] = int8(round(exp(A[i]) * 3.0 + 1.0)) }", False),
    ],
)  # fmt: skip
def test_rounds_to_integers(body: str, expected: bool) -> None:
    assert rounds_to_integers(parse_program(f"def f{body}")) is expected
