"""Unrolling loops and fixing sizes are no licence to compute something else."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk

FLOATS = np.array([1e-8, 0.1, np.inf, np.nan, 3], np.float32)
BYTES = np.array([1, 2, 3, -100, 127], np.int8)
INTS = np.full(5, 2**31 - 1, np.int32)


@pytest.mark.parametrize("sizes", [None, {"N": 5}])
@pytest.mark.parametrize("schedule", ["written", "unroll S0: i", "auto"])
@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("def f(float32 X[N]) -> (Y) { Y[i] = (X[i] + 1) + 16777216 where i in 0:5 }", FLOATS),
        ("def f(float32 X[N]) -> (Y) { Y[i] = X[i] * 0 + (X[i] - X[i]) where i in 0:5 }", FLOATS),
        ("def f(float32 X[N]) -> (Y) { Y[i] = min(X[i], X[i] * 1) where i in 0:5 }", FLOATS),
        ("def f(int8 X[N]) -> (Y) { Y[i] = X[i] + 100 + 100 where i in 0:5 }", BYTES),
        ("def f(int8 X[N]) -> (Y) { Y[i] = X[i] * i where i in 0:5 }", BYTES),
        ("def f(int8 X[N]) -> (Y) { Y[i] = X[i] * i + i * 0.1 + N * 0.3 where i in 0:5 }", BYTES),
        ("def f(int32 X[N]) -> (int64 Y[N]) { Y[i] = X[i] + N }", INTS),
        ("def f(float64 X[N]) -> (Y) { Y[i] = X[i] + i * 0.1 where i in 0:5 }", FLOATS.astype("d")),
        ("def f(int8 X[N]) -> (Y) { Y[i] = X[X[i] * i + N] where i in 0:5 }", BYTES),
    ],
)  # fmt: skip
def test_the_value_stays(
    text: str, x: np.ndarray, schedule: str, sizes: dict[str, int] | None
) -> None:
    expected = fk.evaluate(fk.parse(text), {"X": x})["Y"]
    if schedule.startswith("unroll") and "where" not in text and sizes is None:
        schedule = "written"  # unrolling needs a number of iterations
    found = fk.compile(text, exact=True, schedule=schedule, sizes=sizes)(x)
    np.testing.assert_array_equal(found, expected)
