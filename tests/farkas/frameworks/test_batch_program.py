"""Programs for a batch compute for each member what the program computes for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import farkas as fk
from farkas.frameworks.batch_program import batch_program, batched_tensors

TEXTS = {
    "product": "def f(float32 A[I,K], float32 x[K]) -> (y) { y[i] +=! A[i,k] * x[k] }",
    "update": "def f(float32 C[I,J], float32 A[I,J]) -> (C) { C[i,j] += 2.0 * A[i,j] }",
    "temporary": """def f(float32 X[I,J], float32 w[J]) -> (Y) {
        float32 m[I]
        float32 c[J]
        m[i] max=! X[i,j]
        c[j] = w[j] * w[j]
        Y[i,j] = (X[i,j] - m[i]) * c[j]
    }""",
    "gather": "def f(float32 X[I], int64 n[J]) -> (Y) { Y[j] = X[max(0, min(n[j], I-1))] }",
    "steps": """def f(float32 X[I,J]) -> (Y) {
        Y[i,0] = X[i,0]
        for j in 1:J {
            Y[i,j] = 0.5 * Y[i,j-1] + X[i,j]
        }
    }""",
}
SIZES = {"I": 3, "J": 4, "K": 5}


def draw(tensor: object, random: np.random.Generator, count: int | None) -> np.ndarray:
    shape = tuple(SIZES[str(e)] for e in tensor.shape)  # type: ignore[attr-defined]
    shape = shape if count is None else (count, *shape)
    if tensor.dtype.is_integer:  # type: ignore[attr-defined]
        return random.integers(0, 3, shape)
    return random.random(shape, np.float32)


@pytest.mark.parametrize("name", TEXTS)
def test_members_of_a_batch(name: str) -> None:
    program = fk.parse(TEXTS[name])
    one = fk.compile(TEXTS[name])
    random = np.random.default_rng(0)
    names = [t.name for t in program.inputs]
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(names, n) for n in range(1, len(names) + 1)
    ):
        tensors = batched_tensors(program, chosen)
        whole = fk.compile(str(batch_program(program, tensors)))
        given = [draw(t, random, 2 if t.name in tensors else None) for t in program.inputs]
        found = whole(*given)
        for member in range(2):
            own = [a[member] if n in tensors else a for n, a in zip(names, given, strict=True)]
            np.testing.assert_allclose(found[member], one(*own), rtol=1e-5)


def test_what_differs_in_a_batch() -> None:
    program = fk.parse(TEXTS["temporary"])
    assert batched_tensors(program, ["w"]) == {"w", "c", "Y"}
    assert batched_tensors(program, ["X"]) == {"X", "m", "Y"}
    assert batched_tensors(fk.parse(TEXTS["update"]), ["A"]) == {"A", "C"}
    text = str(batch_program(program, {"w", "c", "Y"}))
    assert "float32 w[Batch,J]" in text and "float32 m[I]" in text
    assert fk.parse(text) == fk.parse(str(fk.parse(text)))
