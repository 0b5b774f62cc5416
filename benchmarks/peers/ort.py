"""ONNX Runtime on the processor."""

from __future__ import annotations

import importlib

import numpy as np

from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task


class OnnxRuntime(Peer):
    """All graph optimisations, inputs and outputs bound once."""

    name = "ort"
    modules = ("onnxruntime",)
    package = "onnxruntime"

    def prepare(self, task: Task, threads: int) -> Prepared:
        ort = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(str(task.path), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in task.inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for info in session.get_outputs():
            if not task.is_translated:
                binding.bind_output(info.name)  # declared shapes may be wrong
                continue
            value = ort.OrtValue.ortvalue_from_numpy(np.empty(info.shape, np.float32))
            binding.bind_ortvalue_output(info.name, value)
        return Prepared(
            lambda: session.run_with_iobinding(binding),
            lambda _: [value.numpy().copy() for value in binding.get_outputs()],
        )
