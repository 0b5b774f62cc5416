"""Programs and schedules that once were compiled wrongly, made as small as they would go."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from frontends.language.parse_program import parse_program
from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from runtime.common.cache import Cache
from runtime.cpu.loaded_kernel import load_kernel
from runtime.cpu.toolchain import Toolchain
from tests.differential.harness import (
    Case,
    Tally,
    choose_sizes,
    default_variant,
    make_variant,
    run_batch,
)

#: What was wrong, the program, and the script.
FOUND: list[tuple[str, str, str]] = [
    (
        "operators over literals were computed in float32 and int32",
        """def f() -> (float64 Y[4], float64 Z[], int64 W[], float64 V[]) {
            Y[0] = -0.1
            Y[1] = 1 / 3
            Y[2] = sqrt(2)
            Y[3] = float64(0.1 + 0.2)
            Z[] = 1e300 * 1e300
            W[] = 0x10000000000 * 3
            V[] = select(1 < 2, 0.1, 1)
        }""",
        "",
    ),
    (
        "a literal of a 16-bit float type was not rounded",
        """def f(float32 X[N]) -> (Y) {
            Y[i] = X[i] * float16(0.1) + bfloat16(0.1)
        }""",
        "",
    ),
    (
        "gcc warned of a comparison with itself, and then of an argument that nobody uses",
        """def f(int32 A[N], int32 B[N]) -> (Y) {
            Y[i] = select(i <= i, 1, 2) + select(A[i] == A[i], B[i], 0)
        }""",
        "",
    ),
    (
        "gcc warned of ~ on a condition",
        "def f(bool A[N]) -> (int32 Y[N]) { Y[i] = ~int32(A[i]) }",
        "",
    ),
    (
        "one read that was fed inside hid another one that was not",
        "def f(float32 U[4,2]) -> (U) { U[i,j] *= U[i,j//2] where i in 0:4, j in 0:2 }",
        "promote S0: i as U, local",
    ),
    (
        "a guarded buffer looked uninitialised to gcc",
        """def f(uint64 U[], uint64 A[M,3*M], uint64 B[N]) -> (U, Y) {
            Y[i] = B[i]
            U[] max= 7 - A[i, 3*i] where i in 0:M
        }""",
        "fuse S0, S1: i\nshift S1: i by 2\npromote S1: i as A, local",
    ),
    (
        "a promoted temporary that nobody reads was set but not used",
        """def f(float16 A[]) -> (Y) {
            T[i,j] = A[] where i in 0:3, j in 0:5
            Y[] = A[]
        }""",
        "promote S0: j as T, register",
    ),
    (
        "what fed such a temporary was set but not used",
        """def f(int16 A[N,M], float32 B[]) -> (Y) {
            T[i] +=! A[i,j]
            Y[] = B[]
        }""",
        "promote S0: j as A, register\npromote S0: i as T, local",
    ),
    (
        "remainders in conditions could not be decided when loops were unrolled",
        """def f(int32 A[16]) -> (int32 Y[16]) {
            Y[i] = int32(i) where i in 0:16, i % 3 != 1
            Y[i] = A[i] where i in 0:16, i % 3 == 1
        }""",
        "unroll S0: i by 16\nfuse S0, S1: i_o\ndistribute S0: i_o\nisolate S0: i_o",
    ),
    (
        "one element was promoted by a copy without loops",
        "def f(float32 A[N], float32 U[]) -> (U) { U[] += A[i] }",
        "split S0: i by 4\npromote S0: i_o as U, register",
    ),
    (
        "tiles that did not run were written back, beside isolated ones",
        """def f(float64 A[17]) -> (float64 Y[N,33]) {
            Y[i,j] +=! A[k] where i in 0:N
        }""",
        """fuse S0_init, S0: i, j
            split S0: j by 16
            split S0: i by 2
            reorder S0: j_o, i_o, i_i, j_i
            distribute S0: i_i
            promote S0: i_o as Y, register
            vectorize S0_init: j_i by 8
            unroll S0_init: i_i
            isolate S0: i_o""",
    ),
    (
        "a loop of its own for what comes first: its buffer was never written back",
        "def f[N](int16 A[N,2]) -> (int16 Y[]) { Y[] min=! A[i, 0] where i in 0:N }",
        """reschedule
            promote S0_init: i as Y, register
            shift S0: i by 1
            unroll S0: i by 3""",
    ),
    (
        "of two buffers of one tensor, the inner one was made the outer",
        """def f[N](float32 A[14], float32 U[7], float32 V[7]) -> (U, V) {
            U[6 - i] += A[6] * A[i % 14] + A[(i + i)//2] where i in 0:7, i + i < 7
            V[i] += 1 where i in 0:7, 0 <= i + i - 1 < 7
        }""",
        """split S0: i by 16
            promote S0: i_o as A, register
            fuse S0, S1: i_o
            promote S0: i_o as A, register""",
    ),
    (
        "compilers warn of a comparison that overflow alone could make false",
        "def f(float32 A[16]) -> (float32 Y[16]) { Y[i] = select(i + 1 > i, A[i], A[0]) }",
        "",
    ),
    (
        "compilers warn of literals that overflow",
        "def f(int64 A[16]) -> (Y) { Y[i] = min(A[i], int64(100) * (-4611686018427387904)) }",
        "",
    ),
    (
        "compilers warn of unsigned numbers compared with 0",
        """def f(uint64 A[16], uint16 B[16])
            -> (bool V[16], bool W[16], bool Y[16], bool Z[16], bool Y2[16], bool Z2[16]) {
            Y[i] = A[i] >= 0 where i in 0:16
            Z[i] = 0 > A[i] where i in 0:16
            V[i] = int64(B[i]) != -3 where i in 0:16
            W[i] = int8(B[i]) <= -3 where i in 0:16
            Y2[i] = B[i] <= 65535 where i in 0:16
            Z2[i] = ~B[i] <= B[15 - i] where i in 0:16
        }""",
        "",
    ),
    (
        "a buffer was filled outside the loop in whose first iteration it is read",
        """def f(float32 A[2], float32 U[2], uint16 B[2]) -> (U, float64 Y[2]) {
            U[i] *= -(A[i])
            Y[i] = B[i] where i in 0:2
        }""",
        """tile S1: i by 16
            fuse S0, S1: i
            promote S1: i as B, register""",
    ),
    (
        "a buffer of a later iteration was put around an earlier one's",
        """def f(uint32 A[1,4]) -> (uint32 Y[2,1]) {
            Y[i, j] = A[j, 2*j + i] + A[j, i % 4] where i in 0:2, j in 0:1, i <= j
            Y[i, j] = A[0, 3] where i in 0:2, j in 0:1, i > j
        }""",
        """promote S1: j as A, local
            isolate S0: i
            promote S0: j as A, local
            reorder S1: i, j
            fuse S0, S1: i""",
    ),
    (
        "a buffer was put around a statement before it",
        """def f(float32 A[1]) -> (float32 Y[1]) {
            Y[i] +=! -(A[max(j - 1, 0)]) where i in 0:1, j in 0:1
        }""",
        """promote S0: j as Y, register
            promote S0: i as Y, register
            tile S0: j by 4
            fuse S0_init, S0: i
            promote S0_init: i as A, register""",
    ),
    (
        "lanes that lay in different registers were all read from the first",
        "def f(float32 A[16,4]) -> (float32 Y[4,16]) { Y[j,k] = A[k,j] * 0.5 }",
        """vectorize S0: k
            promote S0: j as A, register""",
    ),
    (
        "isl left out a statement without instances",
        """def f(float32 A[N,N]) -> (Y) {
            Y[i] max=! A[i,j] where i in 0:N, j in 0:N, i < j
            Y[i] = 3 where i in 0:N, i > i
        }""",
        "reschedule",
    ),
    (
        "a place that depended on data was read from all lanes of a register",
        "def f(uint8 A[64], int16 B[64]) -> (int16 Y[64]) { Y[l] = B[A[l]] }",
        """promote S0: l as A, register
            vectorize S0: l""",
    ),
    (
        "rows to transpose, of a number that is not known, were taken for new rows for ever",
        """def f(float64 A[8,12], float64 B[8,M,3]) -> (float64 Y[12,M]) {
            Y[i, j] +=! A[k, i + r - 1] * B[k, j, r]
              where i in 0:12, j in 0:M, k in 0:8, r in 0:3, 0 <= i + r - 1, i + r - 1 < 12
        }""",
        """split S0_init: i by 5
            reorder S0_init: j, i_o, i_i
            promote S0: j as A, local, 1, 0""",
    ),
    (
        "gcc took a truth value in two lanes of bytes for a number",
        """def f(uint8 A[2], int32 B[2]) -> (uint8 Y[2], int32 Z[2]) {
            Y[i] = sign(A[i])
            Z[i] = sign(B[i])
        }""",
        """vectorize S0: i
            vectorize S1: i""",
    ),
    (
        "the last lanes of a tile, stored along another dimension of a buffer around it",
        "def f(float32 A[40,19], float32 B[40,23]) -> (C) { C[i,j] +=! A[k,i] * B[k,j] }",
        """fuse S0_init, S0: i, j
            split S0: i by 32 as i_o, i_i
            split S0: j by 12 as j_o, j_i
            reorder S0: i_o, j_o, j_i, i_i
            distribute S0: j_i
            reorder S0: k, j_i, i_i
            promote S0: j_o as C, register, 1, 0
            vectorize S0_init: i_i by 16
            unroll S0_init: j_i
            vectorize S0: i_i by 16
            unroll S0: j_i
            promote S0: i_o as C, register""",
    ),
    (
        "lanes of a promoted operand, added to elements that are far apart",
        "def f(float32 A[23,8,13], float32 B[13]) -> (C) { C[i,j] +=! A[k,j,i] * B[i] }",
        """fuse S0_init, S0: i, j
            split S0: i by 8 as i_o, i_i
            split S0: j by 8 as j_o, j_i
            reorder S0: i_o, j_o, j_i, i_i
            distribute S0: j_i
            reorder S0: k, j_i, i_i
            vectorize S0: i_i by 8
            isolate S0: j_o
            promote S0: k as A, register""",
    ),
    (
        "stores of two statements to one tensor were transposed, one statement after the other",
        """def f(float32 A[71,16], float32 B[71,16]) -> (float32 Y[16,71]) {
            Y[j,i] = B[i,j] where j in 0:16, i in 1:71
            Y[j,i] = A[i,j] where j in 0:16, i in 0:70
        }""",
        """reorder S0: i, j
            reorder S1: i, j
            fuse S0, S1: i
            vectorize S0: j
            vectorize S1: j
            unroll S0: i""",
    ),
    (
        "a loop over every other element of a sum was said to be independent",
        """def f(int32 A[256], int32 Y[64]) -> (Y) {
            Y[i//4] += A[i] where i in 0:256, i % 2 == 0
        }""",
        "vectorize S0: i",
    ),
]


@pytest.mark.parametrize(("what", "text", "script"), FOUND, ids=[w[:50] for w, _, _ in FOUND])
def test_found(what: str, text: str, script: str, toolchain: Toolchain) -> None:
    program = parse_program(text, {})
    variants = []
    for exact in (True, False):
        make = make_variant if exact else default_variant
        schedule = Schedule.of(program, exact)
        variants.append(make(schedule, "written", 0))
        if script:
            variants.append(make(schedule.replay(script), "changed", 0))
    sizes = choose_sizes(program, np.random.default_rng(0), 4) * (1 if program.sizes else 4)
    runs = tuple((s, n) for n, s in enumerate(sizes))
    tally = Tally()
    run_batch([Case(0, text, program, tuple(variants), runs)], toolchain, tally, "-O2")
    assert not tally.failures, "\n\n".join(map(str, tally.failures))


def test_a_double_becomes_a_half_in_one_rounding(toolchain: Toolchain, cache: Cache) -> None:
    program = parse_program("def f(float64 X[N]) -> (float16 Y[N]) { Y[i] = X[i] }", {})
    kernel = load_kernel(generate(Schedule.of(program, True)), toolchain, cache)
    # Just above the middle of two halves: rounded to float first, it would be the middle.
    x = np.array([1 + 2**-11 + 2**-30, 1 + 2**-11 - 2**-30, 1 + 2**-11])
    assert kernel(x).tolist() == [1 + 2**-10, 1, 1]  # type: ignore[union-attr]


def test_a_buffer_that_isl_would_fill_apart_from_its_use_is_refused() -> None:
    program = parse_program(
        """def f(float32 A[4], float32 B[N]) -> (float32 Y[4], float32 Z[N]) {
            Y[k] = A[k] * 2 where k in 0:4
            Z[i] = B[i] + 1 where i in 0:N
        }""",
        {},
    )
    script = """vectorize S0: k by 16
        promote S0: k_o as Y, local
        shift S1: i by 5
        isolate S1: i
        reverse S1: i
        sink S1: i"""
    with pytest.raises(ScheduleError, match="Y_p cannot be generated: isl fills this buffer"):
        generate(Schedule.of(program).replay(script))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("columns", [3, 5, 12])
def test_the_masked_rest_of_a_sum_of_narrow_integers(dtype: str, columns: int) -> None:
    """gcc 12 ended with an internal error: it could not split a load that extends and masks."""
    kernel = fk.compile(
        f"def f({dtype} A[3,{columns}]) -> (int32 Y[3]) {{ Y[i] +=! int32(A[i,j]) }}"
    )
    given = np.random.default_rng(0).integers(0, 100, (3, columns)).astype(dtype)
    np.testing.assert_array_equal(kernel(given), given.sum(1, dtype=np.int32))
