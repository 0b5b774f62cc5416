"""Generated OpenCL text in oclgrind: nothing is reported, and the results are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs
from tests.gpu.oclgrind import OclgrindDevice, is_of_a_value, why_not
from tests.gpu.programs import CASES, Case


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_nothing_is_reported(case: Case, tmp_path: Path) -> None:
    program = fk.parse(case.text)
    source = generate_gpu(fk.Schedule.of(program).replay(case.script), "opencl")
    inputs = random_inputs(program, case.sizes)
    (expected,) = evaluate(program, inputs).values()
    device = OclgrindDevice(tmp_path)
    got = GpuProgram(source, device)(**inputs)
    assert device.reports == []
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_branches_of_values_and_of_statements_are_told_apart() -> None:
    text = (
        "inline float fk_f16_load(fk_f16 x)\n{ if (x < 4) return 1;\n  return 2; }\n"
        "__kernel void f(__global float *Y, float x)\n{\n  if (x < 2)\n  {\n"
        "    Y[0] = fk_max_f32(x, 0.0f);\n  }\n  for (int i = 0; i < x; i++)\n  }\n}"
    )
    branch = "Controlflow depends on uninitialized value\n\tAt line {} (column 5) of input.cl:\n"
    of_values = [n for n in range(1, 13) if is_of_a_value(branch.format(n), text)]
    assert of_values == [1, 2, 3, 4, 5, 7, 8, 9, 11, 12]  # line 6 and 10 say what is run
    for other in ("Uninitialized value written to global memory address 0x0", "Race condition"):
        assert not is_of_a_value(f"{other}\n\tAt line 2 (column 5) of input.cl:\n", text)
    assert not is_of_a_value("Controlflow depends on uninitialized value", text)
