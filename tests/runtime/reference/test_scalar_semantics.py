"""Every operator on edge cases, against results written down or computed another way."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poly.ir.dtypes import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    DType,
)
from poly.ir.expr import Cast, Const, Expr, dtype_of_expr, is_weak
from poly.ir.operators import OPS
from runtime.reference.evaluate import evaluate
from tests.runtime.programs import elementwise, i, op, read

NAN, INF = math.nan, math.inf


def apply(value: Expr, dtype: DType, out: DType | None = None, **arrays: Any) -> Any:
    """The values of an expression over arrays ``A``, ``B``, … of one dtype."""
    given = {n: np.asarray(v).astype(dtype.numpy) for n, v in arrays.items()}
    return evaluate(elementwise(value, dtype, *given, out=out), given)["Y"]


def binary(fn: str, dtype: DType, a: Any, b: Any, out: DType | None = None) -> list[Any]:
    values = apply(op(fn, read("A", i), read("B", i)), dtype, out, A=a, B=b)
    return values.tolist()  # type: ignore[no-any-return]


def unary(fn: str, dtype: DType, a: Any, out: DType | None = None) -> Any:
    return apply(op(fn, read("A", i)), dtype, out, A=a)


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def wrap(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


PYTHON = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": truncated,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "fmod": lambda a, b: a - b * truncated(a, b) if b else 0,
    "shl": lambda a, b: a << b if 0 <= b < 8 else 0,
    "shr": lambda a, b: a >> b if 0 <= b < 8 else (-1 if a < 0 else 0),
    "min": min,
    "max": max,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("fn", sorted(PYTHON))
def test_int8_operators_on_all_pairs(fn: str) -> None:
    values = np.arange(-128, 128)
    a, b = np.repeat(values, 256), np.tile(values, 256)
    got = binary(fn, INT8, a, b)
    assert got == [wrap(PYTHON[fn](x, y), 8) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", [INT16, INT32, INT64])
def test_the_least_integer_by_minus_one(dtype: DType) -> None:
    least = int(np.iinfo(dtype.numpy).min)
    assert binary("div", dtype, [least, 7], [-1, 0]) == [least, 0]
    assert binary("floordiv", dtype, [least, 7], [-1, 0]) == [least, 0]
    assert binary("mod", dtype, [least, 7], [-1, 0]) == [0, 0]
    assert binary("fmod", dtype, [least, 7], [-1, 0]) == [0, 0]
    assert unary("abs", dtype, [least]).tolist() == [least]
    assert unary("neg", dtype, [least]).tolist() == [least]


def test_unsigned_operators() -> None:
    assert binary("sub", UINT8, [3, 0], [5, 1]) == [254, 255]
    assert binary("div", UINT8, [200, 7], [3, 0]) == [66, 0]
    assert binary("mod", UINT8, [200, 7], [3, 0]) == [2, 0]
    assert binary("shl", UINT8, [255, 1, 1], [1, 7, 8]) == [254, 128, 0]
    assert binary("shr", UINT8, [255, 255], [4, 200]) == [15, 0]
    assert unary("neg", UINT8, [1]).tolist() == [255]
    assert unary("bitnot", UINT8, [0]).tolist() == [255]
    assert unary("sign", UINT8, [0, 9]).tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, FLOAT16, BFLOAT16])
def test_max_and_min_propagate_nan(dtype: DType) -> None:
    a, b = [NAN, 1, NAN, 2, -INF], [1, NAN, NAN, 3, INF]
    assert repr(binary("max", dtype, a, b)) == repr([NAN, NAN, NAN, 3.0, INF])
    assert repr(binary("min", dtype, a, b)) == repr([NAN, NAN, NAN, 2.0, -INF])


def test_max_of_zeros_takes_the_second() -> None:
    assert str(binary("max", FLOAT32, [0.0, -0.0], [-0.0, 0.0])) == "[-0.0, 0.0]"
    assert str(binary("min", FLOAT32, [0.0, -0.0], [-0.0, 0.0])) == "[-0.0, 0.0]"


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_float_division(dtype: DType) -> None:
    a, b = [7, -7, 7, -7, 1, 0, 6], [2, 2, -2, -2, 0, 0, INF]
    assert repr(binary("div", dtype, a, b)) == repr([3.5, -3.5, -3.5, 3.5, INF, NAN, 0.0])
    assert repr(binary("floordiv", dtype, a, b)) == repr([3.0, -4.0, -4.0, 3.0, INF, NAN, 0.0])
    assert repr(binary("mod", dtype, a, b)) == repr([1.0, 1.0, -1.0, -1.0, NAN, NAN, 6.0])
    assert repr(binary("fmod", dtype, a, b)) == repr([1.0, -1.0, 1.0, -1.0, NAN, NAN, 6.0])


def test_rounding_functions() -> None:
    x = [0.5, 1.5, 2.5, -0.5, -1.5, 2.7, -2.7]
    assert unary("round", FLOAT32, x).tolist() == [0, 2, 2, 0, -2, 3, -3]
    assert unary("floor", FLOAT32, x).tolist() == [0, 1, 2, -1, -2, 2, -3]
    assert unary("ceil", FLOAT32, x).tolist() == [1, 2, 3, 0, -1, 3, -2]
    assert unary("trunc", FLOAT32, x).tolist() == [0, 1, 2, 0, -1, 2, -2]
    assert repr(unary("sign", FLOAT32, [-3, 0, 2, NAN]).tolist()) == repr([-1.0, 0.0, 1.0, NAN])


MATH = {
    "exp": math.exp, "log": math.log, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "asin": math.asin, "acos": math.acos, "atan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "asinh": math.asinh, "atanh": math.atanh,
    "erf": math.erf, "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "acosh": lambda x: math.acosh(x + 1),
}  # fmt: skip


@pytest.mark.parametrize("fn", sorted(MATH))
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64])
def test_functions(fn: str, dtype: DType) -> None:
    x = np.linspace(0.05, 0.95, 19).astype(dtype.numpy)
    arg = op("add", read("A", i), 1.0) if fn == "acosh" else read("A", i)
    got = apply(op(fn, arg), dtype, A=x)
    expected = np.array([MATH[fn](float(v)) for v in x])
    tolerance = {16: 1e-3, 32: 3e-7, 64: 1e-15}[dtype.bits]
    assert np.abs(got.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max() * 2


def test_every_operator_has_a_meaning() -> None:
    for fn, info in OPS.items():
        dtype = BOOL if info.rule == "logic" else INT32 if info.rule == "int" else FLOAT32
        args = [read("A", i)] * info.arity
        if info.rule == "select":
            args[0] = op("gt", read("A", i), 0.0)  # type: ignore[call-overload]
        value = op(fn, *args)
        out = dtype_of_expr(value, {"A": dtype})
        assert apply(value, dtype, out, A=[1, 0, 1]).dtype == out.numpy


def test_integers_become_float32_in_functions() -> None:
    got = unary("sqrt", INT32, [2, 4], FLOAT64)
    assert got.tolist() == [float(np.float32(math.sqrt(2))), 2.0]


# --- types ---------------------------------------------------------------------------------


def test_int8_sums_wrap_before_they_are_widened() -> None:
    assert binary("add", INT8, [100, -100], [100, -100], INT32) == [-56, 56]


def test_sixteen_bit_floats_are_rounded_once() -> None:
    # 1 + 2**-11 + 2**-22 is above the midpoint only if the sum is not rounded on the way.
    a, b = np.float16(1), np.float16(2**-11)
    value = op("add", op("add", read("A", i), read("B", i)), op("mul", read("B", i), read("B", i)))
    assert apply(value, FLOAT16, A=[a], B=[b]).tolist() == [1 + 2**-10]
    twice = Cast(FLOAT16, op("add", read("A", i), read("B", i)))
    value = op("add", twice, op("mul", read("B", i), read("B", i)))
    assert apply(value, FLOAT16, A=[a], B=[b]).tolist() == [1.0]


def test_float16_overflow_and_bfloat16() -> None:
    assert binary("mul", FLOAT16, [300], [300]) == [INF]
    # In float32 on the way, so a later division brings it back.
    value = op("div", op("mul", read("A", i), read("A", i)), read("A", i))
    assert apply(value, FLOAT16, A=[300]).tolist() == [300]
    got = apply(op("add", read("A", i), 1.0), BFLOAT16, A=[256.0])
    assert got.dtype == ml_dtypes.bfloat16 and float(got[0]) == 256.0  # ties to even


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (op("add", read("A", i), 0.1), FLOAT64, [1.1]),
        (op("add", read("A", i), 1), INT8, [2]),
        (op("add", read("A", i), 300), INT8, [45]),
        (op("mul", read("A", i), op("neg", 0.1)), FLOAT64, [-0.1]),
        (op("mul", read("A", i), op("div", 1, 2)), FLOAT32, [0.5]),
        (op("mul", read("A", i), op("div", 1, 2)), INT32, [0]),
        (Const(0.1), FLOAT64, [0.1]),
        (Const(2**40), INT64, [2**40]),
        (op("neg", 0.1), FLOAT64, [-0.1]),
        (Const(0.1, FLOAT32), FLOAT64, [float(np.float32(0.1))]),
        (Const(2.9), INT32, [2]),
        (Const(-1), UINT8, [255]),
        (Cast(FLOAT64, Const(0.1)), FLOAT64, [0.1]),
    ],
)
def test_weak_literals(value: Expr, dtype: DType, expected: list[Any]) -> None:
    assert apply(value, dtype, A=[1]).tolist() == expected


def test_what_is_weak() -> None:
    assert is_weak(op("add", 1, op("neg", 2))) and is_weak(op("sqrt", 2))
    assert is_weak(op("select", op("lt", i, 1), 1, 2))
    assert not is_weak(op("lt", 1, 2)) and not is_weak(op("add", 1, i))
    assert not is_weak(Const(1, INT8)) and not is_weak(Cast(INT8, Const(1)))


def test_indices_and_sizes_are_int64_numbers() -> None:
    from tests.runtime.programs import N

    value = op("add", op("mul", i, 2**40), N)
    assert apply(value, INT64, A=[0, 0, 0]).tolist() == [3, 2**40 + 3, 2**41 + 3]
    assert apply(op("mul", i, read("A", i)), FLOAT32, A=[1, 1.5]).tolist() == [0, 1.5]


def test_casts() -> None:
    for source in DTYPES.values():
        for target in DTYPES.values():
            got = apply(Cast(target, read("A", i)), source, target, A=[0, 1])
            assert got.dtype == target.numpy and got.astype(float).tolist() == [0, 1]
    assert apply(Cast(INT32, read("A", i)), FLOAT32, INT32, A=[2.9, -2.9]).tolist() == [2, -2]
    assert apply(Cast(INT8, read("A", i)), INT32, INT8, A=[300, -129]).tolist() == [44, 127]
    assert apply(Cast(BOOL, read("A", i)), FLOAT32, BOOL, A=[0, 0.1, NAN]).tolist() == [
        False,
        True,
        True,
    ]


def test_comparisons_and_logic() -> None:
    a, b = [1, 2, NAN], [1, 3, NAN]
    assert binary("eq", FLOAT32, a, b, BOOL) == [True, False, False]
    assert binary("ne", FLOAT32, a, b, BOOL) == [False, True, True]
    assert binary("le", FLOAT32, a, b, BOOL) == [True, True, False]
    assert binary("and", BOOL, [True, True], [True, False]) == [True, False]
    assert binary("or", BOOL, [False, True], [False, False]) == [False, True]
    assert unary("not", BOOL, [True, False]).tolist() == [False, True]
    assert unary("bitnot", BOOL, [True, False]).tolist() == [False, True]
    assert binary("max", BOOL, [True, False], [False, False]) == [True, False]
    assert unary("isnan", FLOAT32, [NAN, INF, 1], BOOL).tolist() == [True, False, False]
    assert unary("signbit", FLOAT32, [-NAN, -0.0, NAN, 0.0, -1], BOOL).tolist() == [
        True, True, False, False, True,
    ]  # fmt: skip
    assert unary("isinf", FLOAT32, [NAN, -INF, 1], BOOL).tolist() == [False, True, False]
    assert unary("isnan", INT32, [0], BOOL).tolist() == [False]
