"""Random programs with random steps, of which some map loops to blocks and threads of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from frontends.language.parse_program import parse_program
from poly.errors import LanguageError, ScheduleError
from poly.ir.expr import evaluate_int, reads_of
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from poly.tree.nodes import loops_of
from poly.tree.steps import Step
from tests.differential.generate import random_text
from tests.differential.harness import fits
from tests.differential.program_parts import Choices, Profile
from tests.differential.sweep import random_step

#: What a GPU has no use for.
_REFUSED = ("parallelize", "vectorize", "reschedule")


def random_program(seed: int) -> Program | None:
    """A program that kernels can be made of; None if the text makes none.

    What a program does with 16 bits it does with 32, and no place depends on data, so that the
    places of accesses are known without values.
    """
    text = random_text(seed, Profile(smooth=seed % 2 == 0, contractions=seed % 8 == 0))
    try:
        program = parse_program(
            text.replace("bfloat16", "float32").replace("float16", "float32"), {}
        )
    except LanguageError:
        return None
    places = (i for s in program.statements for r in (*s.reads, s.target) for i in r.indices)
    return None if any(reads_of(i) for i in places) else program


def small_sizes(c: Choices, program: Program, most: int = 300) -> dict[str, int] | None:
    """Sizes at which no statement has more points than `most`; None if there are none."""
    for top in (7, 6, 5, 4, 3, 2):
        sizes = {name: c.integer(0, top) for name in program.sizes}
        points = (
            prod(max(0, evaluate_int(r.hi, sizes) - evaluate_int(r.lo, sizes)) for r in s.ranges)
            for s in program.statements
        )
        if fits(program, sizes) and max(points) <= most:
            return sizes
    return None


def random_mapping(c: Choices, start: Schedule) -> Schedule:
    """Up to three steps of any sort, then some that map; what is illegal is left out."""
    schedule = start
    for _ in range(c.integer(0, 3)):
        step = random_step(c, schedule)
        if step.primitive not in _REFUSED:
            schedule = _applied(schedule, [step])
    for _ in range(c.integer(2, 6)):
        schedule = _applied(schedule, list(_mapping(c, schedule)))
    return schedule


def _applied(schedule: Schedule, steps: list[Step]) -> Schedule:
    """The schedule after all of the steps; as it was if one is refused."""
    try:
        after = schedule
        for step in steps:
            after = after.apply(step)
        return after
    except ScheduleError:
        return schedule


def _mapping(c: Choices, schedule: Schedule) -> Iterator[Step]:
    """Steps that map some loops of a statement, or share what it uses."""
    name = c.pick(schedule.statements)
    loops = schedule.loops(name)
    if not loops:
        return
    first = c.integer(0, len(loops) - 1)
    chosen = loops[first : first + c.integer(1, min(3, len(loops) - first))]
    kinds = ("tile", "tile", "blocks", "threads", "threads", "share", "share", "ahead", "reduce")
    kind = c.pick(kinds)
    if kind == "blocks":
        yield Step("map_blocks", (name,), chosen)
    elif kind == "threads" and c.chance(30):
        yield Step("map_threads", (name,), chosen)
    elif kind == "reduce":
        (loop,) = chosen[-1:]
        yield Step("split", (name,), (loop,), (c.pick((2, 4, 5, 40)),))
        yield Step("reduce_threads", (name,), (f"{loop}_i",))
    elif kind == "share":
        s = schedule.scop.statement(name)
        tensor = c.pick([s.target.tensor, *(r.tensor for r in s.source.reads)])
        yield Step("promote", (name,), chosen[:1], words=(tensor, "shared"))
    elif kind == "ahead":
        tensor = c.pick([r.tensor for r in schedule.scop.statement(name).source.reads] or [""])
        loop = c.pick([m.name for m in loops_of(schedule.tree, name) if m.mark == "seq"] or [""])
        if tensor and loop:
            yield Step("promote", (name,), (loop,), words=(tensor, "shared", "ahead"))
    else:
        yield Step("tile", (name,), chosen, tuple(c.pick((2, 3, 4, 5)) for _ in chosen))
        if kind == "tile":
            yield Step("map_blocks", (name,), tuple(f"{x}_o" for x in chosen))
        yield Step("map_threads", (name,), tuple(f"{x}_i" for x in chosen))
