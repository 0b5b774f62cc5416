"""Pointers through which threads exchange values do not say that they are the only ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from codegen.gpu.emit import generate_gpu
from codegen.pipeline import CUDA, OPENCL
from poly.machine.gpu import ANY, NAMED
from runtime.common.cache import Cache
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs


def alone(text: str) -> set[str]:
    """The parameters that are `restrict`."""
    return set(re.findall(r"\b(?:__)?restrict(?:__)? (\w+)", text))


#: Texts, scripts for a CPU, and which of the parameters are restrict.
ON_CPU = {
    "one loop": ("s: T[i] = X[i]\n t: Y[i] = T[i] + 1", "fuse s, t: i\nparallelize s: i", "XTY"),
    "two loops": (
        "s: T[i] = X[i]\n t: Y[i] = T[N-1-i]",
        "parallelize s: i\nparallelize t: i",
        "XY",
    ),
    "one thread, then all": ("s: T[] +=! X[k]\n t: Y[i] = T[] * X[i]", "parallelize t: i", "XY"),
    "one thread": ("s: T[i] = X[i]\n t: Y[i] = T[N-1-i]", "", "XTY"),
}


@pytest.mark.parametrize("name", ON_CPU)
def test_threads_of_a_team(name: str) -> None:
    body, script, expected = ON_CPU[name]
    program = fk.parse(f"def f(float32 X[N]) -> (Y, T) {{ {body} }}")
    source = generate(fk.Schedule.of(program).replay(script))
    assert alone(source.text) & {"X", "T", "Y"} == set(expected)


def test_a_loop_that_runs_again() -> None:
    program = fk.parse(
        "def f(float32 X[N], float32 A[T,N]) -> (A, Y) {\n"
        " s: A[t+1,i] = A[t,i-1] + A[t,i+1] where t in 0:T-1, i in 1:N-1\n t: Y[i] = X[i] }"
    )
    source = generate(fk.Schedule.of(program).replay("parallelize s: i\nparallelize t: i"))
    assert alone(source.text) & {"X", "A", "Y"} == {"X", "Y"}


HANDED_ON = """def f(float32 X[64]) -> (Y, T, Z) {
    s: T[i] = X[i]
    t: Y[i] = T[63-i]
    u: Z[i] = X[i] }"""
#: Threads wait after each t: what one has written, another one overwrites.
OVERWRITTEN = """def f(float32 X[64,8]) -> (float32 Y[260]) {
    s: Y[t+4*i] = X[i,t] where t in 0:8, i in 0:64 }"""
#: Texts, scripts for a GPU, whether its threads wait, and which of the parameters are restrict.
ON_GPU = {
    "one block": (HANDED_ON, "map_threads s: i\nmap_threads t: i\nmap_threads u: i", True, "XYZ"),
    "kernels": (HANDED_ON, "map_blocks s: i\nmap_blocks t: i\nmap_blocks u: i", False, "XYZT"),
    "one statement, several iterations": (
        OVERWRITTEN,
        "reorder s: t, i\nsplit s: t by 8\nmap_blocks s: t_o\nmap_threads s: i",
        True,
        "X",
    ),
}


@pytest.mark.parametrize("dialect", ["cuda", "opencl"])
@pytest.mark.parametrize("name", ON_GPU)
def test_threads_of_a_block(name: str, dialect: str) -> None:
    text, script, waits, expected = ON_GPU[name]
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay(script), dialect)
    assert ("barrier(" in source.text or "__syncthreads()" in source.text) == waits
    assert (len(source.kernels) == 1) == waits
    assert alone(source.text) == set(expected)
    if not waits:  # what another kernel has stored is only read
        assert re.search(r"const float \*(__)?restrict(__)? T\b", source.text)


def test_either_branch_stores() -> None:
    """A softmax that asks whether its rows begin at multiples of 16 bytes."""
    program = fk.parse("""def f(float32 X[512,1024]) -> (float32 Y[512,1024]) {
        M[i] max=! X[i,k]
        S[i] +=! exp(X[i,k] - M[i])
        Y[i,j] = exp(X[i,j] - M[i]) / S[i] }""")
    source = CUDA.automatic(program, NAMED["sm_90"]).source
    assert "fk_is_aligned(" in source.text and {"X", "Y"} <= alone(source.text)


def test_what_neighbours_have_added_is_read(cache: Cache) -> None:
    """PoCL 3.0 took a zero from before the barriers for the sum."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    program = fk.parse("""def f(float32 A[5,5,17], float32 B[5,4]) -> (Y, Z) {
        Y[b,x] +=! A[b,c,(x - r - 1) // 2] * B[c,r] where b in 0:5, x in 0:38, c in 0:5, r in 0:4,
            (x - r - 1) % 2 == 0, 0 <= (x - r - 1) // 2, (x - r - 1) // 2 < 17
        Z[b,x] = max(Y[b,x], 0) }""")
    kernel = fk.compile(str(program), target="opencl", cache=cache, exact=True)
    assert "Y" not in alone(OPENCL.automatic(program, ANY, exact=True).source.text)
    inputs = random_inputs(program, {})
    expected = evaluate(program, inputs)
    for found, wanted in zip(kernel(**inputs), expected.values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
