"""Mistakes in meaning: each is reported with its place, and near misses with what was meant."""

from __future__ import annotations

import pytest

from frontends.language.einsum import is_einsum
from frontends.language.parse_program import parse_program, undeclared_inputs
from frontends.language.spelling import closest, is_near
from poly.errors import LanguageError
from poly.ir.dtypes import FLOAT16, FLOAT32, INT64


def failure(text: str) -> LanguageError:
    with pytest.raises(LanguageError) as caught:
        names = () if text.startswith("def") else undeclared_inputs(text)
        parse_program(text, {name: FLOAT32 for name, _ in names})
    return caught.value


def place(error: LanguageError) -> str:
    assert error.text is not None and error.span is not None
    return error.text[error.span.start : error.span.end]


X = "def f(float32 X[N,M]) -> (Y) { "
U = "def f(uint8 U[N], int32 T[M]) -> (Y) { "


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        # what Tensor Comprehensions turns into a silent reduction
        ("Y[bath] = X[batch]", "did you mean 'bath'?", "batch"),
        ("Y[batch] +=! X[bacth,k]", "did you mean 'batch'?", "bacth"),
        ("Y[i,batch] +=! X[i,batc]", "did you mean 'batch'?", "batc"),
        ("C[i,j] = A[i,k] * B[k,j]", "sum over it with +=!", "k"),
        ("Y[i] = X[i,k]", "k appears only on the right of a plain '='", "k"),
        ("Y[i] = X[i] / N", "if N is meant as a size", "N"),
        (X + "Y[i] = X[i,j] }", "sum over it with +=!", "j"),
        ("def f(float32 a) -> (Y) { Y[] = a[] }", "or float32 a[] for a scalar", ")"),
        # sizes
        ("def f(float32 X[N<3]) -> (Y) { Y[i] = X[i] }", "is a condition, not a number", "N<3"),
        ("def f(float32 X[2.5]) -> (Y) { Y[i] = X[i] }", "2.5 is not a plain integer", "2.5"),
        ("def f(float32 X[int8(4)]) -> (Y) { Y[i] = X[i] }", "not a plain integer", "int8(4)"),
        (
            "def f(float32 X[exp(N)]) -> (Y) { Y[i] = X[i] }",
            "'exp' is not integer arithmetic",
            "exp(N)",
        ),
        ("def f(float32 X[N]) -> (Y) where N+1 { Y[i] = X[i] }", "N + 1 is not a condition", "N+1"),
        (
            "def f(float32 X[N]) -> (Y) where N % 0 == 0 { Y[i] = X[i] }",
            "N % 0 divides by 0",
            "N % 0 == 0",
        ),
        # blocks
        (X + "for i in 0:K { Y[i] = X[i,0] } }", "K is not a size", "i in 0:K"),
        (X + "for i in 0:j { Y[i,j] = X[i,j] } }", "j is not a size", "i in 0:j"),
        (X + "for i in 0:N { Y[i] = X[i,0] where i in 0:2 } }", "i has two ranges", "i in 0:2"),
        (X + "for i in 0:N { } }", "there is no statement in this block", "for i in 0:N { }"),
        (
            X + "for i in 0:N { for j in 0:M { Y[i,j] = X[i,j] } } }",
            "blocks cannot be nested",
            "for",
        ),
        # unknown names
        (X + "Y[i,j] = Z[i,j] }", "there is no tensor 'Z'", "Z"),
        ("def f(float32 data[N]) -> (Y) { Y[i] = dato[i] }", "did you mean 'data'?", "dato"),
        (X + "Y[i,j] = x[i,j] }", "did you mean 'X'?", "x"),
        ("temp[i] = X[i]; Y[i] = tmp[i]", "did you mean 'temp'?", "tmp"),
        ("Y[i] = exq(X[i])", "did you mean 'exp'?", "exq"),
        ("Y[i] = flaot32(X[i])", "did you mean 'float32'?", "flaot32"),
        ("def f(flaot32 X[N]) -> (Y) { Y[i] = X[i] }", "did you mean 'float32'?", "flaot32"),
        ("def f(double X[N]) -> (Y) { Y[i] = X[i] }", "did you mean 'float64'?", "double"),
        ("def f(X[N]) -> (Y) { Y[i] = X[i] }", "begins with its element type", "["),
        ("def f(complex64 X[N]) -> (Y) { Y[i] = X[i] }", "there are float16", "complex64"),
        (X + "Y[i,j] = X(i,j) }", "elements are written with brackets", "X(i,j)"),
        (X + "Y[i,j] = exp[i,j] }", "exp is called with parentheses", "exp[i,j]"),
        (X + "Y[i,j] = X[i,j] + X }", "X is a tensor and needs its indices", "X"),
        (X + "Y[i,j] = X[i,j] where i in 0:L }", "neither a declared size nor an index", "L"),
        (
            "def f(float32 X[Batch]) -> (float32 Y[Batc]) { Y[i] = X[i] }",
            "did you mean 'Batch'?",
            "Batc",
        ),
        (
            "def f(float32 X[N]) -> (Y) where L <= N { Y[i] = X[i] }",
            "a constraint may use only sizes (N)",
            "L",
        ),
        (
            "def f[N](float32 X[N,M]) -> (Y) { Y[i,j] = X[i,j] }",
            "M is not among the sizes [N]",
            "M",
        ),
        ("def f(float32 X[N]) -> (Out) { Outt[i] = X[i] }", "did you mean 'Outt'?", "Out"),
        (
            "def f(float32 X[N]) -> (float32 Outp[N]) { Otup[i] = X[i] }",
            "did you mean 'Outp'?",
            "Otup",
        ),
        # ranks, roles, words
        (X + "Y[i] = X[i] }", "X has 1 index here, but rank 2", "X[i]"),
        (X + "Y[i] = X[] }", "X has no indices here, but rank 2", "X[]"),
        ("Y[i] +=! X[i] * X[i,j]", "X has 2 indices here, but 1 elsewhere", "X[i,j]"),
        (X + "X[i,j] = 0 }", "output Y is never written", "Y"),
        (X + "Y[i,j] = X[i,j]; X[i,j] = 0 }", "X is an input and cannot be written", "X[i,j]"),
        ("def f(float32 X[N], int8 X[N]) -> (Y) { Y[i] = X[i] }", "declared twice", "int8 X[N]"),
        ("def f(float32 X[N]) -> (int8 X[N]) { X[i] = 0 }", "declared differently", "int8 X[N]"),
        ("def f(float32 X[N]) -> (Y, Y) { Y[i] = X[i] }", "output Y is named twice", "Y"),
        ("def f(float32 X[N]) -> (N) { N[i] = X[i] }", "N is a size", "N"),
        ("def f(float32 X[Y], float32 Y[N]) -> (Z) { Z[i] = X[i] }", "Y is a tensor, not a", "Y"),
        ("Y[max] = X[max]", "'max' is a word of the language", "max"),
        ("Y[Floor] = X[Floor]", "'Floor' is a word of the language", "Floor"),
        ("a: Y[i] = X[i]; a: Z[i] = X[i]", "two statements are named a", "a"),
        ("a: Y[i] +=! X[i,j]; a_init: Z[i] = X[i,0]", "are named a_init", "a_init"),
        ("in0: Y[i] = X[i]; S0: Z[i] = X[i]; W[i] = X[i] where X in 0:3", "X is a tensor", "X"),
        ("Y[I[i]] = X[i]", "where '=' writes cannot depend on data", "I[i]"),
        ("Y[I[i]] +=! X[i]", "which elements +=! initialises cannot depend on data", "I[i]"),
        ("Y[i] = X[i] where i in 0:3, i in 0:4", "i has two ranges", "i in 0:4"),
        ("Y[i] = X[i] where i in 0:i", "the range of i uses i itself", "i"),
        ("Y[i] = X[i] where i in 0:X[0]", "a range cannot depend on data", "X[0]"),
        # types
        (X + "Y[i,j] = X[i,j] + true }", "a truth value and a number do not mix", "X[i,j] + true"),
        (X + "Y[i,j] = exp(X[i,j] & 1) }", "takes integers, not float32", "X[i,j] & 1"),
        (X + "Y[i,j] = X[i,j] and true }", "takes conditions", "X[i,j] and true"),
        (X + "Y[i,j] = select(X[i,j], 1, 2) }", "takes a condition first", "select(X[i,j], 1, 2)"),
        (X + "Y[i,j] = abs(X[i,j], 2) }", "abs takes 1 argument, not 2", "abs(X[i,j], 2)"),
        (X + "Y[i,j] = float32(1, 2) }", "takes one value", "float32(1, 2)"),
        (X + "Y[i,j] = uint8(300) }", "300 does not fit uint8 (0 to 255)", "uint8(300)"),
        (X + "Y[i,j] = float16(1e5) }", "100000.0 does not fit float16", "float16(1e5)"),
        # literals that the type which they take cannot hold
        (X + "Y[i,j] = X[i,j] * 1e400 }", "does not fit float64", "1e400"),
        (X + "Y[i,j] = X[i,j] * 1e39 }", "1e+39 does not fit float32", "1e39"),
        (U + "Y[i] = U[i] < 300 }", "300 does not fit uint8 (0 to 255)", "300"),
        (U + "Y[i] = 255 <= U[i] < 256 }", "256 does not fit uint8 (0 to 255)", "256"),
        (U + "Y[i] = U[i] > -1 }", "-1 does not fit uint8 (0 to 255)", "-1"),
        (U + "Y[i] = U[i] + 300 }", "as in int64(…)", "300"),
        (U + "Y[i] = min(U[i], 3, 256) }", "256 does not fit uint8", "256"),
        (U + "Y[i] = max(1, 256, U[i]) }", "256 does not fit uint8", "256"),
        (U + "Y[i] = select(U[i] < 5, 300, U[i]) }", "300 does not fit uint8", "300"),
        (U + "Y[i] = U[i] + uint8(300 - 100) }", "300 does not fit uint8", "300"),
        (U + "Y[i] = T[U[i] + 300] }", "300 does not fit uint8", "300"),
        (U + "Y[i] = 3000000000 where i in 0:N }", "3000000000 does not fit int32", "3000000000"),
        (U + "uint8 V[N]; V[i] = 1.5e3 where i in 0:N; Y[i] = V[i] }", "1500 does not", "1.5e3"),
        (U + "uint8 V[N]; V[i] = inf where i in 0:N; Y[i] = V[i] }", "inf does not fit", "inf"),
        (U + "uint8 V[N]; V[i] +=! 300 where i in 0:N; Y[i] = V[i] }", "300 does not fit", "300"),
        (X + "Y[i,j] = int8(nan) }", "nan does not fit int8", "int8(nan)"),
        (X + "Y[i,j] = X[X[i,j],j] }", "an index must be an integer", "X[i,j]"),
        (X + "Y[i,j] = X[i,j] where i + 1 }", "this clause is not a condition", "i + 1"),
        (
            "def f(bool X[N]) -> (s) { s[] +=! X[i] }",
            "+= is not defined on bool",
            "s[] +=! X[i]",
        ),
        (
            "def f(bool X[N]) -> (float32 Y[N]) { Y[i] = X[i] }",
            "Y is float32, but this value is bool",
            "X[i]",
        ),
        ("def f(int8 X[N], uint8 Z[N]) -> (Y) { Y[i] = X[i] + Z[i] }", "do not mix", "X[i] + Z[i]"),
        # ranges
        (X + "Y[i,j,k] = X[i,j] }", "the range of k cannot be inferred", "k"),
        (X + "Y[i] +=! X[i+k,j] }", "the range of i cannot be inferred", "i"),
        ("Y[i] = 0", "the range of i cannot be inferred", "i"),
        (
            X + "Y[i,j] +=! X[i+r-1,j] where r in 0:3, 0 <= i+r-1 < N }",
            "because its accesses are guarded",
            "i",
        ),
        (
            "def f(float32 X[batch]) -> (Y) { Y[bath] = X[batch] }",
            "did you mean 'batch'?",
            "bath",
        ),
        (
            X + "Y[i*M+j] = X[i,j] where i in 0:N, j in 0:M }",
            "i * M + j, which is not affine",
            "i*M+j",
        ),
        # meaning, from poly.sets.check_bounds
        (X + "Y[i,j] = X[i+1,j] where i in 0:N }", "X[i + 1, j] is out of bounds", "X[i+1,j]"),
        ("Y[i] = X[i-1] where i in 0:3", "the index i - 1 is -1 at i = 0", "X[i-1]"),
        ("Y[i] += X[i]", "Y[0] is read before it is written", "Y[i]"),
        (X + "Y[i,j] = T[i,j]; T[i,j] = X[i,j] }", "T[0, 0] is read before", "T[i,j]"),
        ("Y[i+1] = X[i]", "Y[0] is never written", "Y[i+1] = X[i]"),
        ("Y[i] = Y[i]", "Y[i]", "i"),
    ],
)
def test_mistakes(text: str, message: str, at: str) -> None:
    error = failure(text)
    assert message in str(error)
    assert place(error) == at


@pytest.mark.parametrize(
    "text",
    [
        # n for N, kh and kw, numbered and suffixed names are different on purpose
        "def f(float32 X[N,C]) -> (Y) { Y[n] +=! X[n,c] }",
        "def f(float32 X[Row,Col]) -> (Y) { Y[row] +=! X[row,col] }",
        "def f(float32 X[Rows,Cols]) -> (Y) { Y[row] +=! X[row,cols] }",
        "Y[kh] +=! X[kh,kw]",
        "Y[row1] +=! X[row1,row2]",
        "Y[row_a] +=! X[row_a,k] * Z[row_b]",
        "Y[posx] +=! X[posx,posy]",
        "Y[batch] +=! X[bacth,k] where batch in 0:3, bacth in 0:3, k in 0:2",
    ],
)
def test_idiom_is_no_near_miss(text: str) -> None:
    names = () if text.startswith("def") else undeclared_inputs(text)
    parse_program(text, {name: FLOAT32 for name, _ in names})


@pytest.mark.parametrize(
    ("a", "b", "near"),
    [
        ("batch", "bath", True), ("batch", "bacth", True), ("batch", "batchs", True),
        ("temp", "tmp", True), ("width", "widht", True), ("Batch", "batch", False),
        ("i", "j", False), ("kh", "kw", False), ("row1", "row2", False),
        ("head_q", "head_k", False), ("head_q", "haed_q", True), ("height", "weight", True),
        ("batch", "depth", False), ("row", "col", False), ("out_row", "row", False),
    ],
)  # fmt: skip
def test_near_names(a: str, b: str, near: bool) -> None:
    assert is_near(a, b) is near and is_near(b, a) is near


def test_closest_prefers_a_slip_to_a_difference_in_case() -> None:
    assert closest("batch", ["BATCH", "bath"]) == "bath"
    assert closest("x", ["y", "X"]) == "X"
    assert closest("i", ["j", "k"]) is None


@pytest.mark.parametrize(
    "value",
    [
        "U[i] < 255", "U[i] + 0xff", "int64(U[i]) + 300", "U[i] + 300.5", "300 / 2.0 + U[i]",
        "select(300 < 400, U[i], 255)", "sqrt(300) * U[i]", "T[300]", "T[int64(U[i]) + 300]",
        "inf", "-inf", "nan", "float32(300)", "float16(65504)", "bfloat16(3.3e38)",
        "int8(-128)", "int8(-128.9)", "uint64(18446744073709551615)", "bool(300)",
    ],
)  # fmt: skip
def test_literals_that_fit(value: str) -> None:
    parse_program(f"{U}Y[i] = {value} where i in 0:N }}")
    parse_program("def f(float16 X[N]) -> (float16 Y[N]) { Y[i] = X[i] * 1e5 }")


def test_indices_that_are_divided_by_nothing() -> None:
    error = failure(X.replace("(Y)", "(float32 Y[N])") + "Y[i // 0] = X[i,0] }")
    assert "affine" in error.message or "by 0" in error.message


def test_a_tensor_that_only_says_where_is_no_output() -> None:
    program = parse_program("T[i] = K[i]; Y[j] = 0 * Z[j]; Y[T[i]] += X[i]", {
        "K": INT64, "Z": FLOAT32, "X": FLOAT32,
    })  # fmt: skip
    assert [t.name for t in program.outputs] == ["Y"]


def test_the_types_of_statements_meet_one_after_the_other() -> None:
    """In another order, integers would meet a literal of floats, or each other."""
    text = """def f(float16 X[N], int32 K[N]) -> (Y) {
        Y[i] = X[i]
        Y[i] += X[i]
        Y[i] += K[i]
        Y[i] += 0.5 where i in 0:N }"""
    assert parse_program(text).outputs[0].dtype == FLOAT16
    text = """def g(float32 X[N], int32 A[N], uint32 B[N]) -> (Y) {
        Y[i] = X[i]
        Y[i] += X[i]
        Y[i] += A[i]
        Y[i] += B[i] }"""
    assert parse_program(text).outputs[0].dtype == FLOAT32


def test_a_tensor_of_very_many_statements() -> None:
    program = parse_program("\n".join(["Y[i] = X[i]"] * 1100), {"X": FLOAT32})
    assert len(program.statements) == 1100


def test_very_many_lines_before_a_text_are_no_einsum() -> None:
    assert not is_einsum("\n" * 50_000 + "C[i,j] +=! A[i,k] * B[k,j]")
