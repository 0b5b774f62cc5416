"""How threads share loops: every iteration once, in the order of loops, and nobody waits for who
has not come."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import cgen
import numpy as np
import pytest

import farkas as fk
from codegen.prelude import prelude_for
from codegen.team import PIECES, Range, on_team, once, shared_loops
from runtime.compilation import compile_shared
from runtime.toolchain import Toolchain

BODY = """\
/* Each loop adds up the iterations of those before, and counts its own. */
static void work(
    fk_team *team, int64_t loops, const int64_t *totals, int32_t *counts, int64_t *sums)
{
  for (int64_t l = 0; l < loops; l++) {
    int32_t *own = counts + l * 5000;
    for (fk_share share = fk_begin(team, totals[l]); fk_next(team, &share);)
      for (int64_t i = share.first; i < share.last; i++) own[i]++;
    for (fk_share share = fk_begin(team, 1); fk_next(team, &share);) {
      for (int64_t i = 0; i < totals[l]; i++) sums[l] += own[i];
    }
  }
}

void run(int32_t threads, int64_t loops, const int64_t *totals, int32_t *counts, int64_t *sums);
void run(int32_t threads, int64_t loops, const int64_t *totals, int32_t *counts, int64_t *sums)
{
  ALL
}

void late(int32_t threads, int64_t loops, const int64_t *totals, int32_t *counts, int64_t *sums);
void late(int32_t threads, int64_t loops, const int64_t *totals, int32_t *counts, int64_t *sums)
{
  int over = 0;
  LATE
}
"""

LATE = """\
if (team->id) {
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) sched_yield();
}
work(team, loops, totals, counts, sums);
__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
"""

Function = Callable[[str, int, list[int]], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def call(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Function:
    if not toolchain.openmp:
        pytest.skip("the compiler has no OpenMP")
    code = BODY.replace("ALL", "\n  ".join(on_team(["work(team, loops, totals, counts, sums);"])))
    code = code.replace("LATE", "\n  ".join(on_team(LATE.splitlines())))
    out = tmp_path_factory.mktemp("team") / "team.so"
    text = f"{prelude_for(code)}\n#include <sched.h>\n{code}"
    assert compile_shared(toolchain, {"team.c": text}, (), out) == ""
    library = ctypes.CDLL(str(out))

    def run(name: str, threads: int, totals: list[int]) -> tuple[np.ndarray, np.ndarray]:
        given = np.array(totals, np.int64)
        counts, sums = np.zeros((len(totals), 5000), np.int32), np.zeros(len(totals), np.int64)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (given, counts, sums)]
        library[name](ctypes.c_int32(threads), ctypes.c_int64(len(totals)), *pointers)
        return counts, sums

    return run


@pytest.mark.parametrize("name", ["run", "late"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_iteration_runs_once_and_before_the_next_loop(
    call: Function, name: str, threads: int
) -> None:
    # `late` ends only if one thread can do all loops while the others have not come.
    rng = np.random.default_rng(threads)
    totals = [0, 1, -3, 2, 5000, PIECES * threads, *map(int, rng.integers(0, 60, 500))]
    counts, sums = call(name, threads, totals)
    for total, row in zip(totals, counts, strict=True):
        assert (row[: max(total, 0)] == 1).all() and not row[max(total, 0) :].any()
    assert sums.tolist() == [max(t, 0) for t in totals]


def test_loops_are_printed_with_steps_and_nests() -> None:
    i, j = Range("i", "2", "n", 1), Range("j", "0", "5", 4)
    body = cgen.Block([cgen.Line("f();")])
    line = "\n".join(shared_loops([j], body).generate())
    assert "fk_begin(team, 5)" in line and "j = share.first * 4; j < share.last * 4; j += 4" in line
    nest = "\n".join(shared_loops([i, j], body).generate())
    assert "fk_begin(team, n * 5)" in nest
    assert "int64_t i = 2 + (piece / (5));" in nest and "int64_t j = (piece % 5) * 4;" in nest
    assert "fk_begin(team, 1)" in "\n".join(once(body).generate())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_kernels_with_steps_nests_and_loops_around(threads: int, tmp_path: Path) -> None:
    text = """def f(float32 A[T,N,M]) -> (A) {
        A[t+1,i,j] = A[t,i,j] + A[t,i,M-1-j] where t in 0:T-1
    }"""
    schedule = "split S0: i by 3\nparallelize S0: i_o\nparallelize S0: i_i\n"
    a = np.random.default_rng(0).random((7, 23, 5), np.float32)
    for script in (schedule, "parallelize S0: i\nparallelize S0: j\n", "parallelize S0: j\n"):
        kernel = fk.compile(text, schedule=script, threads=threads, cache=tmp_path)
        expected = a.copy()
        for t in range(6):
            expected[t + 1] = expected[t] + expected[t, :, ::-1]
        np.testing.assert_array_equal(kernel(a.copy()), expected)
