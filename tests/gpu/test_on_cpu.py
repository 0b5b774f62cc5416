"""CUDA text on the CPU: equal to the reference, with threads in both orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from runtime.reference.verify import random_inputs
from tests.gpu.programs import CASES, Case


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_equals_the_reference(case: Case, tmp_path: Path) -> None:
    program = fk.parse(case.text)
    source = generate_gpu(fk.Schedule.of(program).replay(case.script), "cuda")
    inputs = random_inputs(program, case.sizes)
    (expected,) = evaluate(program, inputs).values()
    for backwards in (False, True):
        run = GpuProgram(source, CpuDevice(tmp_path, backwards=backwards))
        np.testing.assert_allclose(run(**inputs), expected, rtol=1e-5, atol=1e-6)
