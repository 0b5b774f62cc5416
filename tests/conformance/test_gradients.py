"""Gradients of ONNX operators beside central differences, and which there are."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from poly.errors import GradientError
from poly.gradients import derivatives
from poly.gradients.derivatives import ONE, Flow
from tests.conformance import gradients as command
from tests.conformance.gradient_cases import CASES, WITHOUT
from tests.conformance.gradient_check import Case, check, check_along
from tests.conformance.table import gradients_table, page_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx-support.md"
WIDE = np.dtype(np.float64)


def named(name: str) -> Case:
    (found,) = (c for c in CASES if c.name == name)
    return found


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", [c for c in CASES if c.refused], ids=ids)
def test_what_has_no_gradient_is_refused(case: Case) -> None:
    with pytest.raises(GradientError, match=case.refused):
        check(case)


@pytest.mark.parametrize("case", [c for c in CASES if not (c.judge or c.refused)], ids=ids)
def test_beside_differences(case: Case) -> None:
    """Those that torch does not have, element by element."""
    check(case)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.judge and not c.refused and c.is_smooth and c.dtype == WIDE],
    ids=ids,
)
def test_along_directions(case: Case) -> None:
    """Those that are compared with torch's where it is installed: here along a few directions."""
    check_along(case)


def test_cases_have_names_of_their_own() -> None:
    names = [c.name for c in CASES]
    assert len(set(names)) == len(names)


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(derivatives.RULES, "sin", lambda y, a: (Flow(ONE),))
    sine = named("Sin")
    with pytest.raises(AssertionError, match="the derivative differs"):
        check_along(sine)
    with pytest.raises(AssertionError, match="the gradient of x0 differs"):
        check(replace(sine, judge=None))


def test_every_operator_has_a_case_or_a_reason() -> None:
    have, without = {c.operator for c in CASES}, [n for names in WITHOUT.values() for n in names]
    assert have.isdisjoint(without)
    page = PAGE.read_text().partition("## Gradients")[0]
    listed = re.findall(r"^\| (\w+) \| \d+ \| \d+ \| (?:comprehension|opaque) \|$", page, re.M)
    assert len(listed) > 150
    assert set(listed) - have - set(without) == set()


def test_reasons_are_true() -> None:
    """Where no result or no operand is said to be a float, none may be float32."""

    def has_floats(name: str, results: bool) -> bool:
        schema = onnx.defs.get_schema(name)
        known = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
        ports = schema.outputs if results else schema.inputs
        return any("tensor(float)" in known.get(p.type_str, [p.type_str]) for p in ports)

    results, operands = list(WITHOUT.values())[:2]
    assert not [n for n in results if has_floats(n, results=True)]
    assert not [n for n in operands if has_floats(n, results=False)]


def test_the_page_has_all_cases() -> None:
    """`python -m tests.conformance.table --gradients` writes the part of the page."""
    text = PAGE.read_text().partition("## Gradients")[2]
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", text, re.M))
    operators = [c.operator for c in CASES]
    assert rows == {n: str(operators.count(n)) for n in operators}
    assert "### Gradients that are wrong\n\nNone.\n" in text


def test_one_part_of_the_page_is_written() -> None:
    cases = [asdict(command.judge(named("Det")))]
    cases += [{**cases[0], "name": "Det 2", "refused": "", "reason": "wrong: too large"}]
    found: dict[str, Any] = {"torch": "2", "cases": cases}
    text = page_of("# ONNX\n\n## Gradients\n\nold\n", None, found)
    assert text == "# ONNX\n" + gradients_table(found) and "old" not in text
    assert "\n| Det | 2 | - | refused: it is no comprehension, 1 wrong |\n" in text
    assert "\n- Det 2: wrong: too large\n" in text
    assert page_of(text, None, None) == text
