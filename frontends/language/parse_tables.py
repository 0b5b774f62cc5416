"""The tables of the language's parser, computed before and kept beside the grammar.

Building them takes a quarter of a second, longer than parsing thousands of lines.  They belong to
one version of lark and of the grammar; with another one they are built again.
``python -m frontends.language.parse_tables`` writes them.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("grammar.json")


def load_parser() -> Lark:
    """The parser, from the tables if they are those of this grammar and this lark."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    try:
        stored = json.loads(TABLES.read_text(encoding="utf-8"), object_hook=_with_numbers)
    except OSError:
        return build_parser(grammar)
    if stored["made_from"] != _made_from(grammar):
        return build_parser(grammar)
    parser: Lark = Lark.__new__(Lark)._load(stored["tables"])
    return parser


def build_parser(grammar: str) -> Lark:
    """The parser, from its grammar."""
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def tables_text() -> str:
    """The text of the file of tables."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    data, memo = build_parser(grammar).memo_serialize([TerminalDef, Rule])
    tables = {"data": data, "memo": memo}
    text = json.dumps({"made_from": _made_from(grammar), "tables": tables}, separators=(",", ":"))
    return f"{text}\n"


def _made_from(grammar: str) -> str:
    return f"lark {lark.__version__}, {sha256(grammar.encode()).hexdigest()}"


def _with_numbers(found: dict[str, Any]) -> dict[str | int, Any]:
    """JSON's keys are text; those of states are numbers."""
    return {int(k) if k.isdigit() else k: v for k, v in found.items()}


if __name__ == "__main__":
    TABLES.write_text(tables_text(), encoding="utf-8")
