"""Gradients of random programs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.differential.gradients import check_gradient, check_second


@pytest.mark.parametrize("block", range(8))
def test_random_programs(block: int) -> None:
    seen = Counter(
        check_gradient(seed).partition(":")[0] for seed in range(40 * block, 40 * block + 40)
    )
    assert seen["right"] >= 5, seen


def test_gradients_of_gradients() -> None:
    seen = Counter(check_second(seed).partition(":")[0] for seed in range(40))
    assert seen["right"] >= 5, seen


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        check_gradient(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_two_thousand_second(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        check_second(seed)
