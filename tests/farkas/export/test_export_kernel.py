"""Kernels as C, with their sizes as arguments."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from farkas.export.exported import Exported
from poly.errors import ArgumentError
from poly.ir.expr import evaluate_int
from tests.conformance.exported import FLAGS, build

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
#: Its temporary is in memory, with an extent that is no single size.
TWICE = """def twice(float32 A[2*N,M], float32 B[M,M]) -> (Y) {
    float32 T[2*N,M]
    T[i,j] +=! A[i,k] * B[k,j]
    Y[i,j] +=! T[i,k] * B[k,j]
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
@pytest.mark.parametrize("text", [BLUR, PRODUCT, SOFTMAX, TWICE])
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
    with pytest.raises(ArgumentError, match="no instruction set 'z80'; there are generic, x86-64-"):
        kernel.export(tmp_path / "x.c", isa="z80")
    with pytest.raises(ArgumentError, match="'arm64'; did you mean 'aarch64'"):
        kernel.export(tmp_path / "x.c", isa="arm64")


MAIN = """
#include "k.h"
#include <stdio.h>
#include <string.h>
static float x[64 * 96], y[64 * 96], z[64 * 96];
static unsigned char workspace[1 << 20];
int main(void)
{
  for (int n = 0; n < 64 * 96; n++) x[n] = (float)(n % 23) - 11;
  if (k_run(64, 96, x, y, workspace, sizeof workspace, NULL) != K_OK) return 1;
  k_team team;
  if (k_start(&team, 0) != K_THREADS || k_start(&team, 65) != K_THREADS) return 2;
  if (k_run(64, 96, x, z, workspace, sizeof workspace, &team) != K_THREADS) return 9;
  if (k_start(NULL, 2) != K_NULL) return 3;
  for (int threads = 1; threads < 5; threads++) {
    if (k_start(&team, threads) != K_OK) return 4;
    for (int n = 0; n < 200; n++) {
      memset(z, 0, sizeof z);
      if (k_run(64, 96, x, z, workspace, sizeof workspace, &team) != K_OK) return 5;
      if (memcmp(y, z, sizeof y) != 0) return 6;
    }
    if (k_run(-1, 96, x, z, workspace, sizeof workspace, &team) != K_SIZE) return 7;
    if (k_workspace_bytes(64, 96, threads) > sizeof workspace) return 8;
    k_stop(&team);
    if (k_run(64, 96, x, z, workspace, sizeof workspace, &team) != K_THREADS) return 10;
  }
  puts("right");
  return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_teams_of_threads(compiler: str, sanitizer: str, tmp_path: Path) -> None:
    made = fk.compile(SOFTMAX).export(tmp_path / "k.c", isa="generic", threads="pthread")
    assert "fk_part(fk_me" in made.code
    (tmp_path / "main.c").write_text(MAIN)
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    line = [compiler, *FLAGS, *flags, "main.c", "k.c", "-pthread", "-lm", "-o", "main"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[:2000]


OPENMP_MAIN = """
#include "k.h"
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
static float x[64 * 96], y[64 * 96], z[64 * 96];
static unsigned char workspace[1 << 20];
static int run(int threads, float *out)
{ return k_run(64, 96, x, out, workspace, sizeof workspace, threads); }
int main(void)
{
  for (int n = 0; n < 64 * 96; n++) x[n] = (float)(n % 23) - 11;
  if (run(1, y) != K_OK) return 1;
  if (run(0, z) != K_THREADS || run(1025, z) != K_THREADS) return 2;
  for (int threads = 1; threads < 5; threads++) {
    for (int n = 0; n < 200; n++) {
      memset(z, 0, sizeof z);
      if (run(threads, z) != K_OK) return 3;
      if (memcmp(y, z, sizeof y) != 0) return 4;
    }
    if (k_run(-1, 96, x, z, workspace, sizeof workspace, threads) != K_SIZE) return 5;
    if (k_workspace_bytes(64, 96, threads) > sizeof workspace) return 6;
    if (k_run(64, 96, x, z, workspace, 1, threads) != K_WORKSPACE && k_workspace_bytes(64, 96, 1))
      return 7;
  }
  int bad = 0;
  /* In a region of the caller's, where there may be no other threads. */
  #ifdef _OPENMP
  #pragma omp parallel num_threads(3) reduction(+:bad)
  #endif
  {
    float own[64 * 96];
    unsigned char memory[1 << 16];
    for (int threads = 1; threads < 3; threads++) {
      if (k_workspace_bytes(64, 96, threads) > sizeof memory) bad++;
      else if (k_run(64, 96, x, own, memory, sizeof memory, threads) != K_OK) bad++;
      else if (memcmp(y, own, sizeof y) != 0) bad++;
    }
  }
  puts(bad ? "wrong" : "right");
  return 0;
}
"""


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", ["-fopenmp"]),
        ("gcc", ["-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
        ("gcc", []),
        ("clang", []),
        ("clang", ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
    ],
)
def test_threads_of_openmp(compiler: str, flags: list[str], tmp_path: Path) -> None:
    """The same results on any number of threads, also without OpenMP."""
    made = fk.compile(SOFTMAX).export(tmp_path / "k.c", isa="generic", threads="openmp")
    assert "#pragma omp barrier" in made.code and "pthread" not in made.code + made.header
    assert "int threads)" in made.header and "-fopenmp" in made.code.partition("*/")[0]
    (tmp_path / "main.c").write_text(OPENMP_MAIN)
    line = [compiler, *FLAGS, *flags, "main.c", "k.c", "-lm", "-o", "main"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[:2000]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("threads", ["pthread", "openmp"])
def test_without_shared_loops(compiler: str, threads: str, tmp_path: Path) -> None:
    """No helper is left that nothing uses: a compiler would warn."""
    kernel = fk.compile("def f(float32 x[3]) -> (y) { y[] = x[0] + x[2] }")
    kernel.export(tmp_path / "k.c", isa="generic", threads=threads)
    for flags in ([], ["-fopenmp"]) if compiler == "gcc" else ([],):
        subprocess.run([compiler, *FLAGS, *flags, "-c", "k.c"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("threads", ["none", "pthread", "openmp"])
def test_tensors_that_are_called_as_what_a_run_has(threads: str, tmp_path: Path) -> None:
    kernel = fk.compile(
        "def f(float32 team[N,M], float32 threads[N,M], float32 given[N], float32 me[N],"
        " float32 argument[N], float32 workspace[N]) -> (work) { work[i] +=! team[i,j] *"
        " threads[i,j] + given[i] + me[i] + argument[i] + workspace[i] }"
    )
    kernel.export(tmp_path / "k.c", isa="generic", threads=threads)
    subprocess.run(["gcc", *FLAGS, "-c", "k.c"], cwd=tmp_path, check=True)


def test_threads_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="threads is 'tbb'; there are none, pthread, openmp"):
        fk.compile(BLUR).export(tmp_path / "k.c", threads="tbb")


@pytest.mark.parametrize("threads", ["none", "pthread", "openmp"])
def test_kernels_of_fixed_sizes_say_what_they_need(threads: str, tmp_path: Path) -> None:
    """Temporaries and packed operands are in the workspace, whose size is a number then."""
    kernel = fk.compile(TWICE, sizes={"N": 150, "M": 160})
    made = kernel.export(tmp_path / "k.c", isa="generic", threads=threads)
    assert made.module.temporaries and made.module.memory
    assert made.workspace >= 2 * 150 * 160 * 4
    ways = {"none": ("", ""), "pthread": ("(1)", ", NULL"), "openmp": ("(1)", ", 1")}
    arguments, ends = ways[threads]
    (tmp_path / "main.c").write_text(
        '#include "k.h"\n#include <stdlib.h>\n'
        "static float a[300 * 160], b[160 * 160], y[300 * 160];\n"
        f"int main(void) {{ void *w = malloc(K_WORKSPACE_BYTES{arguments});\n"
        "  for (int n = 0; n < 300 * 160; n++) a[n] = 1;\n"
        "  for (int n = 0; n < 160 * 160; n++) b[n] = 0.5f;\n"
        f"  int code = k_run(a, b, y, w, K_WORKSPACE_BYTES{arguments}{ends});\n"
        f"  int small = k_run(a, b, y, w, K_WORKSPACE_BYTES{arguments} - 1{ends});\n"
        "  free(w);\n"
        "  if (y[0] != 6400 || y[300 * 160 - 1] != 6400) return 1;\n"
        "  return code != K_OK || small != K_WORKSPACE; }\n"
    )
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    line = ["gcc", *FLAGS, *flags, "main.c", "k.c", "-pthread", "-lm", "-o", "main"]
    subprocess.run(line, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_integers_do_not_depend_on_fused_operations(compiler: str, tmp_path: Path) -> None:
    # Fused, the sum would be the product's rounding error, not 0.
    a, b = draw(1000), draw(1000)
    c = -(a * b)
    text = "def f(float32 A[N], float32 B[N], float32 C[N]) -> (Y) "
    integers = text + "{ Y[i] = int32((A[i] * B[i] + C[i]) * 1e9) }"
    kernel = fk.compile(integers)
    assert not kernel(a, b, c).any()
    run = Module(kernel.export(tmp_path / "f.c", isa="x86-64-v3"), tmp_path, compiler)
    y = np.ones(1000, np.int32)
    assert run((1000,), a, b, c, y) == 0
    assert not y.any()
    floats = fk.compile(text + "{ Y[i] = A[i] * B[i] + C[i] }")
    if "fma" in Path("/proc/cpuinfo").read_text():
        assert floats(a, b, c).any()
