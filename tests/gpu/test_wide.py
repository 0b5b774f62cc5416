"""Neighbours that a thread loads and stores at once, in global memory: where that is done, that it
is right for all sizes and for arrays that begin anywhere, and what NVIDIA's compiler makes of it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import GpuSource, generate_gpu
from codegen.pipeline import CUDA
from poly.ir.program import Program
from poly.machine.gpu import ANY
from poly.strategy.gpu.auto_schedule import gpu_schedule
from runtime.common.arguments import Array, aligned
from runtime.common.cache import Cache
from runtime.cuda.compile import compile_cubin
from runtime.find_device import find_device
from runtime.gpu.device import Device
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import run
from runtime.reference.verify import random_inputs
from tests.gpu.architectures import needs_compiler, on_one_each
from tests.gpu.races import races
from tests.gpu.sanitized import ChildDevice, why_not
from tests.gpu.test_tensor_cores import instructions

#: One on which small arrays are large.
SMALL = replace(ANY, processors=1)


@dataclass(frozen=True)
class Case:
    """calls : of helpers, in the text of a kernel; wide : instructions of 16 bytes

    sizes : to run it at: whole groups of neighbours, some more, fewer than one, odd rows
    tolerance : relative
    """

    text: str
    sizes: tuple[dict[str, int], ...]
    calls: dict[str, int]
    wide: dict[str, int]
    tolerance: float = 1e-5


CASES = {
    "one dimension": Case(
        "def f(float32 X[N]) -> (Y) { Y[i] = 2 * X[i] }",
        ({"N": 1024}, {"N": 1030}, {"N": 3}),
        {"load_f32x4": 1, "store_f32x4": 1},
        {"LDG": 1, "STG": 1},
    ),
    "bias, relu and sum": Case(
        "def f(float32 X[N,M], float32 Z[N,M], float32 b[M]) -> (Y) "
        "{ T[i,j] = X[i,j] + b[j]; U[i,j] = max(T[i,j], 0); Y[i,j] = U[i,j] + Z[i,j] }",
        ({"N": 3, "M": 1028}, {"N": 3, "M": 19}, {"N": 2, "M": 20}),
        {"load_f32x4": 3, "store_f32x4": 1},
        {"LDG": 3, "STG": 1},
    ),
    "halves": Case(
        "def f(float16 X[N,1000], float16 s[N]) -> (Y) { Y[i,j] = X[i,j] * s[i] }",
        ({"N": 3},),
        {"load_u16x8": 1, "store_u16x8": 1},
        {"LDG": 1, "STG": 1},
    ),
    "bfloat16": Case(
        "def f(bfloat16 X[N]) -> (Y) { Y[i] = X[i] + 1 }",
        ({"N": 2061},),
        {"load_u16x8": 1, "store_u16x8": 1},
        {"LDG": 1, "STG": 1},
    ),
    "doubles": Case(
        "def f(float64 X[N]) -> (Y) { Y[i] = X[i] + 1 }",
        ({"N": 517},),
        {"load_f64x2": 1, "store_f64x2": 1},
        {"LDG": 1, "STG": 1},
    ),
    "integers": Case(
        "def f(int64 X[N], int64 Z[N]) -> (Y) { Y[i] = X[i] + Z[i] }",
        ({"N": 517},),
        {"load_i64x2": 2, "store_i64x2": 1},
        {"LDG": 2, "STG": 1},
    ),
    "bytes": Case(
        "def f(uint8 X[N], int8 Z[N]) -> (int8 Y[N]) { Y[i] = Z[i] - int8(X[i] / 2) }",
        ({"N": 4111},),
        {"load_u8x16": 1, "load_i8x16": 1, "store_i8x16": 1},
        {"LDG": 2, "STG": 1},
    ),
    "of different lengths": Case(
        "def f(float16 X[N], float32 b[N], bool c[N]) -> (Y) "
        "{ Y[i] = select(c[i], X[i] * b[i], 0) }",
        ({"N": 2061}, {"N": 7}),
        {"load_u16x8": 1, "load_f32x4": 2, "load_u8x8": 1, "store_f32x4": 2},
        {"LDG": 3, "STG": 2},
    ),
    "two results and one in between": Case(
        "def f(float32 X[N]) -> (Y, Z) { Y[i] = X[i] + 1; T[i] = 3 * Y[i]; Z[i] = T[i] - X[i] }",
        ({"N": 1030},),
        {"load_f32x4": 1, "store_f32x4": 2},
        {"LDG": 1, "STG": 2},
    ),
    "fewer results": Case(
        "def f(float32 X[N], float32 Z[N]) -> (float32 Y[N-5]) { Y[i] = X[i] - Z[i] }",
        ({"N": 1033}, {"N": 1034}, {"N": 6}),
        {"load_f32x4": 2, "store_f32x4": 1},
        {"LDG": 2, "STG": 1},
    ),
    "matrix product": Case(
        "def f(float32 A[N,20], float32 B[20,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        ({"N": 67, "M": 72}, {"N": 65, "M": 66}, {"N": 2, "M": 3}),
        {"store_f32x4": 4},
        {"LDG": 0, "STG": 4},
    ),
    "what is done with sums": Case(
        "def f(float32 A[N,20], float32 B[20,M], float32 Z[N,M], float32 b[M]) -> (D) "
        "{ C[i,j] +=! A[i,k] * B[k,j]; D[i,j] = max(C[i,j] + b[j] + Z[i,j], 0) }",
        ({"N": 67, "M": 72}, {"N": 65, "M": 66}),
        {"load_f32x4": 5, "store_f32x4": 4},
        {"LDG": 5, "STG": 4},
    ),
    "convolution": Case(
        "def f(float32 X[1,5,34,34], float32 W[20,5,3,3], float32 b[20]) -> (Z) "
        "{ Y[n,o,y,x] +=! X[n,k,y+r,x+s] * W[o,k,r,s]; Z[n,o,y,x] = max(Y[n,o,y,x] + b[o], 0) }",
        ({},),
        {"store_f32x4": 4},
        {"LDG": 0, "STG": 4},
    ),
    "operands of known rows": Case(
        "def f(float32 A[N,32], float32 B[32,76]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        ({"N": 67}, {"N": 2}),
        {"store_f32x4": 4},
        {"LDGSTS": 2, "STG": 4},
    ),
    "halves of known rows": Case(
        "def f(float16 A[N,32], float16 B[32,72]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        ({"N": 67}, {"N": 2}),
        {"store_u16x4": 4},
        {"LDGSTS": 2, "STG": 0},
    ),
    "halves multiplied": Case(
        "def f(float16 A[N,20], float16 B[20,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        ({"N": 67, "M": 72}, {"N": 65, "M": 66}),
        {"store_u16x4": 4},
        {"LDG": 0, "STG": 0},
    ),
    "sums of rows": Case(
        "def f(float32 X[N,M]) -> (Y) { Y[i] +=! X[i,j] }",
        ({"N": 3, "M": 1100}, {"N": 3, "M": 34}, {"N": 1, "M": 3}),
        {"load_f32x4": 1},
        {"LDG": 1},
    ),
    "softmax": Case(
        "def f(float16 X[N,264]) -> (Y) { top[i] max=! X[i,j]; e[i,j] = exp(X[i,j] - top[i]); "
        "sum[i] +=! e[i,j]; Y[i,j] = e[i,j] / sum[i] }",
        ({"N": 3},),
        {"load_u16x8": 2, "store_u16x8": 1},
        {"LDG": 2, "STG": 1},
        1e-2,
    ),
    "normalised rows": Case(
        "def f(float32 X[N,M], float32 g[M], float32 b[M]) -> (Y) { s[i] +=! X[i,j]; "
        "v[i] +=! (X[i,j] - s[i] / M) * (X[i,j] - s[i] / M); "
        "Y[i,j] = (X[i,j] - s[i] / M) / sqrt(v[i] / M + 1e-5) * g[j] + b[j] }",
        ({"N": 3, "M": 132}, {"N": 3, "M": 130}),
        {"load_f32x4": 5, "store_f32x4": 1},
        {"LDG": 5, "STG": 1},
    ),
    "known sizes": Case(
        "def f(float32 X[33,68]) -> (Y) { Y[i,j] = exp(X[i,j]) }",
        ({},),
        {"load_f32x4": 1, "store_f32x4": 1},
        {"LDG": 1, "STG": 1},
    ),
}  # fmt: skip
#: What has a thread for each point: rows that begin anywhere, neighbours on one side only.
NARROW = {
    "odd rows": "def f(float32 X[N,1001], float32 b[1001]) -> (Y) { Y[i,j] = X[i,j] + b[j] }",
    "shifted": "def f(float32 X[N]) -> (Y) { Y[i] = X[i+1] - X[i] where i in 0:N-1 }",
    "every other": "def f(float32 X[N,2]) -> (Y) { Y[i] = X[i,1] }",
    "looked up": "def f(float32 X[N], int64 k[M]) -> (Y) { Y[i] = X[k[i]] }",
    "two rows of one array": "def f(float32 A[T,N]) -> (A) "
    "{ A[t+1,i] = A[t,i] / 2 where t in 0:T-1 }",
    "few points": "def f(float32 X[64]) -> (Y) { Y[i] = X[i] + 1 }",
}


def made(text: str, dialect: str) -> tuple[Program, fk.Schedule, GpuSource]:
    program = fk.parse(text)
    schedule = gpu_schedule(fk.Schedule.of(CUDA.prepare(program, SMALL)), SMALL)
    return program, schedule, generate_gpu(schedule, dialect, program)


def calls(source: GpuSource) -> dict[str, int]:
    """How often each helper is called."""
    return dict(Counter(re.findall(r"fk_((?:load|store)_\w+x\d+)\(&", source.text)))


class Askew(CpuDevice):
    """A CPU on which all arrays begin one element behind a multiple of 64 bytes."""

    skew = 0

    def allocate(self, count: int) -> Array:
        buffer = aligned((count + self.skew,), np.dtype(np.uint8), 64)[self.skew :]
        buffer.fill(0xFF)
        return buffer


def equal(
    program: Program,
    source: GpuSource,
    device: Device,
    sizes: dict[str, int],
    tolerance: float = 1e-5,
) -> None:
    inputs = random_inputs(program, sizes)
    expected = run(program, inputs, sizes)
    found = GpuProgram(source, device)(**inputs)
    results = found if isinstance(found, tuple) else (found,)
    for t, got in zip(program.outputs, results, strict=True):
        written = expected.written[t.name]
        wanted = expected.values[t.name][written].astype(np.float64)
        np.testing.assert_allclose(got[written].astype(np.float64), wanted, tolerance, 1e-6)


@pytest.mark.parametrize("dialect", ["cuda", "opencl"])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_loaded_and_stored_at_once(case: Case, dialect: str) -> None:
    _, _, source = made(case.text, dialect)
    assert calls(source) == case.calls
    assert len(source.kernels) == 1


@pytest.mark.parametrize("text", NARROW.values(), ids=list(NARROW))
def test_what_is_not(text: str) -> None:
    _, schedule, source = made(text, "cuda")
    assert calls(source) == {} and "map_threads" in str(schedule) and "_g" not in str(schedule)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_arrays_may_begin_anywhere(case: Case, tmp_path: Path) -> None:
    program, _, source = made(case.text, "cuda")
    device = Askew(tmp_path)
    for sizes in case.sizes:
        for device.skew in (0, 8):
            for device.backwards in (False, True):
                equal(program, source, device, sizes, case.tolerance)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_opencl_equals_the_reference(case: Case, cache: Cache) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    program, _, source = made(case.text, "opencl")
    for sizes in case.sizes:
        equal(program, source, find_device("opencl", cache), sizes, case.tolerance)


#: Schedules by hand of rows of 1002 elements, and what is called then: rows begin at multiples of
#: two elements only, registers are not marked to be written out, and of some there is one.
BY_HAND = {
    "pairs": ("unroll p: jv\npromote p: jt as X, register\npromote p: jt as Y, register",
              {"load_f32x2": 2, "store_f32x2": 2}),
    "one side": ("promote p: jt as Y, register", {"store_f32x2": 2}),
    "each alone": ("promote p: jv as X, register\npromote p: jv as Y, register", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_a_schedule_of_ones_own(name: str, tmp_path: Path) -> None:
    program = fk.parse("def f(float32 X[N,1002]) -> (Y) { p: Y[i,j] = X[i,j] + 1 }")
    steps = "split p: j by 4 as jg, jv\nsplit p: jg by 32 as jb, jt\nmap_blocks p: i, jb\n"
    more, called = BY_HAND[name]
    schedule = fk.Schedule.of(program).replay(f"{steps}map_threads p: jt\n{more}")
    source = generate_gpu(schedule, "cuda")
    assert calls(source) == called
    device = Askew(tmp_path)
    for device.skew in (0, 8, 4):
        equal(program, source, device, {"N": 3})


#: One of each form: points alone, groups of two lengths, shared tiles, sums of threads.
WATCHED = [
    "bias, relu and sum",
    "of different lengths",
    "operands of known rows",
    "normalised rows",
]


@pytest.mark.parametrize("name", WATCHED)
def test_there_are_no_races(name: str) -> None:
    _, schedule, source = made(CASES[name].text, "cuda")
    assert races(schedule, source, CASES[name].sizes[-1]) == []


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_sanitizers_find_nothing(name: str, sanitizer: str, tmp_path: Path) -> None:
    """Nor does the one that sees where accesses are not aligned."""
    if problem := why_not(sanitizer):
        pytest.skip(problem)
    program, _, source = made(CASES[name].text, "cuda")
    device = ChildDevice(tmp_path, sanitizer)
    for device.skew in (0, 8):
        equal(program, source, device, CASES[name].sizes[0])
    assert device.reports == []


#: A case, what is changed in its text, sizes, where arrays begin, and what has to be reported.
FAULTS = {
    "nobody asks where arrays begin": (
        "one dimension", r"fk_is_aligned\(\w, \d+\)", "1", {"N": 64}, 8, "alignment"
    ),
    "nor where rows do": ("bias, relu and sum", "M%4 == 0", "1", {"N": 3, "M": 22}, 0, "alignment"),
    "the last group is taken to be whole": (
        "one dimension", r"4\*thread_x \+ 3 < N", "4*thread_x < N", {"N": 62}, 0, "overflow"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_condition_is_found(name: str, tmp_path: Path) -> None:
    if problem := why_not("address"):
        pytest.skip(problem)
    case, condition, other, sizes, skew, word = FAULTS[name]
    program, _, source = made(CASES[case].text, "cuda")
    text, count = re.subn(condition, other, source.text)
    assert count
    device = ChildDevice(tmp_path, "address", skew=skew)
    GpuProgram(replace(source, text=text), device)(**random_inputs(program, sizes))
    assert device.reports and all(word in r for r in device.reports), device.reports


# --- machine code --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arch"), on_one_each(CASES))
def test_it_becomes_wide_instructions(name: str, arch: str, tmp_path: Path) -> None:
    needs_compiler(arch)
    case = CASES[name]
    _, _, source = made(case.text, "cuda")
    cubin = compile_cubin(source.text, arch)
    for own in cubin.kernels.values():
        assert own.spill_store_bytes == own.spill_load_bytes == own.stack_bytes == 0
        assert own.registers <= 128
    counted = instructions(cubin.data, tmp_path)
    for kind, count in case.wide.items():
        found = sum(n for name, n in counted.items() if re.match(rf"{kind}\.E\b.*\.?128\b", name))
        assert found == count, counted
