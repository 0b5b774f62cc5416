"""Loops in vector lanes: every operator and type, every number of iterations, reductions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from poly.errors import IllegalScheduleError
from poly.ir.dtypes import DTYPES
from poly.schedule.schedule import Schedule
from runtime.cpu.toolchain import Toolchain
from runtime.reference.evaluate import run
from tests.differential.harness import build, difference

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: Around the numbers of lanes and of chunks.
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 33, 49, 63, 64, 65, 100, 130, 200)


def lanes(text: str, script: str, dtypes: Any = None, **options: Any) -> fk.Kernel:
    return fk.compile(text, schedule=script, dtypes=dtypes, **options)


def every_loop(text: str, exact: bool = False) -> str:
    """A script that vectorises the innermost loop of every statement of a one-dimensional text."""
    program = fk.parse(text)
    schedule = Schedule.of(program, exact)
    return "\n".join(f"vectorize {s}: {schedule.loops(s)[-1]}" for s in schedule.statements)


def values(dtype: str, count: int, seed: int = 0) -> Array:
    """Numbers of all magnitudes, and those at which something changes."""
    rng = np.random.default_rng(seed)
    d = DTYPES[dtype]
    if d.is_float:
        special = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, np.inf, -np.inf, np.nan, 1e-42, 3.9, -3.9]
        x = rng.normal(size=count) * 10.0 ** rng.integers(-3, 4, count)
        some = rng.random(count) < 0.3
        x[some] = rng.choice(special, some.sum())
        with np.errstate(over="ignore"):
            return x.astype(d.numpy)
    info = np.iinfo(dtype)
    edges = [0, 1, info.max, info.min, 3, info.max // 2]
    return np.where(
        rng.random(count) < 0.3,
        rng.choice(np.array(edges, dtype), count),
        rng.integers(max(info.min, -9), 9, count).astype(dtype),
    ).astype(dtype)


def check(kernel: fk.Kernel, inputs: dict[str, Array], exact: bool = True) -> None:
    expected = run(kernel.program, inputs, {})
    got = kernel(**inputs)
    results = got if isinstance(got, tuple) else (got,)
    for t, result in zip(kernel.program.outputs, results, strict=True):
        want, written = expected.values[t.name], expected.written[t.name]
        if exact:
            assert not difference(t.name, result, want, written, None)
        else:
            np.testing.assert_allclose(
                result.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-30
            )


def test_comparisons_of_indices_that_wrap_around() -> None:
    text = "def f(float32 X[N]) -> (Y) { Y[i] = select(i + 9223372036854775807 > 0, X[i], 0) }"
    found = fk.compile(text)(np.ones(70, np.float32))
    assert isinstance(found, np.ndarray) and found.tolist() == [1.0] + [0.0] * 69


def test_floats_that_only_uint32_holds() -> None:
    """3e9 does not fit into int32."""
    text = "def f(float32 X[N]) -> (uint32 Y[N]) { Y[i] = uint32(X[i]) }"
    x = np.array([3e9, 2147483648.0, 4294967040.0, 0.0, 1.5, 2147483520.0] * 11, np.float32)
    for count in (1, 6, 66):
        np.testing.assert_array_equal(fk.compile(text)(x[:count]), x[:count].astype(np.uint32))


OPERATORS = """
    A[i] = X[i] + Y[i]
    B[i] = X[i] * Y[i] - 3
    C[i] = -X[i]
    D[i] = max(X[i], Y[i])
    E[i] = min(min(X[i], Y[i]), 7)
    F[i] = abs(X[i])
    G[i] = sign(X[i])
    H[i] = select(X[i] < Y[i] or not (X[i] == 1) and Y[i] >= 0, X[i], Y[i])
    J[i] = X[i] / Y[i]
    K[i] = select(B1[i] and X[i] != Y[i], Y[i], 1)
    L[i] = X[i] <= Y[i]
    M[i] = (X[i] > 2) == B1[i]
"""
REAL = """
    N[i] = floor(X[i]) + ceil(Y[i])
    O[i] = round(X[i])
    P[i] = trunc(X[i])
    Q[i] = sqrt(X[i])
    R[i] = rsqrt(X[i])
    S[i] = select(isnan(X[i]), 1, select(isinf(Y[i]), 2, select(signbit(Y[i]), 4, 3)))
    T[i] = X[i] // Y[i]
    U[i] = fmod(X[i], Y[i])
    V[i] = X[i] % Y[i]
"""
WHOLE = """
    N[i] = X[i] // Y[i]
    O[i] = X[i] % Y[i]
    P[i] = fmod(X[i], Y[i])
    Q[i] = X[i] << Y[i]
    R[i] = X[i] >> Y[i]
    S[i] = (X[i] & Y[i]) | (X[i] ^ ~Y[i])
"""


def operators(dtype: str) -> str:
    more = REAL if DTYPES[dtype].is_float else WHOLE
    names = ", ".join(n for n in "ABCDEFGHJKLMNOPQRSTUV" if f"{n}[i]" in OPERATORS + more)
    return f"def f({dtype} X[Z], {dtype} Y[Z], bool B1[Z]) -> ({names}) {{{OPERATORS}{more}}}"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_every_operator(dtype: str) -> None:
    """All operators that are exact, in lanes, equal the reference bit for bit."""
    text = operators(dtype)
    kernel = lanes(text, every_loop(text, True), exact=True)
    assert "_u *)&A[" in kernel.source
    for count in (67, 5):
        x, y = values(dtype, count), values(dtype, count, 1)
        with np.errstate(all="ignore"):
            check(kernel, {"X": x, "Y": y, "B1": np.arange(count) % 3 == 0})


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
def test_every_cast(source: str) -> None:
    names = [*FLOATS, *INTEGERS, "bool"]
    body = "\n".join(f"T{n}[i] = {t}(X[i])" for n, t in enumerate(names))
    outputs = ", ".join(f"T{n}" for n in range(len(names)))
    text = f"def f({source} X[Z]) -> ({outputs}) {{ {body} }}"
    kernel = lanes(text, every_loop(text))
    signed = DTYPES[source].is_float or source.startswith("i")
    x = np.array([0, 1, 2, 100, 7, 5, 127] * 5 + ([0] if source == "bool" else [3]))
    x = np.minimum(x, 1) if source == "bool" else x
    check(kernel, {"X": x.astype(DTYPES[source].numpy)})
    if signed:  # a negative number has no unsigned form
        keep = [n for n, t in enumerate(names) if not t.startswith("u")]
        body = "\n".join(f"T{n}[i] = {names[n]}(X[i])" for n in keep)
        outputs = ", ".join(f"T{n}" for n in keep)
        text = f"def g({source} X[Z]) -> ({outputs}) {{ {body} }}"
        check(lanes(text, every_loop(text)), {"X": (-x).astype(DTYPES[source].numpy)})


PLACES = """def f(float32 X[Z], float32 M[Z,3], int32 at[Z]) -> (A, B, C, D, E, F, G) {
    A[i] = X[2*i] where i in 0:Z//2
    B[i] = X[Z-1-i] where i in 0:Z
    C[i] = X[3*i+1] where i in 0:Z//3
    D[i] = M[i,1] + X[i]
    E[i] = X[at[i]] + X[i//2]
    F[i] = select(2*i < Z, X[i], float32(i) + X[i])
    G[i] = X[i+1] + X[i] where i in 0:Z-1
}"""


def test_places() -> None:
    """Elements that are no neighbours, places that depend on data, a loop's number as a value."""
    kernel = lanes(PLACES, every_loop(PLACES))
    for count in (5, 16, 40, 67, 100):
        rng = np.random.default_rng(count)
        x, m = rng.normal(size=count), rng.normal(size=(count, 3))
        at = rng.integers(-3, count + 3, count)
        check(
            kernel,
            {"X": x.astype(np.float32), "M": m.astype(np.float32), "at": at.astype(np.int32)},
        )


CHOICES = """def f(float32 X[Z], float64 V[Z])
    -> (A, int64 B[Z], float16 C[Z], D, bool E[Z], int16 F[Z], G)
{
    A[i] = select(i < 3, 0.0, -inf) + X[i]
    B[i] = select(i % 3 == 1, i, 7 - i)
    C[i] = float16(select(bool(i), 1.5, 0.25))
    D[i] = V[i] * select(2*i <= Z and not (i == 5), 1.0, select(i > 40, 0.5, 2.0))
    E[i] = select(i >= Z - 2, i % 2 == 0, true)
    F[i] = int16(select(i < 20, i, 0))
    G[i] = select(i < 9, float32(i), X[i])
}"""


@pytest.mark.parametrize("count", [1, 5, 16, 40, 67])
def test_choices_by_the_number_of_a_loop(count: int) -> None:
    """They are masks of lanes, whatever the type, and whatever stands in the arms."""
    kernel = lanes(CHOICES, every_loop(CHOICES))
    assert "&A[i] = (fk_select_f32x16((fk_i32x16)((fk_i32x16){0, 1, 2," in kernel.source
    draw = np.random.default_rng(count)
    x, v = draw.standard_normal((2, count))
    check(kernel, {"X": x.astype(np.float32), "V": v})


TAILS = """def f(float32 X[Z], float32 W[Z]) -> (A, B, W, S, P, T, L) {
    A[i] = X[i] * 2
    B[Z-1-i] = A[i] + 1
    W[i] += X[i]
    s: S[] +=! X[i]
    p: P[] *=! X[i]
    t: T[] max=! X[i]
    l: L[] min=! X[i]
}"""


def tails(script: str, sizes: dict[str, int] | None = None) -> fk.Kernel:
    return lanes(TAILS, script, sizes=sizes)


SCRIPT = """
    vectorize S0: i
    vectorize S1: i
    vectorize S2: i
    vectorize s: i
    vectorize p: i
    vectorize t: i
    vectorize l: i
"""


def check_tails(kernel: fk.Kernel, count: int) -> None:
    x = np.where(np.arange(count) % 2 == 0, 1.0, -1.0).astype(np.float32)
    x[count // 2 : count // 2 + 1] = 3
    w = np.arange(count, dtype=np.float32)
    check(kernel, {"X": x, "W": w})


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("times", [2, 3, 4, 8])
def test_elements_that_lanes_share(dtype: str, times: int) -> None:
    text = f"""def f({dtype} X[N], {dtype} Z[M,N]) -> (Y, A, B) {{
        Y[i] = X[i // {times}] where i in 0:{times}*N
        A[i] = X[(i + 1) // {times}] where i in 0:{times}*N - 1
        B[i,j] = Z[i // {times}, j // {times}] where i in 0:{times}*M, j in 0:{times}*N
    }}"""
    kernel = lanes(text, "vectorize S0: i\nvectorize S1: i\nvectorize S2: j")
    most = 64 // DTYPES[dtype].compute.bytes
    assert ("fk_spread" in kernel.source) == (times != 3 and most >= 2 * times)
    for n in (1, 2, 3, 7, 16, 25, 33):
        x = np.arange(n) % 3 == 1 if dtype == "bool" else values(dtype, n, n)
        check(kernel, {"X": x, "Z": np.stack([x, x[::-1]])})
    fixed = fk.compile(text, sizes={"N": 28, "M": 2})
    x = np.arange(28) % 5 == 1 if dtype == "bool" else values(dtype, 28)
    check(fixed, {"X": x, "Z": np.stack([x, x[::-1]])})


def test_rows_that_data_decides_are_read_as_vectors() -> None:
    """All lanes ask for the same row, at whatever place that is."""
    text = """
    def f(float32 X[9,40], int32 F[5,7], float32 V[5,7]) -> (A, B) {
        A[t,r] = select(X[F[t,0],r] <= V[t,0], X[F[t,1],r], X[F[t,2],39 - r])
            where t in 0:5, r in 0:37
        B[t,r] = X[F[t,r % 7],r] where t in 0:5, r in 0:37
    }
    """
    kernel = lanes(text, "vectorize S0: r\nvectorize S1: r")
    inputs = {
        "X": values("float32", 360).reshape(9, 40),
        "F": np.random.default_rng(0).integers(-2, 12, (5, 7)).astype(np.int32),
        "V": values("float32", 35, 1).reshape(5, 7),
    }
    check(kernel, inputs)
    one_by_one = [line for line in kernel.source.splitlines() if "r_lane++" in line]
    assert one_by_one and all("%" in line or "fk_mod" in line for line in one_by_one)


def test_every_number_of_iterations() -> None:
    """The number is known when the kernel runs."""
    kernel = tails(SCRIPT)
    for count in LENGTHS:
        check_tails(kernel, count)


def test_every_constant_number_of_iterations(toolchain: Toolchain) -> None:
    """The number is known when the kernel is compiled; there is no loop over single lanes."""
    for count in (1, 2, 3, 5, 7, 15, 16, 17, 49, 130):
        check_tails(tails(SCRIPT, {"Z": count}), count)


def test_short_loops_are_chunks() -> None:
    source = lanes("B[i] = A[i]", "vectorize S0: i", "float32", sizes={"I": 7}).source
    assert "fk_f32x4_u" in source and "for (" not in source


REDUCE = """def f({d} X[N,K]) -> (S, T, L) {{
    s: S[i] +=! X[i,k]
    t: T[i] max=! X[i,k]
    l: L[i] min=! X[i,k]
}}"""
BY_LANES = """
    fuse s_init, s: i
    fuse t_init, t: i
    fuse l_init, l: i
    vectorize s: k
    vectorize t: k
    vectorize l: k
    parallelize s: i
    parallelize t: i
    parallelize l: i
"""


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "uint16", "int64"])
def test_reductions(dtype: str) -> None:
    kernel = lanes(REDUCE.format(d=dtype), BY_LANES)
    for n, k in product((1, 3), LENGTHS):
        x = values(dtype, n * k).reshape(n, k)
        if DTYPES[dtype].is_float:
            x = np.sign(np.nan_to_num(x.astype(np.float64))).astype(x.dtype)
        check(kernel, {"X": x})


@pytest.mark.parametrize("at", [0, 1, 15, 16, 40, 66])
def test_nan_stays(at: int) -> None:
    """A maximum of anything and NaN is NaN, in whatever lane it is."""
    kernel = lanes(REDUCE.format(d="float32"), BY_LANES)
    for value in (np.nan, -np.nan):
        x = np.random.default_rng(0).normal(size=(2, 67)).astype(np.float32)
        x[0, at] = value
        s, t, low = kernel(x)
        assert np.isnan([s[0], t[0], low[0]]).all() and np.isfinite([s[1], t[1], low[1]]).all()


def test_the_number_of_threads_changes_nothing() -> None:
    kernel = lanes(REDUCE.format(d="float32"), BY_LANES)
    x = np.random.default_rng(0).normal(size=(13, 1001)).astype(np.float32)
    one = kernel(x, threads=1)
    for threads in (2, 3, 5):
        for a, b in zip(one, kernel(x, threads=threads), strict=True):
            assert a.tobytes() == b.tobytes()


def test_exact_mode_refuses_lanes_for_a_reduction() -> None:
    with pytest.raises(IllegalScheduleError, match="reduction through S"):
        lanes("S[i] +=! X[i,k]", "vectorize S0: k", "float32", exact=True)
    with pytest.raises(IllegalScheduleError):
        lanes("S[i] max=! X[i,k]", "split S0: k by 8\nvectorize S0: k_i", "float32", exact=True)


def test_what_conflicts_runs_one_by_one() -> None:
    """A histogram is a reduction, but no lane has an element of its own."""
    text = "def f(float32 X[Z], float32 Y[5]) -> (Y) { h: Y[i%5] += X[i] }"
    kernel = lanes(text, "vectorize h: i")
    x = np.arange(50, dtype=np.float32)
    check(kernel, {"X": x, "Y": np.zeros(5, np.float32)})
    assert "simd" not in kernel.source


def test_accumulators_stay_in_registers_around_two_loops() -> None:
    kernel = lanes(
        "def f(float32 X[C,H,W]) -> (Y) { Y[c] +=! X[c,h,w] }",
        "fuse S0_init, S0: c\nvectorize S0: w",
        sizes={"C": 3, "H": 5, "W": 21},
    )
    assert kernel.source.count("fk_sum_f32x16(Y_lanes") == 1
    x = np.ones((3, 5, 21), np.float32)
    assert kernel(x).tolist() == [105, 105, 105]


def test_nothing_is_added_where_no_instance_is() -> None:
    """Rows without elements are not touched, though the accumulators stand outside of a loop."""
    text = """def f(float32 X[N,H,W], float32 Y[N]) -> (Y) {
        Y[n] += X[n,h,w] where w in 0:W, n < 3
    }"""
    kernel = lanes(text, "vectorize S0: w")
    for n, h, w in product((2, 6), (0, 2), (0, 1, 20)):
        y = np.full(n, -0.0, np.float32)
        out = kernel(np.zeros((n, h, w), np.float32), y)
        written = 0 if h * w == 0 else min(n, 3)
        assert np.signbit(out).tolist() == [k >= written for k in range(n)]


FUNCTIONS = tuple(
    "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid".split()
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions(dtype: str) -> None:
    """In lanes and in single iterations, functions are what the reference says they are."""
    body = "\n".join(f"{f.upper()}[i] = {f}(X[i])" for f in FUNCTIONS)
    more = "PW[i] = pow(abs(X[i]), X[i])\nSQ[i] = pow(X[i], 2)\nAT[i] = atan2(X[i], 2)"
    outputs = ", ".join([f.upper() for f in FUNCTIONS] + ["PW", "SQ", "AT"])
    text = f"def f({dtype} X[Z]) -> ({outputs}) {{ {body}\n{more} }}"
    kernel = lanes(text, every_loop(text))
    for count, scale in product((3, 16, 41), (0.9, 5.0)):
        x = (np.random.default_rng(count).uniform(-1, 1, count) * scale).astype(dtype)
        x[:1] = np.nan
        inputs = {"X": x}
        with np.errstate(all="ignore"):
            expected = run(kernel.program, inputs, {})
        got = kernel(x)
        eps = np.finfo(dtype).eps
        for t, result in zip(kernel.program.outputs, got, strict=True):
            want = expected.values[t.name]
            np.testing.assert_allclose(result, want, rtol=8 * eps, atol=eps / 4, err_msg=t.name)


@pytest.mark.parametrize("f", ["exp", "log", "tanh", "erf", "sigmoid"])
def test_lanes_and_single_iterations_agree(f: str) -> None:
    """Our own functions give one value, wherever an element is."""
    x = values("float32", 200)
    text = f"def f(float32 X[Z]) -> (Y) {{ Y[i] = {f}(X[i]) }}"
    one, many = lanes(text, ""), lanes(text, "vectorize S0: i")
    assert one(x).tobytes() == many(x).tobytes()


def test_exact_mode_calls_the_c_library() -> None:
    text = "def f(float32 X[Z]) -> (Y) { Y[i] = exp(X[i]) }"
    written, many = lanes(text, "", exact=True), lanes(text, "vectorize S0: i", exact=True)
    assert "expf(" in written.source and "expf(" in many.source
    assert "fk_near" not in written.source + many.source
    x = values("float32", 100)
    assert written(x).tobytes() == many(x).tobytes()


def test_without_avx_and_with_it(toolchain: Toolchain, tmp_path: Any) -> None:
    """Kernels in lanes compile without warnings for processors with less."""
    texts = [generate(fk.Schedule.of(fk.parse(PLACES)).replay(every_loop(PLACES)))]
    texts.append(generate(fk.Schedule.of(fk.parse(TAILS)).replay(SCRIPT)))
    if not toolchain.target.startswith("x86_64"):
        pytest.skip("the flags are those of x86-64")
    for flag in ("-march=x86-64", "-march=haswell"):
        from dataclasses import replace

        plain = replace(
            toolchain, flags=(*(f for f in toolchain.flags if f != "-march=native"), flag)
        )
        _, complaints = build(texts, plain, tmp_path, "-O2")
        assert not complaints
