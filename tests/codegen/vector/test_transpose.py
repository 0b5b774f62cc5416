"""Matrices turned around in registers: whole ones, parts of them, and operands beside them."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from codegen.loops.nodes import If, LoopNode, Store, Transposed, VectorStore, block
from codegen.vector.transpose import transpose_stores
from frontends.language.parse_program import parse_program
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Index, Op, Read, Size
from poly.schedule.schedule import Schedule
from runtime.reference.evaluate import evaluate
from tests.codegen.loops.interpret import value_of

RNG = np.random.default_rng(0)


def turned(text: str, script: str, dtypes: str | None = None) -> fk.Kernel:
    """The kernel, of which some matrix is turned."""
    kernel = fk.compile(text, schedule=script, dtypes=dtypes)
    assert "fk_transpose_" in kernel.source
    return kernel


@pytest.mark.parametrize("rows", [4, 7, 14, 16, 17, 33])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint64"])
def test_columns_are_stored(rows: int, dtype: str) -> None:
    text = f"def f({dtype} A[{rows},32]) -> (Y) {{ Y[j,i] = A[i,j] }}"
    kernel = turned(text, "interchange S0: j, i\nvectorize S0: j")
    a = RNG.integers(0, 100, (rows, 32)).astype(dtype)
    np.testing.assert_array_equal(kernel(a), a.T)


@pytest.mark.parametrize("rows", [4, 7, 14, 16, 17, 33])
def test_columns_are_loaded(rows: int) -> None:
    text = f"def f(float32 A[32,{rows}]) -> (Y) {{ Y[i,j] = A[j,i] }}"
    kernel = turned(text, "vectorize S0: j")
    a = RNG.standard_normal((32, rows)).astype(np.float32)
    np.testing.assert_array_equal(kernel(a), a.T)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16", "float16"])
@pytest.mark.parametrize("shape", [(64, 48), (16, 16), (37, 50), (9, 100)])
def test_narrow_elements(dtype: str, shape: tuple[int, int]) -> None:
    """Automatically, in matrices of vectors of 16 bytes."""
    kernel = fk.compile(f"def f({dtype} A[{shape[0]},{shape[1]}]) -> (Y) {{ Y[j,i] = A[i,j] }}")
    if min(shape) >= 16:
        assert "fk_transpose_" in kernel.source
    a = RNG.integers(0, 100, shape).astype(dtype)
    np.testing.assert_array_equal(kernel(a), a.T)


@pytest.mark.parametrize("columns", [16, 20, 32])
def test_sums_are_narrowed_before_they_are_transposed(columns: int) -> None:
    """Channels in lanes, stored to an image for each channel."""
    text = f"""def f(uint8 X[14,32], int8 W[{columns},32]) -> (int8 Y[{columns},14]) {{
        int32 S[{columns},14]
        S[k,p] +=! int32(X[p,c]) * int32(W[k,c]) where k in 0:{columns}, p in 0:14, c in 0:32
        Y[k,p] = int8(min(max(S[k,p] // 256, -128), 127)) where k in 0:{columns}, p in 0:14 }}"""
    x, w = RNG.integers(0, 256, (14, 32)), RNG.integers(-128, 128, (columns, 32))
    expected = np.clip((w @ x.T) // 256, -128, 127).astype(np.int8)
    kernel = fk.compile(text)
    np.testing.assert_array_equal(kernel(x.astype(np.uint8), w.astype(np.int8)), expected)


def test_any_number_of_rows() -> None:
    kernel = fk.compile("def f(float32 A[N,64]) -> (Y) { Y[i,j] = A[i,j] where i in 0:N }")
    for n in (0, 1, 5, 16, 40):
        a = RNG.standard_normal((n, 64)).astype(np.float32)
        np.testing.assert_array_equal(kernel(a), a)


def test_numbers_of_loops_keep_their_type() -> None:
    """The one block of rows has i = 0 … 15 as literals, and i is an int64 all the same."""
    kernel = turned(
        "def f(int8 A[16,32]) -> (int32 Y[32,16]) { Y[j,i] = int32(A[i,j] + i * 100) }",
        "interchange S0: j, i\nvectorize S0: j",
    )
    a = RNG.integers(-128, 127, (16, 32)).astype(np.int8)
    np.testing.assert_array_equal(kernel(a), (a.astype(np.int64) + 100 * np.arange(16)[:, None]).T)


def test_fewer_rows_are_moved_lane_by_lane() -> None:
    kernel = fk.compile(
        "def f(float32 A[3,32]) -> (Y) { Y[j,i] = A[i,j] }",
        schedule="interchange S0: j, i\nvectorize S0: j",
    )
    assert "fk_transpose_" not in kernel.source
    a = RNG.standard_normal((3, 32)).astype(np.float32)
    np.testing.assert_array_equal(kernel(a), a.T)


def test_the_epilogue_of_a_convolution() -> None:
    """A residual is read as results are written: its columns are turned into rows first."""
    text = """def f(float32 X[1,64,7,7], float32 W[32,64], float32 R[1,32,7,7]) -> (Y) {
        float32 T[1,32,7,7]
        T[n,k,p,q] +=! X[n,c,p,q] * W[k,c]
        Y[n,k,p,q] = max(T[n,k,p,q] + R[n,k,p,q], 0)
    }"""
    kernel = fk.compile(text)
    # Two vectors of T and of R, and the panel of W.
    assert kernel.source.count("fk_transpose_f32x16(fk_lanes") == 5
    assert "__asm__" in kernel.source  # accumulators leave the registers first
    given = {
        "X": RNG.integers(-3, 4, (1, 64, 7, 7)).astype(np.float32),
        "W": RNG.integers(-3, 4, (32, 64)).astype(np.float32),
        "R": RNG.integers(-3, 4, (1, 32, 7, 7)).astype(np.float32),
    }
    np.testing.assert_array_equal(kernel(**given), evaluate(kernel.program, given)["Y"])


def test_what_reads_its_own_target_is_not_moved() -> None:
    """Y[j, i] reads another element of Y: the stores stay in their order."""
    text = """def f(float32 A[16,32], float32 Y[33,16]) -> (Y) {
        Y[j,i] = A[i,j] + Y[j+1,i] where i in 0:16, j in 0:32
    }"""
    schedule = Schedule.of(fk.parse(text))
    assert "fk_transpose_" not in generate(schedule).text


@pytest.mark.parametrize("rows", [1, 3, 5, 8, 15, 16, 17, 33])
def test_all_rows_take_part_where_some_lanes_do(rows: int) -> None:
    """Lanes of the vector along i are the columns of a matrix; how many there are is not how many
    rows along j it has.
    """
    text = """def f(float32 A[N,M,K], float32 B[M,24,K]) -> (float32 Y[N,24]) {
        Y[i,j] +=! A[i,k,m] * B[k,j,m] where i in 0:N, j in 0:24, k in 0:M, m in 0:K
    }"""
    a = RNG.integers(-3, 4, (rows, 2, 5)).astype(np.float32)
    b = RNG.integers(-3, 4, (2, 24, 5)).astype(np.float32)
    np.testing.assert_array_equal(fk.compile(text)(a, b), np.einsum("ikm,kjm->ij", a, b))


@pytest.mark.parametrize("always", [0, 1, 4])
def test_rows_that_always_exist_precede_those_of_a_count(always: int) -> None:
    """Even where the count is less than their number: from a loop before, say."""
    lane = Index("l")

    def row(number: int) -> VectorStore:
        store = Store(
            Read("Y", (lane, Const(number))), "=", Read("A", (Const(number), lane)), FLOAT32, "S"
        )
        return VectorStore(store, "l", 8)

    rows: list[LoopNode] = [row(k) for k in range(always)]
    rows += [If(Op("lt", (Const(k), Size("M"))), row(k)) for k in range(always, 8)]
    program = parse_program("def f(float32 A[8,8]) -> (Y) { Y[j,i] = A[i,j] }")
    made = transpose_stores(block(rows), program)
    assert isinstance(made, Transposed) and len(made.rows) == 8 and made.count is not None
    for size in (0, 1, 3, 4, 5, 8, 20):
        exists = always + max(0, min(size, 8) - always)
        assert value_of(made.count, {}, {"M": size}) == exists, size
