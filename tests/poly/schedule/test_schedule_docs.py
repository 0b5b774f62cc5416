"""docs/schedules.md and docs/primitives.md: their examples are what comes out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from docs.tools import primitives
from poly.errors import IllegalScheduleError
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.schedule.script import parse_script
from tests.poly.texts import schedule

DOCS = (Path(__file__).parents[3] / "docs" / "schedules.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```([a-z ]*)\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [body for k, body in BLOCKS if k == kind]


def test_the_page_of_primitives_is_that_of_the_code() -> None:
    renew = "python -m docs.tools.primitives writes docs/primitives.md anew"
    assert primitives.PAGE.read_text(encoding="utf-8") == primitives.page(), renew


def test_examples_of_steps_are_steps_that_have_a_method() -> None:
    differ = sorted(set(PRIMITIVES) ^ set(primitives.SHOWN))
    assert not differ, f"docs/tools/primitives.py, SHOWN: an example for {differ}"
    for name, primitive in PRIMITIVES.items():
        (line,) = parse_script(primitive.example)
        assert line.step is not None and line.step.primitive == name
        assert primitive.checked(line.step) == line.step
        assert inspect.getdoc(getattr(Schedule, name))
        assert primitives.SHOWN[name].step.split()[0] == name


def test_the_stencil() -> None:
    (text,) = blocks("farkas")
    with pytest.raises(IllegalScheduleError) as caught:
        schedule(text, *blocks("script refused"))
    assert f"{caught.value}\n" == blocks("text")[-1]
    assert schedule(text, *blocks("script accepted"))


def test_the_number_of_cases() -> None:
    cases = Path(__file__).parents[2] / "illegal" / "cases"
    assert len(list(cases.glob("*.txt"))) > 100
