"""Updates that are written where data says: in order, and in parallel only where it is proved."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk

ROWS = "def f({0} X[N,D], {1} I[N], {0} Y[V,D]) -> (Z) {{ Z[v,d] = Y[v,d]\nZ[I[n],d] {2} X[n,d] }}"


def arrays(dtype: str, index: str, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    low = 0 if index.startswith("u") else -3
    places = rng.integers(low, 9, 40).astype(index)  # some are out of range, most come twice
    values = rng.integers(-3, 4, (40, 37)).astype(dtype)
    return {"X": values, "I": places, "Y": rng.integers(-3, 4, (6, 37)).astype(dtype)}


@pytest.mark.parametrize("op", ["+=", "*=", "max=", "min="])
@pytest.mark.parametrize(
    ("dtype", "index"),
    [("float32", "int64"), ("float64", "int8"), ("int32", "uint8"), ("float16", "uint64")],
)
def test_rows(op: str, dtype: str, index: str) -> None:
    kernel = fk.compile(ROWS.format(dtype, index, op))
    given = arrays(dtype, index)
    (expected,) = fk.evaluate(kernel.program, given).values()
    for threads in (1, 2):
        np.testing.assert_array_equal(kernel(**given, threads=threads), expected)


def test_every_dimension() -> None:
    text = (
        "def f(float32 X[N,M], int32 I[N], int32 J[N,M]) -> (float32 Z[5,4]) {\n"
        "Z[a,b] = 1\nZ[I[n],J[n,m]] += X[n,m] }"
    )
    rng = np.random.default_rng(0)
    given = {
        "X": rng.standard_normal((30, 7)).astype(np.float32),
        "I": rng.integers(-1, 6, 30).astype(np.int32),
        "J": rng.integers(-1, 5, (30, 7)).astype(np.int32),
    }
    expected = np.ones((5, 4))
    for n in range(30):
        for m in range(7):
            i, j = np.clip(given["I"][n], 0, 4), np.clip(given["J"][n, m], 0, 3)
            expected[i, j] += given["X"][n, m]
    np.testing.assert_allclose(fk.compile(text)(**given), expected, rtol=1e-5)
    np.testing.assert_allclose(fk.evaluate(fk.parse(text), given)["Z"], expected, rtol=1e-5)


def test_histogram() -> None:
    text = "def f(int64 I[N]) -> (int64 H[10]) { H[k] = 0\nH[I[n]] += 1 }"
    places = np.random.default_rng(0).integers(0, 10, 1000)
    np.testing.assert_array_equal(fk.compile(text)(places), np.bincount(places, minlength=10))


def test_what_meets_is_not_run_in_parallel() -> None:
    program = fk.parse(ROWS.format("float32", "int64", "+="))
    written = fk.Schedule.of(program)
    with pytest.raises(fk.IllegalScheduleError, match="parallelize S1: n"):
        written.parallelize("S1", "n")
    with pytest.raises(fk.IllegalScheduleError, match="vectorize S1: n"):
        written.vectorize("S1", "n", 8)
    # Columns do not meet.
    written.interchange("S1", "n", "d").parallelize("S1", "d")
    written.vectorize("S1", "d", 8)


def test_elements_that_data_chooses_are_not_promoted() -> None:
    program = fk.parse(ROWS.format("float32", "int64", "+="), sizes={"V": 6, "D": 37})
    with pytest.raises(fk.ScheduleError, match="S1 writes it at an index that depends on data"):
        fk.Schedule.of(program).promote("S1", "n", "Z", "local")


def test_columns_run_in_parallel() -> None:
    kernel = fk.compile(ROWS.format("float32", "int64", "+="), sizes={"D": 4096, "N": 4096})
    assert "parallel" in str(kernel.schedule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(float32 X[N], int32 I[N]) -> (Z) { Z[I[i]] += X[i] }", "declare the shape of Z"),
        (
            "def f(float32 X[N], int32 I[N]) -> (float32 Z[4]) { Z[I[i]] += X[i] }",
            "is read before it is written",
        ),
        (
            "def f(float32 X[N], int32 I[N], float32 Z[M]) -> (Z) { Z[I[i]] += X[i] * Z[i] }",
            "Z is written where data says, and read",
        ),
        (
            "def f(float32 X[N], int32 I[N], float32 Z[M]) -> (Z) { Z[I[i]] = X[i] }",
            "where '=' writes cannot depend on data",
        ),
        (
            "def f(float32 X[N], float32 I[N], float32 Z[M]) -> (Z) { Z[I[i]] += X[i] }",
            "I",
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(fk.LanguageError, match=message):
        fk.parse(text)


@pytest.mark.parametrize(("loop", "schedule"), [("5:6", None), ("0:8", "unroll S1: i")])
def test_an_index_in_a_place_is_of_64_bits(loop: str, schedule: str | None) -> None:
    """Also where the loop is a number in code: 8 bits would wrap."""
    kernel = fk.compile(
        "def f(int8 I[8], float32 X[8]) -> (float32 Z[600]) { Z[k] = 0\n"
        f"Z[I[i]*i] += X[i] where i in {loop} }}",
        schedule=schedule,
    )
    given = {"I": np.full(8, 100, np.int8), "X": np.ones(8, np.float32)}
    np.testing.assert_array_equal(kernel(*given.values()), fk.evaluate(kernel.program, given)["Z"])


@pytest.mark.parametrize("factor", ["3/2", "1/3 * 6"])
def test_numbers_in_a_place_of_floats(factor: str) -> None:
    place = f"int64(F[n] * ({factor}))"
    text = f"def f(float32 X[64,32], float32 F[8]) -> (Y) {{ Y[n,d] = X[{place}, d] }}"
    kernel = fk.compile(text)
    rows = np.repeat(np.arange(64, dtype=np.float32)[:, None], 32, 1)
    given = {"X": rows, "F": np.full(8, 2, np.float32)}
    np.testing.assert_array_equal(kernel(*given.values()), fk.evaluate(kernel.program, given)["Y"])
