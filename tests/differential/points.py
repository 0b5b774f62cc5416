"""Random points of the space that is tuned, of random programs, and random steps after them."""

from __future__ import annotations

from random import Random

from codegen.pipeline import CPU
from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.space.estimate import estimate
from poly.space.point_data import point_data, read_point
from poly.space.space import Space
from tests.differential.einsums import fixed_text
from tests.differential.generate import random_text
from tests.differential.harness import Case, Failure, Tally, default_variant, make_variant
from tests.differential.machines import HOST
from tests.differential.magnitude import has_functions
from tests.differential.program_parts import Profile, Seeded
from tests.differential.sweep import case_of, parsed, random_schedule, replay_problem

#: Points of a program.
POINTS = 4


def point_case(seed: int, tally: Tally) -> Case | None:
    """A program with some random points; every other one is a neighbour of one before it.

    In every other program, steps follow that a person might take next.
    """
    profile = Profile(smooth=seed % 3 < 2, contractions=seed % 4 < 2)
    text = fixed_text(seed) if seed % 4 == 0 else random_text(seed, profile)
    program = parsed(text, tally)
    if program is None:
        return None
    rng, variants = Random(seed), []
    exact = seed % 5 == 0
    start = Schedule.of(CPU.prepare(program, HOST.machine, exact), exact)
    space = Space(start, HOST.machine, CPU.strategy)
    point = space.sample(rng)
    make = make_variant if exact and not has_functions(program) else default_variant
    for n in range(POINTS):
        point = space.sample(rng) if n % 2 == 0 else space.mutate(point, rng)
        tally.counts["points"] += 1
        try:
            schedule = space.schedule(point)
            if seed % 2 == 0:
                trail = random_schedule(Seeded(seed * 1000 + n), schedule)
                schedule = trail.schedule
                tally.failures += trail.failures(seed, text)
            source = make(schedule, f"p{n}", seed, written=program)
        except ScheduleError:
            tally.counts["points refused"] += 1
            continue
        tally.counts["points accepted"] += 1
        for _, pick in point.picks:
            tally.counts[f"{pick.tactic or 'as it is'}"] += 1
        problem = replay_problem(schedule, start)
        if read_point(point_data(point)) != point:
            problem = f"as data, {point} is another point"
        if not estimate(schedule, dict.fromkeys(program.sizes, 10), HOST.machine).cycles >= 0:
            problem = "its estimate is no number of cycles"
        if problem:
            tally.failures.append(
                Failure(seed, text, str(schedule), exact, {}, 0, problem, "point")
            )
        variants.append(source)
    return case_of(seed, text, program, variants, tally, 3)
