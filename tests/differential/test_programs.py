"""Random programs: compiled code equals the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.cpu.toolchain import Toolchain
from tests.differential.generate import texts
from tests.differential.harness import Tally, run_batch
from tests.differential.program_parts import Profile
from tests.differential.sweep import (
    BATCH,
    Make,
    describe_failures,
    narrow_case,
    program_case,
    sweep,
)


@pytest.fixture(scope="module")
def collected() -> list[tuple[int, str]]:
    """Programs that hypothesis found; they are compiled together."""
    found: list[tuple[int, str]] = []

    @settings(max_examples=30)
    @given(st.integers(0, 3).flatmap(lambda n: texts(Profile(smooth=n == 0))))
    def collect(text: str) -> None:
        found.append((len(found), text))

    collect()
    return found


def test_hypothesis(collected: list[tuple[int, str]], toolchain: Toolchain) -> None:
    tally = Tally()
    cases = [program_case(seed, tally, text) for seed, text in collected]
    run_batch([c for c in cases if c is not None], toolchain, tally)
    assert tally.counts["programs accepted"] > 0.9 * len(collected)
    assert not tally.failures, describe_failures(tally, toolchain)


def test_seeded(toolchain: Toolchain) -> None:
    tally = sweep(range(900_000, 900_040), program_case, toolchain)
    assert tally.counts["programs accepted"] > 35
    assert not tally.failures, describe_failures(tally, toolchain)


def test_seeded_narrow(toolchain: Toolchain) -> None:
    """Contractions of 8-bit and 16-bit factors, some of which become instructions of the CPU."""
    seeds = [BATCH * batch + n for batch in range(18_000, 18_005) for n in range(4)]
    tally = sweep(seeds, narrow_case, toolchain)
    assert tally.counts["programs accepted"] == len(seeds)
    assert not tally.failures, describe_failures(tally, toolchain)


def test_a_loop_of_one_iteration_that_isl_leaves_out(toolchain: Toolchain) -> None:
    """A contraction beside a recurrence, for which isl finds another order of everything."""
    tally = sweep([9601], program_case, toolchain)
    assert tally.counts["programs accepted"] == 1
    assert not tally.failures, describe_failures(tally, toolchain)


def test_rows_shorter_than_their_vectors(toolchain: Toolchain) -> None:
    """A row of 5 accumulators, in vectors of 8 lanes, has room for all 8."""
    tally = sweep([212], program_case, toolchain)
    assert tally.counts["programs accepted"] == 1
    assert not tally.failures, describe_failures(tally, toolchain)


@pytest.mark.slow
@pytest.mark.parametrize("make", [program_case, narrow_case])
def test_ten_thousand(make: Make, toolchain: Toolchain, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousand programs of each kind equal the reference: bit for bit in exact mode."""

    def report(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    tally = sweep(range(10_100), make, toolchain, report=report)
    report(f"\n{tally}")
    assert tally.counts["programs accepted"] >= 10_000
    assert not tally.failures, describe_failures(tally, toolchain)
