"""The reference against loops and numpy written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poly.errors import ArgumentError, ProgramError
from poly.ir.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    DType,
)
from poly.ir.expr import Cast, Const
from runtime.reference import evaluate as reference
from runtime.reference.evaluate import evaluate, run
from runtime.reference.interpret import instances
from runtime.reference.verify import verify
from tests.runtime.programs import (
    C,
    H,
    K,
    M,
    N,
    R,
    S,
    W,
    c,
    i,
    j,
    k,
    matmul,
    op,
    p,
    program,
    q,
    r,
    read,
    s,
    scan,
    span,
    statement,
    tensor,
)

rng = np.random.default_rng(0)


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.uniform(-1, 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, FLOAT16, BFLOAT16])
def test_matmul_equals_the_loops_bit_for_bit(dtype: DType) -> None:
    a, b = random(4, 37, dtype=dtype.numpy), random(37, 5, dtype=dtype.numpy)
    compute = dtype.compute.numpy
    total = np.zeros((4, 5), dtype.numpy)
    for n in range(37):
        step = a[:, n : n + 1].astype(compute) * b[n : n + 1].astype(compute)
        total = (total.astype(compute) + step).astype(dtype.numpy)
    got = evaluate(matmul(dtype), {"A": a, "B": b})["C"]
    assert got.dtype == dtype.numpy and np.array_equal(got, total)


def test_long_sums_run_in_order() -> None:
    a, b = random(1, 5000), np.ones((5000, 1), np.float32)
    total = np.float32(0)
    for value in a[0]:
        total += value
    assert evaluate(matmul(), {"A": a, "B": b})["C"][0, 0] == total


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random(9, 50), random(50, 20)
    whole = evaluate(matmul(), {"A": a, "B": b})["C"]
    for chunk in (1, 200, 700):
        monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", chunk)
        assert np.array_equal(evaluate(matmul(), {"A": a, "B": b})["C"], whole)
    monkeypatch.setattr(reference, "_NARROW", 10**9)
    assert np.array_equal(evaluate(matmul(), {"A": a, "B": b})["C"], whole)


def test_integers_wrap() -> None:
    a = rng.integers(-128, 128, (3, 9)).astype(np.int8)
    b = rng.integers(-128, 128, (9, 4)).astype(np.int8)
    got = evaluate(matmul(INT8), {"A": a, "B": b})["C"]
    assert np.array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int8))
    wide = evaluate(matmul(INT8, INT32), {"A": a, "B": b})["C"]
    products = (a[:, :, None] * b[None]).astype(np.int64)  # each product wraps at int8
    assert np.array_equal(wide, products.sum(axis=1).astype(np.int32))


def convolution(stride: int = 1, pad: int = 1) -> Any:
    y = op("sub", op("add", op("mul", stride, p), r), pad)
    x = op("sub", op("add", op("mul", stride, q), s), pad)
    extent = [
        op("add", op("floordiv", op("sub", op("add", size, 2 * pad), kernel), stride), 1)
        for size, kernel in ((H, R), (W, S))
    ]
    guards = tuple(g for v, size in ((y, H), (x, W)) for g in (op("ge", v, 0), op("lt", v, size)))
    s0 = statement(
        "S",
        read("Y", i, k, p, q),
        "+=!",
        op("mul", read("X", i, c, y, x), read("F", k, c, r, s)),
        span(i=N, k=K, p=extent[0], q=extent[1], c=C, r=R, s=S),
        "crs",
        guards,
    )
    inputs = [tensor("X", N, C, H, W), tensor("F", K, C, R, S)]
    return program([s0], inputs, [tensor("Y", N, K, *extent)], sizes="NKCHWRS")


@pytest.mark.parametrize(("stride", "pad"), [(1, 0), (1, 1), (2, 1), (3, 2)])
def test_convolution(stride: int, pad: int) -> None:
    x, f = random(2, 3, 7, 6), random(4, 3, 3, 2)
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = (7 + 2 * pad - 3) // stride + 1, (6 + 2 * pad - 2) // stride + 1
    expected = np.zeros((2, 4, height, width))
    for a in range(height):
        for b in range(width):
            window = wide[:, :, a * stride : a * stride + 3, b * stride : b * stride + 2]
            expected[:, :, a, b] = np.einsum("ncrs,kcrs->nk", window, f)
    got = evaluate(convolution(stride, pad), {"X": x, "F": f})["Y"]
    assert got.shape == expected.shape and np.abs(got - expected).max() < 1e-5


@pytest.mark.parametrize("dtype", [FLOAT32, INT8, INT64, FLOAT16])
def test_max_pooling_with_padding(dtype: DType) -> None:
    at = op("sub", op("add", op("mul", 2, i), r), 1)
    guards = (op("ge", at, 0), op("lt", at, N))
    s0 = statement(
        "S", read("Y", i), "max=!", read("X", at), span(i=op("floordiv", N, 2), r=3), "r", guards
    )
    f = program(
        [s0],
        [tensor("X", N, dtype=dtype)],
        [tensor("Y", op("floordiv", N, 2), dtype=dtype)],
        sizes="N",
    )
    x = (rng.uniform(-100, 100, 11)).astype(dtype.numpy)
    expected = [max(x[max(2 * n - 1, 0) : 2 * n + 2].tolist()) for n in range(5)]
    assert evaluate(f, {"X": x})["Y"].tolist() == expected


def test_max_reduction_propagates_nan() -> None:
    s0 = statement("S", read("Y"), "max=!", read("X", i), span(i=N), "i")
    f = program([s0], [tensor("X", N)], [tensor("Y")], sizes="N")
    x = random(100)
    assert evaluate(f, {"X": x})["Y"] == x.max()
    x[50] = np.nan
    assert np.isnan(evaluate(f, {"X": x})["Y"])
    assert evaluate(f, {"X": x[:0]})["Y"] == -np.inf


def test_softmax() -> None:
    high = statement("A", read("T", i), "max=!", read("X", i, j), span(i=N, j=M), "j")
    e = op("exp", op("sub", read("X", i, j), read("T", i)))
    exps = statement("B", read("E", i, j), "=", e, span(i=N, j=M))
    sums = statement("D", read("Z", i), "+=!", read("E", i, j), span(i=N, j=M), "j")
    quotient = op("div", read("E", i, j), read("Z", i))
    last = statement("F", read("Y", i, j), "=", quotient, span(i=N, j=M))
    f = program(
        [high, exps, sums, last],
        [tensor("X", N, M)],
        [tensor("Y", N, M)],
        (tensor("T", N), tensor("E", N, M), tensor("Z", N)),
        "NM",
    )
    x = random(5, 9) * 20
    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = wide / wide.sum(axis=1, keepdims=True)
    assert np.abs(evaluate(f, {"X": x})["Y"] - expected).max() < 1e-6


def test_a_recurrence() -> None:
    h, v = random(7, 4), random(4, 4)
    before = h.copy()
    expected = h.copy()
    for t in range(6):
        for n in range(4):
            expected[t + 1] += expected[t, n] * v[n]
    assert np.array_equal(evaluate(scan(), {"H": h, "V": v})["H"], expected)
    assert np.array_equal(h, before)


def test_an_inner_recurrence_falls_back_to_single_instances() -> None:
    value = op("add", read("Y", op("sub", i, 1)), read("X", i))
    first = statement("A", read("Y", 0), "=", read("X", 0), ())
    sums = statement("B", read("Y", i), "=", value, span(i=(1, N)))
    f = program([first, sums], [tensor("X", N)], [tensor("Y", N)], sizes="N")
    x = random(50)
    assert np.array_equal(evaluate(f, {"X": x})["Y"], np.add.accumulate(x))


def test_a_statement_that_reads_its_own_element() -> None:
    y = tensor("Y", N)
    double = statement("S", read("Y", i), "=", op("mul", read("Y", i), 2.0), span(i=N))
    x = random(5)
    assert np.array_equal(evaluate(program([double], [y], [y], sizes="N"), {"Y": x})["Y"], x * 2)
    grow = statement("S", read("Y", i), "+=", read("Y", i), span(i=N, k=3), "k")
    assert np.array_equal(evaluate(program([grow], [y], [y], sizes="N"), {"Y": x})["Y"], x * 8)


def test_reversal_in_place_sees_what_was_written() -> None:
    y = tensor("Y", N)
    mirror = op("sub", op("sub", N, i), 1)
    s0 = statement("S", read("Y", i), "=", read("Y", mirror), span(i=N))
    got = evaluate(program([s0], [y], [y], sizes="N"), {"Y": np.arange(5, dtype=np.float32)})["Y"]
    assert got.tolist() == [4, 3, 2, 3, 4]


def test_several_instances_that_write_one_element() -> None:
    half = op("floordiv", i, 2)
    last = statement("S", read("Y", half), "=", read("X", i), span(i=N))
    y = tensor("Y", op("floordiv", op("add", N, 1), 2))
    f = program([last], [tensor("X", N)], [y], sizes="N")
    assert evaluate(f, {"X": np.arange(7, dtype=np.float32)})["Y"].tolist() == [1, 3, 5, 6]


def test_updates_of_one_element_keep_the_written_order() -> None:
    # Over i, then over k: the order of float additions decides the bits.
    s0 = statement("S", read("Y", op("mod", i, 3)), "+=!", read("X", i, k), span(i=N, k=K), "k")
    f = program([s0], [tensor("X", N, K)], [tensor("Y", 3)], sizes="NK")
    x = (random(20, 30) * 10.0 ** rng.integers(-4, 5, (20, 30))).astype(np.float32)
    expected = np.zeros(3, np.float32)
    for a in range(20):
        for b in range(30):
            expected[a % 3] += x[a, b]
    assert np.array_equal(evaluate(f, {"X": x})["Y"], expected)


def test_numbers_of_guards_have_64_bits() -> None:
    two = op("add", Const(2**31 - 1), Const(1))
    s0 = statement("S", read("Y", i), "=", 1.0, span(i=N), guards=(op("gt", two, Const(0)),))
    f = program([s0], [], [tensor("Y", N)], sizes="N")
    assert evaluate(f, {}, {"N": 3})["Y"].tolist() == [1, 1, 1]
    assert len(instances(f, {"N": 3})) == 3


def test_guards_restrict_the_initialisation_only_when_free() -> None:
    odd = op("eq", op("mod", i, 2), 1)
    never = op("lt", k, 0)
    y = tensor("Y", N)
    for guards, expected in [((odd,), [5, 3, 5, 3]), ((never,), [0, 0, 0, 0])]:
        s0 = statement("S", read("Y", i), "+=!", 1.0, span(i=N, k=3), "k", guards)
        start = np.full(4, 5, np.float32)
        got = evaluate(program([s0], [y], [y], sizes="N"), {"Y": start})["Y"]
        assert got.tolist() == expected


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("+=!", 0.0), ("*=!", 1.0), ("max=!", -np.inf), ("min=!", np.inf)],
)
def test_empty_reductions_give_the_identity(operator: str, expected: float) -> None:
    s0 = statement("S", read("Y", i), operator, read("X", i, k), span(i=N, k=K), "k")
    f = program([s0], [tensor("X", N, K)], [tensor("Y", N)], sizes="NK")
    assert evaluate(f, {"X": random(3, 0)})["Y"].tolist() == [expected] * 3
    assert evaluate(f, {"X": random(0, 3)})["Y"].shape == (0,)
    narrow = program(
        [s0], [tensor("X", N, K, dtype=INT8)], [tensor("Y", N, dtype=INT8)], sizes="NK"
    )
    limit = {"+=!": 0, "*=!": 1, "max=!": -128, "min=!": 127}[operator]
    got = evaluate(narrow, {"X": np.zeros((2, 0), np.int8)})["Y"]
    assert got.tolist() == [limit, limit]


def test_bool_reductions() -> None:
    for operator, fn in (("max=!", np.any), ("min=!", np.all)):
        s0 = statement("S", read("Y", i), operator, read("X", i, k), span(i=N, k=K), "k")
        f = program([s0], [tensor("X", N, K, dtype=BOOL)], [tensor("Y", N, dtype=BOOL)], sizes="NK")
        x = rng.integers(0, 2, (9, 3)).astype(bool)
        assert np.array_equal(evaluate(f, {"X": x})["Y"], fn(x, axis=1))


def test_data_dependent_reads_are_clamped() -> None:
    s0 = statement("S", read("Y", i, j), "=", read("X", read("I", i), j), span(i=N, j=M))
    inputs = [tensor("X", K, M), tensor("I", N, dtype=INT64)]
    f = program([s0], inputs, [tensor("Y", N, M)], sizes="NMK")
    x, at = random(4, 3), np.array([0, 3, 7, -2, 2**62, -(2**62)])
    expected = x[np.clip(at, 0, 3)]
    assert np.array_equal(evaluate(f, {"X": x, "I": at})["Y"], expected)
    with pytest.raises(ProgramError, match="leaves the range 0:0"):
        evaluate(f, {"X": random(0, 3), "I": at})


def test_reads_and_writes_out_of_range_are_errors() -> None:
    past = statement("S", read("Y", i), "=", read("X", op("add", i, 1)), span(i=N))
    f = program([past], [tensor("X", N)], [tensor("Y", N)], sizes="N")
    with pytest.raises(ProgramError, match=r"index i \+ 1 leaves the range 0:3"):
        evaluate(f, {"X": random(3)})
    guarded = statement(
        "S",
        read("Y", i),
        "=",
        read("X", op("add", i, 1)),
        span(i=N),
        guards=(op("lt", op("add", i, 1), N),),
    )
    g = program([guarded], [tensor("X", N)], [tensor("Y", N)], sizes="N")
    x = random(3)
    assert evaluate(g, {"X": x})["Y"].tolist() == [x[1], x[2], 0]
    assert run(g, {"X": x}).written["Y"].tolist() == [True, True, False]
    outside = statement("S", read("Y", op("sub", i, 1)), "=", 1.0, span(i=N))
    with pytest.raises(ProgramError, match=r"statement S: .* leaves the range"):
        evaluate(program([outside], [], [tensor("Y", N)], sizes="N"), {}, {"N": 2})


def test_wide_values_are_converted_at_the_store() -> None:
    value = op("mul", Cast(FLOAT64, read("X", i)), 0.1)
    s0 = statement("S", read("Y", i), "=", value, span(i=N))
    f = program([s0], [tensor("X", N)], [tensor("Y", N)], sizes="N")
    x = random(9)
    assert np.array_equal(evaluate(f, {"X": x})["Y"], (x.astype(np.float64) * 0.1).astype("f4"))


def test_inputs_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"B\.shape\[0\] is 4"):
        evaluate(matmul(), {"A": random(2, 3), "B": random(4, 2)})
    with pytest.raises(ProgramError, match="needs B"):
        evaluate(matmul(), {"A": random(2, 3)})


def test_scalars() -> None:
    s0 = statement("S", read("Y"), "=", op("add", read("X"), 1.0), ())
    f = program([s0], [tensor("X")], [tensor("Y")])
    got = evaluate(f, {"X": np.array(2, np.float32)})["Y"]
    assert got.shape == () and got == 3


@pytest.mark.parametrize("function", [evaluate, verify])
def test_what_is_no_program(function: Callable[..., object]) -> None:
    with pytest.raises(ArgumentError, match="is a str, expected a Program, as parse"):
        function("def f(float32 X[N]) -> (Y) { Y[i] = X[i] }", {})
