"""The two sweeps: random programs, and random schedules of random programs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from codegen.pipeline import CPU
from frontends.language.parse_program import parse_program
from poly.errors import IllegalScheduleError, LanguageError, ScheduleError
from poly.ir.expr import Cast, dtype_of_expr, walk
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from poly.tree.steps import Step
from runtime.cpu.toolchain import Toolchain
from tests.differential.generate import random_text
from tests.differential.harness import (
    SPECIAL,
    STYLES,
    Case,
    Failure,
    Tally,
    Variant,
    choose_sizes,
    default_variant,
    make_variant,
    run_batch,
)
from tests.differential.machines import HOST, Form, runnable
from tests.differential.magnitude import has_functions
from tests.differential.minimise import minimise
from tests.differential.program_parts import Choices, Profile, Seeded

BATCH = 50
#: What makes a case of a seed, or refuses it and counts that.
Make = Callable[[int, Tally], Case | None]
#: Compilations that take longer are reported, in seconds.
SLOW = 5.0
#: Bytes of a second cache in which the products of the tests do not fit.
SMALL_CACHE = 8 << 10


def profile_of(seed: int) -> Profile:
    """Two programs in five are such that an error bound applies in default mode.

    Register tiles take a while to compile, so only one in twenty is made of contractions.
    """
    smooth = seed % 5 < 2
    functions = seed % 10 == 1
    return Profile(smooth, functions, contractions=seed % 20 in (1, 12) and seed % 40 < 32)


def narrow_case(seed: int, tally: Tally) -> Case | None:
    """A program of contractions of 8-bit and 16-bit factors, as `program_case` has it.

    One batch is for this machine, the next one for another.
    """
    profile = Profile(smooth=seed % 2 == 0, contractions=True, narrow=True)
    forms = runnable()
    form = forms[seed // BATCH % len(forms)]
    tally.counts[f"programs for {form.name}"] += 1
    return program_case(seed, tally, random_text(seed, profile), form)


def program_case(
    seed: int, tally: Tally, text: str | None = None, form: Form = HOST
) -> Case | None:
    """A program, as written and with the automatic schedule, exact and not."""
    text = random_text(seed, profile_of(seed)) if text is None else text
    program = parsed(text, tally)
    if program is None:
        return None
    variants: list[Variant] = []
    for exact in (True, False):
        make = make_variant if exact and not has_functions(program) else default_variant
        written = Schedule.of(program, exact)
        if exact:
            variants.append(make(written, "written", seed))
        # With small caches, small products have the blocks of large ones.
        machine = form.machine
        machine = replace(machine, l2=SMALL_CACHE) if seed % 3 == 0 else machine
        prepared = CPU.prepare(program, machine, exact)
        if prepared is not program:
            tally.counts["programs taken apart"] += 1
        start = Schedule.of(prepared, exact)
        made = CPU.generate(start, machine, partial(_automatic, make, seed, program))
        if made.source is not None:
            variants.append(made.source)
            for primitive in sorted({step.primitive for step in made.schedule.steps}):
                tally.counts[f"automatic schedules that {primitive}"] += 1
        elif not exact:
            variants.append(make(written, "written", seed))
    return case_of(seed, text, program, [*map(form.compiled, variants)], tally, 5)


def _automatic(
    make: Callable[..., Variant], seed: int, program: Program, schedule: Schedule
) -> Variant | None:
    """The variant of an automatic schedule; None if it is the written order."""
    return make(schedule, "auto", seed, written=program) if schedule.steps else None


def parsed(text: str, tally: Tally) -> Program | None:
    """The program of a text, None if it is refused; both are counted."""
    try:
        program = parse_program(text, {})
    except LanguageError:
        tally.counts["programs refused"] += 1
        return None
    tally.counts["programs accepted"] += 1
    return program


def case_of(
    seed: int, text: str, program: Program, variants: Sequence[Variant], tally: Tally, runs: int
) -> Case:
    """The case of a program and its variants, with sizes and seeds for so many runs."""
    rng = np.random.default_rng(seed)
    sizes = choose_sizes(program, rng, runs if program.sizes else 1)
    if not program.sizes:
        sizes = sizes * 4
    styles = SPECIAL if _makes_integers(program) else STYLES  # of a NaN, any number is right
    pairs = tuple((s, STYLES * seed + n % styles) for n, s in enumerate(sizes))
    tally.counts["kernels"] += len(variants)
    tally.counts["runs"] += 2 * len(variants) * len(pairs)
    if not pairs:
        tally.counts["programs without fitting sizes"] += 1
    return Case(seed, text, program, tuple(variants), pairs)


def _makes_integers(program: Program) -> bool:
    """Whether floats are cast to integers."""
    return any(
        isinstance(e, Cast) and e.dtype.is_integer and dtype_of_expr(e.arg, program.dtypes).is_float
        for s in program.statements
        for e in walk(s.value)
    )


# --- schedules ---------------------------------------------------------------------------------

_PRIMITIVES = (
    "tile", "tile", "split", "split", "interchange", "interchange", "reorder", "fuse", "fuse",
    "fuse", "distribute", "sink", "skew", "shift", "reverse", "parallelize", "parallelize",
    "vectorize", "vectorize", "unroll", "isolate", "promote", "promote", "promote",
)  # fmt: skip
_FACTORS = (1, 2, 3, 4, 4, 5, 8, 8, 16, 16, 32)


def random_step(c: Choices, schedule: Schedule) -> Step:
    """A step with arguments that are often, but not always, sensible."""
    if c.chance(1):
        return Step("reschedule", ())
    primitive = c.pick(_PRIMITIVES)
    name = c.pick(schedule.statements)
    loops = schedule.loops(name)
    if primitive == "fuse":
        others = [s for s in schedule.statements if s != name]
        if not others:
            primitive = "tile"
        else:
            order = list(schedule.statements)
            other = c.pick(others)
            first, second = sorted((name, other), key=order.index)
            first_loops = schedule.loops(first)
            depth = c.integer(1, max(1, min(len(first_loops), len(schedule.loops(second)))))
            return Step("fuse", (first, second), first_loops[:depth])
    if not loops:
        return Step(primitive, (name,), ("i",), (2,))
    loop = c.pick(loops)
    position = loops.index(loop)
    one = (loop,)
    if primitive == "tile":
        stop = c.integer(position + 1, len(loops))
        chosen = loops[position:stop]
        return Step("tile", (name,), chosen, tuple(c.pick(_FACTORS) for _ in chosen))
    if primitive == "split":
        return Step("split", (name,), one, (c.pick(_FACTORS),))
    if primitive == "interchange":
        return Step("interchange", (name,), (loop, c.pick(loops)))
    if primitive == "reorder":
        left, chosen_ = list(loops), []
        for _ in range(c.integer(2, max(2, len(loops)))):
            if left:
                chosen_.append(left.pop(c.integer(0, len(left) - 1)))
        return Step("reorder", (name,), tuple(chosen_))
    if primitive == "skew":
        return Step("skew", (name,), (loop, c.pick(loops)), (c.pick((1, 1, 2, -1, 3)),))
    if primitive == "shift":
        return Step("shift", (name,), one, (c.pick((1, 2, -1, 5)),))
    if primitive in ("vectorize", "unroll"):
        loop = loops[-1] if c.chance(70) else loop
        return Step(primitive, (name,), (loop,), (c.pick(_FACTORS),) if c.chance(60) else ())
    if primitive == "promote":
        s = schedule.scop.statement(name)
        touched = [s.target.tensor, *(r.tensor for r in s.source.reads)]
        tensor = c.pick(touched)
        words = [tensor, c.pick(("register", "local"))]
        rank = schedule.program.tensors[tensor].rank
        if rank > 1 and c.chance(40):
            words += [str(k) for k in reversed(range(rank))]
        if rank and c.chance(30):
            words.append(f"{c.integer(0, rank - 1)}x{c.pick((1, 3, 4, 16))}")
        dtype = schedule.program.tensors[tensor].dtype
        if dtype.is_widened and c.chance(50):
            words.append(str(dtype.compute))
        return Step("promote", (name,), one, words=tuple(words))
    return Step(primitive, (name,), one)


@dataclass
class Trail:
    """A random schedule with what was refused on the way."""

    schedule: Schedule
    refused: list[tuple[Step, str]]
    broken: tuple[Step, str] | None = None

    def failures(self, seed: int, text: str) -> list[Failure]:
        """The step that failed otherwise than by refusal, if there is one."""
        if self.broken is None:
            return []
        step, what = self.broken
        script = "\n".join([*map(str, self.schedule.steps), str(step)])
        return [Failure(seed, text, script, self.schedule.exact, {}, 0, what, "step")]


def random_schedule(c: Choices, start: Schedule) -> Trail:
    """Up to 8 more accepted steps.  A step that fails otherwise than by refusal ends it."""
    schedule = start
    refused: list[tuple[Step, str]] = []
    wanted, tries = len(start.steps) + c.integer(1, 8), 0
    while len(schedule.steps) < wanted and tries < 20:
        tries += 1
        step = random_step(c, schedule)
        try:
            schedule = schedule.apply(step)
        except IllegalScheduleError:
            refused.append((step, "IllegalScheduleError"))
        except ScheduleError as error:
            undecided = "could not be decided" in str(error)
            refused.append((step, "ScheduleError (undecided)" if undecided else "ScheduleError"))
        except Exception as error:
            return Trail(schedule, refused, (step, _describe(error)))
    return Trail(schedule, refused)


def schedule_case(
    seed: int, tally: Tally, schedules: int = 4, text: str | None = None
) -> Case | None:
    """A program with some random schedules; replaying their scripts has to give equal trees."""
    text = random_text(seed, profile_of(seed)) if text is None else text
    program = parsed(text, tally)
    if program is None:
        return None
    variants: list[Variant] = []
    starts = {exact: Schedule.of(program, exact) for exact in (True, False)}
    for n in range(schedules):
        c = Seeded(seed * 1000 + n)
        start = starts[c.chance(50)]
        trail = random_schedule(c, start)
        tally.failures += trail.failures(seed, text)
        for _, why in trail.refused:
            tally.counts[f"steps refused: {why}"] += 1
        for step in trail.schedule.steps:
            tally.counts["steps accepted"] += 1
            tally.counts[f"accepted {step.primitive}"] += 1
        if not trail.schedule.steps:
            tally.counts["schedules empty"] += 1
            continue
        tally.counts["schedules accepted"] += 1
        problem = replay_problem(trail.schedule, start)
        if problem:
            tally.failures.append(Failure(
                seed, text, str(trail.schedule), start.exact, {}, 0, problem, "replay",
            ))  # fmt: skip
        make = make_variant if start.exact and not has_functions(program) else default_variant
        try:
            variants.append(make(trail.schedule, f"s{n}", seed, written=program))
        except ScheduleError:
            tally.counts["schedules refused by the code generator"] += 1
        except Exception as error:
            tally.failures.append(Failure(
                seed, text, str(trail.schedule), start.exact, {}, 0,
                _describe(error), "generate",
            ))  # fmt: skip
    return case_of(seed, text, program, variants, tally, 3)


def replay_problem(schedule: Schedule, start: Schedule) -> str:
    """What is wrong with the schedule's script, "" if it gives the same tree."""
    try:
        again = start.replay(str(schedule))
    except ScheduleError as error:
        return f"the script is refused: {error}"
    if again.tree != schedule.tree:
        return f"the script gives another tree:\n{again.show}\ninstead of\n{schedule.show}"
    return "" if str(again) == str(schedule) else "the script prints differently"


# --- sweeping --------------------------------------------------------------------------------


def sweep(
    seeds: Sequence[int],
    make: Make,
    toolchain: Toolchain,
    level: Callable[[int], str] = lambda batch: "-O2" if batch % 4 == 0 else "-O1",
    report: Callable[[str], None] = lambda line: None,
    stop: Callable[[Tally], bool] = lambda tally: False,
) -> Tally:
    """Make, compile and run a case for each seed, in batches."""
    tally = Tally()
    start = time.monotonic()
    for number, batch in enumerate(_batches(seeds)):
        cases: list[Case] = []
        before = len(tally.failures)
        for seed in batch:
            began = time.monotonic()
            try:
                case = make(seed, tally)
            except Exception as error:
                tally.failures.append(
                    Failure(seed, f"(seed {seed})", "", True, {}, 0, _describe(error), "generate")
                )
                continue
            took = time.monotonic() - began
            if took > SLOW:
                tally.slow.append(f"seed {seed}: {took:.1f} s")
            if case is not None and case.variants:
                cases.append(case)
        if cases:
            run_batch(cases, toolchain, tally, level(number))
        done = min((number + 1) * BATCH, len(seeds))
        report(f"{done}/{len(seeds)} in {time.monotonic() - start:.0f} s, "
               f"{len(tally.failures)} failures")  # fmt: skip
        for f in tally.failures[before:]:
            report(str(f))
        if stop(tally):
            break
    return tally


def _batches(seeds: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(seeds), BATCH):
        yield seeds[at : at + BATCH]


def _describe(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-700:]


def describe_failures(tally: Tally, toolchain: Toolchain, most: int = 5) -> str:
    """The first failures, made as small as can be."""
    shown = [f"{f}\nminimised:\n{minimise(f, toolchain)}" for f in tally.failures[:most]]
    return f"{len(tally.failures)} failures\n\n" + "\n\n".join(shown)
