"""Random mappings of random programs: no races, the result of the reference, needed barriers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codegen.gpu.emit import GpuSource, generate_gpu
from codegen.loops.from_schedule import build_kernel
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import Wait
from codegen.loops.traverse import walk_loops
from poly.errors import ScheduleError
from poly.lower.launches import launches
from poly.schedule.schedule import Schedule
from runtime.common.arguments import undetermined
from runtime.gpu.gpu_program import GpuProgram, launches_of
from runtime.reference.evaluate import run
from tests.differential.harness import SPECIAL, difference, make_inputs
from tests.differential.magnitude import has_functions, is_smooth, tolerances
from tests.differential.program_parts import Seeded
from tests.gpu.races import races, races_of, without_wait
from tests.gpu.random_mappings import random_mapping, random_program, small_sizes
from tests.gpu.sanitized import ChildDevice, why_not

#: Of each program so many mappings are tried.
TRIES = 2


@dataclass(frozen=True)
class Mapped:
    """A schedule with loops on blocks or threads, its kernels, and how to run them."""

    schedule: Schedule
    source: GpuSource
    sizes: dict[str, int]
    seed: int

    def __str__(self) -> str:
        exact = "exact" if self.schedule.exact else "relaxed"
        return f"{self.schedule.program}\n{exact}, {self.sizes}, {self.seed}\n{self.schedule}"


def mapped(seeds: Iterable[int], counts: Counter[str]) -> Iterator[Mapped]:
    """What is accepted of random mappings."""
    for seed in seeds:
        program = random_program(seed)
        if program is None:
            continue
        for n in range(TRIES):
            c = Seeded(seed * 1000 + n)
            schedule = random_mapping(c, Schedule.of(program, exact=c.chance(50)))
            sizes = small_sizes(c, program)
            steps = {step.primitive for step in schedule.steps}
            if sizes is None or not steps & {"map_blocks", "map_threads"}:
                continue
            try:
                source = generate_gpu(schedule, "cuda")
            except ScheduleError:
                counts["refused by the code generator"] += 1
                continue
            counts["accepted"] += 1
            counts["shared"] += "__shared__" in source.text
            counts["ahead"] += any("ahead" in step.words for step in schedule.steps)
            yield Mapped(schedule, source, sizes, seed)


def check_barriers(m: Mapped, counts: Counter[str]) -> None:
    """No races; and, counted, for how many barriers there are some without it."""
    found = races(m.schedule, m.source, m.sizes)
    assert not found, f"{found[0]}\n{m}"
    _, parts = launches(m.schedule.tree, m.schedule.scop)
    seen = set()
    for kernel, grid, env in launches_of(m.source, m.sizes):
        if kernel.symbol in seen:
            continue
        seen.add(kernel.symbol)
        launch = parts[m.source.kernels.index(kernel)]
        body = lower(build_kernel(m.schedule, launch))
        for number in range(sum(isinstance(n, Wait) for n in walk_loops(body))):
            counts["barriers"] += 1
            fewer = without_wait(body, number)
            counts["barriers missed"] += bool(races_of(fewer, launch, grid, env))


def check_results(
    found: list[Mapped], sanitizers: Iterable[str], folder: Path, counts: Counter[str]
) -> None:
    """All results are right, with threads in both orders, and no sanitizer has to say anything."""
    for sanitizer in sanitizers:
        device = ChildDevice(folder, "" if why_not(sanitizer) else sanitizer)
        device.prepare([m.source for m in found])
        for m in found:
            program, sizes = m.schedule.program, m.sizes
            inputs = make_inputs(program, sizes, m.seed)
            expected = run(program, inputs, sizes)
            judge = _judge(m)
            allowed = tolerances(program, inputs, sizes) if judge == "close" else {}
            named = {n: sizes[n] for n in undetermined(program)}
            counts[f"results judged {judge}"] += 1
            for device.backwards in (False, True):
                got = GpuProgram(m.source, device)(**inputs, **named)
                assert device.reports == [], f"{device.reports}\n{m}"
                arrays = got if isinstance(got, tuple) else (got,)
                for t, array in zip(program.outputs, arrays, strict=True):
                    if judge != "any":
                        what = difference(
                            t.name, array, expected.values[t.name], expected.written[t.name],
                            allowed.get(t.name),
                        )  # fmt: skip
                        assert not what, f"{what}\n{m}"


def _judge(m: Mapped) -> str:
    """How strictly a result is judged, as in `tests.differential.harness`."""
    program = m.schedule.program
    floats = any(t.dtype.is_float for t in program.tensors.values())
    if has_functions(program):
        return "any"
    if m.schedule.exact or not floats:
        return "equal"
    return "close" if is_smooth(program) and m.seed % 4 != SPECIAL else "any"


def check(seeds: range, sanitizers: Iterable[str], folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    found = {}
    for m in mapped(seeds, counts):
        check_barriers(m, counts)
        found[m.source.kernels[0].symbol if m.source.kernels else ""] = m
    check_results([m for name, m in found.items() if name], sanitizers, folder, counts)
    return counts


def test_seeded(tmp_path: Path) -> None:
    counts = check(range(20_040, 20_054), ["address"], tmp_path)
    assert counts["accepted"] >= 8 and counts["shared"] >= 2, counts
    assert counts["barriers missed"] >= 1, counts
    assert counts["results judged equal"] + counts["results judged close"] >= 12, counts


@pytest.mark.slow
def test_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over a thousand mappings, also with accesses that nothing orders watched."""
    total: Counter[str] = Counter()
    for start in range(10_000, 11_400, 50):
        total += check(range(start, start + 50), ["address", "thread"], tmp_path)
        with capsys.disabled():
            print(start, dict(total), flush=True)
    assert total["accepted"] >= 1000
