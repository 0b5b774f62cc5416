"""What NVIDIA's compiler makes of generated CUDA text; needs no GPU."""

from __future__ import annotations

import re

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from codegen.pipeline import GPU
from poly.machine.gpu import ANY
from runtime.cuda.compile import compile_cubin
from tests.gpu.architectures import needs_compiler, on_one_each
from tests.gpu.programs import CASES

#: Registers of a multiprocessor, of which a block may take half, and of a thread: with more, a
#: kernel of this size has something in registers that should not be there.
ALL_REGISTERS, MOST_REGISTERS = 65536, 96


@pytest.mark.parametrize(("name", "arch"), on_one_each(CASES))
def test_what_kernels_take(name: str, arch: str) -> None:
    """Nothing is spilled or indexed in registers, and what is shared is what `GpuKernel` says."""
    needs_compiler(arch)
    case = CASES[name]
    source = generate_gpu(fk.Schedule.of(fk.parse(case.text)).replay(case.script), "cuda")
    taken = compile_cubin(source.text, arch).kernels
    assert set(taken) == {k.symbol for k in source.kernels}
    for kernel in source.kernels:
        x, y, z = kernel.block
        own = taken[kernel.symbol]
        assert own.spill_store_bytes == own.spill_load_bytes == own.stack_bytes == 0
        assert own.shared_bytes == kernel.shared_bytes
        assert 0 < own.registers <= MOST_REGISTERS
        assert own.registers * x * y * z <= ALL_REGISTERS // 2


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_no_minimum_is_of_a_negation(dtype: str) -> None:
    """Which ptxas 13.0 loses, see `codegen.gpu.integer_helpers`."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    needs_compiler("sm_90")
    operands = ", ".join(f"{dtype} {n}[N]" for n in "ABC")
    body = "Y[i] = min(A[i], min(B[i], -C[i])); Z[i % 9] max=! max(-B[i], A[i]) where i in 0:N"
    program = fk.parse(f"def f({operands}) -> (Y, Z) {{ {body} }}")
    text = GPU["cuda"].automatic(program, ANY, exact=True).source.text
    _, made = nvrtc.nvrtcCreateProgram(text.encode(), b"f.cu", 0, [], [])
    assert nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_90"])[0] == 0
    ptx = b" " * nvrtc.nvrtcGetPTXSize(made)[1]
    nvrtc.nvrtcGetPTX(made, ptx)
    lines = ptx.decode()
    negated = set(re.findall(r"(?:neg\.s\d+|sub\.s\d+)\s+(%\w+)", lines))
    compared = re.findall(r"(?:min|max)\.[su]\d+\s+%?\w+, (%?\w+), (%?\w+);", lines)
    assert negated and compared
    assert not negated & {name for pair in compared for name in pair}
