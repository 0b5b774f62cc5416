"""Partial tiles of tensor cores that are refused: each for its reason, beside a twin that is not.

An instruction runs on a whole tile where a statement has a part of it.  What it does beyond has to
be nothing: see `poly.buffers.pad_tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from poly.errors import ScheduleError
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import run
from runtime.reference.verify import random_inputs

STEPS = """
tile mm: i, j, k by 16, 16, 16 as ib, jb, ko, ix, jx, kx
{before}
map_blocks mm: ib, jb
tensorize mm: ix, jx, kx as wmma_f16
promote mm: {fragment} as C, fragment
{behind}
"""
BOTH = "promote mm: ko as A, shared, padded\npromote mm: ko as B, shared, padded"
SUM = "mm: C[i,j] += A[i,k] * B[k,j]"


def steps(before: str = BOTH, fragment: str = "jb", behind: str = "") -> str:
    return STEPS.format(before=before, fragment=fragment, behind=behind)


def text(statements: str = SUM, sizes: str = "20,24,28") -> str:
    m, n, k = sizes.split(",")
    return (
        f"def mm(float16 A[{m},{k}], float16 B[{k},{n}], float32 C[{m},{n}]) -> (C) "
        f"{{ {statements} }}"
    )


@dataclass(frozen=True)
class Case:
    """What is refused and with which message, and the twin."""

    text: str
    script: str
    message: str
    twin: str
    legal: str


#: Another statement writes what follows in the same matrix, or what does not.
NEXT, FAR = (f"{SUM} where i in 0:20\n fill: C[i,j] = 1 where i in {r}" for r in ("20:24", "32:40"))
TOGETHER = """
tile mm: i, j, k by 64, 32, 16 as ib, jb, ko, iy, jy, kx
tile fill: i, j by 64, 32 as ib, jb, iy, jy
reorder mm: ib, jb, ko, iy, jy, kx
fuse mm, fill: ib, jb
promote mm: jb as C, shared, padded
tile mm: iy, jy by 16, 16 as im, jm, ix, jx
map_blocks mm: ib, jb
promote mm: ko as A, shared, padded
promote mm: ko as B, shared, padded
reorder mm: im, jm, ix, jx, kx
tensorize mm: ix, jx, kx as wmma_f16
promote mm: ko as C, fragment
"""
#: What is multiplied is made by the block: by threads, or by matrices that reach beyond its edge.
MADE = """def mm(float16 A[20,28], float16 D[28,28], float16 B[28,24]) -> (float32 C[20,24]) {
    t: T[i,k] = 2 * A[i,k]
    mm: C[i,j] +=! T[i,k] * B[k,j] }"""
BY_THREADS = """
fuse mm_init, mm: i, j
tile mm: i, j by 16, 16 as ib, jb, ix, jx
tile t: i, k by 16, 32 as ib, kb, iy, kt
fuse t, mm: ib
promote mm: ib as T, shared, padded
map_blocks mm: ib
map_threads t: kt
distribute mm: ix
split mm: k by 16 as ko, kx
reorder mm: ko, ix, jx, kx
promote mm: ko as B, shared, padded
tensorize mm_init: ix, jx as wmma_f16
tensorize mm: ix, jx, kx as wmma_f16
promote mm: jb as C, fragment
"""
MULTIPLIED = MADE.replace("= 2 * A[i,k]", "+=! A[i,l] * D[l,k]")
BY_MATRICES = f"fuse t_init, t: i, k{BY_THREADS}".replace("16, 32", "16, 16").replace("kt", "ky")
BY_MATRICES = BY_MATRICES.replace(
    "map_threads t: ky",
    """distribute t: iy
split t: l by 16 as lo, lx
reorder t: lo, iy, ky, lx
promote t: lo as A, shared, padded
promote t: lo as D, shared, padded
tensorize t_init: iy, ky as wmma_f16
tensorize t: iy, ky, lx as wmma_f16
promote t: kb as T, fragment""",
)

CASES = {
    # Elements of A and B that are beside the tensors.
    "nothing is padded": Case(
        text(), steps(""), "not every tile is known to be full; fix the sizes to multiples of 16, "
        "16, 16, or promote A and B around as `shared, padded` before",
        text(sizes="32,32,32"), steps(""),
    ),
    # 0 * infinity is no number.
    "one of two is padded": Case(
        text(), steps(BOTH.replace("B, shared, padded", "B, shared")),
        "or promote B around as `shared, padded` before", text(), steps(),
    ),
    # A[i,k] is 0 for k > i, but B[k,j] is what other rows read.
    "one of two is zero": Case(
        text(f"{SUM} where k <= i"), steps(),
        r"both operands must be zero, but B_s has an element of B for mm\[",
        text(f"{SUM} where k in 0:25"), steps(),
    ),
    # What is written is no part of a matrix from its first row and column on.
    "sums stored beyond a diagonal": Case(
        text(f"{SUM} where i + j < 30"), steps(),
        "sums would be stored beyond the edge, .*: the elements of C_f_in",
        text(f"{SUM} where j in 0:21"), steps(),
    ),
    # A whole matrix is stored where a part of it is another statement's.
    "sums stored onto others": Case(
        text(NEXT, "40,24,28"), TOGETHER,
        r"reach beyond the edge of what mm writes, onto elements of C that are used .* in mm\[2",
        text(FAR, "40,24,28"), TOGETHER,
    ),
    "the buffer of a thread": Case(
        text(), steps(BOTH.replace("A, shared", "A, local")),
        "A_p belongs to one thread, but A_p is read by a warp",
        text(), steps(),
    ),
    # What is read is in the buffer inside, which is not padded.
    "a buffer inside": Case(
        text(), steps(BOTH + "\nsplit mm: ix by 16 as im, iz\npromote mm: im as A, shared").replace(
            "ix, jx, kx as w", "iz, jx, kx as w"),
        "or promote A around as `shared, padded` before",
        text(), steps(BOTH + "\nsplit mm: ix by 16 as im, iz").replace(
            "ix, jx, kx as w", "iz, jx, kx as w"),
    ),
    # Matrices of sums leave what they have beyond the edge where zeros would have to be.
    "made of matrices": Case(
        MULTIPLIED, BY_MATRICES, r"but T_s has an element of T for mm\[0, 0, 28\]",
        MULTIPLIED.replace("28", "32"), BY_MATRICES,
    ),
    "made, and not padded": Case(
        MADE, BY_THREADS.replace("T, shared, padded", "T, shared"),
        "or promote T around as `shared, padded` before", MADE, BY_THREADS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str) -> None:
    case = CASES[name]
    with pytest.raises(ScheduleError, match=case.message):
        generate_gpu(fk.Schedule.of(fk.parse(case.text)).replay(case.script), "cuda")


@pytest.mark.parametrize("name", CASES)
def test_its_twin_keeps_the_result(name: str, tmp_path: Path) -> None:
    program = fk.parse(CASES[name].twin)
    source = generate_gpu(fk.Schedule.of(program).replay(CASES[name].legal), "cuda")
    inputs = random_inputs(program, {})
    wanted = run(program, inputs, {}).values["C"]
    rounded = 3e-3 * np.abs(wanted).max() if "T" in program.tensors else 1e-5
    for backwards in (False, True):
        got = GpuProgram(source, CpuDevice(tmp_path, backwards=backwards))(**inputs)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=rounded)
