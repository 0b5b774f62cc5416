"""What NVIDIA's compiler makes of generated CUDA text; needs no GPU."""

from __future__ import annotations

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
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
