"""Points of the space of a GPU: what is accepted computes the reference, on the emulator."""

from __future__ import annotations

from random import Random

import pytest

import farkas as fk
from codegen.pipeline import CUDA
from poly.machine.gpu import ANY
from poly.space.space import Space

PROGRAMS = {
    "product": "def f(float32 A[37,45], float32 B[45,70]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
    "bias": "def f(float32 X[300,64], float32 b[64]) -> (Y) { Y[i,j] = max(X[i,j] + b[j], 0) }",
    "rows": "def f(float32 X[40,128]) -> (Y) { m[i] max=! X[i,j]; Y[i,j] = exp(X[i,j] - m[i]) }",
    "line": "def f(float32 X[1000]) -> (Y) { Y[i] = X[i] * X[i] }",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_points_of_a_gpu(name: str) -> None:
    program = fk.parse(PROGRAMS[name])
    space = Space(fk.Schedule.of(CUDA.prepare(program, ANY)), ANY, CUDA.strategy)
    rng, scripts = Random(3), set[str]()
    for _ in range(24):
        point = space.sample(rng)
        try:
            schedule = space.schedule(point)
            CUDA.emit(schedule, program)
        except fk.ScheduleError:
            continue
        scripts.add(str(schedule))
    assert len(scripts) > 1
    for script in sorted(scripts)[:4]:
        kernel = fk.compile(PROGRAMS[name], schedule=script, target="cuda-emulator")
        assert kernel.verify().close(1e-5), script
