"""Places that are computed from data are values: each operator wraps, divides and clamps as such.

What comes out of them is clamped, so no data whatsoever leads out of an array.
"""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk

TABLE = np.arange(1, 11, dtype=np.float32)
SMALL = np.array([1, 2, 127, -128, 3, 0, -1], np.int8)
WIDE = np.array([0, -1, 5, 9, 10, 2**31, 2**63 - 1, -(2**63)], np.int64)
OTHER = np.array([0, 0, 2, -1, -3, 7, -1, -1], np.int64)


@pytest.mark.parametrize("schedule", ["auto", "written"])
@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        ("at[i] + 1", "int8"), ("at[i] * 2", "int8"), ("-at[i]", "int8"), ("abs(at[i])", "int8"),
        ("at[i] * 2 + i", "int8"), ("int64(at[i]) * 2", "int8"), ("at[i] - 100 - 100", "int8"),
        ("at[i]", "int64"), ("at[i] + 1", "int64"), ("at[i] // d[i]", "int64"),
        ("at[i] % d[i]", "int64"), ("at[i] / d[i] + i", "int64"), ("fmod(at[i], d[i])", "int64"),
        ("at[i] >> 70", "int64"), ("at[i] << d[i]", "int64"), ("~at[i] & 7", "int64"),
        ("select(at[i] < 0, at[i] + N, at[i])", "int64"), ("max(at[i], d[i]) ^ 3", "int64"),
        ("int64(at[i] > 3)", "int64"), ("int8(at[i])", "int64"), ("min(at[i], i)", "int64"),
        ("int64(float32(at[i] % 7) * 1.5)", "int64"), ("int32(at[i]) * int32(d[i])", "int64"),
    ],
)  # fmt: skip
def test_a_place_is_computed_as_a_value(place: str, dtype: str, schedule: str) -> None:
    at = SMALL if dtype == "int8" else WIDE
    arrays = {"T": TABLE, "at": at, "d": OTHER[: len(at)].astype(dtype)}
    text = f"""def f(float32 T[V], {dtype} at[N], {dtype} d[N]) -> (Y, Z) {{
        Y[i] = T[{place}]
        Z[i] = d[i]
    }}"""
    kernel = fk.compile(text, schedule=schedule)
    expected = fk.evaluate(kernel.program, arrays)
    for got, want in zip(kernel(*arrays.values()), expected.values(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", ["cpu", "opencl", "cuda-emulator"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_the_largest_unsigned_places_are_the_last_element(dtype: str, target: str) -> None:
    most = int(np.iinfo(dtype).max)
    at = np.array([0, 9, 10, most // 2, most // 2 + 1, most], dtype)
    text = f"def f(float32 T[V], {dtype} at[N]) -> (Y) {{ Y[i] = T[at[i]] }}"
    kernel = fk.compile(text, target=target)
    wanted = TABLE[[0, 9, 9, 9, 9, 9]]
    np.testing.assert_array_equal(kernel(TABLE, at), wanted)
    np.testing.assert_array_equal(fk.evaluate(kernel.program, {"T": TABLE, "at": at})["Y"], wanted)


@pytest.mark.parametrize("schedule", ["auto", "written"])
def test_a_place_of_unsigned_numbers_is_computed_in_their_type(schedule: str) -> None:
    at = np.array([0, 1, 10, 2**63, 2**64 - 1], np.uint64)
    text = """def f(float32 T[V], uint64 at[N], int64 p[N]) -> (Y, Z) {
        Y[i] = T[at[i] - 1]
        Z[i] = T[uint64(p[i]) + 1]
    }"""
    kernel = fk.compile(text, schedule=schedule)
    got = kernel(TABLE, at, at.astype(np.int64))
    # 0 - 1 and 2**64 - 1 + 1 wrap around.
    for array, places in zip(got, ([9, 0, 9, 9, 9], [1, 2, 9, 9, 0]), strict=True):
        np.testing.assert_array_equal(array, TABLE[places])


@pytest.mark.parametrize("fixed", [False, True])
def test_a_place_inside_a_place(fixed: bool) -> None:
    text = "def f(float32 T[V], int64 p[M], int64 at[N]) -> (Y) { Y[i] = T[p[at[i] + 1] * 2] }"
    kernel = fk.compile(text, sizes={"V": 10, "M": 8, "N": 8} if fixed else None)
    p = np.array([3, -3, 2, 1, 99, 2**62, 0, 4])
    expected = fk.evaluate(kernel.program, {"T": TABLE, "p": p, "at": WIDE})["Y"]
    np.testing.assert_array_equal(kernel(TABLE, p, WIDE), expected)
