"""Random einsum strings: what is drawn, and that results are numpy's and torch's."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.einsum_specs import Spec, calls, difference, specs, table, wrong

SPECS = specs(200, 0)


def test_what_is_drawn() -> None:
    """Every kind of subscripts is among them, and the same ones every time."""
    assert specs(200, 0) == SPECS and specs(200, 1) != SPECS
    kinds = [spec.kind for spec in SPECS]
    for kind in ("one operand", "no sum", "two operands", "three or more"):
        assert kinds.count(kind) >= 8, kind
    assert sum("..." in spec.text for spec in SPECS) >= 10
    terms = [term for spec in SPECS for term in spec.text.partition("->")[0].split(",")]
    assert sum(len({*t.strip(".")}) < len(t.strip(".")) for t in terms) >= 5
    assert {spec.dtype for spec in SPECS} == {"float32", "float64", "complex64", "int64"}


@pytest.mark.parametrize("spec", SPECS[:8], ids=str)
def test_results(spec: Spec) -> None:
    assert wrong(spec, calls(spec)) == []


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS[8:], ids=str)
def test_all_results(spec: Spec) -> None:
    assert wrong(spec, calls(spec)) == []


def test_differences_are_seen() -> None:
    spec = Spec("i->i", ((2,),), "float32")
    right = np.ones(2, np.float32)
    assert difference(spec, right * np.float32(1.00001), right) <= 1
    assert difference(spec, right * np.float32(1.001), right) > 1
    assert difference(spec, right.astype(float), right) > 1
    assert not difference(spec, np.array([1, np.nan], np.float32), right) <= 1


def test_the_table() -> None:
    spec = Spec("i,i->", ((2,), (2,)), "float32")
    rows = [(spec, {"farkas": f, "numpy": 1.0}) for f in (0.5, 2.0)]
    assert table(rows)[2:] == [
        "| two operands | 2 | 1.00 | 2.0 | 1 |",
        "| all | 2 | 1.00 | 2.0 | 1 |",
    ]
