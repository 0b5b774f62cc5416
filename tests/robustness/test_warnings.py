"""Generated C compiles without warnings, also for partial tiles and for other processors."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from farkas.kernels.source_text import fix_sizes
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from runtime.cpu.toolchain import Toolchain
from tests.robustness.kernels import CASES, MATMUL, MORE, integer_case
from tests.robustness.test_sanitizers import MACHINES


def warnings_of(sources: list[str], toolchain: Toolchain, folder: Path, *flags: str) -> str:
    """What the compiler says of some C files."""
    for number, text in enumerate(sources):
        (folder / f"{number}.c").write_text(text)
    names = [f"{n}.c" for n in range(len(sources))]
    line = [*toolchain.command, *toolchain.flags, *flags, *names]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    return done.stderr


def test_all_kinds(toolchain: Toolchain, tmp_path: Path) -> None:
    sources = []
    for case in (*CASES, *MORE, integer_case("int8"), integer_case("uint64")):
        program = fk.parse(case.text, case.dtypes)
        sizes = {n: v for n, v in case.sizes[0].items() if n in program.sizes}
        schedules = [Schedule.of(program), Schedule.of(program, exact=True)]
        schedules.append(auto_schedule(Schedule.of(fix_sizes(program, sizes))))
        sources += [generate(s).text for s in schedules]
    assert warnings_of(sources, toolchain, tmp_path, "-fsyntax-only") == ""


@pytest.mark.slow
def test_other_processors(toolchain: Toolchain, tmp_path: Path) -> None:
    programs = [fk.parse(case.text, case.dtypes) for case in (*CASES, *MORE)]
    schedules = [auto_schedule(Schedule.of(p), m) for p in programs for m in MACHINES]
    sources = [generate(s).text for s in schedules]
    assert warnings_of(sources, toolchain, tmp_path, "-fsyntax-only") == ""


def _partial_tiles(count: int) -> list[str]:
    rng = random.Random(0)
    sources = []
    for _ in range(count):
        sizes = {n: rng.choice((1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)) for n in "IJK"}
        text = rng.choice((MATMUL, "C[i,j] +=! A[i,k] * B[j,k]; D[i,j] = exp(C[i,j])"))
        program = fk.parse(text, rng.choice(("float32", "float64")), sizes=sizes)
        sources.append(generate(auto_schedule(Schedule.of(program))).text)
    return sources


def test_partial_tiles(toolchain: Toolchain, tmp_path: Path) -> None:
    assert warnings_of(_partial_tiles(20), toolchain, tmp_path, "-fsyntax-only") == ""


@pytest.mark.slow
def test_more_partial_tiles_and_with_optimisation(toolchain: Toolchain, tmp_path: Path) -> None:
    """Some warnings come only from what the optimiser learns."""
    for number in range(0, 120, 30):
        sources = _partial_tiles(number + 30)[number:]
        assert warnings_of(sources, toolchain, tmp_path, "-c") == ""
