"""Gradients of ONNX operators beside those of torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance import gradients as command
from tests.conformance.gradient_cases import CASES
from tests.conformance.gradient_check import Case, check

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.judge and not c.refused], ids=lambda c: c.name
)
def test_beside_torch(case: Case) -> None:
    check(case)


def test_another_gradient_is_found() -> None:
    """Of a function with the same values, which are compared, too."""
    (sine,) = (c for c in CASES if c.name == "Sin")
    with pytest.raises(AssertionError, match="the gradient of x0 differs"):
        check(replace(sine, judge=lambda x: x.sin().detach() + 0 * x))
    with pytest.raises(AssertionError, match="output 0 is not torch's"):
        check(replace(sine, judge=lambda x: 2 * x.sin()))


def test_the_file_of_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "gradients.json"
    assert command.main(["^(Det|Sin)$", "--json", str(file)]) == 0
    assert (
        "2 cases of 2 operators: 1 right, 1 refused, 0 not as expected" in capsys.readouterr().out
    )
    cases = {c["name"]: c for c in json.loads(file.read_text())["cases"]}
    assert cases["Det"]["refused"] and cases["Sin"]["judge"] == "torch"
