"""Kernels as C, with their sizes as arguments."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from farkas.export.exported import Exported
from poly.errors import ArgumentError
from poly.ir.expr import evaluate_int
from tests.conformance.exported import build

BLUR = "def blur(float32 X[H,W], float32 K[3,3]) -> (Y) { Y[y,x] +=! X[y+u,x+v] * K[u,v] }"
PRODUCT = (
    "def mm(float32 A[N,K], float32 B[K,M], float32 C[N,M]) -> (C) { C[i,j] += A[i,k]*B[k,j] }"
)
SOFTMAX = """def softmax(float32 X[N,M]) -> (Y) {
    float32 m[N]
    float32 s[N]
    m[i] max=! X[i,j]
    s[i] +=! exp(X[i,j] - m[i])
    Y[i,j] = exp(X[i,j] - m[i]) / s[i]
}"""
DRAW = np.random.default_rng(1)


def draw(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


class Module:
    """Exported C, compiled and loaded."""

    def __init__(self, made: Exported, folder: Path, compiler: str = "gcc") -> None:
        library = ctypes.CDLL(str(build(made, [compiler], folder)))
        self.run = getattr(library, f"{made.name}_run")
        self.bytes = getattr(library, f"{made.name}_workspace_bytes")
        self.bytes.restype = ctypes.c_size_t

    def __call__(self, sizes: tuple[int, ...], *arrays: np.ndarray) -> int:
        given = [ctypes.c_int64(n) for n in sizes]
        workspace = np.full(self.bytes(*given) + 1, 0xA5, np.uint8)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, workspace[1:])]
        return int(self.run(*given, *pointers, ctypes.c_size_t(workspace.nbytes - 1)))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("text", [BLUR, PRODUCT, SOFTMAX])
def test_all_sizes_are_served(text: str, exact: bool, compiler: str, tmp_path: Path) -> None:
    kernel = fk.compile(text, exact=exact)
    module = Module(kernel.export(tmp_path / "k.c", isa="generic"), tmp_path, compiler)
    program = kernel.program
    for numbers in ((5, 7, 9), (3, 3, 1), (40, 33, 70)):
        env = dict(zip(program.sizes, numbers, strict=False))
        inputs = [draw(*(evaluate_int(e, env) for e in t.shape)) for t in program.inputs]
        want = kernel(*[a.copy() for a in inputs])
        updated = [a for t, a in zip(program.inputs, inputs, strict=True) if t in program.outputs]
        read = [a for t, a in zip(program.inputs, inputs, strict=True) if t not in program.outputs]
        out = updated[0] if updated else np.empty_like(want)
        assert module(tuple(env.values()), *read, out) == 0
        if exact:
            np.testing.assert_array_equal(out, want)
        else:
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def test_sizes_out_of_range_return_a_code(tmp_path: Path) -> None:
    made = fk.compile(BLUR).export(tmp_path / "blur.c", isa="generic")
    assert "input X[H][W]" in made.header and "output Y[H - 2][W - 2]" in made.header
    module = Module(made, tmp_path)
    x, k, y = draw(4, 4), draw(3, 3), draw(2, 2)
    assert module((4, 4), x, k, y) == 0
    for sizes in ((1, 4), (-4, 4), (2**62, 2**62), (2**40, 2**40)):
        assert module(sizes, x, k, y) == 5
        assert module.bytes(*map(ctypes.c_int64, sizes)) == 0
    null = ctypes.c_void_p(None)
    at = [ctypes.c_void_p(a.ctypes.data) for a in (x, k)]
    size = ctypes.c_int64(4)
    assert module.run(size, size, *at, null, null, ctypes.c_size_t(0)) == 1


def test_a_schedule_of_ones_own_is_kept(tmp_path: Path) -> None:
    kernel = fk.compile(BLUR).with_schedule("fuse S0_init, S0: y, x\nunroll S0: u\nunroll S0: v")
    made = kernel.export(tmp_path / "blur.c", isa="generic")
    assert "unroll S0: u" in made.code and "split" not in made.code
    with pytest.raises(ArgumentError, match="there is no instruction set"):
        kernel.export(tmp_path / "x.c", isa="z80")
