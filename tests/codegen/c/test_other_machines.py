"""Products by the instructions of machines that this one is not.

Generated code has a form of each that any compiler takes, so results are compared here, too; those
of ARM are compiled for it and emulated where there are a compiler and an emulator.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from codegen.c.kernel_source import KernelSource
from codegen.c.kernel_unit import generate
from codegen.pipeline import CPU
from farkas import Schedule
from frontends.language.parse_program import parse_program
from poly.machine.cpu import Machine
from runtime.common.arguments import shape_of
from runtime.common.cache import Cache
from runtime.cpu.loaded_kernel import load_kernel
from runtime.cpu.toolchain import Toolchain
from tests.differential.machines import ARM_COMPILER, ARM_FLAGS, EMULATOR

ROWS, TERMS, COLUMNS = 13, 24, 48


@dataclass(frozen=True)
class Row:
    """What a machine has, a product of two types, and the instruction that it takes."""

    extensions: tuple[str, ...]
    vector_bytes: int
    types: tuple[str, str, str]
    instruction: str

    def source(self) -> KernelSource:
        a, b, c = self.types
        text = f"""def f({a} A[{ROWS},{TERMS}], {b} B[{TERMS},{COLUMNS}]) -> (C) {{
            C[i,j] +=! {c}(A[i,k]) * {c}(B[k,j]) }}"""
        machine = Machine(self.vector_bytes, 32, 32 << 10, 512 << 10, 8 << 20, 1, self.extensions)
        program = CPU.prepare(parse_program(text, {}), machine, False)
        made = CPU.generate(Schedule.of(program, False), machine, generate).source
        assert made is not None and f"as {self.instruction}" in made.text
        return made

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, B and their product, which no rounding changes."""
        rng = np.random.default_rng(1)
        made = []
        for dtype, shape in zip(self.types, ((ROWS, TERMS), (TERMS, COLUMNS)), strict=False):
            if dtype == "bfloat16":
                made.append(rng.integers(-8, 9, shape).astype(ml_dtypes.bfloat16))
                continue
            info = np.iinfo(dtype)
            values = rng.integers(info.min, info.max + 1, shape)
            made.append(np.where(rng.random(shape) < 0.2, info.min, values).astype(dtype))
        a, b = made
        return a, b, (a.astype(np.int64) @ b.astype(np.int64)).astype(self.types[2])


X86 = [
    Row(("sse2",), 16, ("int8", "uint8", "int32"), "pmaddwd_4_b"),
    Row(("avx2",), 32, ("uint8", "int8", "int32"), "vpmaddwd_8_b"),
    Row(("avx2", "avx512bw"), 64, ("int8", "int8", "int32"), "vpmaddwd_16_b"),
    Row(("avx2",), 32, ("int16", "int16", "int32"), "vpmaddwd_8_b"),
    Row(("avx2", "avx512bw"), 64, ("int16", "int16", "int32"), "vpmaddwd_16_b"),
    Row(("avx2", "avx512bw", "avx512_vnni"), 64, ("int16", "int16", "int32"), "vpdpwssd_16_b"),
    Row(("avx2", "avx_vnni"), 32, ("uint8", "int8", "int32"), "vpdpbusd_vex_8_b"),
    Row(("avx512_vnni",), 64, ("uint8", "int8", "int32"), "vpdpbusd_16_b"),
    Row(("avx512_bf16",), 64, ("bfloat16", "bfloat16", "float32"), "vdpbf16ps_16_b"),
]
ARM = [
    Row(("asimddp",), 16, ("int8", "int8", "int32"), "sdot_4_b"),
    Row(("asimddp",), 16, ("uint8", "uint8", "int32"), "sdot_4_b"),
    Row(("asimddp",), 16, ("uint8", "int8", "int32"), "sdot_4_b"),
    Row(("asimddp", "i8mm"), 16, ("uint8", "int8", "int32"), "usdot_4_b"),
    Row(("asimddp", "i8mm"), 16, ("int8", "int8", "int32"), "sdot_4_b"),
    Row(("bf16",), 16, ("bfloat16", "bfloat16", "float32"), "bfdot_4_b"),
]


def name(row: Row) -> str:
    return f"{row.instruction} {row.types[0]} {row.types[1]}"


@pytest.mark.parametrize("row", [*X86, *ARM], ids=name)
def test_code_for_another_machine_is_right_on_this_one(row: Row, toolchain: Toolchain) -> None:
    a, b, expected = row.operands()
    kernel = load_kernel(row.source(), toolchain, Cache())
    assert np.array_equal(kernel(a, b), expected)


MAIN = """
#include <stdio.h>
int main(void)
{{
  static unsigned char a[{a}], b[{b}], c[{c}];
  if (fread(a, 1, sizeof a, stdin) != sizeof a || fread(b, 1, sizeof b, stdin) != sizeof b)
    return 1;
  void *tensors[] = {{a, b, c{spare}}};
  {symbol}(1, NULL, tensors);
  return fwrite(c, 1, sizeof c, stdout) != sizeof c;
}}
"""


@pytest.mark.skipif(
    not (shutil.which(ARM_COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {ARM_COMPILER} and {EMULATOR}",
)
@pytest.mark.parametrize("row", ARM, ids=name)
def test_code_for_arm_runs_on_arm(row: Row, tmp_path: Path) -> None:
    a, b, expected = row.operands()
    source = row.source()
    spare = [t.dtype.bytes * prod(shape_of(t, {})) for t in source.workspace]
    main = MAIN.format(
        a=a.nbytes, b=b.nbytes, c=expected.nbytes, symbol=source.symbol,
        spare="".join(f", &(char[{n}]){{0}}" for n in spare),
    )  # fmt: skip
    (tmp_path / "kernel.c").write_text(source.text + main)
    flags = ("-O2", "-static", "-fopenmp", "-std=gnu11", "-Wall", "-Werror", *ARM_FLAGS)
    subprocess.run([ARM_COMPILER, *flags, "kernel.c", "-o", "run", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [EMULATOR, str(tmp_path / "run")],
        input=a.tobytes() + b.tobytes(), stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    got = np.frombuffer(done.stdout, expected.dtype).reshape(expected.shape)
    assert np.array_equal(got, expected)
    machine_code = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", str(tmp_path / "run")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"\t{row.instruction.split('_')[0]}\t" in machine_code.stdout
