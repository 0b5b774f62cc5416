"""OpenVINO on the processor."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np

from benchmarks.kernel import Array
from benchmarks.peers.base import Peer, Prepared
from benchmarks.sixteen_bits import NUMPY
from benchmarks.task import Task

_BFLOAT16 = NUMPY["bfloat16"]


class OpenVino(Peer):
    """One request for latency, in float32 or the type that the task is about.

    By itself it would choose bfloat16 where supported.
    """

    name = "openvino"
    modules = ("openvino",)
    package = "openvino"

    def file(self, task: Task) -> Path:
        """The file to load."""
        return task.path

    def load(self) -> None:
        """Load it without its telemetry module."""
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        super().load()

    def prepare(self, task: Task, threads: int) -> Prepared:
        ov = importlib.import_module("openvino")
        core = ov.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": "bf16" if task.element == "bfloat16" else "f32",
        }
        compiled = core.compile_model(core.read_model(str(self.file(task))), "CPU", settings)
        request = compiled.create_infer_request()
        for name, array in task.inputs.items():
            if array.dtype == _BFLOAT16:
                shape, bits = ov.Shape(array.shape), array.view(np.uint16)
                request.set_tensor(name, ov.Tensor(bits, shape, ov.Type.bf16))
            else:
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        count = len(task.outputs)

        def fetch(_: object) -> list[Array]:
            tensors = [request.get_output_tensor(n) for n in range(count)]
            # It shows bfloat16 as float16.
            is_half = [t.element_type == ov.Type.bf16 for t in tensors]
            return [
                (t.data.view(_BFLOAT16) if half else t.data).copy()
                for t, half in zip(tensors, is_half, strict=True)
            ]

        return Prepared(request.infer, fetch)


class OpenVinoFloats(OpenVino):
    """Sums of integers written as sums of floats between DequantizeLinear, which it fuses."""

    name = "openvino-qdq"
    form = "qdq"

    def suits(self, task: Task) -> bool:
        return self.form in task.forms

    def file(self, task: Task) -> Path:
        return task.forms[self.form]


class OpenVinoQuantised(OpenVinoFloats):
    """The same with inputs that are quantised: where nothing is, it multiplies floats."""

    name = "openvino-fq"
    form = "quantised"
