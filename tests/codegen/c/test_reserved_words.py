"""Names of programs mean nothing else to isl or to a compiler, whatever they are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
import runtime.gpu.emulator
from codegen.c.kernel_unit import generate
from codegen.c.prelude import HEADERS
from codegen.c.reserved_words import CUDA_RESERVED, is_reserved
from codegen.gpu.emit import generate_gpu
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain
from runtime.cuda.compile import compile_cubin
from tests.poly.texts import SOFTMAX

GATHERED = """def gathered(float32 A[N,M], int64 P[N]) -> (Y) {
    a: T[i,j] = 2 * A[i,j]
    b: Y[i,j] = T[P[i],j] where i in 0:N, j in 0:M
}"""
#: With 0 and 1 after it, each is the name of dimensions in relations or in isl's loops.
LETTERS = "cdehoptxyi"


def data() -> np.ndarray:
    return np.random.default_rng(0).random((37, 45), np.float32)


@pytest.mark.parametrize(
    ("target", "letter"), [*(("cpu", x) for x in LETTERS), *(("cuda-emulator", x) for x in "cdepx")]
)
def test_sizes(letter: str, target: str, cache: Cache) -> None:
    """A size with the name of a dimension was that dimension."""
    a, sizes = data(), f"{letter}1,{letter}0"
    e = np.exp(a - a.max(1, keepdims=True))
    softmax = fk.compile(SOFTMAX.replace("N,M", sizes), target=target, cache=cache)
    np.testing.assert_allclose(softmax(a), e / e.sum(1, keepdims=True), rtol=1e-5)
    product = fk.compile(
        f"def product(float32 A[{letter}0,K], float32 B[K,{letter}1]) -> (C) "
        "{ C[i,j] +=! A[i,k] * B[k,j] }",
        target=target, cache=cache,
    )  # fmt: skip
    np.testing.assert_allclose(product(a, a.T.copy()), a @ a.T, rtol=1e-5)


@pytest.mark.parametrize("size", ["N", "y0", "y1"])
def test_sizes_beside_places_that_data_decides(size: str) -> None:
    text = GATHERED.replace("[N", f"[{size}").replace("0:N", f"0:{size}")
    with pytest.raises(fk.IllegalScheduleError, match="fuse a, b: i"):
        fk.Schedule.of(fk.parse(text)).replay("fuse a, b: i")


@pytest.mark.parametrize("name", ["barrier1", "A_s_in", "S_part_all", "launch0"])
def test_statements(name: str, cache: Cache) -> None:
    """Barriers and copies were called so, too."""
    text = f"def f(float32 A[N,M]) -> (Y) {{ {name}: S[i] +=! A[i,j]\n Y[i,j] = A[i,j] / S[i] }}"
    a = data()
    found = fk.compile(text, target="cuda-emulator", cache=cache)(a)
    np.testing.assert_allclose(found, a / a.sum(1, keepdims=True), rtol=1e-5)


def defined(compiler: list[str], text: str) -> set[str]:
    """The macros that a program's headers define, without those that no program may name so."""
    done = subprocess.run([*compiler, "-dM", "-E", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {n for n in re.findall(r"^#define (\w+)", done.stdout, re.MULTILINE) if n[0] != "_"}


def test_macros(toolchain: Toolchain) -> None:
    """A size called HUGE_VAL was a call, and its kernel crashed."""
    found = defined([*toolchain.command, "-std=gnu11", "-x", "c"], HEADERS)
    assert {"FLT_MAX", "INT64_C", "HUGE_VAL"} <= found
    assert not {name for name in found if not is_reserved(name)}
    header = Path(runtime.gpu.emulator.__file__).with_name("cuda_on_cpu.h").read_text()
    found = defined(["g++", "-std=c++17", "-x", "c++"], header)
    assert not {name for name in found if not is_reserved(name, CUDA_RESERVED)}


@pytest.mark.parametrize("name", ["HUGE_VAL", "M_PI", "INT32_MIN", "isless"])
def test_names_of_macros(name: str, cache: Cache) -> None:
    text = f"def f(float32 A[{name}], float32 B[{name}]) -> (Z) {{ Z[i] = exp(A[i]) * B[i] }}"
    a = data()[0]
    np.testing.assert_allclose(fk.compile(text, cache=cache)(a, a), np.exp(a) * a, rtol=1e-5)


@pytest.mark.parametrize("name", ["INT32_MIN", "INT64_MIN", "threadIdx", "new", "int4"])
def test_names_in_cuda(name: str) -> None:
    text = f"def g(float32 {name}[N]) -> (Z) {{ Z[i] = max({name}[i], 0) }}"
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay("map_blocks S0: i"), "cuda")
    try:
        compile_cubin(source.text, "sm_90", flags=source.flags)
    except fk.ToolchainError as error:
        if "nvidia-cuda-nvrtc" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("target", ["cuda-emulator", "opencl"])
@pytest.mark.parametrize(
    "name", "new this template threadIdx kernel local half get_group_id uint expf NULL".split()
)
def test_words_of_languages(name: str, target: str, cache: Cache) -> None:
    if target == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    a = data()[0]
    made = fk.compile(
        f"def f(float32 {name}[N]) -> (Z) {{ Z[i] = exp({name}[i]) }}", target=target, cache=cache
    )
    np.testing.assert_allclose(made(a), np.exp(a), rtol=1e-5)


def test_arguments_called_self(cache: Cache) -> None:
    a = data()
    for dtypes in ("float32", None):
        double = fk.compile("Z[i,j] = 2 * self[i,j]", dtypes=dtypes, cache=cache)
        np.testing.assert_array_equal(double(self=a), 2 * a)


#: Statements that are split, beside which others have the names that the parts would have.
SPLIT = {
    "phases": (
        "S: Y[n,x] +=! X[n,(x+1-r)//2] * W[r] where x in 0:2*M-1, r in 0:3, 0 <= x+1-r, "
        "(x+1-r)//2 < M, (x+1-r)%2 == 0",
        ("S_0", "S_0_init", "S_1_init"),
    ),
    "products": ("S: Y[i,r] +=! X[i,j] * X[j,k] * X[k,r]", ("S_1", "S_1_init")),
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in SPLIT for n in SPLIT[k][1]])
def test_statements_beside_those_that_are_split(kind: str, name: str, cache: Cache) -> None:
    statements = f"{SPLIT[kind][0]}\n {name}: Z[i] = W[i]"
    text = f"def f(float32 X[N,M], float32 W[3]) -> (Y, Z) {{ {statements} }}"
    program = fk.parse(text)
    assert fk.verify(program, fk.compile(text, cache=cache), sizes={"N": 9, "M": 9}).close(1e-4)


@pytest.mark.slow
def test_more_loops_than_there_are_names_for() -> None:
    indices = ",".join(f"i{n}" for n in range(66))
    text = f"def f(float32 A[{','.join('N' * 66)}]) -> (C) {{ C[{indices}] = A[{indices}] }}"
    with pytest.raises(fk.ScheduleError, match="nests 66 loops, the limit is 64"):
        generate(fk.Schedule.of(fk.parse(text)))
