"""What random mappings have found wrong: each was a race, a wrong result, or both."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.verify import verify
from tests.gpu.races import races

FOUND = {
    # The place of a tile that a skewed loop has was asked of isl in a way that it refuses.
    "what the tiles of skewed loops share": (
        "def f(float32 A[T,N]) -> (A) {"
        " s: A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] where t in 0:T-1, i in 1:N-1 }",
        "skew s: i, t by 1\ntile s: t, i by 2, 4\nmap_threads s: i_i\npromote s: i_o as A, shared",
        {"T": 5, "N": 11},
    ),
    # All threads copied what belongs to the first one, and wrote back what they had never read.
    "registers of a statement on one thread": (
        "def f(float32 X[N], float32 A[N]) -> (Y, T) {\n T[i] = 2 * A[i]\n Y[] +=! X[i] }",
        "split S0: i by 4\nmap_threads S0: i_i\npromote S1: i as Y, register",
        {"N": 6},
    ),
    # Copies and barriers inside of a loop ran where another one of the same name had its thread.
    "a loop elsewhere of the same name": (
        "def f[N,M](float32 X[N], float32 A[N]) -> (Y, Z) {\n Y[j,i] = X[i] where j in 0:M\n"
        " Z[i] +=! X[i] * A[k] }",
        "split S0: i by 32\npromote S0: i_i as Y, shared\ntile S1_init: i by 2\n"
        "map_threads S1_init: i_i",
        {"N": 6, "M": 2},
    ),
    # isl ran in steps of four from a place that was another thread's.
    "several places where a thread's share begins": (
        "def f(int32 A[17,17], int32 U[19,17]) -> (U) {\n"
        " U[i+2,j] += A[i,i] + A[min(j+1, 16),j] + A[j,i] + A[j,j] where i in 0:17 }",
        "tile S0: j by 4\ntile S0: j_o, j_i by 3, 2\nmap_blocks S0: j_o_o, j_i_o\n"
        "map_threads S0: j_o_i, j_i_i\npromote S0: j_i_o as A, shared",
        {},
    ),
    # A thread's own copy was filled before the barrier that its statement waits at.
    "a copy of one thread before a barrier inside": (
        "def f(float32 X[N], float32 A[N]) -> (Y) {\n a: T[i] = X[i]\n c: Y[i] = T[N-1-i] + A[i] }",
        "split a: i by 4\nmap_threads a: i_i\nsplit c: i by 4\nmap_threads c: i_i\n"
        "promote c: i_i as A, shared\npromote c: i_i as T, local",
        {"N": 6},
    ),
    # A thread's own copy of what is shared was filled before all had come.
    "registers of what is shared": (
        "def f(float32 X[N,4]) -> (Y) {\n s: Y[i] +=! X[i,j] * X[i,3] }",
        "split s: i by 4\nmap_threads s: i_i\npromote s: i_o as X, shared\n"
        "promote s: i_i as X, register",
        {"N": 6},
    ),
    # Whether four neighbours were copied was asked of the first one.
    "neighbours of which some are needed": (
        "def f(float32 X[16,16]) -> (Y) {\n"
        " s: Y[i,j] = X[j,i] where i in 0:16, j in 0:16, j <= i\n"
        " t: Y[i,j] = X[i,0] where i in 0:16, j in 0:16, j > i }",
        "fuse s, t: i, j\ntile s: i, j by 2, 8\nmap_threads s: i_o, j_o\n"
        "promote s: j_o as X, shared",
        {},
    ),
    # The same with one read of several places.
    "neighbours of several reads": (
        "def f(float32 X[60]) -> (Y) { s: Y[i,j] = X[3] + X[j+i] + X[2*j] + X[15-j] + X[0] "
        "where i in 0:7, j in 0:8 }",
        "tile s: i, j by 3, 4\nmap_blocks s: i_o, j_o\nmap_threads s: i_i, j_i\n"
        "promote s: j_i as X, shared",
        {},
    ),
    # What follows a sum of many threads read what one of them had, without what was there before.
    "what is read behind a sum of threads": (
        "def f(float32 X[N,40], float32 U[N], float32 B[N]) -> (U, Y) {\n"
        " s: U[i] += X[i,k] where k in 0:40\n t: Y[i] = max(U[i] + B[i], 0) }",
        "fuse s, t: i\nmap_blocks s: i\nsplit s: k by 32\nreduce_threads s: k_i",
        {"N": 6},
    ),
    # What a buffer has for one row was overwritten by the next one's, which no dependence orders.
    "rows of a buffer that nothing is copied to": (
        "def f(float32 A[N,16]) -> (Y) {\n s: T[i,j] = A[i,j]\n"
        " t: Y[i,j] = T[i,15-j] where i in 0:N, j in 0:16 }",
        "fuse s, t: i\nmap_threads s: j\nmap_threads t: j\npromote s: i as T, shared",
        {"N": 5},
    ),
    "registers of a buffer that nothing is copied to": (
        "def f(float32 A[N,16]) -> (Y) {\n s: T[i,j] = A[i,j]\n"
        " t: Y[i,j] = T[i,15-j] where i in 0:N, j in 0:16 }",
        "fuse s, t: i\nmap_threads s: j\nmap_threads t: j\npromote s: i as T, shared\n"
        "promote t: j as T, register",
        {"N": 5},
    ),
    "a maximum of each row in a buffer": (
        "def f(float32 X[N,16]) -> (Y) {\n m[i] max=! X[i,j]\n"
        " Y[i,j] = X[i,j] - m[i] where j in 0:16 }",
        "fuse S0_init, S0: i\nfuse S0_init, S1: i\nreduce_threads S0: j\nmap_threads S1: j\n"
        "promote S0_init: i as m, shared",
        {"N": 3},
    ),
    # Of 16-bit types, copies took floats and whole numbers without a sign only.
    "neighbours of 16 bits": (
        "def f(int16 X[N,64]) -> (Y) { t: Y[j,i] = X[i,j] }",
        "tile t: j, i by 16, 16\nmap_blocks t: j_o, i_o\nmap_threads t: j_i, i_i\n"
        "promote t: i_o as X, shared",
        {"N": 19},
    ),
    # What no register held was stored beside what one did.
    "neighbours of which some are written": (
        "def f(float32 X[16,16], float32 Y[16,16]) -> (Y) {\n"
        " s: Y[i,j] = X[i,j] where i in 0:16, j in 0:16, j % 2 == 0\n"
        " t: Y[i,j] += X[i,j] where i in 0:16, j in 0:16, j > i }",
        "fuse s, t: i, j\ntile s: i, j by 1, 4\nmap_threads s: i_o, j_o\n"
        "promote s: j_o as Y, register\nunroll s: j_i",
        {},
    ),
    # Where a register was stored, below a condition, was taken for its place elsewhere.
    "neighbours of which some are looked at": (
        "def f(float32 A[N,N]) -> (Y) {\n s: T[i,j,k] = A[j,k] + i where i in 0:N\n"
        " t: Y[j,k] = T[2*j,j,k] where j in 0:N//2 }",
        "split s: k by 4 as k_o, k_i\nsplit s: k_o by 8 as k_b, k_t\n"
        "reorder s: j, i, k_b, k_t, k_i\nmap_blocks s: j\nmap_threads s: k_t\nunroll s: k_i\n"
        "promote s: k_t as T, register\nmap_blocks t: j\nsplit t: k by 32\nmap_threads t: k_i",
        {"N": 6},
    ),
    # The same of a program that does so itself.
    "an element compared with itself": (
        "def f(int32 A[4], int32 B[N]) -> (Y) { s: Y[i] = select(int32(A[2]) >= A[2], B[i], 1) }",
        "map_blocks s: i",
        {"N": 6},
    ),
    # A number was compared with itself, of which compilers warn.
    "one place of several reads": (
        "def f(int32 X[64]) -> (Y) { s: Y[i] = X[i] + X[3] + X[5*i] where i in 0:4 }",
        "map_threads s: i\npromote s: i as X, shared",
        {},
    ),
    # What was copied below a sum of several threads did not wait for who still used the buffer.
    "a buffer below a sum of threads": (
        "def f(float32 X[N,32]) -> (Y, T) {\n a: T[i,k] = X[i,k]\n s: Y[i] +=! T[i,k] }",
        "fuse a, s: i\nmap_threads a: k\nreduce_threads s: k\npromote s: k as T, shared",
        {"N": 5},
    ),
    "a buffer below a sum of threads in a loop": (
        "def f(float32 X[N,32], float32 W[8,32]) -> (Y) { s: Y[i,j] +=! X[i,k] * W[j,k] }",
        "fuse s_init, s: i, j\nmap_threads s: j\nreduce_threads s: k\npromote s: k as X, shared",
        {"N": 5},
    ),
    # Nobody waited for the first tile.
    "tiles that are filled ahead in a register's loop": (
        "def f(float32 A[I,K], float32 B[K,J]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }",
        "fuse mm_init, mm: i, j\ntile mm: i, j by 8, 32\nsink mm: k\nsplit mm: k by 16\n"
        "reorder mm: i_o, j_o, i_i, j_i, k_o, k_i\nmap_blocks mm: i_o, j_o\n"
        "map_threads mm: i_i, j_i\npromote mm: k_o as A, shared, ahead\n"
        "promote mm: k_o as B, shared, ahead\npromote mm: k_o as C, register",
        {"I": 9, "J": 33, "K": 40},
    ),
    # A buffer that nobody reads was left out, and the sum over threads in it was not.
    "a sum of threads that nobody reads": (
        "def f(float32 X[N,M], float32 U[N]) -> (Y) {\n a: T[i] +=! X[i,j] * 2\n b: Y[i] = U[i] }",
        "fuse a_init, a: i\nsplit a: j by 32\nmap_blocks a: i\nreduce_threads a: j_i\n"
        "promote a: i as T, shared",
        {"N": 10, "M": 40},
    ),
    # Names that the loops, and the places of threads, were given, too.
    "loops called as places of threads": (
        "def f(float32 X[N,64]) -> (Y) { s: Y[i,j] = X[i,63-j] where i in 0:N, j in 0:64 }",
        "split s: j by 32 as thread_x, block_x\nmap_blocks s: i\nmap_threads s: block_x",
        {"N": 3},
    ),
    "a size called as a share of a copy": (
        "def f[X_s_in_column](float32 X[16,16], float32 Z[X_s_in_column]) -> (Y) {"
        " s: Y[i,j] = X[i,15-j] * Z[0] where i in 0:16, j in 0:16 }",
        "split s: i by 4\nmap_blocks s: i_o\nmap_threads s: i_i, j\npromote s: i_o as X, shared",
        {"X_s_in_column": 3},
    ),
    # What copies outside of all loops on threads does was refused as something of a CPU.
    "a buffer of no thread in particular": (
        "def f(float32 X[N,64]) -> (Y) {"
        " s: Y[i,j] = X[i,j] + X[i,63-j] where i in 0:N, j in 0:64 }",
        "promote s: i as X, local",
        {"N": 7},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_right_now(name: str, tmp_path: Path) -> None:
    text, script, sizes = FOUND[name]
    schedule = fk.Schedule.of(fk.parse(text)).replay(script)
    source = generate_gpu(schedule, "cuda")
    assert races(schedule, source, sizes) == []
    for backwards in (False, True):
        run = GpuProgram(source, CpuDevice(tmp_path, backwards=backwards))
        assert verify(schedule.program, run, sizes=sizes).close(1e-5)


@pytest.mark.parametrize(
    "script",
    [
        "promote s: i_o as W, shared\npromote s: k_o as W, shared, ahead",
        "promote s: k_o as W, shared, ahead",
    ],
)
def test_copies_ahead_read_memory(script: str, tmp_path: Path) -> None:
    """The instruction that copies ahead was given a place in shared memory to read from."""
    text = "def f(float32 X[N,64], float32 W[64]) -> (Y) { s: Y[i] +=! X[i,k] * W[63-k] }"
    mapped = "split s: i by 8\nmap_blocks s: i_o\nmap_threads s: i_i\nsplit s: k by 16\n"
    schedule = fk.Schedule.of(fk.parse(text)).replay(mapped + script)
    source = generate_gpu(schedule, "cuda")
    shared = re.findall(r"__shared__ [^;]*?(\w+)\[", source.text)
    read = re.findall(r"fk_copy_async_4(?:x4)?\(&\w+.*, &(\w+)", source.text)
    assert len(shared) == script.count("shared") and not set(read) & set(shared)
    assert bool(read) == (len(shared) == 1)
    run = GpuProgram(source, CpuDevice(tmp_path))
    assert verify(schedule.program, run, sizes={"N": 11}).close(1e-5)


def test_what_belongs_to_a_thread_is_not_shared_inside() -> None:
    text = "def f(float32 X[N,8]) -> (Y) { Y[i,j] = X[i,j] }"
    start = fk.Schedule.of(fk.parse(text)).replay("split S0: j by 4")
    with pytest.raises(fk.ScheduleError, match="X_p around j_o belongs to one thread; share X fir"):
        start.replay("promote S0: i as X, local\npromote S0: j_o as X, shared")
    with pytest.raises(fk.ScheduleError, match="X is already promoted further in"):
        start.replay("promote S0: j_o as X, shared\npromote S0: i as X, register")


def test_what_is_promoted_inside_is_not_reduced() -> None:
    start = fk.Schedule.of(fk.parse("def f(float32 X[N,M]) -> (s) { s: s[i] +=! X[i,j] }"))
    with pytest.raises(fk.ScheduleError, match="s_p inside holds s; reduce first, and promote"):
        start.replay("split s: j by 4\npromote s: j_i as s, local\nreduce_threads s: j_i")


def test_what_each_thread_sums_up_has_no_other_register_inside() -> None:
    """What was summed up in that one would never have been added."""
    program = fk.parse("def total(float32 X[N,4096]) -> (Y) { t: Y[i] +=! X[i,j] }")
    steps = "split t: j by 4\nsplit t: j_o by 256 as j_p, j_t\nreduce_threads t: j_t"
    parts = fk.Schedule.of(program).replay(steps)
    with pytest.raises(fk.ScheduleError, match="Y_part around j_t holds what each thread sums up"):
        parts.replay("promote t: j_t as Y, register")


@pytest.mark.parametrize("dialect", ["cuda", "opencl"])
def test_the_number_of_a_thread_times_a_constant(dialect: str, tmp_path: Path) -> None:
    """It was computed in 32 bits, in which 43 times this is less than 0."""
    text = (
        "def f(float32 X[64], float32 Z[M], float32 Y[64]) -> (Y) {"
        " s: Y[i] += X[i]*Z[0] where i in 0:64, 100000000*i < M }"
    )
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay("map_threads s: i"), dialect)
    if dialect == "cuda":
        run = GpuProgram(source, CpuDevice(tmp_path))
        ones = np.ones(64, np.float32)
        found = run(X=ones, Z=ones[:5], Y=np.zeros(64, np.float32))
        assert np.flatnonzero(found).tolist() == [0]
    assert "(int64_t)100000000*thread_x < M" in source.text


def test_nests_with_too_many_threads_together_are_launches_of_their_own(tmp_path: Path) -> None:
    """They were refused, and the schedule that is taken for such programs has one thread."""
    text = (
        "def f(float32 X[16,32], float32 A[16,4,8]) -> (Y, Z) {\n s: Y[i,j] = X[i,j] + 1\n"
        " t: Z[i,j,k] = A[k,i,j] * Y[k,j] where i in 0:4, j in 0:8 }"
    )
    script = "map_threads s: i, j\nmap_threads t: i, j, k"
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay(script), "cuda")
    assert [k.block for k in source.kernels] == [(32, 16, 1), (16, 8, 4)]
    run = GpuProgram(source, CpuDevice(tmp_path))
    assert verify(fk.parse(text), run).close(1e-5)


@pytest.mark.parametrize(
    ("other", "mapped", "block"), [(2, "j", (64, 1, 1)), (2, "i, j", (64, 2, 1))]
)
def test_warps_have_launches_of_their_own(other: int, mapped: str, block: tuple[int, ...]) -> None:
    text = (
        "def f(float16 A[64,64], float16 B[64,64], float32 X[64]) -> (float32 C[64,64], Y) {"
        " mm: C[i,j] +=! float32(A[i,k]) * float32(B[k,j])\n"
        f" s: Y[i,j] = X[j] where i in 0:{other}, j in 0:64 }}"
    )
    script = (
        "fuse mm_init, mm: i, j\ntile mm: i, j by 16, 16 as iy, jy, ix, jx\ndistribute mm: ix\n"
        "split mm: k by 16 as ko, kx\nreorder mm: ko, ix, jx, kx\nmap_threads mm: iy, jy\n"
        "tensorize mm_init: ix, jx as wmma_f16\ntensorize mm: ix, jx, kx as wmma_f16\n"
        f"promote mm: jy as C, fragment\nmap_threads s: {mapped}"
    )
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay(script), "cuda")
    assert [k.block for k in source.kernels] == [(32, 4, 4), block]


def test_a_block_of_a_grid_with_too_many_threads_is_refused() -> None:
    """Its nests run behind each other in each of the blocks."""
    text = (
        "def f(float32 X[4,32,32], float32 A[4,2,2,32]) -> (Y, Z) {\n s: Y[b,i,j] = X[b,i,j] + 1\n"
        " t: Z[b,i,j,k] = A[b,i,j,k] * Y[b,i,k] }"
    )
    script = "fuse s, t: b\nmap_blocks s: b\nmap_threads s: i, j\nmap_threads t: i, j, k"
    schedule = fk.Schedule.of(fk.parse(text)).replay(script)
    with pytest.raises(fk.ScheduleError, match="a block would have 2 x 32 x 32 threads, over 1024"):
        generate_gpu(schedule, "cuda")


PAIR = (
    "def f(float32 X[N,32], float32 U[N,32]) -> (Y, Z) {"
    " a: Y[t,i] = U[t,i] + 1\n b: Z[t,i] = X[t,i] * 2 }"
)
#: Mappings that were taken, and whose results were wrong: what launches cannot keep in order.
MISTAKEN = {
    "a loop called as a share of a copy": (
        PAIR, "map_threads b: i\npromote b: t as X, shared\nsplit b: t by 4 as X_s_in_column, r",
        "X_s_in_column is reserved for loops that copy X_s; choose other names",
    ),
    "filled ahead of what the host runs": (
        PAIR, "map_threads b: i\npromote b: t as X, shared, ahead\nmap_blocks a: i\nfuse a, b: t",
        "X_s is filled for the next iteration of t, which the host runs",
    ),
    "a loop between blocks": (
        "def f(float32 A[T,M,N]) -> (A) { s: A[t+1,i,j] = A[t,i,j-1] + A[t,i,j]"
        " where t in 0:T-1, j in 1:N, i in 0:M }",
        "map_blocks s: i, j\nreorder s: i, t",
        "t is between the loops on blocks, which run in no order",
    ),
    "threads around blocks": (
        PAIR.replace("N", "8"), "fuse a, b: t\nmap_blocks a: i\nmap_threads a: t",
        "t is on threads, and around loops on blocks",
    ),
    "threads in z": (
        "def f(float32 X[128,2,4]) -> (Y) { s: Y[i,j,k] = X[i,j,k] }", "map_threads s: i, j, k",
        "a block would have 128 threads in z, over 64",
    ),
    "warps": (
        "def f(float16 A[256,64], float16 B[64,256]) -> (float32 C[256,256]) {"
        " mm: C[i,j] +=! float32(A[i,k]) * float32(B[k,j]) }",
        "fuse mm_init, mm: i, j\ntile mm: i, j by 128, 128 as ib, jb, ir, jr\n"
        "tile mm: ir, jr by 16, 16 as iy, jy, ix, jx\ndistribute mm: ix\n"
        "split mm: k by 16 as ko, kx\nreorder mm: ko, ix, jx, kx\nmap_blocks mm: ib, jb\n"
        "map_threads mm: iy, jy\n"
        "tensorize mm_init: ix, jx as wmma_f16\ntensorize mm: ix, jx, kx as wmma_f16\n"
        "promote mm: jy as C, fragment",
        "a block would have 8 x 8 x 32 threads, over 1024",
    ),
    "a buffer in an instruction": (
        "def f(float16 A[64,64], float16 B[64,64]) -> (float32 C[64,64]) {"
        " mm: C[i,j] +=! float32(A[i,k]) * float32(B[k,j]) }",
        "fuse mm_init, mm: i, j\ntile mm: i, j by 16, 16 as iy, jy, ix, jx\ndistribute mm: ix\n"
        "split mm: k by 16 as ko, kx\nreorder mm: ko, ix, jx, kx\nmap_blocks mm: iy, jy\n"
        "tensorize mm_init: ix, jx as wmma_f16\npromote mm_init: ix as C, fragment",
        "ix is a loop of wmma_f16, an instruction that has no buffers inside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_mappings_that_are_refused_now(name: str) -> None:
    text, script, message = MISTAKEN[name]
    with pytest.raises(fk.ScheduleError, match=message):
        generate_gpu(fk.Schedule.of(fk.parse(text)).replay(script), "cuda")
