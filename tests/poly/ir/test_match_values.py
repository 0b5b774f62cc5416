"""Values that compute what a pattern does."""

from __future__ import annotations

from frontends.language.parse_program import parse_program
from poly.ir.expr import Read
from poly.ir.match_values import ways_to_match
from poly.ir.program import Program

PATTERN = parse_program(
    "def p(uint8 A[4], int8 B[16,4], int32 C[16]) -> (C) { "
    "C[j] += int32(A[k]) * int32(B[j,k]) where j in 0:16, k in 0:4 }"
)


def ways(program: Program, pattern: Program = PATTERN) -> list[dict[str, str]]:
    meaning, s = pattern.statements[0], program.statements[0]
    found = ways_to_match(meaning.value, s.value, {}, program.dtypes, pattern.dtypes)
    return [{p.tensor: str(r) for p, r in way.items()} for way in found]


def program(value: str) -> Program:
    return parse_program(
        f"def f(uint8 X[9,9], int8 W[9,9], uint8 V[9,9]) -> (int32 Y[9,9]) {{ Y[i,j] +=! {value} }}"
    )


def test_products_match_in_either_order() -> None:
    wanted = [{"A": "X[i, k]", "B": "W[k, j]"}]
    assert ways(program("int32(X[i,k]) * int32(W[k,j])")) == wanted
    assert ways(program("int32(W[k,j]) * int32(X[i,k])")) == wanted


def test_types_and_operators_have_to_be_those_of_the_pattern() -> None:
    for value in (
        "int32(X[i,k]) * int32(V[k,j])",
        "int32(X[i,k]) + int32(W[k,j])",
        "(int32(X[i,k]) - 3) * int32(W[k,j])",
        "int32(X[i,k])",
    ):
        assert ways(program(value)) == []


def test_an_element_is_the_same_everywhere() -> None:
    square = parse_program("def p(float32 A[8], float32 C[8]) -> (C) { C[i] += A[i] * A[i] }")
    one, two = (
        parse_program(f"def f(float32 X[8], float32 Z[8]) -> (Y) {{ Y[] +=! X[i] * {b} }}")
        for b in ("X[i]", "Z[i]")
    )
    assert ways(one, square) and not ways(two, square)


def test_16_bit_floats_are_computed_in_float32_anyway() -> None:
    pattern = parse_program(
        "def p(bfloat16 A[2], float32 C[1]) -> (C) { C[j] += float32(A[k]) * float32(A[k]) }"
    )
    made = parse_program("def f(bfloat16 X[8]) -> (float32 Y[]) { Y[] +=! X[i] * X[i] }")
    (found,) = {tuple(way.items()) for way in ways(made, pattern)}
    assert found == (("A", "X[i]"),)
    assert isinstance(made.statements[0].reads[0], Read)
