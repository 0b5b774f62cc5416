"""All ways to check a kernel without a GPU, one after the other: which of them find fault?

``results``   the CUDA text on the CPU with threads in both orders, compared with the reference
``address``   the same under AddressSanitizer
``thread``    the same under ThreadSanitizer
``oclgrind``  the OpenCL text in oclgrind
``races``     the loops, by `tests.gpu.races`
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

import farkas as fk
from codegen.gpu.emit import generate_gpu, lower_kernel
from codegen.loops.nodes import LoopNode
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from runtime.common.arguments import Array
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import run
from runtime.reference.verify import random_inputs
from tests.gpu import oclgrind, sanitized
from tests.gpu.races import races

LAYERS = ("results", "address", "thread", "oclgrind", "races")
Edit = Callable[[LoopNode], LoopNode]


def missing_layers() -> set[str]:
    """The layers for which something is not installed."""
    found = {s for s in sanitized.SANITIZERS if sanitized.why_not(s)}
    return found | ({"oclgrind"} if oclgrind.why_not() else set())


def findings(text: str, script: str, sizes: dict[str, int], edit: Edit, folder: Path) -> set[str]:
    """The layers that find fault with a program whose lowered loops were edited."""
    program = fk.parse(text)
    schedule = Schedule.of(program).replay(script)
    found = set()
    with edited(edit):
        cuda, opencl = (generate_gpu(schedule, dialect) for dialect in ("cuda", "opencl"))
        if races(schedule, cuda, sizes):
            found.add("races")
    inputs = random_inputs(program, sizes)
    # In a process of its own, which an access outside of all memory may end.
    plain = GpuProgram(cuda, device := sanitized.ChildDevice(folder))
    for device.backwards in (False, True):
        if not _right(plain(**inputs), program, inputs, sizes) or device.reports:
            found.add("results")
    absent = missing_layers()
    for name in sanitized.SANITIZERS:
        if name not in absent:
            GpuProgram(cuda, watch := sanitized.ChildDevice(folder, name))(**inputs)
            found |= {name} if watch.reports else set()
    if "oclgrind" not in absent:
        simulated = oclgrind.OclgrindDevice(folder)
        GpuProgram(opencl, simulated)(**inputs)
        found |= {"oclgrind"} if simulated.reports else set()
    return found


def edited(edit: Edit) -> AbstractContextManager[object]:
    """Everyone finds the loops of kernels edited."""
    stack = ExitStack()
    for place in ("codegen.gpu.emit.lower_kernel", "tests.gpu.races.lower_kernel"):
        stack.enter_context(patch(place, lambda body: edit(lower_kernel(body))))
    return stack


def _right(
    got: Array | tuple[Array, ...],
    program: Program,
    inputs: dict[str, Array],
    sizes: dict[str, int],
) -> bool:
    """Whether a call gave what the reference does."""
    expected = run(program, inputs, sizes)
    arrays = got if isinstance(got, tuple) else (got,)
    return all(
        np.allclose(a[w := expected.written[t.name]], expected.values[t.name][w], 1e-5, 1e-6)
        for t, a in zip(program.outputs, arrays, strict=True)
    )
