"""Buffers of a wider type than their tensor: printed, replayed, or refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ml_dtypes import bfloat16

import farkas as fk
from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from runtime.reference.evaluate import run

TEXT = """def f({t} A[33,47], {t} B[47,50]) -> (float32 C[33,50]) {{
    mm: C[i,j] +=! A[i,k] * B[k,j]
}}"""
SCRIPT = """tile mm: i, j by 4, 16
promote mm: j_o as B, local, 1, 0, float32
promote mm: i_o as A, local, float32"""
NUMPY = {"float16": np.float16, "bfloat16": bfloat16}


def of(text: str, script: str) -> Schedule:
    return Schedule.of(fk.parse(text)).replay(script)


@pytest.mark.parametrize("t", NUMPY)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("more", ["", "\nvectorize mm: j_i", "\nunroll mm: i_i"])
def test_values_stay_the_same(t: str, exact: bool, more: str) -> None:
    text = TEXT.format(t=t)
    schedule = of(text, SCRIPT + more)
    assert SCRIPT in str(schedule) and of(text, str(schedule)).tree == schedule.tree
    assert "local float32 B_p" in schedule.show
    rng = np.random.default_rng(0)
    values = {"A": rng.standard_normal((33, 47)), "B": rng.standard_normal((47, 50))}
    values = {name: v.astype(NUMPY[t]) for name, v in values.items()}
    kernel = fk.compile(text, schedule=SCRIPT + more, exact=exact)
    assert re.search(r"float A_p\[\d+\]\[\d+\]", str(kernel.source))
    wanted = run(fk.parse(text), values, {}).values["C"]
    made = kernel(**values)
    if exact:
        assert np.array_equal(made, wanted)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_by_method() -> None:
    schedule = Schedule.of(fk.parse(TEXT.format(t="float16"))).tile("mm", ["i", "j"], [4, 16])
    made = schedule.promote("mm", "j_o", "B", "local", [1, 0], dtype="float32")
    assert str(made).endswith("promote mm: j_o as B, local, 1, 0, float32")


@pytest.mark.parametrize(
    ("t", "step", "message"),
    [
        (
            "float16",
            "promote mm: i as A, local, float64",
            "float16 is computed in float32, not in ",
        ),
        (
            "bfloat16",
            "promote mm: i as A, local, float16",
            "is computed in float32, not in float16",
        ),
        ("float32", "promote mm: i as A, local, float32", "its copy is of float32, too"),
        ("int8", "promote mm: i as A, local, int32", "int8 is computed in int8"),
        ("float16", "promote mm: i as A, shared, float32", "only a `register` or `local` buffer"),
    ],
)
def test_refused(t: str, step: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        of(TEXT.format(t=t), step)


def test_refused_where_it_is_written() -> None:
    text = "def f(float16 X[8,8], float16 Y[8]) -> (Y) { s: Y[i] += X[i,j] }"
    with pytest.raises(ScheduleError, match="s writes it below, and what it writes would not be"):
        of(text, "promote s: i as Y, local, float32")
    assert of(text, "promote s: i as X, register, float32")
