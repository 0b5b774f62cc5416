"""Generated OpenCL text in oclgrind: nothing is reported, and the results are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu import generate_gpu
from runtime.gpu import GpuProgram
from runtime.reference import evaluate
from runtime.verify import random_inputs
from tests.gpu.oclgrind import OclgrindDevice, why_not
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
