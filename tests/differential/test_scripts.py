"""Scripts of random schedules: text to schedule to text, and the same steps at other sizes.

The values are those of the reference interpreter, which runs the instances one by one in the order
of the replayed tree; the comparison needs no C compiler.
"""

from __future__ import annotations

import numpy as np
import pytest

from farkas.kernels.source_text import fix_sizes
from frontends.language.parse_program import parse_program
from poly.errors import LanguageError, ScheduleError
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from runtime.reference.evaluate import evaluate
from runtime.reference.interpret import run_instances
from runtime.reference.verify import compare
from tests.differential.generate import random_text
from tests.differential.harness import few_instances, make_inputs
from tests.differential.program_parts import Seeded
from tests.differential.sweep import profile_of, random_schedule
from tests.poly.oracle import tree_order

#: Programs with more instances are not run one by one.
MOST_INSTANCES = 600
COMMENTS = ("# why", "#", "#  two  blanks", "# ends with */ \\", "# ä ≤ 'quoted'", "## by 4")


def random_case(seed: int) -> tuple[Program, Schedule] | None:
    """A program and a random schedule of it; None where the text is no program."""
    text = random_text(seed, profile_of(seed))
    try:
        program = parse_program(text)
    except LanguageError:
        return None
    start = Schedule.of(program, exact=seed % 3 != 0)
    return program, random_schedule(Seeded(seed), start).schedule


def with_comments(script: str, rng: np.random.Generator) -> str:
    """A script with comments behind steps and lines of their own, some of them empty."""
    lines = []
    for line in script.splitlines():
        while rng.random() < 0.3:
            lines.append(rng.choice(["", *COMMENTS, "    # far in"]))
        behind = f"{' ' * rng.integers(3)}{rng.choice(COMMENTS)}" if rng.random() < 0.4 else ""
        lines.append(line + behind)
    return "\n".join([*lines, *rng.choice(["# the end"], rng.integers(2))]).strip("\n")


def round_trips(seeds: range) -> tuple[int, int, int]:
    """How many schedules went round, were replayed and run at other sizes, did not apply there."""
    went = ran = refused = 0
    for seed in seeds:
        case = random_case(seed)
        if case is None or not case[1].steps:
            continue
        program, schedule = case
        rng = np.random.default_rng(seed)
        written = Schedule.of(program, schedule.exact)
        script = with_comments(str(schedule), rng)
        again = written.replay(script)
        assert str(again) == script, seed
        assert again.steps == schedule.steps and again.digest == schedule.digest, seed
        assert again.tree == schedule.tree and not again.diff(again), seed
        assert str(written.replay(str(schedule))) == str(schedule), seed
        went += 1
        sizes = few_instances(program, rng, range(8), MOST_INSTANCES)
        if sizes is not None and schedule.exact:
            fixed = fix_sizes(program, sizes)
            try:
                there = Schedule.of(fixed, exact=True).replay(script)
            except ScheduleError as error:
                # At fixed sizes there may be fewer dependences, and with them other loops and
                # another order after `fuse` and `reschedule`: it says which step does not apply.
                assert error.__notes__[0].startswith("at line "), seed
                refused += 1
                continue
            assert str(there) == script, seed
            inputs = make_inputs(fixed, {}, seed)
            found = run_instances(fixed, inputs, {}, tree_order(there.tree, there.scop, {}))
            for name, expected in evaluate(fixed, inputs, {}).items():
                difference = compare(name, found[name], expected)
                assert difference.first is None, f"seed {seed}, sizes {sizes}: {difference}"
            ran += 1
    return went, ran, refused


def test_round_trips() -> None:
    went, ran, refused = round_trips(range(700_000, 700_060))
    assert went >= 40 and ran >= 20 and 50 * refused < went, (went, ran, refused)


@pytest.mark.slow
def test_a_thousand_round_trips() -> None:
    went, ran, refused = round_trips(range(710_000, 711_400))
    assert went >= 1000 and ran >= 500 and 50 * refused < went, (went, ran, refused)
