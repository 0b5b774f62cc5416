"""OpenCL text on whatever device there is, PoCL's CPU at least: equal to the reference."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.gpu import generate_gpu
from runtime.cache import Cache
from runtime.devices import find_device
from runtime.gpu import GpuProgram
from runtime.reference import evaluate
from runtime.verify import random_inputs
from tests.gpu.programs import CASES, Case

pytest.importorskip("pyopencl", reason="pyopencl is not installed")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_equals_the_reference(case: Case, cache: Cache) -> None:
    program = fk.parse(case.text)
    source = generate_gpu(fk.Schedule.of(program).replay(case.script), "opencl")
    inputs = random_inputs(program, case.sizes)
    (expected,) = evaluate(program, inputs).values()
    run = GpuProgram(source, find_device("opencl", cache))
    np.testing.assert_allclose(run(**inputs), expected, rtol=1e-5, atol=1e-6)
