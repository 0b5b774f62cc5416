"""Statements whose results nobody reads are left out."""

from __future__ import annotations

import numpy as np

import farkas as fk
from frontends.language.parse_program import parse_program
from poly.rewrites.eliminate_dead import eliminate_dead

TEXT = """def f(float32 A[N,K], float32 B[K,65], float32 X[N]) -> (Y) {
    T[i] = X[i] * 2
    U[i,j] +=! A[i,k] * B[k,j]
    V[i] max=! U[i,j]
    Y[i] = T[i] + X[i]
    T[i] = V[i]
}"""


def test_only_what_leads_to_an_output_stays() -> None:
    program = eliminate_dead(parse_program(TEXT))
    assert [s.target.tensor for s in program.statements] == ["T", "Y"]
    assert [t.name for t in program.temps] == ["T"]
    assert [t.name for t in program.inputs] == ["A", "B", "X"]


def test_a_program_whose_results_are_all_read_is_itself() -> None:
    program = parse_program("def f(float32 A[N]) -> (B) { T[i] = A[i]; B[i] = T[i] }")
    assert eliminate_dead(program) is program


def test_an_output_that_is_updated_keeps_all_its_updates() -> None:
    program = parse_program("def f(float32 A[N], float32 B[N]) -> (B) { B[i] += A[i]; B[i] = 2 }")
    assert eliminate_dead(program) is program


def test_a_kernel_takes_inputs_that_nobody_reads() -> None:
    kernel = fk.compile(TEXT)
    x = np.arange(5, dtype=np.float32)
    a, b = np.ones((5, 3), np.float32), np.ones((3, 65), np.float32)
    np.testing.assert_array_equal(kernel(a, b, x), 3 * x)
    assert "U[" not in kernel.source
