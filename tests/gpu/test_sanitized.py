"""Generated CUDA text under AddressSanitizer and ThreadSanitizer: nothing is reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs
from tests.gpu.programs import CASES, Case
from tests.gpu.sanitized import SANITIZERS, ChildDevice, why_not


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_nothing_is_reported(sanitizer: str, case: Case, tmp_path: Path) -> None:
    if problem := why_not(sanitizer):
        pytest.skip(problem)
    program = fk.parse(case.text)
    source = generate_gpu(fk.Schedule.of(program).replay(case.script), "cuda")
    inputs = random_inputs(program, case.sizes)
    (expected,) = evaluate(program, inputs).values()
    device = ChildDevice(tmp_path, sanitizer)
    run = GpuProgram(source, device)
    for device.backwards in (False, True):
        np.testing.assert_allclose(run(**inputs), expected, rtol=1e-5, atol=1e-6)
        assert device.reports == []
