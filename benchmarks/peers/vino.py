"""OpenVINO on the processor."""

from __future__ import annotations

import importlib
import sys

from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task


class OpenVino(Peer):
    """One request for latency, in float32 (else it would choose bfloat16 where supported)."""

    name = "openvino"
    modules = ("openvino",)
    package = "openvino"

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
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(core.read_model(str(task.path)), "CPU", settings)
        request = compiled.create_infer_request()
        for name, array in task.inputs.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        count = len(task.outputs)
        return Prepared(
            request.infer,
            lambda _: [request.get_output_tensor(n).data.copy() for n in range(count)],
        )
