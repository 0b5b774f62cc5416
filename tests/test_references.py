"""Modules and paths that are named in docs, docstrings and comments exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ALLOWED, ROOT, modules_under

_TOPS = "|".join(ALLOWED)
_DOTTED = re.compile(rf"`(?:{_TOPS})(?:\.(?!py`)\w+)+`")
_PATH = re.compile(rf"(?<![\w/.-])(?:{_TOPS}|tests|docs|benchmarks|notebooks)(?:/[\w.-]+)+")
_FOLDERS = (*ALLOWED, "tests", "benchmarks")


def documents() -> list[Path]:
    """All Markdown, Python and C, but for the tests that plant wrong names."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for folder in _FOLDERS:
        for pattern in ("*.py", "*.c", "*.h"):
            found += (ROOT / folder).rglob(pattern)
    return sorted(p for p in found if p.name not in (Path(__file__).name, "test_imports.py"))


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines: ``f``, ``C``, ``C.method``, ``C.field``, and what it imports."""
    return frozenset(_names(ast.parse(path.read_text()).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + t.id for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (prefix + (a.asname or a.name) for a in node.names)
        elif isinstance(node, ast.If):  # imports for types alone
            yield from _names(node.body, prefix)


@cache
def modules() -> dict[str, Path]:
    """The file of each module."""
    return modules_under(ROOT)


@cache
def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        module = ".".join(parts[:k])
        if module in modules():
            rest = ".".join(parts[k:])
            return not rest or rest in names_in(modules()[module])
    return False


def missing_in(text: str) -> list[str]:
    """The names and paths in a text that are of nothing."""
    found = [m[0] for m in _DOTTED.finditer(text) if not exists(m[0].strip("`"))]
    paths = (m[0].rstrip(".") for m in _PATH.finditer(text))
    return found + [p for p in paths if "." in p.rpartition("/")[2] and not (ROOT / p).exists()]


@pytest.mark.parametrize("name", sorted({p.relative_to(ROOT).parts[0] for p in documents()}))
def test_what_texts_name_exists(name: str) -> None:
    found = {
        str(path.relative_to(ROOT)): missing
        for path in documents()
        if path.relative_to(ROOT).parts[0] == name
        and (missing := missing_in(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `poly.ir.program` and `poly.ir.program.Program.inputs`", []),
        ("see `poly.program`", ["`poly.program`"]),
        ("see `poly.ir.program.Programme`", ["`poly.ir.program.Programme`"]),
        ("tests/test_imports.py, and poly/ir/program.py.", []),
        ("poly/program.py", ["poly/program.py"]),
    ],
)
def test_a_wrong_name_is_found(text: str, missing: list[str]) -> None:
    assert missing_in(text) == missing
