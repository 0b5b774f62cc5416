"""Scripts that were tampered with: what `farkas check` accepts still computes the same.

Each mutant changes the script of a random schedule: numbers, names, lines, characters.  It is
refused with an error of our own, or its order of instances, run one by one in the reference
interpreter, gives the same result bit for bit (exact mode).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from farkas.targets.compile_program import schedule_for
from farkas.targets.find_target import text_target
from frontends.language.parse_program import parse_program
from poly.errors import IllegalScheduleError, LanguageError, ScheduleError
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from runtime.reference.evaluate import evaluate
from runtime.reference.interpret import run_instances
from runtime.reference.verify import compare
from tests.differential.generate import random_text
from tests.differential.harness import few_instances, make_inputs
from tests.differential.program_parts import Seeded
from tests.differential.sweep import profile_of, random_schedule
from tests.poly.oracle import tree_order

MOST_INSTANCES = 300
#: Mutants of one program.
EACH = 20


def mutated(script: str, schedule: Schedule, rng: np.random.Generator) -> str:
    """One to three changes."""
    lines = script.splitlines() or ["reschedule"]
    loops = sorted({m for s in schedule.statements for m in schedule.loops(s)}) or ["i"]
    for _ in range(int(rng.integers(1, 4))):
        n = int(rng.integers(len(lines)))
        line, way = lines[n], int(rng.choice([0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 8]))
        if way == 0:  # a number
            words = line.split(" ")
            digits = [k for k, w in enumerate(words) if w.strip(",").lstrip("-").isdigit()]
            if digits:
                words[int(rng.choice(digits))] = str(rng.choice([-1, 0, 1, 2, 3, 5, 7, 64, 10**9]))
            lines[n] = " ".join(words)
        elif way == 1:  # the name of a loop
            lines[n] = line.replace(str(rng.choice(loops)), str(rng.choice(loops)))
        elif way == 2:  # a statement
            one, other = rng.choice(schedule.statements, 2)
            lines[n] = line.replace(str(one), str(other))
        elif way == 3:  # another primitive
            lines[n] = " ".join([str(rng.choice(sorted(PRIMITIVES))), *line.split(" ")[1:]])
        elif way == 4:
            lines.insert(int(rng.integers(len(lines) + 1)), line)
        elif way == 5 and len(lines) > 1:
            del lines[n]
        elif way == 6:
            m = int(rng.integers(len(lines)))
            lines[n], lines[m] = lines[m], lines[n]
        elif way == 7:  # a new step
            statement, loop = rng.choice(schedule.statements), rng.choice(loops)
            what = rng.choice(["parallelize", "reverse", "reverse", "interchange", "vectorize"])
            pair = f", {rng.choice(loops)}" if what == "interchange" else ""
            lines.insert(n, f"{what} {statement}: {loop}{pair}")
        else:  # any character
            at = int(rng.integers(len(line) + 1))
            lines[n] = line[:at] + str(rng.choice(list(":,# -9_aé\0"))) + line[at + 1 :]
    return "\n".join(lines)


def judge(seeds: range, count: int) -> Counter[str]:
    """The verdicts on `count` mutants; raises for one that is accepted and computes otherwise."""
    verdicts: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        try:
            program = parse_program(random_text(seed, profile_of(seed)))
        except LanguageError:
            continue
        sizes = few_instances(program, rng, range(1, 7), MOST_INSTANCES)
        if sizes is None:
            continue
        start = Schedule.of(program, exact=True)
        base = random_schedule(Seeded(seed), start).schedule
        inputs = make_inputs(program, sizes, seed)
        expected = evaluate(program, inputs, sizes)
        for _ in range(EACH):
            script = mutated(str(base), base, rng)
            try:
                found = schedule_for(program, script, True, text_target())
            except IllegalScheduleError:
                verdicts["illegal"] += 1
            except ScheduleError:
                verdicts["refused"] += 1
            else:
                verdicts["legal"] += 1
                # The same program, unless the script speaks of the one that has the automatic
                # schedule; the interpreter needs that one's sizes.
                if found.program == program:
                    order = tree_order(found.tree, found.scop, sizes)
                    got = run_instances(program, inputs, sizes, order)
                    for name, value in expected.items():
                        difference = compare(name, got[name], value)
                        assert difference.first is None, f"seed {seed}:\n{script}\n{difference}"
                    verdicts["run"] += 1
            if verdicts["legal"] + verdicts["illegal"] + verdicts["refused"] >= count:
                return verdicts
    return verdicts


def test_some() -> None:
    verdicts = judge(range(920_000, 920_100), 200)
    assert verdicts["illegal"] > 2 and verdicts["run"] > 30 and verdicts["refused"] > 30, verdicts


@pytest.mark.slow
def test_ten_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = judge(range(910_000, 912_000), 10_000)
    with capsys.disabled():
        print(dict(verdicts))
    assert verdicts["legal"] + verdicts["illegal"] + verdicts["refused"] == 10_000
    assert verdicts["run"] > 2_000 and verdicts["illegal"] > 100, verdicts
