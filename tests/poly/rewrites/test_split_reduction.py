"""Long sums in parts: the same results, and loops that blocks can share."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.ir.program import Program
from poly.rewrites import split_reduction as partial_sums
from poly.rewrites.split_reduction import share_reductions, split_reductions
from runtime.reference.evaluate import run
from tests.differential.generate import random_text
from tests.differential.harness import choose_sizes, make_inputs
from tests.differential.sweep import profile_of


@pytest.fixture
def everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LONG", 4), ("SHORTEST", 1), ("CHUNK", 4)):
        monkeypatch.setattr(partial_sums, name, value)


def parts_of(text: str) -> Program:
    return split_reductions(fk.parse(text), 64)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[] +=! X[i] }",
         "Y_parts[i_part] +=! X[32768 * i_step + 256 * i_part + i_near]"),
        ("def f(float32 X[N,100]) -> (Y) { Y[j] +=! X[i, j] }",
         "Y_parts[i_part, j] +=! X[128 * i_step + i_part, j]"),
        ("def f(float32 X[65536], float32 Z[65536]) -> (Y) { Y[] max=! X[i] * Z[65535 - i] }",
         "Y_parts[i_part] max=! X[4096 * i_step + 256 * i_part + i_near] * "),
        ("def f(float32 X[4,N,7]) -> (Y) { Y[i] *=! X[i, j, k] }",
         "Y_parts[j_part, i] *=! X[i, 32 * j_step + j_part, k]"),
    ],
)  # fmt: skip
def test_what_becomes_of_sums(text: str, parts: str) -> None:
    made = parts_of(text)
    assert parts in str(made) and len(made.statements) == 2
    assert "_parts" in str(made.statements[1].value)


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 X[N,M]) -> (Y) { Y[i] +=! X[i,j] }",  # as many results as there may be rows
        "def f(float32 X[1000]) -> (Y) { Y[] +=! X[i] }",  # short
        "def f(float32 X[4096,4096]) -> (Y) { Y[i] +=! X[i,j] }",  # a block for each row
        "def f(float32 X[N], float32 Y[1]) -> (Y) { Y[0] += X[i] * Y[0] }",  # one after the other
        "def f(float32 X[N], float32 Y[3]) -> (Y) { for t in 0:3 { Y[t] +=! X[i] } }",
        "def f(float32 X[0,N]) -> (Y) { Y[i] +=! X[i,j] }",
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    program = fk.parse(text)
    assert split_reductions(program, 64) is program


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[] +=! X[i] }", True),
        ("def f(int64 X[3000000,2]) -> (Y) { Y[j] +=! X[i,j] }", False),  # not adjacent along i
        ("def f(int64 X[2,3000000]) -> (Y) { Y[i] +=! X[i,j] }", True),
        ("def f(float32 X[100000]) -> (Y) { Y[] +=! X[i] }", False),  # one thread is fast enough
        ("def f(float32 X[40,N]) -> (Y) { Y[i] +=! X[i,j] }", False),  # threads share the rows
        ("def f(float32 X[M,N]) -> (Y) { Y[i] +=! X[i,j] }", False),
        ("def f(float32 X[N]) -> (Y) { S[] +=! X[i]; Y[i] = X[i] / S[] }", False),  # may be short
        ("def f(float32 X[9000000]) -> (Y) { S[] +=! X[i]; Y[i] = X[i] / S[] }", True),
        ("def f(float16 X[N]) -> (Y) { Y[] +=! X[i] }", False),
    ],
)
def test_what_threads_of_a_cpu_share(text: str, parts: bool) -> None:
    program = fk.parse(text)
    made = share_reductions(program)
    assert ("_parts[" in str(made)) == parts == (made is not program)


@pytest.mark.parametrize("size", [1, 1023, 1024, 65_537, 300_001])
def test_sums_in_parts_are_the_same_for_any_number_of_threads(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size, np.float32)
    found = [fk.compile("Y[] +=! X[i] * X[i]", threads=n)(x) for n in (1, 2, 3)]
    assert len({float(y) for y in found}) == 1
    np.testing.assert_allclose(found[0], np.sum(x.astype(np.float64) ** 2), rtol=2e-6)


@pytest.mark.usefixtures("everything_is_long")
def test_random_programs_compute_the_same() -> None:
    changed = 0
    for seed in range(300):
        try:
            program = fk.parse(random_text(seed, profile_of(seed)))
        except fk.LanguageError:
            continue
        made = split_reductions(program, 8)
        if made is program or not all(t.dtype.is_integer for t in program.tensors.values()):
            continue
        changed += 1
        for sizes in choose_sizes(program, np.random.default_rng(seed), 2):
            inputs = make_inputs(program, sizes, seed)
            expected, found = (run(p, inputs, sizes).values for p in (program, made))
            for t in program.outputs:
                np.testing.assert_array_equal(found[t.name], expected[t.name], str(made))
    assert changed > 5


@pytest.mark.parametrize("n", [3, 4, 255, 256, 300, 70_001])
@pytest.mark.parametrize(
    "text",
    [
        "def f(int64 X[N]) -> (Y) { Y[] +=! X[i] }",
        "def f(int64 X[N]) -> (Y) { Y[] max=! X[i] where i in 3:N }",
        "def f(int64 X[N,3], int64 Y[3]) -> (Y) { Y[j] += X[i,j] }",
    ],
)
def test_on_a_device(text: str, n: int) -> None:
    program = fk.parse(text)
    kernel = fk.compile(text, target="cuda-emulator")
    assert "_parts" in str(kernel.schedule)
    shape = (n, 3) if "X[N,3]" in text else (n,)
    arrays = {"X": np.random.default_rng(n).integers(-(10**9), 10**9, shape)}
    if "int64 Y" in text:
        arrays["Y"] = np.arange(3)
    (expected,) = fk.evaluate(program, arrays).values()
    np.testing.assert_array_equal(kernel(**arrays), expected)
