"""Printed programs parse back to equal programs, and no text makes the frontend crash."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frontends.language.parse_program import parse_program
from frontends.language.parser import parse
from frontends.language.resolve import Scope, resolve
from poly.errors import LanguageError
from poly.ir.dtypes import DTYPES, FLOAT32, INT64
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size
from poly.ir.operators import FUNCTIONS, OPS
from poly.ir.program import Program, Range, Statement, Tensor, specialise, verify_program

# --- expressions --------------------------------------------------------------------------------

LITERALS = st.one_of(
    st.integers(-(2**31), 2**31).map(Const),
    st.floats(allow_nan=False).map(Const),
    st.booleans().map(Const),
    st.just(Const(math.nan)),
    (st.floats(-3e38, 3e38) | st.sampled_from([math.inf, -math.inf])).map(
        lambda v: Const(v, FLOAT32)
    ),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: Const(v, INT64)),
)
LEAVES = st.one_of(LITERALS, st.sampled_from([Index("i"), Index("j"), Size("N"), Read("s", ())]))


def _compound(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def apply(fn: str, args: list[Expr]) -> Expr:
        if fn == "neg" and isinstance(args[0], Const) and not isinstance(args[0].value, bool):
            return args[0] if args[0].dtype is None else Op(fn, (args[0],))  # folded when parsed
        return Op(fn, tuple(args[: OPS[fn].arity]))

    def cast(dtype: str, arg: Expr) -> Expr:
        if isinstance(arg, Const) and arg.dtype is None:
            return arg  # folded when parsed
        return Cast(DTYPES[dtype], arg)

    three = st.lists(inner, min_size=3, max_size=3)
    return st.one_of(
        st.builds(apply, st.sampled_from(sorted(OPS)), three),
        st.builds(cast, st.sampled_from(sorted(DTYPES)), inner),
        st.builds(lambda a, b: Read("X", (a, b)), inner, inner),
    )


EXPRESSIONS = st.recursive(LEAVES, _compound, max_leaves=25)


@given(EXPRESSIONS)
@example(Op("sub", (Const(1), Op("sub", (Const(2), Const(-3))))))
@example(Op("lt", (Op("lt", (Index("i"), Const(1))), Op("not", (Const(True),)))))
@example(Op("neg", (Op("neg", (Op("bitnot", (Index("i"),)),)),)))
@example(Const(3.4028234663852886e38, FLOAT32))
def test_expressions(expr: Expr) -> None:
    source = parse(f"Y[i] = {expr}")
    scope = Scope(source.text, ("N",), {"X": 2, "s": 0})
    found = resolve(source.statements[0].value, scope)
    assert found == expr and str(found) == str(expr)


def test_every_operator_and_function_parses() -> None:
    for fn in OPS:
        expr = Op(fn, (Index("i"), Index("j"), Size("N"))[: OPS[fn].arity])
        source = parse(f"Y[i] = {expr}")
        assert resolve(source.statements[0].value, Scope(source.text, ("N",), {})) == expr
    assert set(FUNCTIONS) <= set(OPS)


# --- programs -----------------------------------------------------------------------------------

PROGRAMS = {
    "conv": """
        def conv(float32 X[N,C,H,W], float32 F[K,C,R,S], float32 B[K]) -> (Y) {
            T[n,k,p,q] +=! X[n,c,2*p+r,2*q+s] * F[k,c,r,s]
            Y[n,k,p,q]  =  max(T[n,k,p,q] + B[k], 0)
        }""",
    "padded": """
        def padded(float32 X[N,H], float32 F[3]) -> (Y) {
            mm: Y[n,p] +=! X[n,p+r-1] * F[r] where p in 0:H, 0 <= p+r-1 < H
        }""",
    "sizes in another order": "def f[M,N,K](float32 X[N,M]) -> (float32 Y[K]) { Y[i] = K }",
    "updated": "def f(float32 Y[N,N]) -> (Y) { Y[i,j] *= 2 where j in i:N, i % 2 == 0 or j == 3 }",
    "recurrence": "def f(float32 X[N]) -> (Y) { Y[0] = -1; Y[t+1] = Y[t] * float32(-0.5) + X[t] }",
    "scalars": "def f(int8 s[]) -> (t[]) { t[] = s[] }".replace("t[])", "t)"),
    "logic": "def f(int32 X[N], bool B[N]) -> (Y) { "
    "Y[i] = not (X[i] < 3 and B[i]) or (X[i] & 1 | X[i] << 2) == 4 }",
    "constraint": "def f(float32 X[N], float32 Z[M]) -> (Y) where N <= M, N % 2 == 0 "
    "{ Y[i] = X[i] + Z[i] where i in 0:N }",
    "casts": "def f(float16 X[N]) -> (Y) { Y[i] = int8(float32(X[i]) * 2.5e-3 + inf - nan) }",
    "labels": "def f(float32 X[N]) -> (Y) { S1: T[i] = X[i]; S0: Y[i] = T[i] }",
    "temps in another order": "def f(float32 X[N]) -> (Y) "
    "{ float32 B[N]; float32 A[N]; A[i] = X[i]; B[i] = A[i]; Y[i] = B[i] }",
    "gather": "def f(float32 X[N,M], int64 I[K]) -> (Y) { Y[k,j] = X[I[k], j] }",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_programs(text: str) -> None:
    program = parse_program(text)
    again = parse_program(str(program))
    assert again == program
    assert again.digest == program.digest and str(again) == str(program)
    fixed = specialise(program, dict.fromkeys(program.sizes, 8))
    assert parse_program(str(fixed)) == fixed


def test_a_program_that_no_text_made() -> None:
    n = Size("N")
    shape = (Op("max", (n, Const(1))),)
    program = verify_program(
        Program(
            "made",
            ("M", "N"),
            (Tensor("X", FLOAT32, (n,)),),
            (Tensor("Y", FLOAT32, (n,)),),
            (Tensor("B", FLOAT32, shape), Tensor("A", FLOAT32, shape)),
            (
                Statement(
                    "only",
                    Read("Y", (Index("i"),)),
                    "max=",
                    True,
                    Op("mul", (Const(-2), Read("X", (Index("i"),)))),
                    (Range("i", Const(0), n), Range("k", Const(0), Size("M"))),
                    ("k",),
                    (Op("and", (Const(True), Op("lt", (Index("k"), Const(3))))),),
                ),
            ),
        )
    )
    assert parse_program(str(program)) == program


RANGES = st.sampled_from(["0:N", "0:M", "1:N", "0:3", "0:min(N,M)", "M:N+M"])
INDICES = st.sampled_from(["i", "j", "i+j", "2*i-1", "N-1-i", "i//2", "j%3", "3", "max(i-1,0)"])
GUARDS = st.sampled_from(
    ["", ", i <= j", ", 0 <= i-j < N", ", i < 3 or j % 2 == 0", ", not (i == j and N > 2)"]
)
VALUES = st.builds(
    lambda place, form: form.replace("{}", f"X[{place}]"),
    INDICES,
    st.sampled_from(
        ["{}", "-{} * 2", "exp({} - 1e-3)", "select({} > 0, {}, 0)", "float32(i) + {}", "{} / N"]
    ),
)
STATEMENTS = st.builds(
    lambda target, op, value, i, j, guard: f"{target} {op} {value} where i in {i}, j in {j}{guard}",
    st.sampled_from(["Y[i,j]", "Y[i+1,j]", "Y[i,i-j]", "Y[j,2*i]", "Z[j,i]"]),
    st.sampled_from(["=", "+=", "*=", "max=", "min=", "+=", "max="]),
    VALUES,
    RANGES,
    RANGES,
    GUARDS,
)


@given(st.lists(STATEMENTS, min_size=1, max_size=4))
def test_random_programs(statements: list[str]) -> None:
    body = "\n    ".join(statements)
    # Y and Z are updated and Z is as large as need be, so that most programs have a meaning.
    tensors = "float32 X[8*N+8*M+9], float32 Y[8*N+8*M+9,8*N+8*M+9], float32 Z[N+M+3,N+M+3]"
    text = f"def f[N,M]({tensors}) -> (Y, Z) where N >= 3, M >= 3 {{\n    {body}\n    Z[0,0] = 0\n    Y[0,0] = 0\n}}"  # noqa: E501
    try:
        program = parse_program(text)
    except LanguageError as error:
        assert "out of bounds" in str(error)
        return
    assert parse_program(str(program)) == program


# --- nonsense -----------------------------------------------------------------------------------

PIECES = [
    "Y", "X", "[", "]", "(", ")", "i", "j", "+", "-", "*", "//", "%", "<", "=", "+=!", "where",
    "in", "0", ":", "3", "1e9", ",", ";", "{", "}", "def", "->", "float32", "N", "\n", "#", "and",
    "not", "select", "\x00", "é", "99999999999", "max", "'", '"', "==", "max=!", "/",
]  # fmt: skip


def _mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        a = rng.randrange(len(text) + 1)
        b = min(len(text), a + rng.choice([0, 0, 1, 1, 3, 10]))
        text = text[:a] + rng.choice([*PIECES, "", ""]) + text[b:]
    return text


@pytest.mark.parametrize("seed", range(10))
def test_mutated_texts_only_raise_language_errors(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(100):
        text = _mutated(rng.choice(list(PROGRAMS.values())), rng)
        start = time.monotonic()
        try:
            parse_program(text, {"X": FLOAT32})
        except LanguageError as error:
            refused += 1
            assert str(error)
        assert time.monotonic() - start < 10
    assert refused > 30


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join))
def test_random_pieces_only_raise_language_errors(text: str) -> None:
    with pytest.raises(LanguageError):
        parse_program(text)
        raise LanguageError("it parsed, which is as good")


@given(st.text(max_size=40))
def test_random_text_only_raises_language_errors(text: str) -> None:
    with pytest.raises(LanguageError):
        parse_program(text)
        raise LanguageError("it parsed, which is as good")
