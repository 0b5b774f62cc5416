"""What stands in for CUDA on a CPU does what CUDA does: texts written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import GpuKernel, GpuSource, generate_gpu
from poly.errors import ToolchainError
from poly.ir.expr import Const
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from tests.gpu.sanitized import ChildDevice, why_not

HEAD = "#include <stdint.h>\n"
KERNEL = 'extern "C" __global__ void __launch_bounds__(%s) k(const float *X, float *Y)'


def by_hand(
    body: str, block: tuple[int, int, int], grid: int = 1, bounds: str = "64", above: str = ""
) -> GpuSource:
    """A program ``Y = k(X)`` on arrays of one length whose only kernel has this body."""
    program = fk.parse("def f(float32 X[N]) -> (float32 Y[N]) { Y[i] = X[i] }")
    made = generate_gpu(fk.Schedule.of(program), "cuda")
    text = f"{HEAD}{above}\n{KERNEL % bounds}\n{{\n  (void)X, (void)Y;\n{body}\n}}\n"
    kernel = GpuKernel("k", (), (), ("X", "Y"), (Const(grid),), block, 0)
    return replace(made, text=text, kernels=(kernel,))


def run(source: GpuSource, x: np.ndarray, folder: Path) -> np.ndarray:
    """The result, the same with threads in both orders."""
    device = CpuDevice(folder)
    program = GpuProgram(source, device)
    forwards = program(x)
    device.backwards = True
    np.testing.assert_array_equal(program(x), forwards)
    return forwards  # type: ignore[return-value]


def reports(source: GpuSource, x: np.ndarray, folder: Path, sanitizer: str = "thread") -> list[str]:
    """What a sanitizer says, with threads in both orders."""
    if problem := why_not(sanitizer):
        pytest.skip(problem)
    device = ChildDevice(folder, sanitizer)
    program = GpuProgram(source, device)
    for device.backwards in (False, True):
        program(x)
    return device.reports


def numbers(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.float32)


SUM = """
  const int t = threadIdx.x;
  float v = X[t];
  for (int by = 16; by > 0; by /= 2) v += %s;
  __shared__ float sums[2];
  if (t %% 32 == 0) sums[t / 32] = v;
  __syncthreads();
  Y[t] = sums[0] + sums[1];
"""


@pytest.mark.parametrize(
    "other",
    ["__shfl_xor_sync(0xffffffff, v, by)", "__shfl_down_sync(0xffffffffu, v, by, 32)"],
)
def test_a_sum_by_shuffles(other: str, tmp_path: Path) -> None:
    source = by_hand(SUM % other, (64, 1, 1))
    assert run(source, numbers(64), tmp_path).tolist() == [2080.0] * 64
    assert reports(source, numbers(64), tmp_path) == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__shfl_sync(~0u, X[t], 3)", lambda t: 3),
        ("__shfl_sync(~0u, X[t], 3, 8)", lambda t: t // 8 * 8 + 3),
        ("__shfl_up_sync(~0u, X[t], 1)", lambda t: max(t - 1, 0)),
        ("__shfl_down_sync(~0u, X[t], 2, 16)", lambda t: t + 2 if t % 16 < 14 else t),
        ("__shfl_xor_sync(~0u, X[t], 5, 8)", lambda t: t ^ 5),
    ],
)
def test_which_lane_a_shuffle_reads(expression: str, expected, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = by_hand(f"  const int t = threadIdx.x;\n  Y[t] = {expression};", (32, 1, 1))
    got = run(source, numbers(32), tmp_path)
    assert got.tolist() == [expected(t) + 1 for t in range(32)]


def test_half_a_warp_may_shuffle_alone(tmp_path: Path) -> None:
    body = """
  const int t = threadIdx.x;
  float v = X[t];
  if (t < 16) for (int by = 8; by > 0; by /= 2) v += __shfl_xor_sync(0xffff, v, by);
  __syncwarp();
  Y[t] = __shfl_sync(0xffffffff, v, 0);"""
    assert run(by_hand(body, (32, 1, 1)), numbers(32), tmp_path).tolist() == [136.0] * 32


def test_a_lane_that_gives_nothing_is_no_number(tmp_path: Path) -> None:
    body = """
  const int t = threadIdx.x;
  Y[t] = X[t];
  if (t < 16) Y[t] = __shfl_down_sync(0xffff, X[t], 1);"""
    got = run(by_hand(body, (32, 1, 1)), numbers(32), tmp_path)
    assert np.isnan(got).nonzero()[0].tolist() == [15]


@pytest.mark.parametrize(("wait", "clean"), [("__syncwarp();", True), ("", False)])
def test_a_warp_is_ordered_by_syncwarp(wait: str, clean: bool, tmp_path: Path) -> None:
    """In several rounds, as one barrier for all of them would hide races."""
    body = f"""
  const int t = threadIdx.x;
  __shared__ float own[64];
  float v = X[t];
  for (int k = 0; k < 3; k++) {{
    own[t] = v;
    __syncwarp();
    v += own[t ^ 1];
    {wait}
  }}
  Y[t] = v;"""
    assert (reports(by_hand(body, (64, 1, 1)), numbers(64), tmp_path) == []) == clean


def test_syncwarp_does_not_order_other_warps(tmp_path: Path) -> None:
    body = """
  const int t = threadIdx.x;
  __shared__ float own[64];
  own[t] = X[t];
  __syncwarp();
  Y[t] = own[63 - t];"""
    assert any("data race" in r for r in reports(by_hand(body, (64, 1, 1)), numbers(64), tmp_path))


def test_loads_of_four(tmp_path: Path) -> None:
    body = """
  const int t = threadIdx.x;
  const float4 v = reinterpret_cast<const float4 *>(X)[t];
  const float4 w = __ldg((const float4 *)X + t);
  *(float4 *)(Y + 4*t) = make_float4(v.w, v.z, v.y, w.x);"""
    source = by_hand(body, (4, 1, 1))
    got = run(source, numbers(16), tmp_path)
    assert got.tolist() == numbers(16).reshape(4, 4)[:, ::-1].ravel().tolist()
    assert reports(source, numbers(16), tmp_path, "address") == []


def test_a_load_of_four_that_is_not_aligned_is_found(tmp_path: Path) -> None:
    body = "  if (threadIdx.x == 0) Y[0] = reinterpret_cast<const float4 *>(X + 1)->x;"
    found = reports(by_hand(body, (4, 1, 1)), numbers(16), tmp_path, "address")
    assert found and all("misaligned address" in r for r in found)


@pytest.mark.parametrize(
    ("add", "clean"), [("atomicAdd(&Y[0], X[t]);", True), ("Y[0] += X[t];", False)]
)
def test_atomic_additions_do_not_race(add: str, clean: bool, tmp_path: Path) -> None:
    """Neither between threads nor between blocks."""
    body = f"  const int t = 8*blockIdx.x + threadIdx.x;\n  {add}\n"
    source = by_hand(body, (8, 1, 1), grid=3)
    assert (reports(source, numbers(24), tmp_path) == []) == clean
    above = "__device__ int fk_count;"
    count = by_hand("  Y[0] = 7;\n  atomicAdd(&fk_count, 1);", (1, 1, 1), above=above)
    assert run(count, numbers(1), tmp_path).tolist() == [7.0]


def test_blocks_of_three_dimensions_and_bounds_that_are_expressions(tmp_path: Path) -> None:
    body = """
  const int t = (threadIdx.z*blockDim.y + threadIdx.y)*blockDim.x + threadIdx.x;
  if (gridDim.x == 1 && warpSize == 32) Y[t] = 100*threadIdx.z + 10*threadIdx.y + threadIdx.x;"""
    source = by_hand(body, (4, 3, 2), bounds="4*THREE*2, 1", above="#define THREE 3")
    expected = [100 * z + 10 * y + x for z in range(2) for y in range(3) for x in range(4)]
    assert run(source, numbers(24), tmp_path).tolist() == expected


def test_what_a_block_shares_is_its_own(tmp_path: Path) -> None:
    """A block finds nothing of another one, and there is no race between them."""
    body = """
  const int t = threadIdx.x;
  __shared__ float own[8];
  Y[8*blockIdx.x + t] = own[t];
  own[t] = X[t];"""
    source = by_hand(body, (8, 1, 1), grid=4)
    assert np.isnan(run(source, numbers(32), tmp_path)).all()
    assert reports(source, numbers(32), tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [
        "  if (threadIdx.x < 3) __syncthreads();",
        "  if (threadIdx.x < 3) { __syncthreads(); }\n  else { __syncthreads(); }",
        "  for (unsigned k = 0; k < threadIdx.x; k++) __syncthreads();",
        "  if (threadIdx.x < 3) __syncwarp();",
        "  if (threadIdx.x < 3) __syncwarp(7); else __syncwarp(0xf7);",
    ],
)
def test_threads_that_do_not_meet(body: str, tmp_path: Path) -> None:
    device = CpuDevice(tmp_path)
    program = GpuProgram(by_hand(body, (8, 1, 1)), device)
    for device.backwards in (False, True):
        with pytest.raises(ToolchainError, match="wait at different barriers"):
            program(numbers(8))
