"""Texts that differ in names and numbers alone are parsed once, and found as if each were."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontends.language import parser
from frontends.language.parser import _parsed, parse
from poly.errors import LanguageError
from tests.differential.generate import texts
from tests.differential.program_parts import Profile

#: Every kind of node, and every place where a number may stand; X0 and float32 are names.
TEXTS = (
    "def f[N](float32 NAME0[{},{}], int32 B[N]) -> (Y, int8 Z[{}]) where N <= {}, N % {} == {} {{\n"
    "    float32 T[{} * N]\n"
    "    S1: Y[i] +=! X0[{}*i + r - {}, {}] * -{} where i in {}:{}, r in 0:{}, i < {} <= r\n"
    "    for t in {}:{} {{ T[t] = max(T[t - {}], {}, -inf); Z[t] = int8({}) }}\n"
    "}}",
    "Y[i] = select(i == {} or not i >= -({}), - {} + {}, +{}) ** {}",
    "Y[i] = X[i] / {}",
    "Y[i] = - - {} - (-{}) * ~{} + -true where i in {}:{}",
)

numbers = st.one_of(
    st.integers(0, 1 << 64).map(str),
    st.integers(0, 300).map(hex),
    st.floats(0, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(("1.", ".5", "1e-5", "2E+3", "0", "1e999", "9" * 40)),
)


names = st.sampled_from(("X", "e5", "i_2", "maxi", "in_", "inf1", "longer_than_before", "where"))


def outcome(read: object, text: str) -> object:
    """What is found in a text: its parts with their positions, or the error."""
    try:
        return repr(read(text))  # type: ignore[operator]
    except LanguageError as error:
        return str(error)


@given(st.data(), st.sampled_from(TEXTS))
def test_others(data: st.DataObject, text: str) -> None:
    for _ in range(2):
        filled = text.format(*(data.draw(numbers) for _ in range(text.count("{}"))))
        filled = filled.replace("T", data.draw(names)).replace("NAME", data.draw(names))
        assert outcome(parse, filled) == outcome(_parsed, filled)


@given(texts(Profile()))
def test_programs(text: str) -> None:
    assert outcome(parse, text) == outcome(_parsed, text)
    longer = text.replace("1", "12").replace("4", "0x4").replace("T", "name")
    assert outcome(parse, longer) == outcome(_parsed, longer)


def test_it_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_templates", {})
    first = parse("Y[i] = X[i + 1] * 0.25 where i in 0:100")
    monkeypatch.setattr(parser, "_parsed", None)
    second = parse("Y[n] = long[n + 17] * 3 where n in 2:7")
    assert first != second and {"17", "'long'", "'n'"} <= {*re.findall(r"[\w']+", repr(second))}


@pytest.mark.parametrize("end", ["\1", "\2", "", "x1", "1x", "max", "in", "true"])
def test_what_stands_for_a_name_or_number_is_none(end: str) -> None:
    parse("Y[i] = X[i] + 1")
    parse("Y[i] = X[i] + x")
    text = f"Y[i] = X[i] + {end}"
    assert outcome(parse, text) == outcome(_parsed, text)


def test_comments_may_have_anything_in_them() -> None:
    for number in (1, 20):
        text = f"Y[i] = - # - 3 - {number}\n {number}"
        assert parse(text) == _parsed(text)
