"""CUDA text to machine code without a driver: NVRTC, nvcc, what ptxas says, and the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from codegen.pipeline import CUDA
from poly.machine.gpu import ANY
from runtime.common.cache import Cache
from runtime.cuda import compile as cuda_compile
from runtime.cuda import toolkit as cuda_toolkit
from runtime.cuda.compile import Resources, compile_cubin, find_cuda_compiler, read_resources
from runtime.cuda.toolkit import find_nvcc, find_nvrtc
from tests.gpu.programs import CASES

COMPILERS = {"NVRTC": find_nvrtc, "nvcc": find_nvcc}


def text(case: str) -> str:
    schedule = fk.Schedule.of(fk.parse(CASES[case].text)).replay(CASES[case].script)
    return generate_gpu(schedule, "cuda").text


needs_compiler = pytest.mark.skipif(
    find_nvrtc() is None and find_nvcc() is None, reason="neither NVRTC nor nvcc is installed"
)


@needs_compiler
def test_what_a_block_shares_is_told() -> None:
    """That of each case, and what is spilled, is in tests/gpu/test_nvrtc.py."""
    (takes,) = compile_cubin(text("shared tiles"), "sm_90").kernels.values()
    assert takes.shared_bytes == (16 * 8 + 8 * 16) * 4 and takes.stack_bytes == 0


@pytest.mark.parametrize("name", COMPILERS)
def test_both_compilers_say_the_same(name: str) -> None:
    compiler = COMPILERS[name]()
    if compiler is None:
        pytest.skip(f"{name} is not installed")
    data, log = compiler.compile(text("shared tiles"), "sm_80")
    ((symbol, takes),) = read_resources(log).items()
    assert data.startswith(b"\x7fELF") and symbol.startswith("fk_mm_")
    assert takes.registers > 10 and takes.shared_bytes == 1024
    with pytest.raises(fk.ToolchainError, match=r'failed:\nkernels.cu\(1\): error: .*"nonsense"'):
        compiler.compile('extern "C" __global__ void f(nonsense x) {}', "sm_80")


@needs_compiler
def test_machine_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    first = compile_cubin(text("rows"), "sm_90", cache)
    compiler = find_cuda_compiler("sm_90")
    monkeypatch.setattr(type(compiler), "compile", lambda *_: pytest.fail("compiled again"))
    assert compile_cubin(text("rows"), "sm_90", cache) == first


def test_kernels_that_spill_may_have_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those, and no others: fewer blocks run at once."""
    said = """ptxas info    : Compiling entry function '{0}' for 'sm_80'
ptxas info    : Function properties for {0}
    8 bytes stack frame, {1} bytes spill stores, 8 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers
"""
    source = "".join(
        f'extern "C" __global__ void __launch_bounds__(256)\n{name}(float *x)\n{{ }}\n'
        for name in ("fk_a_0", "fk_a_01")
    )

    class Compiler:
        identity = "one that spills"

        def compile(self, text: str, arch: str, flags: object) -> tuple[bytes, str]:
            spilled = 0 if "__launch_bounds__(256, 1)\nfk_a_0(" in text else 16
            return text.encode(), said.format("fk_a_0", spilled) + said.format("fk_a_01", 0)

    monkeypatch.setattr(cuda_compile, "find_cuda_compiler", lambda _: Compiler())
    cubin = compile_cubin(source, "sm_80")
    assert cubin.kernels["fk_a_0"].spill_store_bytes == 0
    assert cubin.data.decode().count(", 1)") == 1


@needs_compiler
def test_ptxas_would_rather_spill() -> None:
    """A kernel of which ptxas 13.0 spilled 48 bytes for sm_80, with 64 registers of 255."""
    program = fk.parse("""def f(int32 A[8,M,K], int32 B[8,K,K], int32 C[M]) -> (Y, Z) {
        Y[b,i,j] +=! A[b,i,k] * B[b,k,j]
        Z[b,i,j] = max(Y[b,i,j] + C[i], 0) }""")
    source = CUDA.automatic(program, ANY, exact=True).source
    for arch in ("sm_80", "sm_90"):
        for takes in compile_cubin(source.text, arch).kernels.values():
            assert takes.spill_store_bytes == takes.stack_bytes == 0


def test_what_is_no_architecture() -> None:
    with pytest.raises(fk.ArgumentError, match="'gfx90a' is not a CUDA architecture; use sm_80"):
        compile_cubin("", "gfx90a")


def test_an_architecture_that_no_compiler_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setattr("runtime.cuda.compile.find_nvcc", lambda: None)
    with pytest.raises(
        fk.ToolchainError, match=r"does not compile for sm_20, only for sm_75, .*new"
    ):
        compile_cubin("", "sm_20")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything that is searched is empty."""
    cuda_toolkit.find_nvrtc.cache_clear()
    cuda_toolkit.find_nvcc.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_toolkit, "_toolkits", lambda: [tmp_path])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    try:
        with pytest.raises(fk.ToolchainError, match="no CUDA compiler: pip install nvidia-cuda-nv"):
            find_cuda_compiler("sm_90")
    finally:
        cuda_toolkit.find_nvrtc.cache_clear()
        cuda_toolkit.find_nvcc.cache_clear()


def test_a_library_and_a_program_that_are_broken_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so").write_text("no library")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(cuda_toolkit, "_toolkits", lambda: [tmp_path])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert cuda_toolkit.find_nvrtc.__wrapped__() is None
    assert cuda_toolkit.find_nvcc.__wrapped__() is None


def test_what_ptxas_says() -> None:
    log = """\
ptxas info    : 77 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Function properties for helper
    4 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""
    assert read_resources(log) == {
        "one": Resources(255, 8, 12, 16, 2048), "two": Resources(10, 0, 0, 0, 0)
    }  # fmt: skip
