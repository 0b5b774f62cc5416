"""Ranges, shapes and element types: tables of texts and what is inferred from them."""

from __future__ import annotations

import pytest

from frontends.language.parse_program import parse_program, undeclared_inputs
from poly.errors import LanguageError
from poly.ir.dtypes import BOOL, DTYPES, FLOAT32, FLOAT64, INT8, INT32, DType


def ranges(text: str, statement: int = 0) -> str:
    return ", ".join(map(str, parse_program(text).statements[statement].ranges))


def define(signature: str, body: str) -> str:
    return f"def f({signature}) -> (Y) {{ {body} }}"


@pytest.mark.parametrize(
    ("signature", "body", "expected"),
    [
        # bare indices
        ("float32 X[N,M]", "Y[i,j] = X[i,j]", "i in 0:N, j in 0:M"),
        ("float32 X[N,M]", "Y[j,i] = X[i,j]", "j in 0:M, i in 0:N"),
        ("float32 X[N,M]", "Y[i] +=! X[i,j]", "i in 0:N, j in 0:M"),
        ("float32 X[4,2*N]", "Y[i,j] = X[i,j]", "i in 0:4, j in 0:2 * N"),
        ("float32 X[N,N]", "Y[i] = X[i,i]", "i in 0:N"),
        ("float32 X[N], float32 Z[M]", "Y[i] = X[i] + Z[i]", "i in 0:min(N, M)"),
        ("float32 X[N], float32 Z[N+1]", "Y[i] = X[i] + Z[i]", "i in 0:N"),
        ("float32 X[3], float32 Z[5]", "Y[i] = X[i] + Z[i]", "i in 0:3"),
        # compound accesses
        ("float32 X[N]", "Y[i] = X[i+1] - X[i]", "i in 0:N - 1"),
        ("float32 X[N]", "Y[i] = X[N-1-i]", "i in 0:N"),
        ("float32 X[N]", "Y[i] = X[2*i]", "i in 0:(N + 1) // 2"),
        ("float32 X[N]", "Y[i] = X[3*i+1]", "i in 0:(N + 1) // 3"),
        ("float32 X[N]", "Y[i] = X[i//2]", "i in 0:2 * N"),
        ("float32 X[N], float32 F[R]", "Y[p] +=! X[p+r] * F[r]", "p in 0:N - R + 1, r in 0:R"),
        (
            "float32 X[H], float32 F[R]",
            "Y[p] +=! X[2*p+r] * F[r]",
            "p in 0:(H - R) // 2 + 1, r in 0:R",
        ),
        (
            "float32 X[H], float32 F[R]",
            "Y[p] +=! X[p+2*r] * F[r]",
            "p in 0:H - 2 * R + 2, r in 0:R",
        ),
        # `where`
        ("float32 X[N]", "Y[i] +=! X[2*i+r] where r in 0:2", "i in 0:N // 2, r in 0:2"),
        ("float32 X[N]", "Y[i] = X[i] where i < 5", "i in 0:min(N, 5)"),
        ("float32 X[N]", "Y[i] = X[N-1-i] where i <= 5", "i in 0:min(N, 6)"),
        ("float32 X[N]", "Y[i] = X[i] where i in 0:N//2", "i in 0:N // 2"),
        ("float32 X[N]", "Y[i-2] = X[i] where 2 <= i < N", "i in 2:N"),
        ("float32 X[N]", "Y[i-2] = X[i] where 2*i > 3", "i in 2:N"),
        ("float32 X[N]", "Y[i-7] = X[i] where i == 7", "i in 7:min(N, 8)"),
        (
            "float32 X[N]",
            "Y[i] +=! X[i+r-1] where i in 0:N, r in 0:3, 0 <= i+r-1 < N",
            "i in 0:N, r in 0:3",
        ),
        ("float32 X[N]", "Y[i] +=! X[j] where i in 0:N, j in i:N", "i in 0:N, j in 0:N"),
        ("float32 X[N]", "Y[i] +=! X[j] where i in 0:N, j in 0:i+1", "i in 0:N, j in 0:N"),
        # an access that a guard keeps inside bounds nothing, on that side
        (
            "float32 X[T], float32 F[R]",
            "Y[t] +=! X[t-r] * F[r] where t-r >= 0",
            "t in 0:T, r in 0:R",
        ),
        # data-dependent reads bound nothing
        ("float32 X[N,M], int64 I[K]", "Y[i,j] = X[I[i],j]", "i in 0:K, j in 0:M"),
    ],
)
def test_ranges(signature: str, body: str, expected: str) -> None:
    assert ranges(define(signature, body)) == expected


def test_a_declared_output_bounds_its_indices() -> None:
    assert ranges("def f() -> (float32 Y[N,3]) { Y[i,j] = 0 }") == "i in 0:N, j in 0:3"


def test_a_later_statement_uses_inferred_shapes() -> None:
    text = define("float32 X[N], float32 F[R]", "T[p] +=! X[p+r] * F[r]; Y[i] = T[i] * 2")
    assert ranges(text, 1) == "i in 0:N - R + 1"


def test_a_recurrence_is_resolved_from_its_inputs() -> None:
    program = parse_program(
        define("float32 A[J], float32 X[T,J]", "Y[0,j] = A[j]; Y[t+1,j] = Y[t,j] + X[t,j]")
    )
    assert str(program.outputs[0]) == "float32 Y[T + 1,J]"
    assert [str(r) for r in program.statements[1].ranges] == ["t in 0:T", "j in 0:J"]


@pytest.mark.parametrize(
    ("clauses", "guards"),
    [
        ("i in 0:N, j in 0:N, i <= j", ["i <= j"]),
        ("i in 0:N, j in i:N", ["i <= j"]),
        ("i in 0:N, j in i:i+2, j < N", ["i <= j", "j < i + 2", "j < N"]),
        ("i in 0:N, j in 0:N, 0 <= i - j < 2", ["0 <= i - j", "i - j < 2"]),
        ("i in 0:N, j in 0:N, i < 2 or j < 2", ["i < 2 or j < 2"]),
        ("i in 0:N, j in 0:N, not i == j and i < 3", ["not i == j and i < 3"]),
        ("i in 0:N, j in 0:N, i < 2, i % 2 == 0", ["i < 2", "i % 2 == 0"]),
        ("i in 0:N, j in 0:N, N > 2", ["N > 2"]),
        ("i < 2, i % 2 == 0, j < 3", ["i % 2 == 0"]),  # bounds of inferred indices go away
    ],
)
def test_guards(clauses: str, guards: list[str]) -> None:
    text = f"def f(float32 X[N,N], float32 Y[N,N]) -> (Y) {{ Y[i,j] += X[i,j] where {clauses} }}"
    assert [str(g) for g in parse_program(text).statements[0].guards] == guards


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("Y[i+2] = X[i]; Y[j] = 0 where j in 0:2", "N + 2"),
        ("Y[2*i] = X[i]; Y[2*i+1] = X[i]", "2 * N"),
        ("Y[i] = X[i]; Y[N+j] = Z[j]", "N + M"),
        ("Y[i//2] max=! X[i]", "(N + 1) // 2"),
        ("Y[0] +=! X[i] where i in 0:1", "1"),
        ("Y[i%4] +=! X[i]", "4"),
    ],
)
def test_shapes(body: str, shape: str) -> None:
    program = parse_program(f"def f(float32 X[N], float32 Z[M]) -> (Y) where N >= 4 {{ {body} }}")
    assert str(program.outputs[0].shape[0]) == shape


# --- element types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "body", "expected"),
    [
        ("float32", "Y[i] = X[i] * 2", "float32"),
        ("int8", "Y[i] = X[i] + 1", "int8"),
        ("int8", "Y[i] = X[i] + 0.5", "float32"),
        ("int32", "Y[i] = exp(X[i])", "float32"),
        ("float64", "Y[i] = exp(X[i])", "float64"),
        ("float32", "Y[i] = X[i] > 0", "bool"),
        ("float32", "Y[i] = isnan(X[i])", "bool"),
        ("float32", "Y[i] = int32(X[i])", "int32"),
        ("float32", "Y[i] = select(X[i] > 0, 1, 0)", "int32"),
        ("float32", "Y[i] = select(X[i] > 0, X[i], 0)", "float32"),
        ("float32", "Y[i] = i where i in 0:N", "int64"),
        ("float32", "Y[i] = 0; Y[i] = X[i]", "float32"),
        ("float32", "Y[0] = 0; Y[i+1] = Y[i] + X[i]", "float32"),
        ("float16", "T[i] = float64(X[i]); Y[i] = T[i] + X[i]", "float64"),
        ("float16", "Y[i] = X[i] + float32(1)", "float32"),
        ("bool", "Y[i] = not X[i]", "bool"),
    ],
)
def test_types(dtype: str, body: str, expected: str) -> None:
    if body == "Y[i] = 0; Y[i] = X[i]":
        body = "Y[i] = 0 where i in 0:N; Y[i] = X[i]"
    program = parse_program(define(f"{dtype} X[N]", body))
    assert str(program.outputs[0].dtype) == expected


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_element_type_can_be_declared(dtype: DType) -> None:
    program = parse_program(f"def f({dtype} X[N]) -> ({dtype} Y[N]) {{ Y[i] = X[i] }}")
    assert program.inputs[0].dtype == program.outputs[0].dtype == dtype


# --- one-liners -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        (
            "C[i,j] +=! A[i,k] * B[k,j]",
            "def f(float32 A[I,K], float32 B[K,J]) -> (float32 C[I,J]) {",
        ),
        ("y[i] +=! x[i,k] / K", "def f(float32 x[I,K]) -> (float32 y[I]) {"),
        ("s[] +=! a[i] * b[i]", "def f(float32 a[I], float32 b[I]) -> (float32 s[]) {"),
        (
            "Y[p] +=! X[p+r] * F[r]",
            "def f(float32 X[X0], float32 F[R]) -> (float32 Y[X0 - R + 1]) where R <= X0 + 1 {",
        ),
        ("A[a] = B[a]", "def f(float32 B[A_size]) -> (float32 A[A_size]) {"),
        ("C[I] = A[I,I]", "def f(float32 A[I_size,I_size]) -> (float32 C[I_size]) {"),
        ("D[i,j] = A[i] - A[j]", "def f(float32 A[I]) -> (float32 D[I,I]) {"),
        ("Y[i] = X[i] where i in 0:3", "def f(float32 X[X0]) -> (float32 Y[3]) where X0 >= 3 {"),
        (
            "T[i] max=! X[i,j]; Y[i,j] = X[i,j] - T[i]",
            "def f(float32 X[I,J]) -> (float32 Y[I,J]) {",
        ),
        (
            "P[i] = X[i] + 1\nQ[i] = X[i] - 1",
            "def f(float32 X[I]) -> (float32 P[I], float32 Q[I]) {",
        ),
        (
            "H[0] = Z[0]; H[t+1] = H[t] + X[t]",
            "def f(float32 Z[Z0], float32 X[T]) -> (float32 H[T + 1]) where Z0 >= 1 {",
        ),
    ],
)
def test_one_liners(text: str, signature: str) -> None:
    names = [name for name, _ in undeclared_inputs(text)]
    program = parse_program(text, dict.fromkeys(names, FLOAT32))
    assert str(program).splitlines()[0] == signature


def test_undeclared_inputs_are_in_order_of_appearance() -> None:
    assert undeclared_inputs("C[i,j] +=! B[k,j] * A[i,k] + s[]") == (("B", 2), ("A", 2), ("s", 0))
    assert undeclared_inputs("T[i] = X[I[i]]; Y[i] = T[i]") == (("X", 1), ("I", 1))
    assert undeclared_inputs("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }") == ()


def test_given_types() -> None:
    program = parse_program("C[i] = A[i] + B[i]", {"A": INT8, "B": INT32}, name="plus")
    assert program.name == "plus" and program.outputs[0].dtype == INT32
    program = parse_program("C[i] = A[i]", {"A": FLOAT32, "C": FLOAT64})
    assert program.outputs[0].dtype == FLOAT64
    with pytest.raises(LanguageError, match="declared as float32, not bool"):
        parse_program("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }", {"X": BOOL})
    with pytest.raises(LanguageError, match="there is no tensor 'Q'"):
        parse_program("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }", {"Q": BOOL})
    with pytest.raises(LanguageError, match="element type of A, B is not known"):
        parse_program("C[i] = A[i] + B[i]")


def test_an_updated_tensor_is_input_and_output() -> None:
    text = "def f(float32 X[N], float32 Y[N]) -> (Y) { Y[i] += X[i] }"
    program = parse_program(text)
    assert program.updated == ("Y",)
    assert program == parse_program(text.replace("-> (Y)", "-> (float32 Y[N])"))
