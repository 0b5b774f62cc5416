"""The README is short, and its pictures are what the compiler and the recorded figures give.

Its examples run with those of all other pages, in tests/test_docs.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import pictures

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE = pictures.pictures()


def test_it_is_short_and_begins_with_a_formula() -> None:
    assert len(README.splitlines()) < 150
    assert README.index("```python") < 300


def test_it_has_the_two_commands() -> None:
    assert re.search(r"^make demo .*\nmake test ", README, re.MULTILINE)
    targets = set(re.findall(r"`?make (\w+)", README)) - {"PYTHON"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert re.search(rf"^# make {target} ", makefile, re.MULTILINE), target


@pytest.mark.parametrize("name", sorted(MADE))
def test_pictures_are_up_to_date(name: str) -> None:
    """`python -m docs.tools.pictures` draws them."""
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == MADE[name]
    pages = (README, *(p.read_text(encoding="utf-8") for p in pictures.DOCS.glob("*.md")))
    assert any(f"pictures/{name}" in page for page in pages)


def test_the_bars_are_the_recorded_figures() -> None:
    found = dict(pictures.networks())
    assert len(found) == 12 and list(found)[-1] == "geometric mean"
    assert found["ResNet-50"] == 0.97 and min(found.values()) == 0.64
