"""The same text on a CPU, through OpenCL, and as CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import farkas as fk
from benchmarks.kernel import one_model
from farkas.targets.base import Target
from farkas.targets.find_target import target_of
from runtime.common.cache import Cache
from tests.gpu.programs import CASES

TARGETS = ("cpu", "opencl", "cuda-emulator")
MATMUL = "C[i,j] +=! A[i,k] * B[k,j]"
#: Texts of every sort, with sizes that no tile divides.
TEXTS: dict[str, tuple[str, dict[str, int]]] = {
    "matrix product": (MATMUL, {"I": 21, "K": 19, "J": 37}),
    "einsum": ("bij,bkj->bik", {"B_size": 2, "I": 9, "J": 17, "K": 11}),
    "softmax": (
        "top[i] max=! X[i,j]; e[i,j] = exp(X[i,j] - top[i]); sum[i] +=! e[i,j]; "
        "Y[i,j] = e[i,j] / sum[i]",
        {"I": 3, "J": 70},
    ),
    "layer normalisation": (
        "def ln(float32 X[N,M], float32 g[M]) -> (Y) { s[i] +=! X[i,j]; m[i] = s[i] / float32(M); "
        "v[i] +=! (X[i,j] - m[i]) * (X[i,j] - m[i]); "
        "Y[i,j] = (X[i,j] - m[i]) * rsqrt(v[i] / float32(M) + 0.00001) * g[j] }",
        {"N": 3, "M": 45},
    ),
    "convolution": (
        "def conv(float32 X[2,3,10,11], float32 W[5,3,3,3], float32 b[5]) -> (Z) { "
        "Y[n,o,y,x] +=! X[n,c,y+r,x+s] * W[o,c,r,s]; Z[n,o,y,x] = max(Y[n,o,y,x] + b[o], 0) }",
        {},
    ),
    "transpose": ("def turn(float32 X[N,M]) -> (Y) { Y[j,i] = X[i,j] }", {"N": 19, "M": 33}),
    "stencil in time": (
        "def heat(float32 A[T,N]) -> (A) { A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] "
        "where t in 0:T-1, i in 1:N-1 }",
        {"T": 4, "N": 50},
    ),
    "scan": (
        "def scan(int64 X[N,M], int64 A[N,M]) -> (A) { A[i,j] = A[i,j-1] + X[i,j] where j in 1:M }",
        {"N": 9, "M": 7},
    ),
    "halves": (
        "def mm(float16 A[N,K], bfloat16 B[K,M]) -> (float32 C[N,M]) "
        "{ C[i,j] +=! float32(A[i,k]) * float32(B[k,j]) }",
        {"N": 9, "K": 8, "M": 20},
    ),
    "bytes": (
        "def q(int8 A[N,K], uint8 B[K,M]) -> (int32 C[N,M]) "
        "{ C[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }",
        {"N": 9, "K": 30, "M": 20},
    ),
    "gather": (
        "def take(float32 X[N,M], int64 at[K]) -> (Y) { Y[i,j] = X[at[i],j] }",
        {"N": 9, "M": 30, "K": 5},
    ),
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    return target_of(None, None, None, request.param)


@pytest.mark.parametrize("name", TEXTS)
def test_one_text_everywhere(name: str, target: Target) -> None:
    text, sizes = TEXTS[name]
    dtypes = None if text.startswith("def") else "float32"
    kernel = fk.compile(text, dtypes=dtypes, target=target)
    report = kernel.verify(sizes)
    assert report.close(1e-5), str(report)


def test_calls_are_alike(target: Target) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((5, 4), np.float32), rng.random((4, 6), np.float32)
    kernel = fk.compile(MATMUL, target=target)
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-6)
    np.testing.assert_allclose(kernel(B=b, A=a), a @ b, rtol=1e-6)
    out = np.empty((5, 6), np.float32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-6)
    # A text without element types is compiled for those that come.
    assert kernel(a.astype(np.int32), b.astype(np.int32)).dtype == np.int32
    with pytest.raises(fk.ArgumentError, match="A has rank 1"):
        kernel(a[0], b)
    with pytest.raises(fk.ArgumentError, match="A is a str, expected a numpy array"):
        kernel("a", b)
    np.testing.assert_allclose(kernel(a.tolist(), b), a @ b, rtol=1e-6)


def test_numbers_take_the_type_of_arrays_on_the_device(cache: Cache) -> None:
    kernel = fk.compile("Y[i] = a[] * X[i]", target="cuda-emulator", cache=cache)
    device = kernel.target.device
    x = device.put(np.arange(3, dtype=np.float32))
    assert kernel(2, np.arange(3, dtype=np.float32)).tolist() == [0, 2, 4]
    result = kernel(2.5, x)
    assert result.dtype == np.float32 and result.tolist() == [0, 2.5, 5]
    out = device.put(np.zeros(3, np.float32))
    assert kernel(device.put(np.array(2, np.float32)), x, out=out) is out
    assert out.numpy().tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", ["shared tiles", "registers", "rows"])
def test_a_schedule_of_ones_own(name: str) -> None:
    case = CASES[name]
    kernel = fk.compile(case.text, schedule=case.script, target="cuda-emulator")
    assert kernel.verify(case.sizes).close(1e-5)
    assert "__global__" in kernel.source and "[block]" in kernel.tree
    with pytest.raises(fk.ScheduleError, match="a CPU has no such blocks"):
        fk.compile(case.text, schedule=case.script)
    other = kernel.with_schedule("written")
    assert other.verify(case.sizes).close(1e-5)


def test_exact_mode() -> None:
    kernel = fk.compile(MATMUL, dtypes="float32", exact=True, target="cuda-emulator")
    assert kernel.verify({"I": 9, "K": 40, "J": 11}).exact


def test_what_only_a_cpu_has() -> None:
    kernel = fk.compile(MATMUL, dtypes="float32", target="cuda-emulator")
    with pytest.raises(fk.ArgumentError, match="not a shared library"):
        _ = kernel.library
    with pytest.raises(fk.ArgumentError, match="no C compiler"):
        _ = kernel.toolchain
    a = np.ones((2, 2), np.float32)
    with pytest.raises(fk.ArgumentError, match="threads= is not supported on cuda-emulator"):
        kernel(a, a, threads=2)
    for given in ({"threads": 2}, {"cc": "gcc"}):
        with pytest.raises(fk.ArgumentError, match="is not supported for target 'cuda-emulator'"):
            fk.compile(MATMUL, target="cuda-emulator", **given)
    with pytest.raises(fk.ArgumentError, match="there is no device 'cudda'; did you mean 'cuda'"):
        fk.compile(MATMUL, target="cudda")
    with pytest.raises(fk.ArgumentError, match="target is a int"):
        fk.compile(MATMUL, target=3)


def test_explain_says_what_is_launched() -> None:
    kernel = fk.compile(MATMUL, dtypes="float32", target="cuda-emulator")
    said = str(kernel.explain(I=100, K=50, J=200))
    assert "1 x 2 x 4 blocks of 1 x 16 x 16 threads" in said and "KiB shared" in said
    assert "roofline" not in said


#: Sizes that tensor cores take.
PRODUCT = "def mm(float32 A[64,64], float32 B[64,64]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"


def test_rounded_factors(tmp_path: Path) -> None:
    """Texts, kernels and networks for a device that rounds are not those of another one."""
    rng = np.random.default_rng(0)
    a, b = (rng.random((64, 64), np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b
    network = one_model(
        "mm", [helper.make_node("MatMul", ["A", "B"], ["Y"])], {"A": (64, 64)}, {"Y": (64, 64)},
        {"B": b},
    )  # fmt: skip
    apart = {}
    for name in ("cuda-emulator:sm_80,tf32", "cuda-emulator:sm_80"):
        kernel = fk.compile(PRODUCT, target=name, cache=tmp_path)
        model = fk.compile_onnx(network, target=name, cache=tmp_path)
        (text,) = model.source.values()
        rounds = name.endswith("tf32")
        assert ("wmma_tf32" in str(kernel.schedule)) == ("tf32" in text) == rounds
        assert f"<CpuDevice {name}>" in repr(kernel.target)
        for explained in (kernel.explain(), model.explain()):
            assert f"on {name} (sm_80: " in str(explained)
            assert ("round float32" in str(explained)) == rounds
        for found in (kernel(a, b), model.run({"A": a})["Y"]):
            apart[name] = np.abs(found - exact).max() / np.abs(exact).max()
            assert 1e-5 < apart[name] < 1e-3 if rounds else apart[name] < 1e-6
    kernel = fk.compile(PRODUCT, exact=True, target="cuda-emulator:sm_80,tf32", cache=tmp_path)
    assert "wmma" not in str(kernel.schedule) and kernel.verify().exact


def test_a_device_needs_no_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the emulator and the CPU have one."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    kernel = fk.compile(MATMUL, dtypes="float32", target="opencl")
    assert kernel.verify({"I": 3, "K": 4, "J": 5}).close(1e-5)
    assert "pycuda" not in sys.modules


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16"])
def test_integers_wrap_around(target: Target, dtype: str) -> None:
    """Compilers of GPUs may take it that signed numbers do not, as C's without a flag."""
    text = (
        f"def f({dtype} X[N], {dtype} Y[N]) -> (A, B, C, D, S) {{ A[i] = X[i] * Y[i]; "
        "B[i] = X[i] + Y[i] > X[i]; C[i] = (X[i] - Y[i]) - X[i]; D[i] = abs(-X[i]) / Y[i]; "
        "S[i] +=! X[k] * Y[k] + X[i] }"
    )
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, info.max - 1, info.min, 7], dtype)
    y = np.array([info.max, info.max, 2, info.max if info.min == 0 else -1, 3], dtype)
    expected = fk.evaluate(fk.parse(text), {"X": x, "Y": y})
    for got, wanted in zip(fk.compile(text, target=target)(x, y), expected.values(), strict=True):
        np.testing.assert_array_equal(got, wanted)
