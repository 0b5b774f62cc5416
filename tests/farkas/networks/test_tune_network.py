"""When a network counts as faster: its calls are timed here as if noise were drawn."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from farkas.networks import tune_network


def verdicts(
    monkeypatch: pytest.MonkeyPatch, seconds: float, gain: float, noise: float, tries: int
) -> int:
    """How often a network whose calls are so much faster counts as faster."""
    rng = random.Random(1)

    def timed(network: Any, inputs: Any) -> float:
        return float(network.seconds) * rng.lognormvariate(0.0, noise)

    monkeypatch.setattr(tune_network, "_seconds", timed)
    before, after = (
        SimpleNamespace(inputs=(), seconds=s, run=lambda _: None) for s in (seconds, seconds / gain)
    )
    found = (tune_network._compare(before, after) for _ in range(tries))  # type: ignore[arg-type]
    return sum(c.is_faster(tune_network.WHOLE) for c in found)


@pytest.mark.parametrize(("seconds", "noise"), [(1e-3, 0.05), (1e-1, 0.03)])
def test_a_gain_of_seven_percent_is_seen(
    monkeypatch: pytest.MonkeyPatch, seconds: float, noise: float
) -> None:
    assert verdicts(monkeypatch, seconds, 1.07, noise, 20) >= 18


@pytest.mark.parametrize("seconds", [1e-3, 1e-1])
def test_noise_is_no_gain(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    assert verdicts(monkeypatch, seconds, 1.0, 0.10, 100) <= 2
