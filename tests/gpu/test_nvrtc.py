"""What NVIDIA's compiler makes of generated CUDA text; needs no GPU."""

from __future__ import annotations

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.cuda.compile import compile_cubin, find_cuda_compiler
from tests.gpu.programs import CASES, Case

#: Registers of a multiprocessor, of which a block may take half, and of a thread: with more, a
#: kernel of this size has something in registers that should not be there.
ALL_REGISTERS, MOST_REGISTERS = 65536, 96


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_kernels_take(case: Case, arch: str) -> None:
    """Nothing is spilled or indexed in registers, and what is shared is what `GpuKernel` says."""
    try:
        find_cuda_compiler(arch)
    except fk.ToolchainError as error:
        pytest.skip(str(error))
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
