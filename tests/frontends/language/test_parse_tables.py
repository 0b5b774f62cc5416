"""The parser's tables are those of the grammar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lark.exceptions import LarkError

from frontends.language import parse_tables
from frontends.language.parse_tables import GRAMMAR, TABLES, build_parser, load_parser, tables_text
from tests.differential.generate import random_text

WRONG = ("C[i] = ", "def f() -> { }", "C[i += A[i]", "1 = A[i]", "C[i] = A[i] where", "C[i] = A(i]")


def test_the_tables_are_those_of_the_grammar() -> None:
    """Otherwise run ``python -m frontends.language.parse_tables``."""
    stored, fresh = (json.loads(t)["made_from"] for t in (TABLES.read_text(), tables_text()))
    assert stored.partition(", ")[2] == fresh.partition(", ")[2]


def test_both_parsers_agree() -> None:
    stored, built = load_parser(), build_parser(GRAMMAR.read_text(encoding="utf-8"))
    for seed in range(60):
        text = random_text(seed)
        assert stored.parse(text) == built.parse(text)
    for text in WRONG:
        errors = []
        for parser in (stored, built):
            with pytest.raises(LarkError) as error:
                parser.parse(text)
            errors.append(getattr(error.value, "accepts", None) or type(error.value))
        assert errors[0] == errors[1], text


@pytest.mark.parametrize("kept", ["no file", "of another grammar"])
def test_without_tables(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "grammar.json"
    if kept != "no file":
        other.write_text(TABLES.read_text().replace('"made_from":"', '"made_from":"another ', 1))
    monkeypatch.setattr(parse_tables, "TABLES", other)
    assert load_parser().parse("C[i] = A[i]") == build_parser(GRAMMAR.read_text()).parse(
        "C[i] = A[i]"
    )
