"""Products on tensor cores whose sizes are not known, or no multiples of the instructions'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import GpuSource, generate_gpu
from poly.ir.program import Program
from poly.machine.gpu import NAMED, SHARED_BYTES, GpuMachine
from poly.strategy.gpu.auto_schedule import gpu_schedule
from runtime.cuda.compile import compile_cubin
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import run
from runtime.reference.verify import random_inputs
from tests.gpu.architectures import needs_compiler, on_one_each
from tests.gpu.races import races
from tests.gpu.sanitized import ChildDevice, why_not
from tests.gpu.test_tensor_cores import instructions

MACHINE = GpuMachine("sm_80", 2, tensor_cores=True, rounded_float32=True)
#: How wrong a result may be, relative to the largest: operands of tf32 are rounded.
TOLERANCE = {"float16": 1e-6, "bfloat16": 1e-6, "float32": 2e-3}
#: Around multiples of the instructions' extents, and of the tiles'.
EXTENTS = (1, 15, 16, 17, 31, 33, 49)
OPEN = {"m": "M", "n": "N", "k": "K"}


def text(
    sizes: Mapping[str, object],
    dtype: str = "float16",
    a: str = "ik",
    b: str = "kj",
    sums: str = "float32",
) -> str:
    extent = {"i": sizes["m"], "j": sizes["n"], "k": sizes["k"]}
    left, right = ("][".join(x).replace("][", ",") for x in (a, b))
    one, two = (",".join(str(extent[x]) for x in y) for y in (a, b))
    return (
        f"def mm({dtype} A[{one}], {dtype} B[{two}]) -> ({sums} C[{extent['i']},{extent['j']}]) "
        f"{{ mm: C[i,j] +=! A[{left}] * B[{right}] }}"
    )


def automatic(source: str) -> tuple[Program, fk.Schedule, GpuSource]:
    """A program with the schedule that has tensor cores, and its text."""
    program = fk.parse(source)
    schedule = gpu_schedule(fk.Schedule.of(program), MACHINE)
    assert "tensorize" in str(schedule)
    return program, schedule, generate_gpu(schedule, "cuda")


def same(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Whether finite elements are close, and the others are the same ones."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = np.abs(b[finite]).max(initial=1e-3)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0.0) <= tolerance * largest)


def check(
    program: Program,
    source: GpuSource,
    folder: Path,
    tolerance: float,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> None:
    """The text on the CPU, with threads in both orders."""
    given = dict(inputs or random_inputs(program, sizes or {}))
    wanted = run(program, given, dict(sizes or {})).values[program.outputs[0].name]
    for backwards in (False, True):
        got = GpuProgram(source, CpuDevice(folder, backwards=backwards))(**given)
        assert isinstance(got, np.ndarray)
        assert same(got, wanted, tolerance), sizes


# --- results ---------------------------------------------------------------------------------


#: Three extents: any two of them meet each other; in the sweep, all do.
EXTENTS_OF_THREE = [
    pytest.param(
        [(m, n, EXTENTS[(i + j) % len(EXTENTS)])
         for i, m in enumerate(EXTENTS) for j, n in enumerate(EXTENTS)],
        id="pairs",
    ),
    pytest.param([*product(EXTENTS, repeat=3)], id="all", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("extents", EXTENTS_OF_THREE)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_open_sizes(dtype: str, extents: list[tuple[int, int, int]], tmp_path: Path) -> None:
    """One kernel for all of them."""
    program, _, source = automatic(text(OPEN, dtype))
    kernel = GpuProgram(source, CpuDevice(tmp_path))
    for m, n, k in extents:
        inputs = random_inputs(program, {"M": m, "N": n, "K": k})
        wanted = run(program, inputs, {"M": m, "N": n, "K": k}).values["C"]
        got = kernel(**inputs)
        assert isinstance(got, np.ndarray)
        assert same(got, wanted, TOLERANCE[dtype]), (m, n, k)
    check(program, source, tmp_path, TOLERANCE[dtype], {"M": 70, "N": 130, "K": 0})


#: Rows, columns, terms; how operands lie; their type and that of the sums.
SHAPES = [
    (17, 33, 15, "ik", "kj", "float16", "float32"),
    (49, 16, 31, "ki", "kj", "float16", "float32"),
    (31, 49, 17, "ik", "jk", "bfloat16", "float32"),
    (16, 15, 49, "ki", "jk", "float16", "float16"),
    (33, 100, 16, "ik", "kj", "bfloat16", "bfloat16"),
    (15, 31, 33, "ki", "kj", "float32", "float32"),
    (100, 17, 9, "ik", "jk", "float32", "float32"),
    (13, 11, 10, "ik", "kj", "float16", "float32"),
    # Rows of 16 bytes, which are copied at once or are zeros as a whole.
    (40, 72, 40, "ik", "kj", "float16", "float16"),
    # Blocks that do not divide, of matrices that do.
    (240, 16, 80, "ik", "kj", "float16", "float32"),
]


@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=[pytest.mark.slow] if n % 2 else []) for n, s in
              enumerate(SHAPES)], ids=str,
)  # fmt: skip
def test_fixed_sizes(shape: tuple[int, int, int, str, str, str, str], tmp_path: Path) -> None:
    m, n, k, a, b, dtype, sums = shape
    program, schedule, source = automatic(text({"m": m, "n": n, "k": k}, dtype, a, b, sums))
    rounded = {"float16": 4e-3, "bfloat16": 3e-2}.get(sums, 0.0)
    check(program, source, tmp_path, TOLERANCE[dtype] + rounded)
    assert str(fk.Schedule.of(program).replay(str(schedule))) == str(schedule)
    ahead = ", one iteration ahead" if k > 32 else ""
    assert re.search(f"to shared A_s{ahead}, padded$", schedule.show, re.MULTILINE)


EPILOGUES = {
    "bias and activation": "Y[i,j] = max(C[i,j] + b[j], 0)",
    "residual": "Y[i,j] = C[i,j] + R[i,j]",
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("rows", ["M", "37"])
def test_an_epilogue(name: str, rows: str, tmp_path: Path) -> None:
    """It reads the sums in shared memory, where matrices are stored as a whole."""
    program, schedule, source = automatic(
        f"def f(float16 A[{rows},50], float16 B[50,70], float16 b[70], float16 R[{rows},70]) "
        f"-> (Y) {{ mm: C[i,j] +=! A[i,k] * B[k,j]\n {EPILOGUES[name]} }}"
    )
    assert "to shared C_s, padded" in schedule.show
    assert re.search(r"fk_f16_(store|round)_row(_shared)?\(&C_s", source.text)
    for m in (1, 33, 64) if rows == "M" else (37,):
        check(program, source, tmp_path, 5e-3, {"M": m} if rows == "M" else {})


def test_attention(tmp_path: Path) -> None:
    """Heads with a number of tokens that nothing divides."""
    program, _, source = automatic(
        "def f(float16 Q[2,19,24], float16 K[2,19,24]) -> (float32 S[2,19,19]) "
        "{ S[h,i,j] +=! Q[h,i,k] * K[h,j,k] }"
    )
    check(program, source, tmp_path, 1e-6)


def test_parts_that_are_no_matrices(tmp_path: Path) -> None:
    """Sums over a triangle of places have a kernel of their own, of which a matrix has half."""
    program = fk.parse(
        "def f(float16 Q[40,32], float16 K[40,32], float16 V[40,24]) -> (float32 Z[40,24]) {"
        " S[i,j] +=! Q[i,k] * K[j,k] where j <= i\n Z[i,l] +=! S[i,j] * V[j,l] where j <= i }"
    )
    schedule = gpu_schedule(fk.Schedule.of(program), NAMED["sm_80"])
    assert "tensorize" not in str(schedule)
    check(program, generate_gpu(schedule, "cuda"), tmp_path, 3e-3)


# --- several loops of the reduction ----------------------------------------------------------

CONV = "Y[n,k,p,q] +=! X[n,c,p+r,q+s] * W[k,c,r,s]"
#: Programs, and how an operand is shared.
SEVERAL = {
    "two loops": (
        "def f(float16 A[40,20,3], float16 B[3,20,50]) -> (float32 C[40,50]) "
        "{ C[i,j] +=! A[i,k,l] * B[l,k,j] }", "A, shared, 2, 0, 1,",
    ),
    "elements apart": (
        "def f(float32 A[20,33,3], float32 B[3,50,20]) -> (float32 C[33,50]) "
        "{ C[i,j] +=! A[k,i,l] * B[l,j,k] }", "A, shared, 2, 0, 1,",
    ),
    "in the middle of both": (
        "def f(float16 A[64,80], float16 B[67,64]) -> (float32 C[64,64]) "
        "{ C[i,j] +=! A[i,k+5] * B[k+3,j] where k in 0:64 }", "A, shared, padded",
    ),
    "windows": (
        f"def f(float16 X[2,20,5,19], float16 W[33,20,3,3]) -> (float32 Y[2,33,3,17]) {{ {CONV} }}",
        "X, shared, 0, 2, 1, 3, padded",
    ),
    "windows of one": (
        f"def f(float32 X[2,17,3,14], float32 W[32,17,1,1]) -> (Y) {{ {CONV} }}",
        "W, shared, 2, 3, 0, 1, padded",
    ),
    "windows over rows alone, open": (
        "def f(bfloat16 X[2,32,H,28], bfloat16 W[32,32,3,1]) -> (float32 Y[2,32,H-2,28]) "
        f"{{ {CONV} where p in 0:H-2, r in 0:3 }}", "X, shared, 0, 2, 1, 3, ",
    ),
    "windows and activation": (
        "def f(float16 X[1,16,4,20], float16 W[40,16,2,3]) -> (Y) { float32 T[1,40,3,18]\n"
        f"{CONV.replace('Y', 'T')}\n Y[n,k,p,q] = max(T[n,k,p,q], 0) }}", "T, shared, padded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_several_loops_of_the_reduction(name: str, tmp_path: Path) -> None:
    """One is that of the matrices, which lie in one piece in shared memory only."""
    source, shared = SEVERAL[name]
    program, schedule, made = automatic(source)
    assert shared in str(schedule)
    for height in (3, 6) if program.sizes else (0,):
        sizes = {"H": height} if height else {}
        check(program, made, tmp_path, 3e-3, sizes)


def test_what_the_padding_of_a_convolution_must_not_meet(tmp_path: Path) -> None:
    """Beside the image is zero, which is no sum with an infinite weight: no tensor cores."""
    program = fk.parse(
        "def f(float16 X[1,16,4,20], float16 W[16,16,1,3]) -> (float32 Y[1,16,4,20]) { "
        "Y[n,k,p,q] +=! X[n,c,p+r,q+s-1] * W[k,c,r,s] "
        "where q in 0:20, s in 0:3, 0 <= q+s-1, q+s-1 < 20 }"
    )
    schedule = gpu_schedule(fk.Schedule.of(program), MACHINE)
    assert "tensorize" not in str(schedule)
    inputs = {name: array.copy() for name, array in random_inputs(program, {}).items()}
    inputs["W"][3, 2, 0, 0] = np.inf
    check(program, generate_gpu(schedule, "cuda"), tmp_path, 1e-3, inputs=inputs)


# Sums that are added to what is there are loaded and stored in parts.
ONTO = """
tile mm: i, j, k by 16, 16, 16 as ib, jb, ko, ix, jx, kx
promote mm: ko as A, shared, padded
promote mm: ko as B, shared, padded
map_blocks mm: ib, jb
tensorize mm: ix, jx, kx as wmma_f16
promote mm: {loop} as C, fragment
"""


@pytest.mark.parametrize("loop", ["jb", "ko"])
@pytest.mark.parametrize("b", ["kj", "jk"])
def test_sums_that_are_added_to_others(loop: str, b: str, tmp_path: Path) -> None:
    source = text({"m": 19, "n": 21, "k": 35}, b=b).replace("+=!", "+=").replace(
        "B[", "B[", 1).replace(") -> (float32 C[19,21])", ", float32 C[19,21]) -> (C)")  # fmt: skip
    program = fk.parse(source)
    schedule = fk.Schedule.of(program).replay(ONTO.format(loop=loop))
    text_ = generate_gpu(schedule, "cuda")
    assert "fk_f16_sums_part_row(&C" in text_.text
    check(program, text_, tmp_path, 1e-6)


def test_a_step_by_name() -> None:
    schedule = fk.Schedule.of(fk.parse(text({"m": 20, "n": 20, "k": 40}))).split("mm", "k", 16)
    schedule = schedule.reorder("mm", ["k_o", "i", "j", "k_i"])
    made = schedule.promote("mm", "k_o", "A", "shared", (1, 0), ahead=True, padded=True)
    assert str(made).endswith("promote mm: k_o as A, shared, 1, 0, padded, ahead")
    assert made.show == schedule.replay("promote mm: k_o as A, shared, 1, 0, ahead, padded").show


# --- what must not spread --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["A", "B", "both"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_no_number_stays_where_it_is(dtype: str, where: str, tmp_path: Path) -> None:
    """In the last rows, columns and terms, beside which there are zeros."""
    program, _, source = automatic(text(OPEN, dtype))
    for m, n, k in ((17, 17, 17), (15, 33, 31), (1, 49, 15)):
        inputs = random_inputs(program, {"M": m, "N": n, "K": k})
        inputs = {name: array.copy() for name, array in inputs.items()}
        if where != "B":
            inputs["A"][-1, 0], inputs["A"][0, -1] = np.inf, np.nan
        if where != "A":
            inputs["B"][-1, 0], inputs["B"][0, -1] = np.nan, -np.inf
        check(program, source, tmp_path, TOLERANCE[dtype], {"M": m, "N": n, "K": k}, inputs)


def test_what_is_behind_a_sum_stays_out_of_it(tmp_path: Path) -> None:
    """Rows are longer than sums are: what follows is there, but no part of them."""
    program, _, source = automatic(
        "def mm(float16 A[20,40], float16 B[40,24]) -> (float32 C[20,24]) "
        "{ mm: C[i,j] +=! A[i,k] * B[k,j] where k in 0:21 }"
    )
    inputs = {name: array.copy() for name, array in random_inputs(program, {}).items()}
    inputs["A"][:, 21:], inputs["B"][21:] = np.nan, np.inf
    check(program, source, tmp_path, 1e-6, inputs=inputs)


@pytest.mark.parametrize("buffer", ["A_s", "B_s"])
def test_zeros_that_are_left_out_are_missed(buffer: str, tmp_path: Path) -> None:
    program, _, source = automatic(text({"m": 32, "n": 32, "k": 21}))
    zeros = re.compile(rf"^\s*{buffer}\[.*\] = 0;$", re.MULTILINE)
    assert len(zeros.findall(source.text)) == 1
    check(program, source, tmp_path, 1e-6)
    with pytest.raises(AssertionError):
        check(program, replace(source, text=zeros.sub(";", source.text)), tmp_path, 1e-6)


# --- accesses and barriers -------------------------------------------------------------------

WATCHED = {
    "open": (text(OPEN), {"M": 33, "N": 17, "K": 49}),
    "epilogue": (
        "def f(float16 A[M,20], float16 B[20,70]) -> (Y) "
        "{ mm: C[i,j] +=! A[i,k] * B[k,j]\n Y[i,j] = max(C[i,j], 0) }", {"M": 35},
    ),
    "windows": (SEVERAL["windows and activation"][0], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_sanitizers_find_nothing(name: str, sanitizer: str, tmp_path: Path) -> None:
    if problem := why_not(sanitizer):
        pytest.skip(problem)
    program, _, source = automatic(WATCHED[name][0])
    device = ChildDevice(tmp_path, sanitizer)
    kernel = GpuProgram(source, device)
    for device.backwards in (False, True):
        kernel(**random_inputs(program, WATCHED[name][1]))
    assert device.reports == []


def test_accesses_beyond_the_edge_are_found(tmp_path: Path) -> None:
    if problem := why_not("address"):
        pytest.skip(problem)
    program, _, source = automatic(text({"m": 17, "n": 17, "k": 25}))
    inputs = random_inputs(program, {})
    stored = r"(fk_f16_store_part_row\(.*), [^,]*\);"
    copied = r"if \(.* < (17|25)\)"
    for pattern, new in ((stored, r"\1, 16);"), (copied, "if (1)")):
        assert re.search(pattern, source.text)
        device = ChildDevice(tmp_path, "address")
        wrong = replace(source, text=re.sub(pattern, new, source.text))
        GpuProgram(wrong, device)(**inputs)
        assert any("heap-buffer-overflow" in r for r in device.reports)


def test_there_are_no_races() -> None:
    _, schedule, source = automatic(text({"m": 19, "n": 33, "k": 20}))
    assert races(schedule, source, {}) == []


@pytest.mark.parametrize("n", [1024, 1000])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_tiles_leave_room_for_sums(dtype: str, n: int) -> None:
    """What warps need to round sums, or to store parts, is shared memory, too."""
    program = fk.parse(text({"m": n, "n": n, "k": n}, dtype, sums=dtype))
    (kernel,) = generate_gpu(gpu_schedule(fk.Schedule.of(program), MACHINE), "cuda").kernels
    assert kernel.block == (32, 4, 2) and kernel.shared_bytes <= SHARED_BYTES


# --- machine code ----------------------------------------------------------------------------

COMPILED = {
    "1000": (text({"m": 1000, "n": 1000, "k": 1000}), 16),
    "197": (text({"m": 197, "n": 197, "k": 64}, sums="float16"), 4),
    "open": (text(OPEN), 4),
    "tf32": (text({**OPEN, "n": 100}, "float32"), 8),
    "epilogue": (WATCHED["epilogue"][0], 2),
    "windows": (SEVERAL["windows and activation"][0], 1),
}


@pytest.mark.parametrize(("name", "arch"), on_one_each(COMPILED))
def test_it_becomes_instructions_of_tensor_cores(name: str, arch: str, tmp_path: Path) -> None:
    needs_compiler(arch)
    source, least = COMPILED[name]
    _, _, made = automatic(source)
    cubin = compile_cubin(made.text, arch)
    (kernel,) = made.kernels
    own = cubin.kernels[kernel.symbol]
    assert own.spill_store_bytes == own.spill_load_bytes == own.stack_bytes == 0
    assert own.shared_bytes == kernel.shared_bytes
    counted = instructions(cubin.data, tmp_path)
    assert sum(n for i, n in counted.items() if i.startswith("HMMA")) >= least
    assert counted["FFMA"] == 0
