"""Kernels on a CUDA device, where there is one: what NVIDIA's compiler makes of them, run.

Everything else in this folder checks the same text without a card.
"""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.errors import ToolchainError
from runtime.common.cache import Cache
from runtime.find_device import find_device
from runtime.gpu.device import Device
from runtime.reference.evaluate import run
from tests.gpu.random_programs import NEEDS_CARD, judge

INTEGERS = [f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)]
#: Lanes of integers, where compilers look for one instruction: of `A`, `B` and `C` each.
EXPRESSIONS = (
    "min(A[i], min(B[i], -C[i]))",
    "max(-A[i], max(B[i], C[i]))",
    "max(abs(A[i]), 20)",
    "min(abs(A[i]), abs(B[i])) - abs(C[i])",
    "max(min(A[i] * B[i], -C[i]), -B[i])",
    "max(A[i] + B[i], max(0, C[i] - A[i]))",
    "select(A[i] < -B[i], A[i], -B[i])",
    "select(A[i] < 7 - B[i], C[i], 7 - B[i])",
    "select(C[i] < select(A[i] < -B[i], A[i], -B[i]), C[i], select(A[i] < -B[i], A[i], -B[i]))",
    "select(C[i] + B[i] < A[i] * B[i], C[i], A[i] - B[i])",
)


@pytest.fixture
def card(cache: Cache) -> Device:
    try:
        return find_device("cuda", cache)
    except ToolchainError as error:
        pytest.skip(f"no CUDA device: {error}")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, card: Device) -> None:
    """Each expression as it is, and as the terms of a minimum."""
    limits, draw = np.iinfo(dtype), np.random.default_rng(0)
    inputs = {n: draw.integers(limits.min, limits.max, 5000, dtype, endpoint=True) for n in "ABC"}
    lines = [f"Y{n}[i] = {e}" for n, e in enumerate(EXPRESSIONS)]
    lines += [f"Z{n}[i % 50] min=! {e} where i in 0:N" for n, e in enumerate(EXPRESSIONS)]
    names = [f"{letter}{n}" for letter in "YZ" for n in range(len(EXPRESSIONS))]
    operands = ", ".join(f"{dtype} {n}[N]" for n in inputs)
    text = f"def f({operands}) -> ({', '.join(names)}) {{ {'; '.join(lines)} }}"
    found = fk.compile(text, target=card.name, exact=True)(**inputs)
    expected = run(fk.parse(text), inputs, {"N": 5000}).values
    for name, got in zip(names, found, strict=True):
        np.testing.assert_array_equal(got, expected[name], name)


@pytest.mark.parametrize("first", [0, 180, 790])
def test_random_programs(first: int, card: Device) -> None:
    """Two of these once came out wrong, see `codegen.gpu.integer_helpers`."""
    said = judge(range(first, first + 10), [NEEDS_CARD])
    assert set(said) <= {"equal", "refused"}, said
