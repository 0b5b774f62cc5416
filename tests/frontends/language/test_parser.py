"""Text to surface syntax: what parses, how it binds, and where errors point."""

from __future__ import annotations

import pytest

from frontends.language.parse_program import parse_program
from frontends.language.parser import MAX_DEPTH, parse
from frontends.language.resolve import Scope, resolve
from frontends.language.syntax import Chain, Declaration, Name, RangeClause
from poly.errors import LanguageError, Span
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size


def expression(text: str) -> Expr:
    source = parse(f"Y[i] = {text}")
    scope = Scope(source.text, ("N", "M"), {"X": 1, "s": 0, "Y": 1})
    return resolve(source.statements[0].value, scope)


i, n = Index("i"), Size("N")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * i", Op("add", (Const(1), Op("mul", (Const(2), i))))),
        ("(1 + 2) * i", Op("mul", (Op("add", (Const(1), Const(2))), i))),
        ("i - 1 - 2", Op("sub", (Op("sub", (i, Const(1))), Const(2)))),
        ("i // 2 % 3", Op("mod", (Op("floordiv", (i, Const(2))), Const(3)))),
        ("-i * 2", Op("mul", (Op("neg", (i,)), Const(2)))),
        ("-2 * i", Op("mul", (Const(-2), i))),
        ("+i", i),
        ("~i & 3 | 4 ^ 5", Op("bitor", (
            Op("bitand", (Op("bitnot", (i,)), Const(3))), Op("bitxor", (Const(4), Const(5)))))),
        ("i << 2 + 1", Op("shl", (i, Op("add", (Const(2), Const(1)))))),
        ("not i < 3 and true or false", Op("or", (
            Op("and", (Op("not", (Op("lt", (i, Const(3))),)), Const(True))), Const(False)))),
        ("0 <= i < N", Op("and", (Op("le", (Const(0), i)), Op("lt", (i, n))))),
        ("i == N", Op("eq", (i, n))),
        ("i != N", Op("ne", (i, n))),
        ("X[i] * s[]", Op("mul", (Read("X", (i,)), Read("s", ())))),
        ("select(i > 0, 1, 2)", Op("select", (Op("gt", (i, Const(0))), Const(1), Const(2)))),
        ("min(i, N, 3)", Op("min", (Op("min", (i, n)), Const(3)))),
        ("float32(i)", Cast(FLOAT32, i)),
    ],
)  # fmt: skip
def test_precedence_and_forms(text: str, expected: Expr) -> None:
    assert expression(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1E+3", 1000.0), (".5", 0.5), ("2.", 2.0), ("0x1F", 31), ("-3", -3),
        ("--3", 3), ("inf", float("inf")), ("-inf", float("-inf")), ("true", True),
        ("007", 7),
    ],
)  # fmt: skip
def test_literals(text: str, value: float) -> None:
    found = expression(text)
    assert isinstance(found, Const) and found.dtype is None
    assert found.value == value and type(found.value) is type(value)


def test_nan_is_one_object() -> None:
    assert expression("nan") == expression("nan")


@pytest.mark.parametrize(
    ("text", "value", "dtype"),
    [
        ("float32(1)", 1.0, "float32"), ("int32(-2.7)", -2, "int32"), ("uint8(255)", 255, "uint8"),
        ("bool(3)", True, "bool"), ("float16(-inf)", float("-inf"), "float16"),
        ("int64(0x7fffffffffffffff)", 2**63 - 1, "int64"),
    ],
)  # fmt: skip
def test_casts_of_literals_fold(text: str, value: float, dtype: str) -> None:
    found = expression(text)
    assert isinstance(found, Const) and found.dtype is not None
    assert (found.value, type(found.value), found.dtype.name) == (value, type(value), dtype)


def test_signature() -> None:
    source = parse("def f[N,M](float32 X[N, M], int8 s[],) -> (Y, float32 Z[N+1]) where N <= M {}")
    assert source.name is not None and source.name.name == "f"
    assert [s.name for s in source.sizes] == ["N", "M"]
    assert [(d.dtype.name, d.tensor.name, len(d.shape)) for d in source.inputs] == [
        ("float32", "X", 2),
        ("int8", "s", 0),
    ]
    first, second = source.outputs
    assert isinstance(first, Name) and isinstance(second, Declaration)
    (constraint,) = source.constraints
    assert isinstance(constraint, Chain) and constraint.fns == ("le",)


def test_statements_and_declarations_in_a_body() -> None:
    source = parse(
        "def f(float32 X[N]) -> (Y) {  # a comment { [ (\n"
        "    float32 T[N]; T[i] = X[i]\n"
        "    sum: Y[j]\n      max=! T[i]\n        where i in 0:N, j in 0:1,\n        i < 5\n}"
    )
    assert [t.tensor.name for t in source.temps] == ["T"]
    first, second = source.statements
    assert first.label is None and first.op == "=" and not first.init
    assert second.label is not None and second.label.name == "sum"
    assert second.op == "max=" and second.init
    assert [r.index.name for r in second.ranges] == ["i", "j"]
    assert len(second.guards) == 1 and isinstance(second.clauses[0], RangeClause)


def test_spans_are_places_in_the_text() -> None:
    text = "Y[i] = exp( X[i+1] ) where i in 0:3"
    (s,) = parse(text).statements
    assert text[s.span.start : s.span.end] == text
    assert text[s.value.span.start : s.value.span.end] == "exp( X[i+1] )"
    assert text[s.ranges[0].span.start : s.ranges[0].span.end] == "i in 0:3"
    assert s.target.span == Span(0, 4)


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("", "the text is empty", None),
        ("  # only a comment", "there is no statement", None),
        ("C[i] = A[i", "the text ends where ',' or ']' is expected", " "),
        ("C[i] == A[i]", "found '==' where an assignment", "=="),
        ("C = A", "found '=' where", "="),
        ("C[i = A[i]", "is a bracket not closed?", "="),
        ("C[i] = A[i] where i = 3", "equality is written ==", "="),
        ("C[i] = A[i]]", "found ']' where", "]"),
        ("C[i] = A[i] $ 2", "'$' is not a character of the language", "$"),
        ("C[i] = A[i] B[i] = 2", "two statements on one line", "B"),
        ("C[i] =! A[i]", "'=!' does not exist", "=!"),
        ("C[i] = A[i] +* 2", "found '*' where an expression is expected", "*"),
        ("Y[i] = X[i] were i in 0:3", "did you mean 'where'?", "were"),
        ("Y[i] = X[i] Where i in 0:3", "did you mean 'where'?", "Where"),
        ("Y[i] = 99999999999999999999", "does not fit 64 bits", "99999999999999999999"),
        ("Y[i] = 9" + "9" * 5000, "does not fit 64 bits", "9" * 5001),
        ("float32 T[N]; Y[i] = T[i]", "a declaration is allowed only", "float32 T[N]"),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i]", "the text ends where", " "),
        ("def f(float32 X[N]) -> Y { Y[i] = X[i] }", "found 'Y' where '(' is expected", "Y"),
        ("def f(float32 X[N]) -> () { Y[i] = X[i] }", "found ')' where a name is expected", ")"),
        ("Y[i] = " + "-" * 5000 + "i", f"nested deeper than {MAX_DEPTH} levels", "-"),
        ("Y[i] = " + "+".join("i" * 5000), "a sum of 5000 terms is too long", "i"),
        ("Y[i] = exp(1 - " + "*".join("j" * 200) + ")", "a product of 200 factors is", "j"),
        ("Y[i] = A[i] where " + " or ".join("i" * 130), "a condition of 130 parts is", "i"),
        ("Y[i] = " + "abs(" * 5000 + "i" + ")" * 5000, "nested deeper than", "a"),
        ("Y[i] = min(" + ", ".join("i" * 300) + ")", "nested deeper than", "i"),
        ("Y[i] = select(" + " < ".join("i" * 300) + ", 1, 2)", "nested deeper than", "i"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(text: str, message: str, at: str | None) -> None:
    with pytest.raises(LanguageError) as caught:
        parse_program(text)
    assert message in str(caught.value)
    if at is None:
        return
    span = caught.value.span
    assert span is not None
    assert (text + " ")[span.start : span.end] == at


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Y[i] = X[i]**2", "a power is written pow(x, 2), or x * x"),
        ("Y[i] = X[i] if X[i] > 0 else 0", "a choice is written select(condition, a, b)"),
        ("Y[i] = (X[i] if M[i] else 0)", "a choice is written select(condition, a, b)"),
        ("Y[i] = X[i] if M[i] else Z[i]", "a choice is written select(condition, a, b)"),
        ("def f(float32 X[N], bool M[N]) -> (Y) { Y[i] = X[i] if M[i] else X[i] }", "select("),
        ("Y[i] maximum=! X[i,j]", "did you mean 'max=!'?"),
        ("Y[i] sum = X[i,j]", "did you mean '+='?"),
        ("def f(torch.float32 X[N]) -> (Y) { Y[i] = X[i] }", "without its library: float32"),
        ("def f(float32 X[N]) -> (Y): Y[i] = X[i]", "a body is in braces: def f("),
        ("def f(float32 X[N]): Y[i] = X[i]", "outputs and a body follow: def f("),
    ],
)
def test_what_is_written_otherwise_in_python(text: str, hint: str) -> None:
    with pytest.raises(LanguageError) as caught:
        parse(text)
    assert hint in caught.value.hint


def test_hints_follow_from_the_statement_with_the_mistake() -> None:
    for text in ("Y[i] = X[if]; Z[i] = > 1", "Y[i] = X[i] * 2 *"):
        with pytest.raises(LanguageError) as caught:
            parse(text)
        assert not caught.value.hint


def test_parentheses_nest_without_limit() -> None:
    assert expression("(" * 3000 + "i" + ")" * 3000) == i


def test_the_caret_stands_under_the_place() -> None:
    with pytest.raises(LanguageError) as caught:
        parse("Y[i] = X[i]\n\tZ[i] =! X[i]")
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["   2 | \tZ[i] =! X[i]", "     | \t     ^^"]


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(LanguageError, match="the limit is"):
        parse("Y[i] = X[i]\n" * 100_000)
