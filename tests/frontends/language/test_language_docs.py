"""Every program in docs/language.md parses, and so does what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frontends.language.parse_program import parse_program, undeclared_inputs
from poly.errors import LanguageError
from poly.ir.dtypes import DTYPES, FLOAT32
from poly.ir.operators import FUNCTIONS, OPS

DOCS = (Path(__file__).parents[3] / "docs" / "language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```farkas\n(.*?)```", DOCS, re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks(text: str) -> None:
    program = parse_program(text, {name: FLOAT32 for name, _ in undeclared_inputs(text)})
    assert parse_program(str(program)) == program


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 18


def test_the_first_program_prints_as_shown() -> None:
    assert f"{parse_program(BLOCKS[0])}\n" == BLOCKS[1]


def test_every_function_and_type_is_documented() -> None:
    words = set(re.findall(r"`([a-z0-9]+)[`(]", DOCS)) | set(re.findall(r'"(\w+)"', DOCS))
    assert set(FUNCTIONS) <= words and set(DTYPES) <= words
    assert {i.symbol.strip() for i in OPS.values()} - {""} <= set(
        re.findall(r"[^\s`]+", DOCS.replace("\\|", "|").replace("-x", "-").replace("~x", "~"))
    ) | {","}


def test_the_error_is_as_shown() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", DOCS, re.DOTALL)
    with pytest.raises(LanguageError) as caught:
        parse_program("Y[batch] +=! X[bacth,k]", {"X": FLOAT32})
    assert f"{caught.value}\n" == shown


@pytest.mark.parametrize(
    "row", re.findall(r"^\| `(F.*|X.*)` \| (.*) \| (.*) \| `(\w+ in [^`]*)`", DOCS, re.MULTILINE)
)
def test_the_table_of_ranges(row: tuple[str, str, str, str]) -> None:
    accesses, extents, known, expected = row
    reads = re.findall(r"[A-Z]\[(?:[^\[\]]|\[[^\]]*\])*\]", accesses)
    shapes = dict(zip(reads, extents.split(", "), strict=False))
    tensors = {r[0]: s for r, s in shapes.items()}
    if "I[i]" in accesses:
        tensors = {"X": "N,M"}
        declared = "float32 X[N,M], int64 I[K]"
    elif len(tensors) < len(reads):
        declared = f"float32 X[{extents}]"
    else:
        declared = ", ".join(f"float32 {t}[{s}]" for t, s in tensors.items())
    value = " + ".join(reads) + (" + F[r]" if known else "")
    if known:
        declared += ", float32 F[R]"
    index = expected.split()[0]
    free = "i,j" if "I[i]" in accesses else index
    text = f"def f({declared}) -> (Y) {{ Y[{free}] +=! {value} }}"
    ranges = [str(r) for r in parse_program(text).statements[0].ranges]
    assert expected in ranges
