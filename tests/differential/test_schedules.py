"""Random schedules: what is accepted computes the same, and its script says all of it."""

from __future__ import annotations

import pytest

from poly.schedule.primitives import PRIMITIVES
from runtime.cpu.toolchain import Toolchain
from tests.differential.sweep import describe_failures, schedule_case, sweep

#: Primitives of schedules that run on a GPU only.
OF_GPUS = {"map_blocks", "map_threads", "reduce_threads", "tensorize"}


def test_seeded(toolchain: Toolchain) -> None:
    tally = sweep(range(800_000, 800_020), schedule_case, toolchain)
    assert tally.counts["schedules accepted"] > 60
    assert tally.counts["steps refused: IllegalScheduleError"] > 10
    missing = {p for p in set(PRIMITIVES) - OF_GPUS if not tally.counts[f"accepted {p}"]}
    assert not missing, f"sweep.py: `_PRIMITIVES` or `random_step` lacks {missing}"
    assert not tally.failures, describe_failures(tally, toolchain)


def test_copies_of_a_loop_that_use_no_buffer(toolchain: Toolchain) -> None:
    """They declare none, either."""
    tally = sweep([100_025, 100_064], schedule_case, toolchain)
    assert tally.counts["accepted promote"] >= 2
    assert not tally.failures, describe_failures(tally, toolchain)


@pytest.mark.slow
def test_ten_thousand(toolchain: Toolchain, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousand accepted schedules of 1 to 8 steps, and a count of what was refused."""

    def report(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    tally = sweep(range(100_000, 102_900), schedule_case, toolchain, report=report)
    report(f"\n{tally}")
    assert tally.counts["schedules accepted"] >= 10_000
    assert not tally.failures, describe_failures(tally, toolchain)
