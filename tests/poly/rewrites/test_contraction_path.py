"""Products of many tensors: when they are split, into what, and what that computes."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from frontends.language.parse_program import parse_program
from poly.ir.program import Program, specialise
from poly.rewrites.contraction_path import split_products
from runtime.reference.evaluate import evaluate

MTTKRP = """def f(float32 X[I,J,K], float32 B[J,R], float32 C[K,R]) -> (Y) {
    Y[i,r] +=! X[i,j,k] * B[j,r] * C[k,r]
}"""
BILINEAR = """def f(float32 A[B,I], float32 W[O,I,J], float32 C[B,J]) -> (Y) {
    Y[b,o] +=! A[b,i] * W[o,i,j] * C[b,j]
}"""
KRONECKER = """def f(float64 X[N,A,B,C], float64 U[P,A], float64 V[Q,B], float64 W[R,C]) -> (Y) {
    Y[n,p,q,r] +=! X[n,a,b,c] * U[p,a] * V[q,b] * W[r,c]
}"""
UPDATE = """def f(float32 Y[N,L], float32 A[N,M], float32 B[M,K], float32 C[K,L]) -> (Y) {
    Y[i,l] += 0.5 * A[i,j] * B[j,k] * C[k,l]
}"""
SHIFTED = """def f(float32 A[N+1,M], float32 B[M,K], float32 C[K,2*L+1]) -> (Y) {
    Y[i,l] +=! A[i+1,j] * exp(B[j,k]) * C[k,2*l] where i in 0:N, l in 0:L, j in 1:M, k in 0:K
}"""
APART = """def f(float32 A[I,J], float32 B[K,L]) -> (Y) {
    Y[i,k] +=! A[i,j] * B[k,l]
}"""

NARROW = """def f(bfloat16 X[I,J,K], bfloat16 B[J,R], float16 C[K,R]) -> (Y) {
    Y[i,r] +=! float32(X[i,j,k]) * float32(B[j,r]) * float32(C[k,r])
}"""
# As operators of ONNX have it: expressions of 16-bit floats are computed in float32.
HALVES = """def f(float16 X[I,J,K], float16 B[J,R], float16 C[K,R]) -> (float32 Y[I,R]) {
    Y[i,r] +=! X[i,j,k] * B[j,r] * C[k,r]
}"""
SPLIT = [MTTKRP, BILINEAR, KRONECKER, UPDATE, SHIFTED, APART, NARROW, HALVES]


def arrays(program: Program, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    fixed = specialise(program, sizes)
    return {
        t.name: rng.uniform(-1, 1, [e.value for e in t.shape]).astype(t.dtype.numpy)  # type: ignore[attr-defined]
        for t in fixed.inputs
    }


@pytest.mark.parametrize("text", SPLIT)
@pytest.mark.parametrize("seed", range(3))
def test_split_products_compute_the_same(text: str, seed: int) -> None:
    program = parse_program(text)
    split = split_products(program)
    assert len(split.statements) > len(program.statements)
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(2, 7)) for name in program.sizes}
    given = arrays(program, sizes)
    expected = evaluate(program, given, sizes)["Y"]
    np.testing.assert_allclose(evaluate(split, given, sizes)["Y"], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("text", SPLIT)
def test_split_programs_parse_back(text: str) -> None:
    split = split_products(parse_program(text))
    assert parse_program(str(split)) == split
    assert split_products(split) == split


def test_temporaries_are_called_after_their_factors() -> None:
    split = split_products(parse_program(MTTKRP))
    assert [str(t) for t in split.temps] == ["float32 X_C[I,J,R]"]
    assert [s.name for s in split.statements] == ["S0_1", "S0"]
    assert str(split.statements[1]).startswith("Y[i, r] +=! B[j, r] * X_C[i, j, r]")
    assert [t.name for t in split_products(parse_program(APART)).temps] == ["A_sum", "B_sum"]


def test_an_update_stays_one() -> None:
    split = split_products(parse_program(UPDATE))
    kinds = [("=", False), ("+=", True), ("+=", False)]
    assert [(s.op, s.init) for s in split.statements] == kinds
    assert str(split.statements[0]).startswith("A_scaled[i, j] = A[i, j] * 0.5")


@pytest.mark.parametrize("factor", ["0.125", "a[]", "(1 / sqrt(a[]))"])
def test_the_smaller_of_two_factors_is_scaled(factor: str) -> None:
    text = f"""def f(float32 A[90,40], float32 B[40,70], float32 a[]) -> (Y) {{
        Y[i,j] +=! {factor} * A[i,k] * B[k,j] }}"""
    program = parse_program(text)
    split = split_products(program)
    assert [t.name for t in split.temps] == ["B_scaled"]
    assert str(split.statements[1]).startswith("Y[i, j] +=! A[i, k] * B_scaled[k, j]")
    given = {name: abs(x) + 0.5 for name, x in arrays(program, {}).items()}
    got = fk.compile(text)(*given.values())
    np.testing.assert_allclose(got, evaluate(program, given, {})["Y"], 1e-5)


def test_what_windows_overlap_is_not_scaled() -> None:
    split = split_products(
        parse_program("""def f(float32 X[8,30,30], float32 W[16,8,3,3]) -> (Y) {
            Y[k,p,q] +=! 0.5 * X[c,p+r,q+s] * W[k,c,r,s] }""")
    )
    assert [t.name for t in split.temps] == ["W_scaled"]


@pytest.mark.parametrize(
    "text",
    [
        "float32 A[20,40], float32 B[40,8]) -> (Y) { Y[i,j] +=! 0.5 * A[i,k] * B[k,j]",
        "float32 A[90,40], float32 B[40,70]) -> (Y) { Y[i,j] max=! 0.5 * A[i,k] * B[k,j]",
        "float32 A[90,40], float32 B[40,70]) -> (Y) { Y[i,j] +=! A[i,k] * B[k,j]",
        "bfloat16 A[90,40], bfloat16 B[40,70]) -> (Y) "  # it would be stored in twice the bits
        "{ Y[i,j] +=! 0.5 * float32(A[i,k]) * float32(B[k,j])",
    ],
)
def test_other_products_are_left_alone(text: str) -> None:
    program = parse_program(f"def f({text} }}")
    assert split_products(program) == program


def test_known_sizes_decide() -> None:
    program = parse_program("""def f(float32 A[N,M], float32 B[M,K], float32 C[K,L]) -> (Y) {
        Y[i,l] +=! A[i,j] * B[j,k] * C[k,l]
    }""")
    first = {"N": 4, "M": 300, "K": 300, "L": 300}
    last = {"N": 300, "M": 300, "K": 300, "L": 4}
    for sizes, name in ((first, "A_B"), (last, "B_C")):
        assert [t.name for t in split_products(specialise(program, sizes)).temps] == [name]
    tiny = specialise(program, {"N": 2, "M": 2, "K": 2, "L": 2})
    assert split_products(tiny) == tiny
    # Factors are multiplied without summing only where that is far smaller.
    cube = parse_program(MTTKRP)
    for j, name in ((100, "X_B"), (2, "B_C")):
        found = split_products(specialise(cube, {"I": 100, "J": j, "K": 2, "R": 100}))
        assert [t.name for t in found.temps] == [name]


@pytest.mark.parametrize(
    "text",
    [
        # two factors; nothing summed; one sum for all factors
        "def f(float32 A[N,K], float32 B[K,M]) -> (Y) { Y[i,j] +=! A[i,k] * B[k,j] }",
        "def f(float32 A[N], float32 B[M], float32 C[K]) -> (Y) { Y[i,j,k] = A[i]*B[j]*C[k] }",
        "def f(float32 A[N,K], float32 B[N,K], float32 C[N,K]) -> (Y) "
        "{ Y[i] +=! A[i,k] * B[i,k] * C[i,k] }",
        # a domain that is no box
        "def f(float32 A[N,N], float32 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] where k <= j }",
        # no sum of products
        "def f(float32 A[N,N], float32 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] + C[k,l] }",
        "def f(float32 A[N,N], float32 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] max=! A[i,j] * B[j,k] * C[k,l] }",
        # types that are mixed, or round when stored
        "def f(float32 A[N,N], float64 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] }",
        "def f(float16 A[N,N], float16 B[N,N], float16 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] }",
        "def f(int32 A[N,N], int32 B[N,N], int32 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] }",
        # places that data decides, and loops as values
        "def f(float32 A[N,N], float32 B[N,N], float32 C[N,N], int32 P[N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[P[k],l] where k in 0:N }",
        "def f(float32 A[N,N], float32 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] * float32(k) }",
        # a recurrence reads what it writes
        "def f(float32 Y[N,N], float32 B[N,N], float32 C[N,N]) -> (Y) "
        "{ Y[i,l] += Y[i,j] * B[j,k] * C[k,l] }",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    program = parse_program(text)
    assert split_products(program) is program


def test_a_part_that_could_leave_its_arrays_is_not_made() -> None:
    # Rows of A are read that may not be there, unless L is 0 and nothing is computed at all.
    program = parse_program("""
        def f[N,M,K,L,P](float32 A[N,M], float32 B[M,K], float32 C[K,L]) -> (Y) {
            Y[i,l] +=! A[i,j] * B[j,k] * C[k,l] where i in 0:P
        }""")
    assert [str(c) for c in program.constraints] == ["P <= N or L == 0 or K == 0 or M == 0"]
    assert split_products(program) is program


def test_ranges_that_begin_elsewhere() -> None:
    program = parse_program("""
        def f[P](float32 A[99,99], float32 B[99,99], float32 C[99,99], float32 Y[99,99]) -> (Y) {
            Y[i,l] += A[i,j] * B[j,k] * C[k,l] where k in P:99, j in 0:P, l in 0:99, i in 0:99
        }""")
    split = split_products(program)
    assert [str(t) for t in split.temps] == ["float32 A_B[99,max(-P + 99, 0)]"]
    given = arrays(program, {"P": 90})
    expected = evaluate(program, given, {"P": 90})["Y"]
    np.testing.assert_allclose(evaluate(split, given, {"P": 90})["Y"], expected, 1e-4, 1e-4)


def test_names_are_new() -> None:
    text = """def f(float32 X[I,J,K], float32 B[J,R], float32 C[K,R], float32 X_C[I]) -> (Y) {
        S0_1: Y[i,r] = X_C[i] where r in 0:R
        Y[i,r] += X[i,j,k] * B[j,r] * C[k,r]
    }"""
    split = split_products(parse_program(text))
    assert [t.name for t in split.temps] == ["X_C2"]
    assert [s.name for s in split.statements] == ["S0_1", "S1_1", "S1"]
