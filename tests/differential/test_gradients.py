"""Gradients of random programs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.differential.gradients import check_gradient


@pytest.mark.parametrize("block", range(8))
def test_random_programs(block: int) -> None:
    seen = Counter(
        check_gradient(seed).partition(":")[0] for seed in range(40 * block, 40 * block + 40)
    )
    assert seen["right"] >= 5, seen


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        check_gradient(seed)
