"""Points of the space that is tuned: what is accepted computes the reference."""

from __future__ import annotations

import pytest

from runtime.cpu.toolchain import Toolchain
from tests.differential.points import point_case
from tests.differential.sweep import describe_failures, sweep


def test_seeded(toolchain: Toolchain) -> None:
    tally = sweep(range(900_000, 900_025), point_case, toolchain)
    assert tally.counts["points accepted"] > 40
    assert tally.counts["contraction"] and tally.counts["memory bound"]
    assert not tally.failures, describe_failures(tally, toolchain)


@pytest.mark.slow
def test_two_thousand(toolchain: Toolchain, capsys: pytest.CaptureFixture[str]) -> None:
    """Two thousand accepted points, and a count of what was refused."""

    def report(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    tally = sweep(range(900_000, 900_800), point_case, toolchain, report=report)
    report(f"\n{tally}")
    assert tally.counts["points accepted"] >= 2_000
    assert not tally.failures, describe_failures(tally, toolchain)
