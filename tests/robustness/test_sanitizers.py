"""Generated kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from farkas.kernels.example_sizes import small_sizes
from farkas.kernels.source_text import fix_sizes
from poly.errors import FarkasError
from poly.ir.dtypes import DTYPES
from poly.ir.graph import Call
from poly.machine.cpu import Machine
from poly.schedule.schedule import Schedule
from runtime.cpu.toolchain import Toolchain
from tests.differential.generate import random_text
from tests.differential.harness import choose_sizes
from tests.differential.machines import (
    ARM_COMPILER,
    ARM_FLAGS,
    EMULATOR,
    FORMS,
    Form,
    runnable,
)
from tests.differential.program_parts import Profile
from tests.differential.sweep import SMALL_CACHE
from tests.robustness.kernels import CASES, MORE, PAIRS, Case, cast_case, integer_case
from tests.robustness.nets import conv_net, dense_net
from tests.robustness.sanitized import (
    OPTIMISED,
    QUICK,
    Array,
    Batch,
    Run,
    Sweep,
    available,
    source_of,
)

INTEGERS = [d.name for d in DTYPES.values() if d.kind in "iu"]

#: Processors other than this one: the tiles, and so the tails, differ.
MACHINES = (
    Machine(16, 16, 32 << 10, 256 << 10, 1 << 20, 2),
    Machine(32, 16, 16 << 10, 64 << 10, 1 << 20, 4),
    Machine(64, 32, 8 << 10, 16 << 10, 64 << 10, 1),
)


@pytest.fixture(scope="module")
def sanitizers(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The compiler, if it has the sanitizers."""
    if not available(toolchain, tmp_path_factory.mktemp("probe")):
        pytest.skip("the compiler's sanitizer libraries are not installed")
    return toolchain


def add(sweep: Sweep, case: Case, machine: Machine | None = None) -> None:
    """Add a case at all of its sizes."""
    for sizes in case.sizes:
        program = fk.parse(case.text, case.dtypes)
        run_sizes = {n: v for n, v in sizes.items() if n in program.sizes}
        if case.fixed:
            program, run_sizes = fix_sizes(program, run_sizes), {}
        inputs = {t.name: case.inputs[t.name] for t in program.inputs if t.name in case.inputs}
        source = source_of(program, auto=case.auto, exact=case.exact, machine=machine)
        sweep.add_source(source, run_sizes, inputs=inputs)


def test_kernels_of_all_kinds(sanitizers: Toolchain, tmp_path: Path) -> None:
    sweep = Sweep()
    for case in (*CASES, PAIRS, *(integer_case(d) for d in ("int8", "int32", "int64", "uint16"))):
        add(sweep, case)
    sweep.check(sanitizers, tmp_path)


def test_a_network(sanitizers: Toolchain, tmp_path: Path) -> None:
    check_network(conv_net(), sanitizers, tmp_path)


def check_network(proto: object, toolchain: Toolchain, folder: Path) -> None:
    """A network through its one entry point, and each of its kernels by itself."""
    model = fk.compile_onnx(proto)
    (graph,), (compiled,) = model.graphs, model.compiled
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.random(p.shape).astype(p.dtype.numpy) for p in model.inputs}
    outputs = model.run(inputs)
    batch = Batch()
    batch.add("fk_network", model.source)
    given = [Array(a.nbytes, a.itemsize, a.tobytes()) for a in inputs.values()]
    made = [Array(a.nbytes, a.itemsize, None, True) for a in outputs.values()]
    constants = [graph.constants[n] for n in sorted(graph.constants)]
    held = [Array(a.nbytes, a.itemsize, a.tobytes()) for a in constants]
    arena = Array(compiled.plan().memory.arena, 1, None, False, True)
    for threads in (1, 2):
        batch.runs.append(Run("fk_network", (), (*given, *made, *held, arena), threads))
    code, errors, data = batch.execute(toolchain, folder / "whole")
    assert code == 0, errors
    expected = b"".join(a.tobytes() for a in outputs.values())
    half = len(data) // 2
    got = np.frombuffer(data[:half], np.float32)
    np.testing.assert_allclose(got, np.frombuffer(expected, np.float32), rtol=1e-4, atol=1e-5)
    assert data[:half] == data[half:]  # however many threads there are
    sweep = Sweep()
    for digest in dict.fromkeys(n.program.digest for n in graph.nodes if isinstance(n, Call)):
        call = next(n for n in graph.nodes if isinstance(n, Call) and n.program.digest == digest)
        sweep.add(call.program, {})
    sweep.check(toolchain, folder / "each")


# --- that faults are found ---------------------------------------------------------------------


COPY = "def f(float32 A[N]) -> (Y) { Y[i] = A[i] }"


@pytest.mark.parametrize(
    ("text", "old", "new", "report"),
    [
        (COPY, "i < N", "i < N + 1", "heap-buffer-overflow"),
        (COPY, "i = 0", "i = -2", "heap-buffer-overflow"),
        ("def f(int32 A[N]) -> (Y) { Y[i] = A[i] << 3 }", "fk_shl_i32(A[i], 3)", "(A[i] << 35)",
         "shift exponent"),
        ("def f(int32 A[N]) -> (Y) { Y[i] = A[i] // 2 }", "fk_floordiv_i32(A[i], 2)",
         "(A[i] / (A[i] - A[i]))", "division by zero"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(
    sanitizers: Toolchain, tmp_path: Path, text: str, old: str, new: str, report: str
) -> None:
    source = generate(Schedule.of(fk.parse(text)))
    assert old in source.text, source.text
    sweep = Sweep()
    sweep.add_source(replace(source, text=source.text.replace(old, new)), {"N": 16}, (1,))
    with pytest.raises(AssertionError, match=report):
        sweep.check(sanitizers, tmp_path)


def test_a_wrong_result_is_found(sanitizers: Toolchain, tmp_path: Path) -> None:
    source = generate(Schedule.of(fk.parse(COPY)))
    sweep = Sweep()
    sweep.add_source(replace(source, text=source.text.replace("i = 0", "i = 1")), {"N": 16}, (1,))
    with pytest.raises(AssertionError, match="expected"):
        sweep.check(sanitizers, tmp_path)


# --- the long sweep ------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_kernels(sanitizers: Toolchain, tmp_path: Path) -> None:
    """All cases for three other processors and as written, all types and casts."""
    sweep = Sweep()
    for case in (*CASES, *MORE):
        add(sweep, case)
    sweep.check(sanitizers, tmp_path / "optimised", OPTIMISED)
    for number, machine in enumerate(MACHINES):
        sweep = Sweep()
        for case in (*CASES, *MORE):
            add(sweep, case, machine)
        sweep.check(sanitizers, tmp_path / str(number))
    sweep = Sweep()
    for case in (*CASES, *MORE):
        add(sweep, replace(case, auto=False))
    for case in MORE:
        add(sweep, case)
    for dtype in INTEGERS:
        add(sweep, integer_case(dtype))
    sweep.check(sanitizers, tmp_path / "written")
    sweep = Sweep()
    for source in DTYPES:
        for target in DTYPES:
            add(sweep, cast_case(source, target))
    sweep.check(sanitizers, tmp_path / "casts")


@pytest.mark.slow
def test_more_networks(sanitizers: Toolchain, tmp_path: Path) -> None:
    check_network(dense_net(), sanitizers, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_random_programs(sanitizers: Toolchain, tmp_path: Path, number: int) -> None:
    """Fifty random programs at a time."""
    sweep = Sweep()
    seed = 100_000 * (number + 1)
    while len(sweep.batch.symbols) < 50:
        seed += 1
        try:
            program = fk.parse(random_text(seed))
            sizes = small_sizes(program)
        except FarkasError:
            continue
        sweep.add(program, sizes, seed=seed)
    sweep.check(sanitizers, tmp_path)


def narrow_programs(form: Form, first: int) -> Sweep:
    """Forty random programs of 8-bit and 16-bit factors, in the instructions of a machine."""
    sweep, seed = Sweep(), first
    profile = Profile(smooth=True, contractions=True, narrow=True)
    while len(sweep.batch.symbols) < 40:
        seed += 1
        try:
            program = fk.parse(random_text(seed, profile))
        except FarkasError:
            continue
        rng = np.random.default_rng(seed)
        # With a small second cache, small products have the blocks of large ones.
        machine = replace(form.machine, l2=SMALL_CACHE) if seed % 3 == 0 else form.machine
        source = source_of(program, machine=machine)
        for sizes in choose_sizes(program, rng, 2):
            sweep.add_source(source, sizes, seed=seed)
    return sweep


@pytest.mark.slow
@pytest.mark.parametrize("form", runnable(), ids=lambda form: form.name)
def test_random_narrow_programs(sanitizers: Toolchain, tmp_path: Path, form: Form) -> None:
    narrow_programs(form, 700_000).check(sanitizers, tmp_path, (*QUICK, *form.flags))


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(ARM_COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {ARM_COMPILER} and {EMULATOR}",
)
@pytest.mark.parametrize("first", [700_000, 710_000, 720_000])
def test_random_narrow_programs_on_arm(toolchain: Toolchain, tmp_path: Path, first: int) -> None:
    """Compiled for ARM and emulated."""
    compiler, emulator = shutil.which(ARM_COMPILER), shutil.which(EMULATOR)
    assert compiler is not None and emulator is not None
    general = tuple(
        f for f in toolchain.flags if not f.startswith(("-march", "-mtune", "-mprefer"))
    )
    arm = replace(toolchain, path=compiler, arguments=(), flags=(*general, *ARM_FLAGS))
    (form,) = (f for f in FORMS if f.name == "ARM")
    sweep = narrow_programs(form, first)
    sweep.check(arm, tmp_path, ("-O2", "-static", "-w"), (emulator,))
