"""Schedules whose loops would compute with numbers beyond 64 bits are refused."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from codegen.loops.check_index_width import NUMBERS_OF_HOST, check_index_width
from codegen.loops.nodes import For, LoopNode, Store
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Op, Read, Size

COPY = "def f(float32 X[N,M]) -> (Y) { s: Y[i,j] = X[i,j] }"
TOO_LARGE = "the loops of this schedule may overflow 64-bit index arithmetic: .*beyond 64 bits"
FAR = 2**30


@pytest.mark.parametrize(
    "script",
    [
        f"skew s: j, i by {FAR}\nskew s: i, j by {FAR}",
        f"split s: i by {FAR}\nsplit s: i_o by {FAR}\nsplit s: i_o_o by {FAR}",
        f"skew s: i, j by {FAR}",
    ],
)
def test_steps_whose_numbers_multiply(script: str) -> None:
    schedule = fk.Schedule.of(fk.parse(COPY)).replay(script)  # no order is broken
    with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
        fk.compile(COPY, schedule=schedule)
    for dialect in ("cuda", "opencl"):
        with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
            generate_gpu(schedule, dialect)


@pytest.mark.parametrize(
    "script",
    [
        f"split s: i by {FAR}\nsplit s: i_o by {FAR}",
        f"skew s: j, i by {2**20}",
        f"shift s: i by {FAR}\nreverse s: j",
    ],
)
def test_large_numbers_that_fit(script: str) -> None:
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    assert np.array_equal(fk.compile(COPY, schedule=script)(x), x)


def loops(upper: Expr, place: Expr, value: Expr | None = None) -> LoopNode:
    value = Read("X", (place,)) if value is None else value
    return For("i", Const(0), upper, 1, Store(Read("Y", (Const(0),)), "=", value, FLOAT32, "s"))


LOOP, N = Index("i"), Size("N")


def times(factor: int, e: Expr) -> Expr:
    return Op("mul", (Const(factor), e))


#: With a size of the program, N.
OPEN = fk.parse("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }")


def test_places_of_loops() -> None:
    check_index_width(loops(Const(8), times(2**60, LOOP)), OPEN)
    with pytest.raises(fk.ScheduleError, match=r"i can reach 2\*\*63, .*; use smaller factors"):
        check_index_width(loops(Const(9), times(2**60, LOOP)), OPEN)
    check_index_width(loops(N, times(2**24, LOOP)), OPEN)
    with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
        check_index_width(loops(N, times(2**26, LOOP)), OPEN)
    with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
        check_index_width(loops(times(2**26, N), LOOP), OPEN)
    less = fk.parse("def f(float32 X[N]) -> (Y) where N <= 1000 { Y[i] = X[i] }")
    check_index_width(loops(times(2**26, N), LOOP), less)


def test_values_wrap_around_as_they_should() -> None:
    check_index_width(loops(N, LOOP, times(2**62, times(2**62, LOOP))), OPEN)


def test_numbers_of_the_host() -> None:
    with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
        check_index_width(loops(Const(8), times(2**13, Size("t"))), OPEN, ["t"])
    check_index_width(loops(Const(8), times(2**12, Size("t"))), OPEN, ["t"])
    host = loops(times(2**13, N), LOOP)
    check_index_width(host, OPEN)
    with pytest.raises(fk.ScheduleError, match=TOO_LARGE):
        check_index_width(host, OPEN, loops=NUMBERS_OF_HOST)
