"""docs/schedules.md: its steps are the docstrings, and its examples do what it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import farkas as fk
from poly.errors import IllegalScheduleError
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.schedule.script import parse_script
from tests.poly.texts import schedule

DOCS = (Path(__file__).parents[3] / "docs" / "schedules.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```([a-z ]*)\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)


def steps_section() -> str:
    """The list of steps in the documentation, as it follows from the code."""
    lines: list[str] = []
    for name in PRIMITIVES:
        text = inspect.getdoc(getattr(Schedule, name)) or ""
        text = text.replace("Raises\n------\nScheduleError : if", "A `ScheduleError` if")
        text = text.replace("``", "`")
        lines += [f"### {name}", "", f"`{PRIMITIVES[name].example}`", "", text, ""]
    return "\n".join(lines)


def blocks(kind: str) -> list[str]:
    return [body for k, body in BLOCKS if k == kind]


def test_the_steps_are_those_of_the_code() -> None:
    start = DOCS.index("-->", DOCS.index("<!-- steps:")) + 4
    assert DOCS[start : DOCS.index("<!-- end of steps")] == steps_section()


def test_examples_of_steps_are_steps_that_have_a_method() -> None:
    for name, primitive in PRIMITIVES.items():
        (line,) = parse_script(primitive.example)
        assert line.step is not None and line.step.primitive == name
        assert primitive.checked(line.step) == line.step
        assert inspect.getdoc(getattr(Schedule, name))


def test_the_first_example() -> None:
    names: dict[str, object] = {}
    first, second = blocks("python")
    exec(first.replace("print(schedule)", ""), names)
    made = names["schedule"]
    assert isinstance(made, Schedule)
    script, tree, refusal, _ = blocks("text")
    assert f"{made}\n" == script and f"{made.show}\n" == tree
    with pytest.raises(fk.IllegalScheduleError) as caught:
        exec("import farkas as fk\n" + second, names)
    assert f"{caught.value}\n" == refusal


def test_the_stencil() -> None:
    (text,) = blocks("farkas")
    with pytest.raises(IllegalScheduleError) as caught:
        schedule(text, *blocks("script refused"))
    assert f"{caught.value}\n" == blocks("text")[-1]
    assert schedule(text, *blocks("script accepted"))


def test_the_number_of_cases() -> None:
    cases = Path(__file__).parents[2] / "illegal" / "cases"
    assert len(list(cases.glob("*.txt"))) > 100
