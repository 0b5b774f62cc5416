"""Instructions of tensor cores: what they mean, what is refused, and what their text computes."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import GpuSource, generate_gpu
from codegen.gpu.match_fragments import to_instructions
from codegen.loops.from_schedule import build_kernel, build_loops
from codegen.loops.lower_instances import _Lowering, lower
from codegen.loops.nodes import For, If, LoopNode, MultiplyMatrices, Wait
from codegen.loops.traverse import map_children, walk_loops
from poly.errors import IllegalScheduleError, ScheduleError
from poly.ir.expr import Const, Index, Op
from poly.ir.instruction_tables import MATRIX_INTRINSICS
from poly.ir.program import Program
from poly.lower.launches import launches
from poly.machine.gpu import ANY, NAMED, GpuMachine
from poly.strategy.gpu.auto_schedule import gpu_schedule
from runtime.cuda.compile import compile_cubin
from runtime.cuda.device import CudaDevice
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs
from tests.gpu.architectures import needs_compiler, on_one_each
from tests.gpu.races import races, races_of, without_wait
from tests.gpu.sanitized import ChildDevice, why_not

#: Blocks of 32 x 64 with two warps, each with 2 x 2 matrices of sums.
TILES = """
fuse mm_init, mm: i, j
tile mm: i, j by 32, 64 as ib, jb, iw, jw
tile mm: iw, jw by 32, 32 as iy, jy, ir, jr
tile mm: ir, jr by 16, 16 as im, jm, ix, jx
reorder mm: ib, jb, iy, jy, im, jm, ix, jx
distribute mm: im
tile mm: k by 32 as ko, ki
split mm: ki by {terms} as km, kx
reorder mm: ko, km, im, jm, ix, jx, kx
map_blocks mm: ib, jb
map_threads mm: iy, jy
{before}
tensorize mm_init: ix, jx as {name}
tensorize mm: ix, jx, kx as {name}
{fragment}
unroll mm: im
unroll mm: jm
unroll mm_init: im
unroll mm_init: jm
"""
BOTH = "promote mm: ko as A, shared\npromote mm: ko as B, shared"
AROUND = "promote mm: jy as C, fragment"


def script(before: str = BOTH, name: str = "wmma_f16", fragment: str = AROUND) -> str:
    terms = MATRIX_INTRINSICS[name].extents[2]
    return TILES.format(terms=terms, before=before, name=name, fragment=fragment)


def product(
    update: str = "C[i,j] +=! A[i,k] * B[k,j]",
    dtype: str = "float16",
    sums: str = "float32",
    n: int = 64,
) -> str:
    shape = f"[{n},{n}]"
    return f"def mm({dtype} A{shape}, {dtype} B{shape}) -> ({sums} C{shape}) {{ mm: {update} }}"


@dataclass(frozen=True)
class Case:
    """tolerance : relative to the largest result, beyond what the reference rounds itself"""

    text: str
    script: str
    barriers: int
    tolerance: float = 1e-6


BATCHES = """def mm(float16 A[2,64,64], float16 B[2,64,64]) -> (float32 C[2,64,64]) {
    mm: C[b,i,j] +=! A[b,i,k] * B[b,k,j] }"""
CASES = {
    "shared": Case(product(), script(), 2),
    "global": Case(product(), script(""), 0),
    "casts as written": Case(
        product("C[i,j] +=! float32(B[k,j]) * float32(A[i,k])"), script(), 2
    ),
    "columns in one piece": Case(product("C[i,j] +=! A[k,i] * B[j,k]"), script(), 2),
    "columns turned into rows": Case(
        product("C[i,j] +=! A[k,i] * B[j,k]"), script(BOTH.replace("shared", "shared, 1, 0")), 2
    ),
    "ahead": Case(product(), script(BOTH.replace("shared", "shared, ahead")), 1),
    "batches": Case(
        BATCHES,
        script().replace("fuse mm_init, mm: i", "fuse mm_init, mm: b, i").replace(
            "map_blocks mm: ib", "map_blocks mm: b, ib"),
        2,
    ),
    "sums of bits": Case(product(sums="float16"), script(), 2, 3e-3),
    "bfloat16": Case(product(dtype="bfloat16", sums="bfloat16"), script(name="wmma_bf16"), 2, 3e-2),
    "tf32": Case(product(dtype="float32"), script(name="wmma_tf32"), 2, 2e-3),
    # Sums leave the fragment and come back in each step.
    "partial sums": Case(
        product(), script("", fragment="promote mm_init: jy as C, fragment").replace(
            "promote mm_init: jy as C, fragment",
            "promote mm_init: im as C, fragment\npromote mm: ko as C, fragment"), 2
    ),
}  # fmt: skip


def schedule(text: str, steps: str, exact: bool = False) -> fk.Schedule:
    return fk.Schedule.of(fk.parse(text), exact).replay(steps)


def check(program: Program, source: GpuSource, folder: Path, tolerance: float) -> None:
    """The text on the CPU, with threads in both orders."""
    inputs = random_inputs(program, {})
    expected = evaluate(program, inputs)
    for backwards in (False, True):
        got = GpuProgram(source, CpuDevice(folder, backwards=backwards))(**inputs)
        assert isinstance(got, np.ndarray)
        (wanted,) = expected.values()
        wide = wanted.astype(np.float64)
        error = np.abs(got.astype(np.float64) - wide).max()
        assert error <= tolerance * np.abs(wide).max()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_it_equals_the_reference(case: Case, tmp_path: Path) -> None:
    s = schedule(case.text, case.script)
    source = generate_gpu(s, "cuda")
    assert source.text.count("__syncthreads();") == case.barriers
    check(s.program, source, tmp_path, case.tolerance)
    assert str(fk.Schedule.of(s.program).replay(str(s))) == str(s)
    assert "promote C to fragment C_f" in s.show


@pytest.mark.parametrize("name", MATRIX_INTRINSICS)
def test_the_meaning_is_a_program(name: str, tmp_path: Path) -> None:
    """It parses back, and the instruction alone computes it."""
    meaning = MATRIX_INTRINSICS[name].meaning
    assert fk.parse(str(meaning)) == meaning
    steps = f"split mma: i by 16\nreorder mma: i_o, i_i, j, k\ntensorize mma: i_i, j, k as {name}\n"
    s = fk.Schedule.of(meaning).replay(steps + "promote mma: i_o as C, fragment")
    source = generate_gpu(s, "cuda")
    assert "_sums_row_global(&C" in source.text and "_store_row_global(&C" in source.text
    check(meaning, source, tmp_path, 2e-3 if MATRIX_INTRINSICS[name].rounds else 1e-6)


# --- races -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shared", "ahead", "partial sums"])
def test_every_barrier_is_needed(name: str) -> None:
    steps = CASES[name].script.replace("by 32, 64", "by 32, 32").replace("k by 32", "k by 16")
    s = schedule(CASES[name].text.replace("64", "32"), steps)
    source = generate_gpu(s, "cuda")
    assert races(s, source, {}) == []
    _, (launch,) = launches(s.tree, s.scop)
    body = lower(build_kernel(s, launch))
    count = sum(isinstance(n, Wait) for n in walk_loops(body))
    assert count == CASES[name].barriers
    for k in range(count):
        assert races_of(without_wait(body, k), launch, (1, 1, 1), {})


@pytest.mark.parametrize("name", ["shared", "partial sums", "sums of bits"])
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_sanitizers_find_nothing(name: str, sanitizer: str, tmp_path: Path) -> None:
    if problem := why_not(sanitizer):
        pytest.skip(problem)
    s = schedule(CASES[name].text, CASES[name].script)
    device = ChildDevice(tmp_path, sanitizer)
    run = GpuProgram(generate_gpu(s, "cuda"), device)
    for device.backwards in (False, True):
        run(**random_inputs(s.program, {}))
    assert device.reports == []


def test_a_missing_barrier_is_found_in_the_text(tmp_path: Path) -> None:
    if problem := why_not("thread"):
        pytest.skip(problem)
    s = schedule(CASES["shared"].text, CASES["shared"].script)
    source = generate_gpu(s, "cuda")
    device = ChildDevice(tmp_path, "thread")
    without = replace(source, text=source.text.replace("__syncthreads();", "", 1))
    GpuProgram(without, device)(**random_inputs(s.program, {}))
    assert any("data race" in r for r in device.reports)


# --- machine code ----------------------------------------------------------------------------


def instructions(cubin: bytes, folder: Path) -> Counter[str]:
    """How often each instruction stands in machine code."""
    packages = pytest.importorskip("nvidia", reason="nvdisasm is not installed").__path__
    found = [f for p in packages for f in Path(p).glob("*/bin/nvdisasm")]
    if not found:
        pytest.skip("nvdisasm is not installed")
    (file := folder / "kernel.cubin").write_bytes(cubin)
    done = subprocess.run([found[0], "-c", file], capture_output=True, text=True, check=True)
    return Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)", done.stdout,
                              re.MULTILINE))  # fmt: skip


@pytest.mark.parametrize(("name", "arch"), on_one_each(CASES))
def test_it_becomes_instructions_of_tensor_cores(name: str, arch: str, tmp_path: Path) -> None:
    needs_compiler(arch)
    case = CASES[name]
    s = schedule(case.text, case.script)
    source = generate_gpu(s, "cuda")
    cubin = compile_cubin(source.text, arch)
    for kernel in source.kernels:
        own = cubin.kernels[kernel.symbol]
        assert own.spill_store_bytes == own.spill_load_bytes == own.stack_bytes == 0
        assert own.shared_bytes == kernel.shared_bytes
    counted = instructions(cubin.data, tmp_path)
    assert sum(n for name, n in counted.items() if name.startswith("HMMA")) >= 16
    assert counted["FFMA"] == 0
    # Eight operands at a time, and without registers where that is for the next step.
    copies = sum(n for name, n in counted.items() if name.startswith("LDGSTS"))
    assert (copies > 0) == ("ahead" in case.script)
    assert ("fk_copy_16(&" in source.text) == (
        "shared\n" in case.script and "tf32" not in case.script
    )


# --- what is refused -------------------------------------------------------------------------

PLAIN = """
tile mm: i, j, k by 16, 16, 16 as io, jo, ko, ix, jx, kx
tensorize mm: ix, jx, kx as wmma_f16
"""
UNKNOWN = (
    "def mm(float16 A[N,K], float16 B[K,M]) -> (float32 C[N,M]) { mm: C[i,j] +=! A[i,k]*B[k,j] }"
)
WIDE = """def mm(float16 A[64,72], float16 B[64,64]) -> (float32 C[64,64]) {
    mm: C[i,j] +=! A[i,k] * B[k,j] where k in 0:64 }"""
PAIRS = """def mm(float16 A[64,64,2], float16 B[64,64]) -> (float32 C[64,64]) {
    mm: C[i,j] +=! A[i,k,0] * B[k,j] }"""


ITSELF = "def mm(float32 B[8,8], float32 C[8,8]) -> (C) { mm: C[i,j] += C[i,k] * B[k,j] }"


def plain(old: str = "", new: str = "") -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


def tiles(old: str, new: str, **given: str) -> str:
    steps = script(**given)
    assert old in steps
    return steps.replace(old, new, 1)


#: Program, steps, and what the message says.  See tests/illegal for those of partial tiles.
REFUSED = {
    "eight rows": (product(), plain("16, 16, 16", "8, 16, 16"), "ix has 8 iterations, and .* 16"),
    "too many terms": (
        product(dtype="float32"), plain("f16", "tf32"), "kx has 16 iterations, and wmma_tf32 8"
    ),
    "partial tiles": (product(n=40), PLAIN, "not every tile is known to be full; fix the sizes"),
    "unknown sizes": (UNKNOWN, PLAIN, "not every tile is known to be full; fix the sizes"),
    "floats": (product(dtype="float32"), PLAIN, "A is float32, but wmma_f16 multiplies float16"),
    "the other 16 bits": (product(dtype="bfloat16"), PLAIN, "A is bfloat16, but wmma_f16"),
    "sums of doubles": (product(sums="float64"), PLAIN, "C is float64, but wmma_f16 sums up f"),
    "no product": (product("C[i,j] +=! A[i,k] + B[k,j]"), PLAIN, "not a product of two elements"),
    "a maximum": (product("C[i,j] max=! A[i,k] * B[k,j]"), PLAIN, "mm is not a sum"),
    "it reads itself": (
        ITSELF, "tensorize mm: i, j, k as wmma_tf32", "mm reads C, which it also updates"
    ),
    "loops in another order": (
        product(), plain("ix, jx, kx as w", "kx, jx, ix as w"), r"C\[i, j\] is not C\[i, j\] of"
    ),
    "both move with rows": (
        product("C[i,j] +=! A[i,k] * B[i,j]"), PLAIN, "by one along a dimension of its own"
    ),
    "backwards": (
        product("C[i,j] +=! A[i,k] * B[63-k,j]"), PLAIN, "by one along a dimension of its own"
    ),
    "along a diagonal": (
        product("C[i,j] +=! A[i,k] * B[k,k]"), PLAIN, "by one along a dimension of its own"
    ),
    "two loops": (product(), plain("ix, jx, kx as w", "ix, jx as w"), "mm takes 3 loops"),
    "no intrinsic": (product(), plain("wmma_f16", "wmma"), "`as` takes one of wmma_f16, wmma_bf16"),
    "not innermost": (
        product(), plain("tensorize", "reorder mm: ix, jx, kx, ko\ntensorize"),
        "not the innermost loops of mm",
    ),
    "split behind": (product(), PLAIN + "split mm: ix by 4", "already marked wmma_f16"),
    "moved behind": (
        product(), tiles("unroll mm: im", "reorder mm: jx, im"), "have to be the innermost ones"
    ),
    "lanes": (product(), plain("tensorize", "vectorize mm: jx\ntensorize"), "marked vector"),
    "no fragment": (product(), PLAIN, "sums up in a fragment of a warp, but there is none"),
    "a layout": (product(), PLAIN + "promote mm: jo as C, fragment, 1, 0", "hardware decides"),
    "operands in a fragment": (
        product(), PLAIN + "promote mm: jo as A, fragment", "mm accesses single elements of it"
    ),
    "a thread begins sums": (
        product(), tiles("tensorize mm_init: ix, jx as wmma_f16", ""), "tensorize mm_init, too"
    ),
    "sums rounded in between": (
        product(sums="float16"), script(fragment="promote mm: ko as C, fragment"),
        "would have been rounded to float16",
    ),
    "memory of a thread": (
        product(), script("promote mm: km as A, local"), "to one thread, but A_p is read by a warp"
    ),
    "rows that are not aligned": (WIDE, script(""), "begin at multiples of 32 bytes"),
    "elements apart": (PAIRS, script(""), "rows nor columns of a matrix in A are contiguous"),
    "four dimensions": (
        product(), tiles("unroll mm: im", "map_threads mm: im"), "a block has at most 3 dimensions"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    text, steps, message = REFUSED[name]
    with pytest.raises(ScheduleError, match=message):
        generate_gpu(schedule(text, steps), "cuda")


def test_exact_mode_keeps_the_order_of_a_sum() -> None:
    with pytest.raises(IllegalScheduleError, match="at once in the iterations of kx"):
        schedule(product(), PLAIN, exact=True)


def test_who_has_no_tensor_cores() -> None:
    s = schedule(product(), script())
    with pytest.raises(ScheduleError, match="wmma_f16 of mm_init: opencl has none"):
        generate_gpu(s, "opencl")
    with pytest.raises(ScheduleError, match="tensorize as wmma_f16: a CPU has none"):
        build_loops(schedule(product(), PLAIN))


def test_a_warp_takes_a_dimension_of_a_block() -> None:
    text = (
        "def f(float16 A[8,64,64], float16 B[8,64,64], float32 X[8,64])"
        " -> (Y, float32 C[8,64,64]) {"
        " s: Y[b,j] = 2 * X[b,j]\n mm: C[b,i,j] +=! float32(A[b,i,k]) * float32(B[b,k,j]) }"
    )
    steps = (
        "fuse mm_init, mm: b\nfuse s, mm: b\nfuse mm_init, mm: i, j\n"
        "tile mm: i, j by 16, 16 as iy, jy, ix, jx\ndistribute mm: ix\n"
        "split mm: k by 16 as ko, kx\n"
        "reorder mm: ko, ix, jx, kx\nmap_blocks s: b\nmap_threads mm: iy\nmap_threads s: j\n"
        "tensorize mm_init: ix, jx as wmma_f16\ntensorize mm: ix, jx, kx as wmma_f16\n"
        "promote mm: jy as C, fragment"
    )
    with pytest.raises(ScheduleError, match="other loops have 64 threads there"):
        generate_gpu(schedule(text, steps), "cuda")


def test_all_threads_of_a_warp_come_together() -> None:
    s = schedule(product(), script())
    _, (launch,) = launches(s.tree, s.scop)
    loops = build_kernel(s, launch)
    body = _Lowering(loops).node(loops.body, (), {})

    def some(node: LoopNode) -> LoopNode:
        node = map_children(node, some)
        first = isinstance(node, For) and node.label == "ix"
        return If(Op("lt", (Index("thread_x"), Const(3))), node) if first else node

    assert any(isinstance(n, MultiplyMatrices) for n in walk_loops(to_instructions(body)))
    with pytest.raises(ScheduleError, match="some threads of a warp would run wmma_f16"):
        to_instructions(some(body))


def test_arrays_begin_where_matrices_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = schedule(product(), script(""))
    source = generate_gpu(s, "cuda")
    assert source.kernels[0].with_matrices == ("A", "B", "C")
    assert generate_gpu(schedule(product(), script()), "cuda").kernels[0].with_matrices == ("C",)
    run = GpuProgram(source, CpuDevice(tmp_path))
    monkeypatch.setattr(run.device, "locate", lambda handle: ("somewhere", 2))
    with pytest.raises(fk.ArgumentError, match="A does not begin at a multiple of 32 bytes"):
        run(**random_inputs(s.program, {}))


# --- the automatic schedule ------------------------------------------------------------------

SMALL = GpuMachine("sm_80", 2, tensor_cores=True)
BIAS = """def f(float16 A[64,64], float16 B[64,128], float16 b[128]) -> (Y) {
    mm: C[i,j] +=! A[i,k] * B[k,j]
    Y[i,j] = max(C[i,j] + b[j], 0) }"""
CHAIN = """def f(float16 A[64,64], float16 B[64,128], float16 b[128], float16 R[64,128])
-> (float16 Y[64,128]) {
    float32 C[64,128]
    float16 T[64,128]
    float16 U[64,128]
    mm: C[i,j] +=! A[i,k] * B[k,j]
    T[i,j] = C[i,j] + b[j]
    U[i,j] = sigmoid(T[i,j])
    Y[i,j] = max(T[i,j], 0) * U[i,j] + R[i,j] }"""
#: Texts, whether tensor cores take them, and a tolerance.
AUTOMATIC = {
    "product": (product(n=128), True, 1e-6),
    "transposed": (product("C[i,j] +=! A[k,i] * B[j,k]"), True, 1e-6),
    "batches": (BATCHES, True, 1e-6),
    "bias and activation": (BIAS, True, 3e-3),
    "values on the way": (CHAIN, True, 3e-3),
    "a size that is no multiple": (product(n=40), True, 1e-6),
    "float32": (product(dtype="float32"), False, 1e-5),
    "a part of the rows": (WIDE, True, 1e-6),
    "elements apart": (PAIRS, True, 1e-6),
}


@pytest.mark.parametrize("name", AUTOMATIC)
def test_the_automatic_schedule(name: str, tmp_path: Path) -> None:
    text, taken, tolerance = AUTOMATIC[name]
    program = fk.parse(text)
    s = gpu_schedule(fk.Schedule.of(program), SMALL)
    assert ("tensorize" in str(s)) == taken
    check(program, generate_gpu(s, "cuda"), tmp_path, tolerance)


def test_what_follows_the_sums_is_in_registers() -> None:
    """Nothing but the tile of sums is in memory on the way."""
    s = gpu_schedule(fk.Schedule.of(fk.parse(CHAIN)), SMALL)
    source = generate_gpu(s, "cuda")
    assert source.workspace == () and "fk_f16 T_r_0_0;" in source.text
    assert races(s, source, {}) == []


def test_a_device_says_whether_it_has_some() -> None:
    for arch, has in (("sm_75", False), ("sm_80", True), ("sm_90", True)):
        launcher: Any = SimpleNamespace(
            architecture=arch, processors=40, device="GPU", package="none"
        )
        try:
            assert CudaDevice(launcher).machine == GpuMachine(arch, 40, tensor_cores=has)
        except fk.ToolchainError as error:
            pytest.skip(str(error))


def test_who_gets_tensor_cores() -> None:
    start = fk.Schedule.of(fk.parse(product()))
    assert "tensorize" in str(gpu_schedule(start, NAMED["sm_90"]))
    assert "tensorize" not in str(gpu_schedule(start, ANY))
    assert "tensorize" not in str(gpu_schedule(replace(start), replace(SMALL, tensor_cores=False)))
    exact = fk.Schedule.of(fk.parse(product()), exact=True)
    assert "tensorize" not in str(gpu_schedule(exact, SMALL))
    floats = fk.Schedule.of(fk.parse(product(dtype="float32")))
    rounded = replace(SMALL, rounded_float32=True)
    assert "wmma_tf32" in str(gpu_schedule(floats, rounded))
