"""Instructions that are wrong, each with words of its witness."""

from __future__ import annotations

from dataclasses import dataclass

DOT = (
    "def dot(uint8 A[16,4], int8 B[16,4], int32 C[16]) -> (C) {"
    " C[j] += int32(A[j,k]) * int32(B[j,k]) }"
)
ADD = "def add(float32 x[16], float32 y[16]) -> (float32 z[16]) { z[i] = x[i] + y[i] }"
ADD_8 = "def add(float32 x[8], float32 y[8]) -> (float32 z[8]) { z[i] = x[i] + y[i] }"
COPY = "def copy(float32 x[16]) -> (float32 z[16]) { z[i] = x[i] }"
FMA = "def fma(float32 x[16], float32 y[16], float32 z[16]) -> (z) { z[i] += x[i] * y[i] }"
X, Y, Z = (f"_mm512_loadu_ps({{{t}}})" for t in "xyz")
A, B, C = (f"_mm512_loadu_si512({{{t}}})" for t in "ABC")


def stored(value: str) -> str:
    return f"_mm512_storeu_ps({{z}}, {value});"


def summed(value: str) -> str:
    return f"_mm512_storeu_si512({{C}}, {value});"


@dataclass(frozen=True)
class Wrong:
    """expected : words of the reason"""

    meaning: str
    template: str
    expected: str
    feature: str = "avx512f"
    reorders: bool = False
    setup: str = ""


_PAIRS = f"_mm512_madd_epi16(_mm512_maddubs_epi16({A}, {B}), _mm512_set1_epi16(1))"
WRONG = {
    "swapped lanes": Wrong(
        ADD, stored(f"_mm512_permute_ps(_mm512_add_ps({X}, {Y}), 0xb1)"),
        "z[0] is 104, expected 102",
    ),
    "one lane further": Wrong(
        COPY,
        stored(f"_mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512({X}), "
               f"_mm512_castps_si512({X}), 1))"),
        "z[0] is 2, expected 1",
    ),
    "pairs saturate": Wrong(
        DOT, summed(f"_mm512_add_epi32({C}, {_PAIRS})"), "A[0, 0] = 255, B[0, 0] = 127",
        "avx512bw",
    ),
    "sums saturate": Wrong(
        DOT, summed(f"_mm512_dpbusds_epi32({C}, {A}, {B})"), "C[0] is 2147483647", "avx512_vnni"
    ),
    "signs exchanged": Wrong(
        DOT, summed(f"_mm512_dpbusd_epi32({C}, {B}, {A})"), "C[6] is 13621, expected 6453",
        "avx512_vnni",
    ),
    "signs ignored": Wrong(
        "def most(int8 x[64], int8 y[64]) -> (int8 z[64]) { z[i] = max(x[i], y[i]) }",
        "_mm512_storeu_si512({z}, _mm512_max_epu8(_mm512_loadu_si512({x}), "
        "_mm512_loadu_si512({y})));",
        "z[27] is -128, expected 28", "avx512bw",
    ),
    "forgets to accumulate": Wrong(FMA, stored(f"_mm512_mul_ps({X}, {Y})"), "z[0] is 101"),
    "a subtraction": Wrong(ADD, stored(f"_mm512_sub_ps({X}, {Y})"), "z[0] is -100, expected 102"),
    "one lane only": Wrong(COPY, "*{z} = *{x};", "z[1] is 102, expected 2"),
    "half of the lanes": Wrong(
        COPY, "_mm256_storeu_ps({z}, _mm256_loadu_ps({x}));", "z[8] is 109, expected 9"
    ),
    "reads after the end": Wrong(
        ADD_8,
        "volatile float after = {x}[8]; (void)after; "
        "_mm256_storeu_ps({z}, _mm256_add_ps(_mm256_loadu_ps({x}), _mm256_loadu_ps({y})));",
        "accesses x after its last element",
    ),
    "reads before the beginning": Wrong(
        COPY, "volatile float before = {x}[-1]; (void)before; " + stored(X),
        "accesses x before its first element",
    ),
    "writes after the end": Wrong(
        ADD_8,
        "_mm512_storeu_ps({z}, _mm512_castps256_ps512(_mm256_add_ps(_mm256_loadu_ps({x}), "
        "_mm256_loadu_ps({y}))));",
        "accesses z after its last element",
    ),
    "writes to an operand": Wrong(
        COPY, stored(X) + " *(float *){x} = 7;", "it writes to x, and only z may change"
    ),
    "does not compile": Wrong(COPY, stored("_mm512_load_everything({x})"), "does not compile"),
    "a type that there is not": Wrong(COPY, "mm512 v; {z}[0] = {x}[0];", "does not compile"),
    "a trap": Wrong(COPY, stored(X) + " __builtin_trap();", "SIGILL"),
    "a division by zero": Wrong(
        "def ratio(int32 x[4], int32 y[4]) -> (int32 z[4]) { z[i] = x[i] / y[i] }",
        "for (int i = 0; i < 4; i++) {z}[i] = {x}[i] / {y}[i];", "SIGFPE",
    ),
    "needs alignment": Wrong(COPY, "_mm512_store_ps({z}, _mm512_load_ps({x}));", "SIGSEGV"),
    "flushes subnormals": Wrong(
        COPY,
        "__m512 v = " + X + "; __mmask16 m = _mm512_cmp_ps_mask(_mm512_abs_ps(v), "
        "_mm512_set1_ps(0x1p-126f), _CMP_NLT_UQ); " + stored("_mm512_maskz_mov_ps(m, v)"),
        "z[0] is 0, expected -0",
    ),
    "rounds once": Wrong(FMA, stored(f"_mm512_fmadd_ps({X}, {Y}, {Z})"), "expected"),
    "rounds upwards": Wrong(
        ADD,
        stored(f"_mm512_add_round_ps({X}, {Y}, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)"),
        "z[0] is",
    ),
    "too few digits": Wrong(
        "def ratio(float32 x[16], float32 y[16]) -> (float32 z[16]) { z[i] = x[i] / y[i] }",
        stored(f"_mm512_mul_ps({X}, _mm512_rcp14_ps({Y}))"), "expected", reorders=True,
    ),
    "overflows": Wrong(
        "def twice(int32 x[4]) -> (int32 z[4]) { z[i] = x[i] * 2 }",
        "for (int i = 0; i < 4; i++) {z}[i] = (int)((unsigned)({x}[i] << 33) >> 32);", "z[0] is",
    ),
    "shifts too far": Wrong(
        "def none(int32 x[4]) -> (int32 z[4]) { z[i] = x[i] }",
        "volatile int far = 32; volatile int y = {x}[0] << far; (void)y; "
        "memcpy({z}, {x}, sizeof(int[4]));", "shift exponent 32",
    ),
    "drops a term": Wrong(
        "def total(float32 x[4], float32 z[]) -> (z) { z[] += x[i] }",
        "*{z} += {x}[0] + {x}[1] + {x}[2];", "x[3] = 4", reorders=True,
    ),
    "loses NaN": Wrong(
        "def relu(float32 x[16]) -> (float32 z[16]) { z[i] = max(x[i], 0.0) }",
        stored(f"_mm512_max_ps({X}, _mm512_setzero_ps())"), "x[0] = nan",
    ),
    "loses the sign of zero": Wrong(
        "def minus(float32 x[16]) -> (float32 z[16]) { z[i] = -x[i] }",
        stored(f"_mm512_sub_ps(_mm512_setzero_ps(), {X})"), "z[1] is 0, expected -0",
    ),
    "truncates": Wrong(
        "def near(float32 x[16]) -> (float32 z[16]) { z[i] = floor(x[i]) }",
        stored(f"_mm512_roundscale_ps({X}, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)"), "expected -",
    ),
    "has no end": Wrong(COPY, stored(X) + ' for (;;) __asm__ volatile("");', "does not end"),
    "ends the program": Wrong(COPY, stored(X) + " _exit(0);", "it ended the program",
                              setup="#include <unistd.h>"),
    "remembers": Wrong(
        COPY, stored(X) + " calls++; if (calls > 1000) {z}[3] = 0;", "z[3] is 0",
        setup="static int calls;",
    ),
    "an array on the stack": Wrong(
        COPY, "float t[64]; for (int n = 0; n < 64; n++) t[n] = n; volatile int n = 64; "
        "volatile float past = t[n]; (void)past; " + stored(X),
        "index 64 out of bounds",
    ),
    "undefined": Wrong(
        "def left(int32 x[4], int32 y[4]) -> (int32 z[4]) { z[i] = x[i] << (y[i] & 31) }",
        "for (int i = 0; i < 4; i++) {z}[i] = {x}[i] << {y}[i];", "y[0] = 101",
    ),
}  # fmt: skip
