"""The choice of units that stay in float32, from made-up measurements."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farkas.quantize.choose import Measured, errors_by_halves, fewest, worst_first


def test_the_worst_has_the_most_error_for_what_it_gains() -> None:
    units = {
        0: Measured(1.0, 1.0, 2e-3, 1e-3),
        1: Measured(1.0, 1.0, 9e-3, 1e-3),
        2: Measured(0.5, 0.5, 1e-3, 2e-3),
        3: Measured(0.0, 0.2, 2e-3, 1e-3),
        4: Measured(0.0, 0.1, 2e-3, 1e-3),
    }
    assert worst_first(units) == [2, 0, 1, 3, 4]
    assert units[2].loses and not units[0].loses
    assert not Measured(0, 0, 1e-3, 1.01e-3).loses  # noise


@given(st.integers(0, 40), st.integers(0, 40))
def test_fewest_is_the_first_that_is_enough(count: int, least: int) -> None:
    asked: list[int] = []

    def enough(k: int) -> bool:
        asked.append(k)
        return k >= least

    assert fewest(count, enough) == min(least, count)
    assert count not in asked and len(asked) <= 1 + count.bit_length()


@given(st.lists(st.floats(0, 9), max_size=70), st.integers(1, 30))
def test_errors_are_found_within_the_trials(errors: list[float], trials: int) -> None:
    asked: list[Sequence[int]] = []

    def trial(units: Sequence[int]) -> tuple[float, float]:
        asked.append(units)
        error = max(errors[u] for u in units)
        return error, error

    found = errors_by_halves(range(len(errors)), trials, trial)
    assert sorted(found) == list(range(len(errors))) and len(asked) <= trials
    for unit, ((error, _), together) in found.items():
        assert error == pytest.approx(errors[unit]) if together == 1 else error >= errors[unit]
    if len(errors) <= trials:
        assert all(together == 1 for _, together in found.values())
