"""OpenCL text on whatever device there is, PoCL's CPU at least: equal to the reference."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.common.cache import Cache
from runtime.find_device import find_device
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs
from tests.gpu.programs import CASES, Case

pytest.importorskip("pyopencl", reason="pyopencl is not installed")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_equals_the_reference(case: Case, cache: Cache) -> None:
    program = fk.parse(case.text)
    source = generate_gpu(fk.Schedule.of(program).replay(case.script), "opencl")
    inputs = random_inputs(program, case.sizes)
    (expected,) = evaluate(program, inputs).values()
    run = GpuProgram(source, find_device("opencl", cache))
    np.testing.assert_allclose(run(**inputs), expected, rtol=1e-5, atol=1e-6)


def test_two_sums_of_blocks_that_run_at_once(cache: Cache) -> None:
    """A function with a barrier that is called twice is inlined, see `codegen.gpu.printers`."""
    program = fk.parse("""def spread(float32 X[N,768]) -> (V) {
        M[i] +=! X[i,k]
        V[i] +=! (X[i,k] - M[i]/768) * (X[i,k] - M[i]/768) }""")
    kernel = fk.compile(str(program), target="opencl", cache=cache)
    text = kernel.source
    assert text.count("fk_sum_of_256_f32(") == 3 and "always_inline))\nstatic inline float" in text
    inputs = random_inputs(program, {"N": 128})
    (expected,) = evaluate(program, inputs).values()
    there = {n: kernel.target.device.put(a) for n, a in inputs.items()}
    for _ in range(300):  # blocks meet only now and then
        np.testing.assert_allclose(kernel(**there).numpy(), expected, rtol=1e-4)


def test_what_the_driver_refuses(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl

    kernel = fk.compile("B[i] = 2 * A[i]", dtypes="float32", target="opencl", cache=cache)

    def refuse(*_: object, **__: object) -> None:
        raise pyopencl.MemoryError("clEnqueue", -4)  # which some drivers find out late

    monkeypatch.setattr(pyopencl, "enqueue_copy", refuse)
    with pytest.raises(fk.ToolchainError, match=r"the copy to the device failed: .*clEnqueue"):
        kernel(np.ones(5, np.float32))


@pytest.mark.parametrize("size", [3, 16, 37])
def test_hints_of_loops_are_for_gpus(size: int, cache: Cache) -> None:
    """What PoCL 3.0 made of such a loop, once it was written out, was wrong."""
    program = fk.parse("""def f(uint8 A[3*N,2*N], uint8 B[4,N], uint8 U[N,N]) -> (U) {
        U[i,j] min= sign(fmod(255, max(A[3*j,i+j], B[(i+1) % 4,i])))
            where i in 0:N, j in 0:N, i <= j }""")
    kernel = fk.compile(str(program), target="opencl", cache=cache)
    assert "#pragma unroll" in kernel.source
    u = np.full((size, size), 9, np.uint8)
    inputs = random_inputs(program, {"N": size}) | {"U": u}
    (expected,) = evaluate(program, inputs).values()
    np.testing.assert_array_equal(kernel(**inputs), expected)


@pytest.mark.parametrize("function", ["ceil", "floor", "trunc", "round", "exp", "tanh"])
def test_functions_of_what_is_no_number(function: str, cache: Cache) -> None:
    """PoCL computes some of its own functions of a constant NaN to anything."""
    kernel = fk.compile(f"Y[i] = {function}(nan - X[i])", target="opencl", cache=cache)
    assert np.isnan(kernel(np.ones(5, np.float32))).all()


def test_barriers_of_loops_inside_of_each_other(cache: Cache) -> None:
    """Where one barrier followed the last one of a loop, PoCL let threads run ahead."""
    program = fk.parse("""def f(float64 A[N,7,3*N], float64 B[N,N,7,N,N], int64 P[N],
                                float64 C[1,7,22,3*N+1], float32 D[]) -> (Y) {
        Y[i,j,k,l] = min(-max(A[l,k,2*l+i], B[max(l-1, 0),i,k,j,l]),
                         max(0.1, max(D[], C[P[j],k,3*k+1,3*i+1]))) where i in 0:N, k in 0:7 }""")
    kernel = fk.compile(str(program), target="opencl", exact=True, cache=cache)
    assert "__local" in kernel.source
    inputs = random_inputs(program, {"N": 9})
    (expected,) = evaluate(program, inputs).values()
    np.testing.assert_array_equal(kernel(**inputs), expected)
